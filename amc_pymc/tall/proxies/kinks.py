"""Curvature of log densities with kinks, such as those of Laplace distributions and quantile regressions.

Their second derivatives exist almost everywhere, but their integral is not the change of the gradient. Curvature is
then measured by differences of gradients, two standard deviations apart.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scipy import linalg

from amc_pymc.tall.proxies.gaussian import gaussian_factor

__all__ = ["kinked_precision", "measured_precision", "secant_precision"]

#: Ratio of a change of the gradient to that expected from second derivatives, above which kinks are suspected.
_SUSPECT = 4.0
#: Share of the change of the gradient that second derivatives explain if there are no kinks.
_EXPLAINED = 0.5
_DIRECTIONS, _NODES, _MOST_ROUNDS = 2, 16, 12
#: Root mean square and largest change of log standard deviations at which the measured curvature has settled.
_SETTLED, _MOST_CHANGE = 0.4, 0.6
#: Lower limit of the measured curvature, relative to that which the scale implies.
_LEAST = 0.25

type Gradient = Callable[[np.ndarray], np.ndarray]
type Hessian = Callable[[np.ndarray], np.ndarray]


def kinked_precision(
    gradient: Gradient,
    hessian: Hessian,
    factor: np.ndarray,
    rng: np.random.Generator,
    *,
    suspected: bool = False,
) -> np.ndarray | None:
    r"""Return the precision near a point by differences of gradients if there are kinks there, else None.

    Without kinks, :math:`\nabla f(Lz) - \nabla f(-Lz) = \int_{-1}^1 \nabla^2 f(tLz)\,Lz\,dt`. With kinks, second
    derivatives explain only a part of the left side. The scale L, at first that of the second derivatives, is adapted
    to the measured curvature.

    Parameters
    ----------
    gradient, hessian : callable
        Gradient (S,) and Hessian (S, S) of the log density f, at a displacement (S,) from the point.
    factor : (S, S) array
        Lower Cholesky factor L of the inverse negative Hessian at the point.
    rng : numpy.random.Generator
        Generator for the directions in which curvature is looked at first.
    suspected : bool
        Whether to measure curvature in all directions regardless of the first.

    Returns
    -------
    (S, S) array or None

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.tall.proxies.kinks import kinked_precision
    >>> y = np.random.default_rng(1).laplace(size=10_000)
    >>> median = np.median(y)
    >>> def gradient(shift):  # of independent Laplace observations and a standard normal prior
    ...     return np.sign(y[:, None] - median - shift).sum(0) - median - shift
    >>> def hessian(shift):
    ...     return -np.eye(1)
    >>> precision = kinked_precision(gradient, hessian, np.eye(1), np.random.default_rng(2))
    >>> bool(9_000 < precision[0, 0] < 11_000)
    True
    """
    directions = rng.standard_normal((_DIRECTIONS, factor.shape[0]))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    suspected = suspected or max(_curvature(gradient, factor @ z) for z in directions) > _SUSPECT
    if not suspected:
        return None
    precision = measured_precision(gradient, factor)
    if precision is None:
        return None
    factor, _ = gaussian_factor(precision)
    expected = -factor.T @ hessian(np.zeros(len(factor))) @ factor
    if not np.all(np.isfinite(expected)):
        return None
    _, vectors = linalg.eigh(0.5 * (expected + expected.T))
    return precision if _unexplained(gradient, hessian, factor @ vectors[:, 0]) else None


def measured_precision(gradient: Gradient, factor: np.ndarray) -> np.ndarray | None:
    """Return the precision (S, S) by differences of gradients at its own scale; None if there is no such scale."""
    for _ in range(_MOST_ROUNDS):
        precision = secant_precision(gradient, factor)
        if not np.all(np.isfinite(precision)):
            return None
        before, (factor, _) = factor, gaussian_factor(precision)
        change = np.abs(np.log(np.diagonal(factor) / np.diagonal(before)))
        if np.sqrt(np.mean(np.square(change))) < _SETTLED and change.max() < _MOST_CHANGE:
            return precision
    return None


def secant_precision(gradient: Gradient, factor: np.ndarray) -> np.ndarray:
    """Return the precision (S, S) from gradients at displacements by the columns of +L and -L.

    Its eigenvalues relative to (L L')^-1 are at least a quarter, so that it is positive definite.
    """
    columns = [0.5 * (gradient(-step) - gradient(step)) for step in factor.T]
    whitened = factor.T @ np.column_stack(columns)
    if not np.all(np.isfinite(whitened)):
        return np.full_like(factor, np.nan)
    values, vectors = linalg.eigh(0.5 * (whitened + whitened.T))
    half = vectors * np.sqrt(np.maximum(values, _LEAST))
    half = linalg.solve_triangular(factor, half, lower=True, trans="T")
    return np.asarray(half @ half.T)


def _curvature(gradient: Gradient, step: np.ndarray) -> float:
    """Return the decrease of the slope along a step, from one step before the point to one behind it, halved."""
    return float(0.5 * step @ (gradient(-step) - gradient(step)))


def _unexplained(gradient: Gradient, hessian: Hessian, step: np.ndarray) -> bool:
    """Whether second derivatives on the line explain too little of the curvature."""
    curvature = _curvature(gradient, step)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    explained = -0.5 * sum(w * step @ hessian(t * step) @ step for t, w in zip(nodes, weights))
    return bool(explained < _EXPLAINED * curvature and curvature > 0.0)
