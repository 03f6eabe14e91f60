"""Types of the Markov kernels: P particles under one member of a path of densities."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

__all__ = [
    "Kernel",
    "Move",
    "Particles",
    "Path",
    "Tuning",
    "log_target",
    "start",
    "target_gradient",
]


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
