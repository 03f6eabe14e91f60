"""Metropolis moves of integer coordinates, one at a time, alone or with a kernel for the continuous ones."""

from __future__ import annotations

import math

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from amc_pymc.evidence.mcmc.hmc import HMC
from amc_pymc.evidence.mcmc.slice import Slice
from amc_pymc.evidence.mcmc.target import (
    Move,
    Particles,
    Path,
    Tuning,
    acceptance,
    checked_coordinates,
    checked_particles,
    log_target,
)


@dataclass(frozen=True)
class DiscreteMetropolis:
    """Metropolis kernel for coordinates with integer values of any dtype.

    Coordinates are updated in turn. With finitely many states, the proposal is uniform on the other
    states; without bounds it is x + g or x - g with equal probability, P(g = k) = 2^-k for k = 1, 2, ...
    Both proposals are symmetric. States outside the support of the path have density zero.

    Parameters
    ----------
    coordinates : tuple of int
    states : tuple of (array_like of int or None)
        States of each coordinate, or None if unbounded. A coordinate with a single state is not
        updated and costs nothing.

    Raises
    ------
    TypeError, ValueError
        If coordinates and states differ in number, or if states are not integers, repeated or empty.
        In a step: if the value of a coordinate is not one of its states.

    Examples
    --------
    A fair coin and a Poisson variable of mean 3 + 4 coin:

    >>> import numpy as np
    >>> from scipy.special import gammaln
    >>> from amc_pymc.evidence.mcmc import DiscreteMetropolis, Tuning, start
    >>> from amc_pymc.rng import as_generator
    >>> class CoinAndCount:
    ...     n_dim = 2
    ...
    ...     def values(self, x):
    ...         coin, count = x.T
    ...         mean, possible = 3 + 4 * coin, np.maximum(count, 0)
    ...         density = possible * np.log(mean) - mean - gammaln(possible + 1)
    ...         return np.array([np.where(count < 0, -np.inf, density), np.zeros(len(x))])
    >>> path, rng = CoinAndCount(), as_generator(1)
    >>> kernel = DiscreteMetropolis((0, 1), ([0, 1], None))
    >>> particles = start(path, np.zeros((2000, 2)), with_gradient=False)
    >>> for _ in range(40):
    ...     particles, _ = kernel.step(path, particles, 1.0, Tuning(1.0, np.ones(2)), rng)
    >>> bool(np.abs(particles.x.mean(axis=0) - [0.5, 5.0]).max() < 0.3)
    True
    """

    coordinates: tuple[int, ...]
    states: tuple[Sequence[int] | np.ndarray | None, ...]

    name: ClassVar[str] = "discrete"
    needs_gradient: ClassVar[bool] = False
    target_acceptance: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        if self.coordinates is None:
            raise TypeError("coordinates must be a tuple of ints, got None")
        coordinates = checked_coordinates(self.coordinates) or ()
        states = tuple(map(_checked_states, self.states))
        if len(states) != len(coordinates):
            raise ValueError(
                f"states must be given for each of the {len(coordinates)} coordinates (None: without "
                f"end), got {len(states)}"
            )
        object.__setattr__(self, "coordinates", coordinates)
        object.__setattr__(self, "states", states)

    def step(
        self,
        path: Path,
        particles: Particles,
        beta: float,
        tuning: Tuning,
        rng: np.random.Generator,
    ) -> tuple[Particles, Move]:
        """Move each coordinate of all particles once; the acceptance is the mean over coordinates.

        The tuning is not used. The returned particles have no gradients.
        """
        checked_particles(particles, self.coordinates)
        n = len(particles.x)
        x, terms = particles.x.copy(), particles.terms.copy()
        log_now = log_target(terms, beta)
        total, moved = np.zeros(n), 0
        for d, states in zip(self.coordinates, self.states, strict=True):
            if states is not None and len(states) == 1:
                continue
            here = x[:, d].copy()
            x[:, d] = there = _propose(here, states, d, rng)
            proposed = path.values(x)
            log_new = log_target(proposed, beta)
            probability = acceptance(log_new, log_now)
            accepted = rng.random(n) < probability
            x[:, d] = np.where(accepted, there, here)
            terms = np.where(accepted, proposed, terms)
            log_now = np.where(accepted, log_new, log_now)
            total += probability
            moved += 1
        return Particles(x, terms), Move(total / moved if moved else np.ones(n), n * moved, 0)


def _checked_states(states: Sequence[int] | np.ndarray | None) -> tuple[int, ...] | None:
    """Return checked states in increasing order."""
    if states is None:
        return None
    found = np.asarray(states)
    if found.ndim != 1 or found.size == 0 or found.dtype.kind not in "iu":
        raise TypeError(f"states of a coordinate must be an array of ints or None, got {states!r}")
    different = np.unique(found)
    if different.size < found.size:
        raise ValueError(f"states of a coordinate must differ from each other, got {states!r}")
    return tuple(different.tolist())


def _propose(
    now: np.ndarray,
    states: Sequence[int] | np.ndarray | None,
    d: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Propose a different state for each particle."""
    if states is None:
        sign = 2 * rng.integers(2, size=now.size) - 1
        return now + sign * rng.geometric(0.5, now.size)
    known = np.array(states)
    where = np.searchsorted(known, now)
    where[where == known.size] = 0
    wrong = known[where] != now
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(
            f"coordinate {d} of particle {first} is {now[first]}, which is none of its states"
        )
    if known.size == 2:
        return known[1 - where]
    return known[(where + rng.integers(1, known.size, now.size)) % known.size]


@dataclass(frozen=True)
class Mixed:
    """Kernel that moves the discrete coordinates, then the continuous ones given these.

    If the continuous kernel uses gradients, they are re-evaluated for particles whose discrete
    coordinates have changed. Tuning and acceptance are those of the continuous kernel.

    Parameters
    ----------
    continuous : HMC or Slice
        Its `coordinates` must be given and must not include discrete ones.
    discrete : DiscreteMetropolis

    Raises
    ------
    ValueError
        If both kernels move the same coordinate, or the continuous one moves all.

    Examples
    --------
    >>> from amc_pymc.evidence.mcmc import HMC, DiscreteMetropolis, Mixed
    >>> kernel = Mixed(HMC(coordinates=(0, 2)), DiscreteMetropolis((1,), ([0, 1],)))
    >>> kernel.needs_gradient, kernel.target_acceptance
    (True, 0.8)
    """

    continuous: HMC | Slice
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
