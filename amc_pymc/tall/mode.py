"""Posterior modes on tall data: a search on a subsample, refined by a few passes over all rows."""

from __future__ import annotations

import logging

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scipy import linalg, optimize

from amc_pymc.flags import Flag, flag
from amc_pymc.tall.samplers.raced import Raced, RacedModel, absolute_factor, gaussian_factor

_log = logging.getLogger("amc_pymc")
#: Distance moved by the search on all rows, in standard deviations, beyond which the curvature is
#: recomputed.
_FAR = 3.0
#: Standard deviation above which a coordinate is searched in units of it.
_LARGE_UNIT = 100.0
#: Largest decrement of a mode, in nats, and for each coordinate if the gradient jumps there.
_DECREMENT, _KINKED_DECREMENT = 1e-2, 0.05
#: Newton decrement at which the search on all rows stops, in nats.
_TOLERANCE = 1e-6
#: Ratio of a change of the gradient to that expected from second derivatives, above which kinks are suspected.
_SUSPECT = 4.0
#: Share of the change of the gradient that second derivatives explain if there are no kinks.
_EXPLAINED = 0.5
_DIRECTIONS, _NODES, _MOST_ROUNDS = 2, 16, 12
#: Root mean square and largest change of log standard deviations at which the measured curvature has settled.
_SETTLED, _MOST_CHANGE = 0.4, 0.6
#: Lower limit of the measured curvature, relative to that which the scale implies.
_LEAST = 0.25


# --- modes of models ------------------------------------------------------------------------------


def posterior_mode(
    model: RacedModel,
    start: np.ndarray,
    continuous: np.ndarray,
    subsample: int,
    rng: np.random.Generator,
) -> tuple[Mode, tuple[Flag, ...]]:
    """Find the mode over continuous coordinates given the others; return also flags."""
    mode = search_mode(model, start, continuous, subsample, rng)
    if mode.converged:
        return mode, ()
    _log.debug("Mode search over all variables: %s", mode.message)
    given = search_mode(model, start, model.expand, subsample, rng)
    return replace(given, precision=None), (flag("mode_not_found", message=mode.message),)


def search_mode(
    model: RacedModel,
    start: np.ndarray,
    coordinates: np.ndarray,
    subsample: int,
    rng: np.random.Generator,
) -> Mode:
    """Find the mode over some coordinates given the others."""
    rest = model.rest_value_and_gradient, lambda x: model.rest_hessian(x, coordinates)
    return _maximise(model, *rest, start, coordinates, subsample, rng)


def likelihood_mode(
    raced: Raced, start: np.ndarray, subsample: int, rng: np.random.Generator
) -> np.ndarray:
    """Maximise the units' likelihood over eta (E,) under priors N(start, (10 max(1, |start|))^2)."""
    width = 10.0 * np.maximum(1.0, np.abs(start[raced.expand]))
    curvature = np.zeros((start.size, start.size))
    curvature[raced.expand, raced.expand] = -1.0 / width**2

    def prior(eta: np.ndarray) -> tuple[float, np.ndarray]:
        z = (eta - start)[raced.expand] / width
        gradient = np.zeros(eta.size)
        gradient[raced.expand] = -z / width
        return -0.5 * float(z @ z), gradient

    mode = _maximise(raced, prior, lambda eta: curvature, start, raced.expand, subsample, rng)
    return mode.x if np.all(np.isfinite(mode.x)) else start


