"""Kernels of Markov chains: their types, checks of their arguments, accepted and rejected proposals.

A scale is standard deviations (D,), or the Cholesky factor L (D, D) of a covariance. A step is size L z with z standard
normal. Rows are particles, so L z is ``z @ L.T``.
"""

from __future__ import annotations

import math

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np


class Path(Protocol):
    """Unnormalised densities f_beta(x) = exp(base(x) + beta slope(x)) on R^D, 0 <= beta <= 1.

    Both terms are natural logarithms, may be -inf and are never nan or +inf. Each call returns new
    arrays, because kernels keep them and write to them. P varies between calls and is never zero.
    """

    @property
    def n_dim(self) -> int:
        """Dimension D."""

    def values(self, x: np.ndarray) -> np.ndarray:
        """Return base and slope (2, P) at the points x (P, D)."""

    def gradients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return both terms (2, P) and their gradients (2, P, D), arbitrary where a term is -inf."""


class Particles(NamedTuple):
    """Points with the terms of the path and their gradients.

    Attributes
    ----------
    x : array (P, D)
    terms : array (2, P)
        Base and slope.
    gradients : array (2, P, D) or None
        Gradients of base and slope, if the kernel needs them.
    """

    x: np.ndarray
    terms: np.ndarray
    gradients: np.ndarray | None = None


class Tuning(NamedTuple):
    """Tuning parameters of a kernel, fixed after tuning.

    Attributes
    ----------
    size : float
        Step size, in units of `scale`.
    scale : array (D,) or (D, D)
        Standard deviations of the target, or the lower Cholesky factor of its covariance, for the
        coordinates that the kernel moves.
    """

    size: float
    scale: np.ndarray


class Move(NamedTuple):
    """Acceptance and cost of one move of P particles.

    Attributes
    ----------
    acceptance : array (P,)
        Acceptance probability; one for slice sampling.
    evaluations, gradients : int
        Number of points at which the path was evaluated without and with gradients.
    """

    acceptance: np.ndarray
    evaluations: int
    gradients: int


@runtime_checkable
class Kernel(Protocol):
    """A Markov kernel that leaves f_beta invariant for any path, beta and tuning.

    A particle at density zero accepts any proposal with positive density; the reverse move never
    happens. A kernel may have a `max_size`, in units of the scale, which `tune` does not exceed.
    """

    @property
    def name(self) -> str:
        """Name of the kernel in tables and for `make_kernel`."""

    @property
    def needs_gradient(self) -> bool:
        """Whether particles must come with gradients."""

    @property
    def target_acceptance(self) -> float:
        """Mean acceptance probability that `tune` aims at; one if there is nothing to tune."""

    def step(
        self,
        path: Path,
        particles: Particles,
        beta: float,
        tuning: Tuning,
        rng: np.random.Generator,
    ) -> tuple[Particles, Move]:
        """Move all particles once; the arguments are not changed."""


def start(path: Path, x: np.ndarray, *, with_gradient: bool) -> Particles:
    """Evaluate the path at new points (P, D)."""
    if with_gradient:
        return Particles(x, *path.gradients(x))
    return Particles(x, path.values(x))


def log_target(terms: np.ndarray, beta: float) -> np.ndarray:
    """Return the log density (P,) of f_beta; the slope may be -inf at beta = 0.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.mcmc import log_target
    >>> log_target(np.array([[0.0, -1.0], [-np.inf, 2.0]]), 0.0)
    array([ 0., -1.])
    """
    base, slope = terms
    return base.copy() if beta == 0.0 else base + beta * slope


def target_gradient(gradients: np.ndarray, beta: float) -> np.ndarray:
    """Return the gradient (P, D) of the log density of f_beta."""
    base, slope = gradients
    return base.copy() if beta == 0.0 else base + beta * slope


Columns = slice | np.ndarray


def checked_coordinates(coordinates: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Return coordinates as a tuple of distinct ints; None means all."""
    if coordinates is None:
        return None
    found = tuple(int(d) for d in coordinates)
    if not found or min(found) < 0 or len(set(found)) < len(found):
        raise ValueError(
            f"coordinates must be distinct numbers from 0, or None for all, got {coordinates!r}"
        )
    return found


def checked_scale(tuning: Tuning, n: int) -> np.ndarray:
    """Return the scale of a tuning for n coordinates, or raise ValueError if it is invalid."""
    size, scale = tuning
    if not (math.isfinite(size) and size > 0.0):
        raise ValueError(f"tuning.size must be positive and finite, got {size!r}")
    scale = np.asarray(scale, float)
    if scale.shape not in ((n,), (n, n)):
        raise ValueError(
            f"tuning.scale must be of shape ({n},) or ({n}, {n}) to move {n} coordinates, "
            f"got {scale.shape}"
        )
    if not np.isfinite(scale).all():
        raise ValueError("tuning.scale must be finite")
    if not (scale if scale.ndim == 1 else scale.diagonal()).min() > 0.0:
        raise ValueError("tuning.scale must be positive, a Cholesky factor on its diagonal")
    return scale


def checked_particles(
    particles: Particles, coordinates: tuple[int, ...] | None
) -> tuple[Columns, int]:
    """Check the shapes of particles; return the index of the columns to move and their number."""
    x, terms, _ = particles
    if x.ndim != 2 or x.shape[0] == 0 or terms.shape != (2, x.shape[0]):
        raise ValueError(
            "particles must have x of shape (P, D) and terms of shape (2, P) with P at least 1, "
            f"got {x.shape} and {terms.shape}"
        )
    if coordinates is None:
        return slice(None), x.shape[1]
    if max(coordinates) >= x.shape[1]:
        raise ValueError(
            f"coordinates {coordinates} are of a kernel on at least {max(coordinates) + 1} "
            f"dimensions, the particles have {x.shape[1]}"
        )
    return np.array(coordinates), len(coordinates)


def acceptance(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Return the acceptance probability min(1, exp(new - old)), zero unless `new` is finite.

    Parameters
    ----------
    new, old : array (P,)
        Log densities (or negative energies) of proposals and of current points. If `old` is -inf,
        any finite `new` is accepted.

    Examples
    --------
    >>> import numpy as np

    >>> acceptance(
    ...     np.array([0.0, 2.0, -np.inf, np.nan]), np.array([np.log(2), -np.inf, -np.inf, 0])
    ... )
    array([0.5, 1. , 0. , 0. ])
    """
    with np.errstate(invalid="ignore"):
        ratio = new - old
    ratio[~np.isfinite(new)] = -np.inf
    return np.exp(np.minimum(ratio, 0.0, out=ratio), out=ratio)


def settle(proposed: Particles, old: Particles, accepted: np.ndarray) -> Particles:
    """Restore the old state of rejected particles in ``proposed``, in place, and return it."""
    back = np.flatnonzero(~accepted)
    proposed.x[back] = old.x[back]
    proposed.terms[:, back] = old.terms[:, back]
    if proposed.gradients is not None and old.gradients is not None:
        proposed.gradients[:, back] = old.gradients[:, back]
    return proposed
