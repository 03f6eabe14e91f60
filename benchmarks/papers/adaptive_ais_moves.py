"""Kernels that the paper on adaptive annealing compares with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from amc_pymc.arguments import positive_int
from amc_pymc.evidence.mcmc import (
    HMC,
    Move,
    Particles,
    Path,
    Tuning,
    acceptance,
    checked_coordinates,
    columns,
    log_target,
    settle,
)


@dataclass(frozen=True)
class Langevin(HMC):
    """Metropolis-adjusted Langevin kernel (Roberts & Tweedie 1996, doi:10.2307/3318418): one leapfrog step of fixed size."""

    n_leapfrog: int = 1
    jitter: float = 0.0

    name: ClassVar[str] = "langevin"
    target_acceptance: ClassVar[float] = 0.57


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
        at, scale = columns(self.coordinates), tuning.scale
        dense = scale.ndim == 2
        n = len(particles.x)
        now, log_now = particles, log_target(particles.terms, beta)
        mean = np.zeros(n)
        for _ in range(self.n_steps):
            x = now.x.copy()
            z = rng.standard_normal((n, len(scale)))
            x[:, at] += tuning.size * (z @ scale.T if dense else z * scale)
            proposed = Particles(x, path.values(x))
            log_new = log_target(proposed.terms, beta)
            probability = acceptance(log_new, log_now)
            accepted = rng.random(n) < probability
            now = settle(proposed, now, accepted)
            log_now = np.where(accepted, log_new, log_now)
            mean += probability
        return now, Move(mean / self.n_steps, n * self.n_steps, 0)