def _maximise(
    raced: Raced,
    rest: Callable[[np.ndarray], tuple[float, np.ndarray]],
    rest_hessian: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray,
    coordinates: np.ndarray,
    subsample: int,
    rng: np.random.Generator,
) -> Mode:
    """Maximise the units' sum plus ``rest`` over some coordinates."""
    n_units = raced.n_units

    def value_and_gradient(x: np.ndarray, some: np.ndarray | None) -> tuple[float, np.ndarray]:
        scale = 1.0 if some is None else n_units / len(some)
        value, gradient = raced.value_and_gradient(x, some)
        other, other_gradient = rest(x)
        return scale * value + other, scale * gradient + other_gradient

    def hessian(x: np.ndarray, some: np.ndarray | None) -> np.ndarray:
        scale = 1.0 if some is None else n_units / len(some)
        return scale * raced.hessian(x, some) + rest_hessian(x)

    with np.errstate(all="ignore"):  # the search may step where units are impossible
        return find_mode(
            value_and_gradient, hessian, start, coordinates, n_units, rng, subsample=subsample
        )


# --- the search ------------------------------------------------------------------------------------


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
    """

    x: np.ndarray
    factor: np.ndarray
    decrement: float
    converged: bool
    message: str
    precision: np.ndarray | None = None


def find_mode(
    value_and_gradient: Callable[..., tuple[float, np.ndarray]],
    hessian: Callable[..., np.ndarray],
    x0: np.ndarray,
    search: np.ndarray,
    n_rows: int,
    rng: np.random.Generator,
    *,
    subsample: int = 20_000,
    max_passes: int = 60,
) -> Mode:
    """Maximise a log density that sums over N rows.

    A trust-region Newton search on a random subsample of n rows, weighted by N/n, is followed by BFGS
    on all rows. Coordinates are whitened by the subsample's Hessian, so the target is nearly a
    standard Gaussian and a handful of full passes suffice. If the log density has kinks, its curvature is
    measured by differences of gradients, see :func:`kinked_precision`.

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
    max_passes : int
        Maximum number of BFGS iterations.

    Returns
    -------
    Mode
    """
    rows = None
    if n_rows > 2 * subsample:
        rows = np.sort(rng.choice(n_rows, size=subsample, replace=False))
    few = _Density(value_and_gradient, hessian, search, rows)
    whole = replace(few, rows=None)
    start = _trust_region(few, x0, n_rows)
    precision = -few.second(start)
    if not np.all(np.isfinite(precision)):
        return Mode(start, np.eye(search.size), np.inf, False, "the Hessian is not finite")
    factor, definite = gaussian_factor(precision)
    scale = factor if definite else absolute_factor(precision)
    with np.errstate(all="ignore"):  # a standard deviation may reach to where the density is zero
        kinked = kinked_precision(
            lambda shift: few.value_and_gradient(few.moved(start, shift))[1],
            lambda shift: few.second(few.moved(start, shift)),
            scale,
            rng.spawn(1)[0],
            suspected=not definite,
        )
    if kinked is not None:
        factor, definite = gaussian_factor(kinked)
    options = {"gtol": np.sqrt(_TOLERANCE / len(factor)), "maxiter": max_passes}
    with np.errstate(over="ignore"):
        zero = np.zeros(len(factor))
        x, result = whole.minimise(start, factor, zero, method="BFGS", options=options)
    slope, there = np.asarray(result.jac), None
    if kinked is not None:
        kinked = there = measured_precision(
            lambda shift: whole.value_and_gradient(whole.moved(x, shift))[1], factor
        )
        if there is None:
            return Mode(x, factor, np.inf, False, "the curvature could not be measured")
    elif np.linalg.norm(result.x) > _FAR:
        # The curvature at the start is not informative here.
        there = -few.second(x)
        if not np.all(np.isfinite(there)):
            return Mode(x, factor, np.inf, False, "the Hessian is not finite")
    if there is not None:
        slope = np.linalg.solve(factor.T, slope)
        factor, definite = gaussian_factor(there)
        slope = factor.T @ slope
    decrement, message = float(slope @ slope), ""
    limit = _DECREMENT if kinked is None else _KINKED_DECREMENT * slope.size
    if not definite:
        message = "the log density has no strict maximum there (its Hessian is not definite)"
    elif not decrement < limit:
        message = f"the search did not converge (Newton decrement {decrement:.2g} nats)"
    return Mode(x, factor, decrement, not message, message, kinked)


@dataclass(frozen=True)
class _Density:
    """A log density of x (D,) as a function of S searched coordinates, on some rows or all."""

    whole: Callable[..., tuple[float, np.ndarray]]
    hessian: Callable[..., np.ndarray]
    search: np.ndarray
    rows: np.ndarray | None

    def moved(self, x: np.ndarray, shift: np.ndarray) -> np.ndarray:
        """Return x with a displacement (S,) of the searched coordinates."""
        out = x.copy()
        out[self.search] += shift
        return out

    def value_and_gradient(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the log density and its gradient (S,)."""
        value, gradient = self.whole(x, self.rows)
        return value, gradient[self.search]

    def second(self, x: np.ndarray) -> np.ndarray:
        """Return the Hessian (S, S)."""
        return self.hessian(x, self.rows)[np.ix_(self.search, self.search)]

    def minimise(
        self, start: np.ndarray, factor: np.ndarray, z: np.ndarray, n_rows: int = 1, **how: Any
    ) -> tuple[np.ndarray, Any]:
        """Minimise minus the log density of x = start + factor z, from z; return x and SciPy's result."""

        def objective(z: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self.value_and_gradient(self.moved(start, factor @ z))
            if not np.isfinite(value):
                return 1e300, np.zeros(z.size)
            return -value / n_rows, -(factor.T @ gradient) / n_rows

        result = optimize.minimize(objective, z, jac=True, **how)
        return self.moved(start, factor @ result.x), result


def _trust_region(density: _Density, x0: np.ndarray, n_rows: int) -> np.ndarray:
    def second(x: np.ndarray) -> np.ndarray:
        return np.nan_to_num(-density.second(x) / n_rows, nan=0.0, posinf=0.0, neginf=0.0)

    search, origin = density.search, x0.copy()
    precision, unit = np.abs(n_rows * second(x0).diagonal()), np.ones(search.size)
    wide = (precision > 0.0) & (precision < _LARGE_UNIT**-2)
    unit[wide] = precision[wide] ** -0.5
    origin[search] = 0.0
    try:
        x, _ = density.minimise(
            origin,
            np.diag(unit),
            x0[search] / unit,
            n_rows,
            hess=lambda z: np.outer(unit, unit) * second(density.moved(origin, unit * z)),
            method="trust-exact" if search.size <= 300 else "trust-krylov",
            options={"gtol": 1e-3 / np.sqrt(n_rows), "maxiter": 100, "max_trust_radius": 1e300},
        )
    except UnboundLocalError:  # SciPy finds no step if curvatures differ by rounding errors or more
        return x0
    return x


# --- curvature with kinks --------------------------------------------------------------------------
# Of log densities with kinks, such as those of Laplace distributions and quantile regressions, second derivatives exist
# almost everywhere, but their integral is not the change of the gradient. Curvature is then measured by differences of
# gradients, two standard deviations apart.


#: Derivatives and Hessians are functions of displacements.
type Derivative = Callable[[np.ndarray], np.ndarray]


def kinked_precision(
    gradient: Derivative,
    hessian: Derivative,
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
    >>> from amc_pymc.tall.mode import kinked_precision
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
    step = factor @ vectors[:, 0]
    curvature = _curvature(gradient, step)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    explained = -0.5 * sum(w * step @ hessian(t * step) @ step for t, w in zip(nodes, weights))
    return precision if explained < _EXPLAINED * curvature and curvature > 0.0 else None


def measured_precision(gradient: Derivative, factor: np.ndarray) -> np.ndarray | None:
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


def secant_precision(gradient: Derivative, factor: np.ndarray) -> np.ndarray:
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


def _curvature(gradient: Derivative, step: np.ndarray) -> float:
    """Return the decrease of the slope along a step, from one step before the point to one behind it, halved."""
    return float(0.5 * step @ (gradient(-step) - gradient(step)))
