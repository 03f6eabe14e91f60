"""Paths from a fitted reference to the posterior."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from amc_pymc.kernels import Path

__all__ = ["Reference", "ReferencePath"]


class Reference(Protocol):
    """A normalised density that can be drawn from."""

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Natural logarithms (P,) at points (P, D)."""

    def log_density_and_gradient(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same, and gradients (P, D)."""

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draws (n, D)."""


class ReferencePath:
    """The path from a reference q to prior times likelihood: base log q, slope the rest.

    Parameters
    ----------
    joint : Path
        From the prior to the posterior; base plus slope is prior times likelihood.
    reference : Reference

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.annealing import ReferencePath
    >>> class Joint:
    ...     n_dim = 1
    ...
    ...     def values(self, x):
    ...         return np.array([-np.abs(x[:, 0]), np.full(len(x), 2.0)])
    >>> class Laplace:
    ...     def log_density(self, x):
    ...         return -np.abs(x[:, 0]) - np.log(2.0)
    >>> ReferencePath(Joint(), Laplace()).values(np.array([[0.0], [3.0]])).round(2)
    array([[-0.69, -3.69],
           [ 2.69,  2.69]])
    """

    def __init__(self, joint: Path, reference: Reference):
        self.joint, self.reference = joint, reference

    @property
    def n_dim(self) -> int:
        """D."""
        return self.joint.n_dim

    def values(self, x: np.ndarray) -> np.ndarray:
        """Base and slope (2, P)."""
        base = self.reference.log_density(x)
        prior, likelihood = self.joint.values(x)
        return np.stack([base, _slope(prior + likelihood, base)])

    def gradients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Base and slope (2, P), and their gradients (2, P, D)."""
        base, base_gradient = self.reference.log_density_and_gradient(x)
        (prior, likelihood), gradients = self.joint.gradients(x)
        terms = np.stack([base, _slope(prior + likelihood, base)])
        with np.errstate(invalid="ignore"):  # where a term is -inf gradients may be anything
            slope_gradient = gradients.sum(axis=0) - base_gradient
        return terms, np.stack([base_gradient, slope_gradient])


def _slope(joint: np.ndarray, base: np.ndarray) -> np.ndarray:
    """Log joint less log base; -inf where the joint is, or where the reference cannot be."""
    out = np.full(joint.shape, -np.inf)
    possible = np.isfinite(joint) & np.isfinite(base)
    out[possible] = joint[possible] - base[possible]
    return out
