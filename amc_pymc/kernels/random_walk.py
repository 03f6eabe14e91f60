"""Random-walk Metropolis with Gaussian steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from amc_pymc.arguments import positive_int
from amc_pymc.kernels.metropolis import acceptance, settle
from amc_pymc.kernels.scaling import checked_coordinates, checked_particles, checked_scale, push
from amc_pymc.kernels.target import Move, Particles, Path, Tuning, log_target

__all__ = ["RandomWalk"]


@dataclass(frozen=True)
class RandomWalk:
    """Random-walk Metropolis kernel with Gaussian steps (Metropolis et al. 1953, doi:10.1063/1.1699114).

    The proposal is x' = x + size L z with z ~ N(0, I), where L is the diagonal matrix of the standard
    deviations or the Cholesky factor in the tuning. For a Gaussian of known scale, the best size is near
    2.4 / sqrt(D), with acceptance rate 0.44 in one dimension and 0.23 in many (Roberts & Rosenthal 2001,
    doi:10.1214/ss/1015346320).

    Parameters
    ----------
    n_steps : int, default 1
        Proposals in one move, each accepted or rejected.
    coordinates : tuple of int, optional
        Coordinates to move, by default all. The scale covers only these.

    Raises
    ------
    TypeError, ValueError
        If `n_steps` is not a positive integer or the coordinates are repeated or negative.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.kernels import RandomWalk, Tuning, start
    >>> from amc_pymc.rng import as_generator
    >>> class Gaussian:
    ...     n_dim = 2
    ...
    ...     def values(self, x):
    ...         return np.array([-0.5 * np.sum(x**2, axis=1), np.zeros(len(x))])
    >>> path, rng = Gaussian(), as_generator(1)
    >>> particles = start(path, rng.standard_normal((500, 2)), with_gradient=False)
    >>> particles, move = RandomWalk().step(path, particles, 1.0, Tuning(1.5, np.ones(2)), rng)
    >>> move.evaluations, bool(0.3 < move.acceptance.mean() < 0.5)
    (500, True)
    """

    n_steps: int = 1
    coordinates: tuple[int, ...] | None = None

    name: ClassVar[str] = "random_walk"
    needs_gradient: ClassVar[bool] = False
    target_acceptance: ClassVar[float] = 0.3

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_steps", positive_int("n_steps", self.n_steps))
        object.__setattr__(self, "coordinates", checked_coordinates(self.coordinates))

    def step(
        self,
        path: Path,
        particles: Particles,
        beta: float,
        tuning: Tuning,
        rng: np.random.Generator,
    ) -> tuple[Particles, Move]:
        """Move all particles `n_steps` times; the acceptance is the mean over the steps."""
        at, n_moved = checked_particles(particles, self.coordinates)
        scale = checked_scale(tuning, n_moved)
        n = len(particles.x)
        now, log_now = particles, log_target(particles.terms, beta)
        mean = np.zeros(n)
        for _ in range(self.n_steps):
            x = now.x.copy()
            x[:, at] += tuning.size * push(scale, rng.standard_normal((n, n_moved)))
            proposed = Particles(x, path.values(x))
            log_new = log_target(proposed.terms, beta)
            probability = acceptance(log_new, log_now)
            accepted = rng.random(n) < probability
            now = settle(proposed, now, accepted)
            log_now = np.where(accepted, log_new, log_now)
            mean += probability
        return now, Move(mean / self.n_steps, n * self.n_steps, 0)
