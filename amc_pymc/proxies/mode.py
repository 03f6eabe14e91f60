"""Posterior mode on tall data: a subsample finds the neighbourhood, a few full passes the point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scipy import linalg, optimize

__all__ = ["Mode", "find_mode", "gaussian_factor"]

#: Standard deviations moved by the search on all rows after which curvature is measured anew.
_FAR = 3.0


@dataclass(frozen=True)
class Mode:
    """A stationary point of a log density on the chosen coordinates.

    Attributes
    ----------
    x : (D,) array
        The point; coordinates not searched are those of the start.
    factor : (S, S) array
        Lower Cholesky factor L of the inverse negative Hessian over the S searched coordinates
        (of the subsample at its own mode, which is what whitens the search, or at ``x`` if that
        is far from there).
    decrement : float
        g' L L' g at ``x`` in nats, twice the log density still to be gained to second order.
    converged : bool
    message : str
        Advice where ``converged`` is false.
    """

    x: np.ndarray
    factor: np.ndarray
    decrement: float
    converged: bool
    message: str


def gaussian_factor(precision: np.ndarray, *, floor: float = 1e-10) -> tuple[np.ndarray, bool]:
    """Lower factor L with L L' = precision^-1; small or negative eigenvalues are lifted.

    Returns the factor and whether the precision was positive definite as it was.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.proxies import gaussian_factor
    >>> gaussian_factor(np.diag([4.0, 1.0]))
    (array([[0.5, 0. ],
           [0. , 1. ]]), True)
    """
    values, vectors = linalg.eigh(precision)
    least = floor * max(values.max(initial=0.0), 1.0)
    definite = bool(np.all(values > least))
    covariance = (vectors / np.maximum(values, least)) @ vectors.T
    return np.ascontiguousarray(linalg.cholesky(covariance, lower=True)), definite


def find_mode(
    value_and_gradient: Callable,
    hessian: Callable,
    x0: np.ndarray,
    search: np.ndarray,
    n_rows: int,
    rng: np.random.Generator,
    *,
    subsample: int = 20_000,
    tolerance: float = 1e-6,
    max_passes: int = 60,
) -> Mode:
    """Maximise a log density that sums over N rows.

    A trust-region Newton search on a random subsample, its rows weighted N/n, is followed by BFGS
    on all rows in the coordinates whitened by the subsample's Hessian, in which the target is
    nearly a standard Gaussian: a handful of full passes.

    Parameters
    ----------
    value_and_gradient : callable
        ``(x, rows) -> (log density, gradient (D,))``; ``rows`` is an index array, whose part of
        the log-likelihood is to be scaled by N over its length, or None for all.
    hessian : callable
        ``(x, rows) -> (D, D)``, scaled likewise.
    x0 : (D,) array
        Start; its log density must be finite.
    search : (S,) int array
        Coordinates to optimise.
    n_rows : int
        N.
    rng : numpy.random.Generator
        Draws the subsample.
    subsample : int
        Rows of the first search; all rows are used if there are not twice as many.
    tolerance : float
        Stop when the Newton decrement is below, in nats.
    max_passes : int
        Of BFGS over all rows.

    Returns
    -------
    Mode
    """
    rows = None
    if n_rows > 2 * subsample:
        rows = np.sort(rng.choice(n_rows, size=subsample, replace=False))
    start = _trust_region(value_and_gradient, hessian, x0, search, rows, n_rows)
    precision = -hessian(start, rows)[np.ix_(search, search)]
    if not np.all(np.isfinite(precision)):
        return Mode(start, np.eye(search.size), np.inf, False, "the Hessian is not finite")
    factor, definite = gaussian_factor(precision)
    x, slope, moved = _polish(value_and_gradient, start, search, factor, tolerance, max_passes)
    if moved > _FAR:
        # The curvature at the start says nothing about this place.
        there = -hessian(x, rows)[np.ix_(search, search)]
        if not np.all(np.isfinite(there)):
            return Mode(x, factor, np.inf, False, "the Hessian is not finite")
        slope = np.linalg.solve(factor.T, slope)
        factor, definite = gaussian_factor(there)
        slope = factor.T @ slope
    decrement = float(slope @ slope)
    message = ""
    if not definite:
        message = "the log density has no strict maximum there (its Hessian is not definite)"
    elif not decrement < 1e-2:
        message = f"the search did not converge (Newton decrement {decrement:.2g} nats)"
    return Mode(x, factor, decrement, not message, message)


def _trust_region(value_and_gradient, hessian, x0, search, rows, n_rows):
    def full(z):
        x = x0.copy()
        x[search] = z
        return x

    def objective(z):
        value, gradient = value_and_gradient(full(z), rows)
        if not np.isfinite(value):
            return 1e300, np.zeros(search.size)
        return -value / n_rows, -gradient[search] / n_rows

    def curvature(z):
        out = -hessian(full(z), rows)[np.ix_(search, search)] / n_rows
        return np.nan_to_num(out, nan=0.0, posinf=0.0, neginf=0.0)

    method = "trust-exact" if search.size <= 300 else "trust-krylov"
    result = optimize.minimize(
        objective,
        x0[search],
        jac=True,
        hess=curvature,
        method=method,
        options={"gtol": 1e-3 / np.sqrt(n_rows), "maxiter": 100},
    )
    return full(result.x)


def _polish(value_and_gradient, start, search, factor, tolerance, max_passes):
    def full(z):
        x = start.copy()
        x[search] += factor @ z
        return x

    def objective(z):
        value, gradient = value_and_gradient(full(z), None)
        if not np.isfinite(value):
            return 1e300, np.zeros(search.size)
        return -value, -(factor.T @ gradient[search])

    with np.errstate(over="ignore"):
        result = optimize.minimize(
            objective,
            np.zeros(search.size),
            jac=True,
            method="BFGS",
            options={"gtol": np.sqrt(tolerance / search.size), "maxiter": max_passes},
        )
        moved = float(np.linalg.norm(result.x))
    return full(result.x), np.asarray(result.jac), moved
