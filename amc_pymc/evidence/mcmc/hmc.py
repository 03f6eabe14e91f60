"""Hamiltonian Monte Carlo with short trajectories."""

from __future__ import annotations

import math

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from amc_pymc.arguments import positive_int
from amc_pymc.evidence.mcmc.target import (
    Move,
    Particles,
    Path,
    Tuning,
    acceptance,
    checked_coordinates,
    checked_particles,
    checked_scale,
    log_target,
    settle,
    target_gradient,
)


@dataclass(frozen=True)
class HMC:
    r"""Hamiltonian Monte Carlo with new velocities in each move.

    With mass matrix :math:`M = (L L^T)^{-1}`, the inverse of the covariance given by the scale, and :math:`v = L^T p`,
    which is standard normal for a momentum p ~ N(0, M), a leapfrog step is

    .. math::
        v \leftarrow v + \tfrac{\epsilon}{2} L^T \nabla \log f(x), \qquad
        x \leftarrow x + \epsilon L v, \qquad
        v \leftarrow v + \tfrac{\epsilon}{2} L^T \nabla \log f(x),

    so no linear system is solved. The energy is :math:`|v|^2 / 2 - \log f(x)`.

    A trajectory with a position, gradient or energy that is not finite is rejected, and so is its
    reverse. A particle with positive density but no finite gradient therefore does not move. A
    particle at density zero moves in a straight line where the gradient is not finite.

    See Duane et al. (1987, doi:10.1016/0370-2693(87)91197-X) and Neal (2011, arXiv:1206.1901).

    Parameters
    ----------
    n_leapfrog : int, default 3
        Leapfrog steps of a trajectory, one gradient each.
    jitter : float, default 0.3
        Step sizes of the particles are uniform between 1 - jitter and 1 + jitter times the size,
        drawn in each move, because a trajectory of fixed length may return to its start.
    coordinates : tuple of int, optional
        Coordinates to move, by default all. The scale covers only these.

    Raises
    ------
    TypeError, ValueError
        If `n_leapfrog` is not a positive integer, `jitter` is not in [0, 1), or the coordinates are
        repeated or negative.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.mcmc import HMC, Tuning, start
    >>> from amc_pymc.rng import as_generator
    >>> class Gaussian:
    ...     n_dim = 2
    ...
    ...     def gradients(self, x):
    ...         terms = np.array([-0.5 * np.sum(x**2, axis=1), np.zeros(len(x))])
    ...         return terms, np.array([-x, np.zeros_like(x)])
    >>> path, rng = Gaussian(), as_generator(1)
    >>> particles = start(path, rng.standard_normal((500, 2)), with_gradient=True)
    >>> particles, move = HMC().step(path, particles, 1.0, Tuning(0.5, np.ones(2)), rng)
    >>> move.gradients, bool(move.acceptance.mean() > 0.95)
    (1500, True)
    """

    n_leapfrog: int = 3
    jitter: float = 0.3
    coordinates: tuple[int, ...] | None = None

    name: ClassVar[str] = "hmc"
    needs_gradient: ClassVar[bool] = True
    target_acceptance: ClassVar[float] = 0.8

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_leapfrog", positive_int("n_leapfrog", self.n_leapfrog))
        if not 0.0 <= self.jitter < 1.0:
            raise ValueError(f"jitter must be at least 0 and below 1, got {self.jitter!r}")
        object.__setattr__(self, "coordinates", checked_coordinates(self.coordinates))

    @property
    def max_size(self) -> float:
        """Step size at which a trajectory on a Gaussian of known scale is independent of its start.

        Longer trajectories turn back: at the size with acceptance 0.8 in ten dimensions, most of the
        energy is still remembered after three moves.
        """
        return 2.0 * math.sin(0.25 * math.pi / self.n_leapfrog)

    def step(
        self,
        path: Path,
        particles: Particles,
        beta: float,
        tuning: Tuning,
        rng: np.random.Generator,
    ) -> tuple[Particles, Move]:
        """Move all particles once; they have gradients afterwards."""
        at, n_moved = checked_particles(particles, self.coordinates)
        scale = checked_scale(tuning, n_moved)
        if particles.gradients is None:
            raise ValueError("particles have no gradients; start them with with_gradient=True")
        n = len(particles.x)
        old = log_target(particles.terms, beta)
        nowhere = np.flatnonzero(old == -np.inf)
        lost = np.zeros(n, bool)

        x = particles.x.copy()
        v = rng.standard_normal((n, n_moved))
        size = np.full((n, 1), float(tuning.size))
        if self.jitter:
            size *= rng.uniform(1.0 - self.jitter, 1.0 + self.jitter, (n, 1))
        chol = scale if scale.ndim == 2 else None
        reach = size * scale if chol is None else size
        half_reach = 0.5 * reach
        old -= 0.5 * np.vecdot(v, v)

        gradients = particles.gradients
        for k in range(self.n_leapfrog):
            with np.errstate(over="ignore", invalid="ignore"):
                kick = _force(gradients, beta, at, chol, nowhere)
                kick *= reach if k else half_reach
                v += kick
                drift = v * reach
                x[:, at] += drift if chol is None else drift @ chol.T
            if not np.isfinite(x).all():
                strayed = ~np.isfinite(x).all(axis=1)
                lost |= strayed
                x[strayed] = particles.x[strayed]
                v[strayed] = 0.0
            terms, gradients = path.gradients(x)
        with np.errstate(over="ignore", invalid="ignore"):
            kick = _force(gradients, beta, at, chol, nowhere[:0])
            kick *= half_reach
            v += kick
            new = log_target(terms, beta)
            new -= 0.5 * np.vecdot(v, v)
        new[lost] = -np.inf
        probability = acceptance(new, old)
        accepted = rng.random(n) < probability
        moved = settle(Particles(x, terms, gradients), particles, accepted)
        return moved, Move(probability, 0, n * self.n_leapfrog)


def _force(
    gradients: np.ndarray,
    beta: float,
    at: slice | np.ndarray,
    chol: np.ndarray | None,
    nowhere: np.ndarray,
) -> np.ndarray:
    """Return L^T (if dense) times the gradient; zero for ``nowhere`` particles where not finite."""
    force = target_gradient(gradients[:, :, at], beta)
    if chol is not None:
        force = force @ chol
    if nowhere.size:
        undefined = ~np.isfinite(force[nowhere]).all(axis=1)
        force[nowhere[undefined]] = 0.0
    return force
