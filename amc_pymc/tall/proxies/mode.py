"""Posterior mode on tall data: a search on a subsample, refined by a few passes over all rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from scipy import optimize

from amc_pymc.tall.proxies.gaussian import absolute_factor, gaussian_factor
from amc_pymc.tall.proxies.kinks import kinked_precision, measured_precision

__all__ = ["Mode", "find_mode"]

#: Distance moved by the search on all rows, in standard deviations, beyond which the curvature is
#: recomputed.
_FAR = 3.0
#: Standard deviation above which a coordinate is searched in units of it.
_LARGE_UNIT = 100.0
#: Largest decrement of a mode, in nats, and for each coordinate if the gradient jumps there.
_DECREMENT, _KINKED_DECREMENT = 1e-2, 0.05


@dataclass(frozen=True)
class Mode:
    """A stationary point of a log density on the chosen coordinates.

    Attributes
    ----------
    x : (D,) array
        The point; coordinates not searched keep their starting values.
    factor : (S, S) array
        Lower Cholesky factor L of the inverse negative Hessian over the S searched coordinates. It
        is computed on the subsample at the subsample's mode, or at ``x`` if that is far away.
    decrement : float
        g' L L' g at ``x`` in nats, twice the remaining gain in log density to second order.
    converged : bool
    message : str
        Reason if ``converged`` is false.
    precision : (S, S) array or None
        Precision at ``x`` by differences of gradients if the log density has kinks, else None.
    value : float
        Log density at ``x``; nan if a Hessian was not finite.
    """

    x: np.ndarray
    factor: np.ndarray
    decrement: float
    converged: bool
    message: str
    precision: np.ndarray | None = None
    value: float = np.nan


def find_mode(
    value_and_gradient: Callable[..., tuple[float, np.ndarray]],
    hessian: Callable[..., np.ndarray],
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

    A trust-region Newton search on a random subsample of n rows, weighted by N/n, is followed by BFGS
    on all rows. Coordinates are whitened by the subsample's Hessian, so the target is nearly a
    standard Gaussian and a handful of full passes suffice. If the log density has kinks, its curvature is
    measured by differences of gradients, see :mod:`amc_pymc.tall.proxies.kinks`.

    Parameters
    ----------
    value_and_gradient : callable
        ``(x, rows) -> (log density, gradient (D,))``. ``rows`` is None for all rows or an index array,
        whose log-likelihood must be scaled by N over its length.
    hessian : callable
        ``(x, rows) -> (D, D)``, with the same scaling.
    x0 : (D,) array
        Starting point; its log density must be finite.
    search : (S,) int array
        Coordinates to optimise.
    n_rows : int
        Number N of rows.
    rng : numpy.random.Generator
        Generator for the subsample.
    subsample : int
        Rows of the first search; all rows are used unless there are more than twice as many.
    tolerance : float
        Newton decrement at which the search stops, in nats.
    max_passes : int
        Maximum number of BFGS iterations.

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
    around = _around(value_and_gradient, hessian, start, search, rows)
    scale = factor if definite else absolute_factor(precision)
    with np.errstate(all="ignore"):  # a standard deviation may reach to where the density is zero
        kinked = kinked_precision(*around, scale, rng.spawn(1)[0], suspected=not definite)
    if kinked is not None:
        factor, definite = gaussian_factor(kinked)
    x, slope, moved, value = _polish(
        value_and_gradient, start, search, factor, tolerance, max_passes
    )
    there = None
    if kinked is not None:
        gradient, _ = _around(value_and_gradient, hessian, x, search, None)
        kinked = there = measured_precision(gradient, factor)
        if there is None:
            return Mode(x, factor, np.inf, False, "the curvature could not be measured")
    elif moved > _FAR:
        # The curvature at the start is not informative here.
        there = -hessian(x, rows)[np.ix_(search, search)]
        if not np.all(np.isfinite(there)):
            return Mode(x, factor, np.inf, False, "the Hessian is not finite")
    if there is not None:
        slope = np.linalg.solve(factor.T, slope)
        factor, definite = gaussian_factor(there)
        slope = factor.T @ slope
    return replace(_checked(x, factor, definite, slope, kinked), value=value)


def _checked(
    x: np.ndarray,
    factor: np.ndarray,
    definite: bool,
    slope: np.ndarray,
    precision: np.ndarray | None,
) -> Mode:
    """Return the mode, and whether it is one, from the gradient ``slope`` (S,) of whitened coordinates."""
    decrement, message = float(slope @ slope), ""
    limit = _DECREMENT if precision is None else _KINKED_DECREMENT * slope.size
    if not definite:
        message = "the log density has no strict maximum there (its Hessian is not definite)"
    elif not decrement < limit:
        message = f"the search did not converge (Newton decrement {decrement:.2g} nats)"
    return Mode(x, factor, decrement, not message, message, precision)


def _around(
    value_and_gradient: Callable[..., tuple[float, np.ndarray]],
    hessian: Callable[..., np.ndarray],
    x: np.ndarray,
    search: np.ndarray,
    rows: np.ndarray | None,
) -> tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]:
    """Return gradient (S,) and Hessian (S, S) as functions of a displacement (S,) from x."""

    def gradient(shift: np.ndarray) -> np.ndarray:
        slope: np.ndarray = value_and_gradient(_moved(x, search, shift), rows)[1][search]
        return slope

    def second(shift: np.ndarray) -> np.ndarray:
        return hessian(_moved(x, search, shift), rows)[np.ix_(search, search)]

    return gradient, second


def _moved(x: np.ndarray, search: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Return x (D,) with a displacement (S,) of the searched coordinates."""
    out = x.copy()
    out[search] += shift
    return out


