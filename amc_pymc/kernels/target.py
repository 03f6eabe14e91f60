"""What Markov kernels move: P particles under one member of a path of densities."""

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

    Both terms are natural logarithms, may be -inf and are never nan or +inf. The arrays returned are
    new in each call, for kernels keep them and write into them. P differs from call to call and is
    never zero.
    """

    @property
    def n_dim(self) -> int:
        """D."""

    def values(self, x: np.ndarray) -> np.ndarray:
        """Base and slope (2, P) at the points x (P, D)."""

    def gradients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Base and slope (2, P) and their gradients (2, P, D), anything where a term is -inf."""


class Particles(NamedTuple):
    """Points and what is known of the path there.

    Attributes
    ----------
    x : array (P, D)
    terms : array (2, P)
        Base and slope.
    gradients : array (2, P, D) or None
        Theirs, if the kernel wants them.
    """

    x: np.ndarray
    terms: np.ndarray
    gradients: np.ndarray | None = None


class Tuning(NamedTuple):
    """What a kernel is tuned by: frozen before a run that counts.

    Attributes
    ----------
    size : float
        Step size, in units of `scale`.
    scale : array (D,) or (D, D)
        Standard deviations of the target, or the lower Cholesky factor of its covariance; of the
        coordinates that the kernel moves, if it does not move all.
    """

    size: float
    scale: np.ndarray


class Move(NamedTuple):
    """What one move of P particles did.

    Attributes
    ----------
    acceptance : array (P,)
        Probability of acceptance; for slices one.
    evaluations, gradients : int
        Points at which the path was evaluated without and with gradients.
    """

    acceptance: np.ndarray
    evaluations: int
    gradients: int


@runtime_checkable
class Kernel(Protocol):
    """A Markov kernel that leaves f_beta invariant, whatever the path, beta and the tuning.

    A particle where the density is zero takes any proposal where it is not; no particle goes the
    other way. A kernel may have a `max_size`, in units of the scale, that `tune` does not go beyond.
    """

    @property
    def name(self) -> str:
        """What it is called in tables and by `make_kernel`."""

    @property
    def needs_gradient(self) -> bool:
        """Whether particles must come with gradients."""

    @property
    def target_acceptance(self) -> float:
        """Mean probability of acceptance that `tune` aims at; one if there is nothing to tune."""

    def step(
        self,
        path: Path,
        particles: Particles,
        beta: float,
        tuning: Tuning,
        rng: np.random.Generator,
    ) -> tuple[Particles, Move]:
        """Move all particles once; what was given is left as it was."""


def start(path: Path, x: np.ndarray, *, with_gradient: bool) -> Particles:
    """Evaluate the path at new points (P, D)."""
    if with_gradient:
        return Particles(x, *path.gradients(x))
    return Particles(x, path.values(x))


def log_target(terms: np.ndarray, beta: float) -> np.ndarray:
    """Log density (P,) of f_beta; an impossible slope does not matter at beta = 0.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.kernels import log_target
    >>> log_target(np.array([[0.0, -1.0], [-np.inf, 2.0]]), 0.0)
    array([ 0., -1.])
    """
    base, slope = terms
    return base.copy() if beta == 0.0 else base + beta * slope


def target_gradient(gradients: np.ndarray, beta: float) -> np.ndarray:
    """Gradient (P, D) of the log density of f_beta."""
    base, slope = gradients
    return base.copy() if beta == 0.0 else base + beta * slope
