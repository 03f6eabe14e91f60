"""Kernel for discrete and continuous coordinates."""

from __future__ import annotations

import math

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from amc_pymc.kernels.discrete import DiscreteMetropolis
from amc_pymc.kernels.hmc import HMC
from amc_pymc.kernels.langevin import Langevin
from amc_pymc.kernels.random_walk import RandomWalk
from amc_pymc.kernels.slice import Slice
from amc_pymc.kernels.target import Move, Particles, Path, Tuning

__all__ = ["Mixed"]


@dataclass(frozen=True)
class Mixed:
    """Kernel that moves the discrete coordinates, then the continuous ones given these.

    If the continuous kernel uses gradients, they are re-evaluated for particles whose discrete
    coordinates have changed. Tuning and acceptance are those of the continuous kernel.

    Parameters
    ----------
    continuous : Slice, RandomWalk, Langevin or HMC
        Its `coordinates` must be given and must not include discrete ones.
    discrete : DiscreteMetropolis

    Raises
    ------
    ValueError
        If both kernels move the same coordinate, or the continuous one moves all.

    Examples
    --------
    >>> from amc_pymc.kernels import HMC, DiscreteMetropolis, Mixed
    >>> kernel = Mixed(HMC(coordinates=(0, 2)), DiscreteMetropolis((1,), ([0, 1],)))
    >>> kernel.needs_gradient, kernel.target_acceptance
    (True, 0.8)
    """

    continuous: Slice | RandomWalk | Langevin | HMC
    discrete: DiscreteMetropolis

    name: ClassVar[str] = "mixed"

    def __post_init__(self) -> None:
        discrete = set(self.discrete.coordinates)
        coordinates = self.continuous.coordinates
        if coordinates is None:
            raise ValueError(
                f"continuous kernel moves all coordinates, {sorted(discrete)} are discrete; give it "
                "the coordinates that it should move"
            )
        if both := discrete & set(coordinates):
            raise ValueError(f"coordinates {sorted(both)} are moved by both kernels")

    @property
    def needs_gradient(self) -> bool:
        """Whether the continuous kernel needs gradients."""
        return self.continuous.needs_gradient

    @property
    def target_acceptance(self) -> float:
        """Target acceptance of the continuous kernel."""
        return self.continuous.target_acceptance

    @property
    def max_size(self) -> float:
        """Largest step size of the continuous kernel."""
        return getattr(self.continuous, "max_size", math.inf)

    def step(
        self,
        path: Path,
        particles: Particles,
        beta: float,
        tuning: Tuning,
        rng: np.random.Generator,
    ) -> tuple[Particles, Move]:
        """Move all particles once."""
        between, first = self.discrete.step(path, particles, beta, tuning, rng)
        refreshed = 0
        if self.needs_gradient:
            between, refreshed = _with_gradients(path, between, particles)
        moved, second = self.continuous.step(path, between, beta, tuning, rng)
        return moved, Move(
            second.acceptance,
            first.evaluations + second.evaluations,
            first.gradients + refreshed + second.gradients,
        )


def _with_gradients(path: Path, moved: Particles, old: Particles) -> tuple[Particles, int]:
    """Evaluate the gradients of particles that have moved; return also their number."""
    if old.gradients is None:
        raise ValueError("particles have no gradients; start them with with_gradient=True")
    changed = np.flatnonzero((moved.x != old.x).any(axis=1))
    gradients = old.gradients.copy()
    if changed.size:
        _, gradients[:, changed] = path.gradients(moved.x[changed])
    return moved._replace(gradients=gradients), changed.size