def _trust_region(
    value_and_gradient: Callable[..., tuple[float, np.ndarray]],
    hessian: Callable[..., np.ndarray],
    x0: np.ndarray,
    search: np.ndarray,
    rows: np.ndarray | None,
    n_rows: int,
) -> np.ndarray:
    def second(x: np.ndarray) -> np.ndarray:
        out = -hessian(x, rows)[np.ix_(search, search)] / n_rows
        return np.nan_to_num(out, nan=0.0, posinf=0.0, neginf=0.0)

    precision, unit = np.abs(n_rows * second(x0).diagonal()), np.ones(search.size)
    wide = (precision > 0.0) & (precision < _LARGE_UNIT**-2)
    unit[wide] = precision[wide] ** -0.5

    def full(z: np.ndarray) -> np.ndarray:
        x = x0.copy()
        x[search] = unit * z
        return x

    def objective(z: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = value_and_gradient(full(z), rows)
        if not np.isfinite(value):
            return 1e300, np.zeros(search.size)
        return -value / n_rows, -unit * gradient[search] / n_rows

    method = "trust-exact" if search.size <= 300 else "trust-krylov"
    options = {"gtol": 1e-3 / np.sqrt(n_rows), "maxiter": 100, "max_trust_radius": 1e300}
    try:
        result = optimize.minimize(
            objective,
            x0[search] / unit,
            jac=True,
            hess=lambda z: np.outer(unit, unit) * second(full(z)),
            method=method,
            options=options,
        )
    except UnboundLocalError:  # SciPy finds no step if curvatures differ by rounding errors or more
        return x0
    return full(result.x)


def _polish(
    value_and_gradient: Callable[..., tuple[float, np.ndarray]],
    start: np.ndarray,
    search: np.ndarray,
    factor: np.ndarray,
    tolerance: float,
    max_passes: int,
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Return the maximum, the slope in whitened coordinates, the way there, and minus the objective."""

    def full(z: np.ndarray) -> np.ndarray:
        return _moved(start, search, factor @ z)

    def objective(z: np.ndarray) -> tuple[float, np.ndarray]:
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
    return full(result.x), np.asarray(result.jac), moved, -float(result.fun)
