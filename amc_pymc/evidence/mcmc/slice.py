"""Slice sampling, one coordinate at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from amc_pymc.arguments import positive_int
from amc_pymc.evidence.mcmc.target import (
    Move,
    Particles,
    Path,
    Tuning,
    checked_coordinates,
    checked_particles,
    checked_scale,
    log_target,
)

#: Maximum number of points tried on a slice. The interval has then shrunk to floating-point
#: resolution, and the particle does not move.
_MAX_TRIES = 200


@dataclass(frozen=True)
class Slice:
    """Univariate slice sampling by stepping out and shrinkage (Neal 2003, doi:10.1214/aos/1056562461).

    Coordinates are updated in turn. A level is drawn uniformly below the density. An interval of width
    w = size sd is placed at random around the point and extended in steps of w until its ends are below
    the level. Points are drawn uniformly from the interval, which shrinks to each point below the level,
    until one is above. At most `max_widths` - 1 steps are made, split at random between the two ends
    beforehand, as in figure 3 of the paper. Particles differ in their number of evaluations.

    A particle at density zero gets the longest interval and tries one point per coordinate, which is
    accepted if its density is positive.

    Parameters
    ----------
    max_widths : int, default 10
        Maximum length of an interval, in widths w; 1 disables stepping out.
    coordinates : tuple of int, optional
        Coordinates to move, by default all. The scale covers only these.

    Raises
    ------
    TypeError, ValueError
        If `max_widths` is not a positive integer or the coordinates are repeated or negative.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.mcmc import Slice, Tuning, start
    >>> from amc_pymc.rng import as_generator
    >>> class Gaussian:
    ...     n_dim = 2
    ...
    ...     def values(self, x):
    ...         return np.array([-0.5 * np.sum(x**2, axis=1), np.zeros(len(x))])
    >>> path, rng = Gaussian(), as_generator(1)
    >>> particles = start(path, np.full((500, 2), 5.0), with_gradient=False)
    >>> for _ in range(8):
    ...     particles, move = Slice().step(path, particles, 1.0, Tuning(2.0, np.ones(2)), rng)
    >>> bool(np.abs(particles.x.mean(axis=0)).max() < 0.2), 3 < move.evaluations / 1000 < 6
    (True, True)
    """

    max_widths: int = 10
    coordinates: tuple[int, ...] | None = None

    name: ClassVar[str] = "slice"
    needs_gradient: ClassVar[bool] = False
    target_acceptance: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_widths", positive_int("max_widths", self.max_widths))
        object.__setattr__(self, "coordinates", checked_coordinates(self.coordinates))

    def step(
        self,
        path: Path,
        particles: Particles,
        beta: float,
        tuning: Tuning,
        rng: np.random.Generator,
    ) -> tuple[Particles, Move]:
        """Move all particles along each coordinate once."""
        at, n_moved = checked_particles(particles, self.coordinates)
        scale = checked_scale(tuning, n_moved)
        sds = scale if scale.ndim == 1 else np.sqrt(np.einsum("ij,ij->i", scale, scale))
        widths = tuning.size * sds
        now = Particles(particles.x.copy(), particles.terms.copy())
        line = _Line(path, now, beta)
        for d, width in zip(np.arange(now.x.shape[1])[at], widths, strict=True):
            _move_along(line, int(d), float(width), self.max_widths, rng)
        return now, Move(np.ones(len(now.x)), line.evaluations, 0)


class _Line:
    """Densities of particles along a coordinate, with a count of evaluations."""

    def __init__(self, path: Path, particles: Particles, beta: float):
        self.path, self.particles, self.beta = path, particles, beta
        self.evaluations = 0

    def terms(self, rows: np.ndarray, d: int, points: np.ndarray) -> np.ndarray:
        """Return terms (2, A) of A particles with coordinate d set to the given points."""
        x = self.particles.x.take(rows, axis=0)
        x[:, d] = points
        self.evaluations += rows.size
        return self.path.values(x)


def _move_along(
    line: _Line, d: int, width: float, max_widths: int, rng: np.random.Generator
) -> None:
    """Move coordinate d of all particles, in place."""
    x, terms = line.particles.x, line.particles.terms
    log_now = log_target(terms, line.beta)
    level = log_now - rng.standard_exponential(log_now.size)
    left, right = _step_out(line, d, level, width, max_widths, rng)
    here, rows = x[:, d].copy(), np.arange(level.size)
    for tries in range(_MAX_TRIES):
        points = left + (right - left) * rng.random(rows.size)
        found = line.terms(rows, d, points)
        above = log_target(found, line.beta) > level
        done = rows[above]
        x[done, d] = points[above]
        terms[:, done] = found[:, above]
        below = ~above if tries else ~above & (level > -np.inf)
        state = np.array([left, right, here, level, points]).take(np.flatnonzero(below), axis=1)
        left, right, here, level, points = state
        rows = rows[below]
        if rows.size == 0:
            break
        to_the_left = points < here
        left = np.where(to_the_left, points, left)
        right = np.where(to_the_left, right, points)


def _step_out(
    line: _Line,
    d: int,
    level: np.ndarray,
    width: float,
    max_widths: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return the left and right ends (2, P) of the intervals."""
    n = level.size
    left = line.particles.x[:, d] - width * rng.random(n)
    ends = np.concatenate([left, left + width])
    steps_left = rng.integers(max_widths, size=n)
    steps = np.concatenate([steps_left, max_widths - 1 - steps_left])
    outwards = np.repeat([-width, width], n)
    nowhere = np.tile(level == -np.inf, 2)
    ends[nowhere] += (steps * outwards)[nowhere]
    active = np.flatnonzero((steps > 0) & ~nowhere)
    while active.size:
        rows = active % n
        inside = log_target(line.terms(rows, d, ends[active]), line.beta) > level[rows]
        active = active[inside]
        ends[active] += outwards[active]
        steps[active] -= 1
        active = active[steps[active] > 0]
    return ends.reshape(2, n)
