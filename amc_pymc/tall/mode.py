"""Posterior modes on tall data, and Gaussian approximations.

A mode is searched on a subsample, and refined by a few passes over all rows.
"""

from __future__ import annotations

import logging

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from scipy import linalg, optimize

from amc_pymc.flags import Flag, flag
from amc_pymc.tall.units import Raced, RacedModel

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
#: Least eigenvalue of a precision with a unit diagonal, relative to the largest.
_FLOOR = 1e-10


# --- Gaussian approximations -----------------------------------------------------------------------


def gaussian_factor(precision: np.ndarray, *, absolute: bool = False) -> tuple[np.ndarray, bool]:
    """Return lower L with L L' = precision^-1, after raising small or negative eigenvalues.

    Also returns whether the precision was positive definite without this. Eigenvalues are raised that are numerically
    zero whatever the units of coordinates. With ``absolute``, those of the precision as it is count by their size.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.tall.mode import gaussian_factor
    >>> gaussian_factor(np.diag([4.0, 1.0]))
    (array([[0.5, 0. ],
           [0. , 1. ]]), True)
    >>> gaussian_factor(np.diag([4.0, -1.0]), absolute=True)
    (array([[0.5, 0. ],
           [0. , 1. ]]), True)
    """
    diagonal, scale = np.diag(precision), np.ones(len(precision))
    if np.all(diagonal > 0.0) and not absolute:
        scale = np.sqrt(diagonal)
    values, vectors = linalg.eigh(precision / np.outer(scale, scale))
    values = np.abs(values) if absolute else values
    least = _FLOOR * max(float(values.max(initial=0.0)), 1.0)
    covariance = (vectors / np.maximum(values, least)) @ vectors.T
    factor = np.ascontiguousarray(linalg.cholesky(covariance, lower=True))
    return factor / scale[:, None], bool(np.all(values > least))


@dataclass(frozen=True)
class GaussianFit:
    """Gaussian approximation N(mean, precision^-1) of the posterior on the continuous coordinates.

    ``mean`` is (D,), ``precision`` (D, D) with zeros outside ``coordinates``.
    """

    mean: np.ndarray
    precision: np.ndarray
    coordinates: np.ndarray

    def factor(self, active: np.ndarray) -> np.ndarray:
        """Return the Cholesky factor (A, A) of the covariance of active coordinates given the others."""
        return gaussian_factor(self.precision[np.ix_(active, active)])[0]

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Return a draw (D,), which has other coordinates from the mean."""
        out, at = self.mean.copy(), self.coordinates
        out[at] += self.factor(at) @ rng.standard_normal(at.size)
        return out


def fit_gaussian(
    model: RacedModel,
    hessian: np.ndarray,
    x: np.ndarray,
    coordinates: np.ndarray,
    precision: np.ndarray | None = None,
) -> GaussianFit | None:
    """Return the Gaussian approximation at x; None if the Hessian is not finite.

    ``hessian`` (D, D) is that of the units. A ``precision`` (S, S) of the coordinates takes the place of second
    derivatives.
    """
    whole, inside = np.zeros((x.size, x.size)), np.ix_(coordinates, coordinates)
    if precision is None:
        precision = -(hessian + model.rest_hessian(x, coordinates))[inside]
        if not np.all(np.isfinite(precision)):
            return None
    whole[inside] = precision
    return GaussianFit(x.copy(), whole, coordinates)


@dataclass
class Moments:
    """Running mean (D,) and covariance (D, D) of the points visited; zeros of any size without a point."""

    count: int = 0
    mean: np.ndarray = field(default_factory=partial(np.zeros, 1))
    comoment: np.ndarray = field(default_factory=partial(np.zeros, (1, 1)))

    def add(self, x: np.ndarray) -> None:
        """Add one point."""
        self.count += 1
        shift = x - self.mean
        self.mean = self.mean + shift / self.count
        self.comoment = self.comoment + np.outer(shift, x - self.mean)

    def covariance(self) -> np.ndarray:
        """Return the unbiased covariance; requires two points."""
        return self.comoment / (self.count - 1)

    def factor(self, coordinates: np.ndarray, prior: np.ndarray, weight: float) -> np.ndarray:
        """Return the Cholesky factor of some coordinates' covariance, shrunk to prior @ prior.T."""
        inner = self.covariance()[np.ix_(coordinates, coordinates)]
        mixed = (self.count * inner + weight * prior @ prior.T) / (self.count + weight)
        factor, _ = gaussian_factor(np.linalg.inv(mixed))
        return factor


# --- modes of models ------------------------------------------------------------------------------


def posterior_mode(
    model: RacedModel,
    start: np.ndarray,
    continuous: np.ndarray,
    subsample: int,
    rng: np.random.Generator,
) -> tuple[Mode, tuple[Flag, ...]]:
    """Find the mode over continuous coordinates given the others; return also flags."""
    mode = find_mode(model, model, start, continuous, subsample, rng)
    if mode.converged:
        return mode, ()
    _log.debug("Mode search over all variables: %s", mode.message)
    given = find_mode(model, model, start, model.expand, subsample, rng)
    return replace(given, precision=None), (flag("mode_not_found", message=mode.message),)


def likelihood_mode(
    raced: Raced, start: np.ndarray, subsample: int, rng: np.random.Generator
) -> np.ndarray:
    """Maximise the units' likelihood over eta (E,) under priors N(start, (10 max(1, |start|))^2)."""
    width = 10.0 * np.maximum(1.0, np.abs(start))
    rest = _WidePrior(start, width, raced.expand)
    mode = find_mode(raced, rest, start, raced.expand, subsample, rng)
    return mode.x if np.all(np.isfinite(mode.x)) else start


@dataclass(frozen=True)
class _WidePrior:
    """Independent normal distributions of some coordinates."""

    mean: np.ndarray
    width: np.ndarray
    coordinates: np.ndarray

    def rest_value_and_gradient(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the log density and its gradient."""
        at, gradient = self.coordinates, np.zeros(x.size)
        z = (x - self.mean)[at] / self.width[at]
        gradient[at] = -z / self.width[at]
        return -0.5 * float(z @ z), gradient

    def rest_hessian(self, x: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
        """Return the Hessian."""
        curvature = np.zeros(x.size)
        curvature[self.coordinates] = -1.0 / self.width[self.coordinates] ** 2
        return np.diag(curvature)


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


@np.errstate(all="ignore")  # the search may step where units are impossible
def find_mode(
    raced: Raced,
    rest: Any,
    x0: np.ndarray,
    search: np.ndarray,
    subsample: int,
    rng: np.random.Generator,
    *,
    max_passes: int = 60,
) -> Mode:
    """Maximise a log density, a sum over N units and the rest, over some coordinates given the others.

    A trust-region Newton search on a random subsample of n units, weighted by N/n, is followed by BFGS
    on all units. Coordinates are whitened by the subsample's Hessian, so the target is nearly a
    standard Gaussian and a handful of full passes suffice. If the log density has kinks, its curvature is
    measured by differences of gradients, see :func:`kinked_precision`.

    Parameters
    ----------
    raced : Raced
        Units.
    rest : RacedModel
        What has the rest of the log density, with its derivatives.
    x0 : (D,) array
        Starting point; its log density must be finite.
    search : (S,) int array
        Coordinates to optimise.
    subsample : int
        Units of the first search; all units are used unless there are more than twice as many.
    rng : numpy.random.Generator
        Generator for the subsample.
    max_passes : int
        Maximum number of BFGS iterations.

    Returns
    -------
    Mode
    """
    n_units, some, scale = raced.n_units, None, 1.0
    if n_units > 2 * subsample:
        some = np.sort(rng.choice(n_units, size=subsample, replace=False))
        scale = n_units / subsample
    few = _Density(raced, rest, search, x0, some, scale)
    start, zero = _trust_region(few), np.zeros(search.size)
    few = replace(few, origin=start)
    whole = replace(few, some=None, scale=1.0)
    precision = -few.second(zero)
    if not np.all(np.isfinite(precision)):
        return Mode(start, np.eye(search.size), np.inf, False, "the Hessian is not finite")
    factor, definite = gaussian_factor(precision)
    kinked = kinked_precision(
        lambda shift: few.value_and_gradient(shift)[1], few.second,
        factor if definite else gaussian_factor(precision, absolute=True)[0],
        rng.spawn(1)[0], suspected=not definite,
    )  # fmt: skip
    if kinked is not None:
        factor, definite = gaussian_factor(kinked)
    options = {"gtol": np.sqrt(_TOLERANCE / len(factor)), "maxiter": max_passes}
    result = optimize.minimize(
        whole.objective, zero, (factor,), method="BFGS", jac=True, options=options
    )
    x, slope, there = whole.at(factor @ result.x), np.asarray(result.jac), None
    if kinked is not None:
        whole = replace(whole, origin=x)
        kinked = there = measured_precision(
            lambda shift: whole.value_and_gradient(shift)[1], factor
        )
        if there is None:
            return Mode(x, factor, np.inf, False, "the curvature could not be measured")
    elif np.linalg.norm(result.x) > _FAR:
        # The curvature at the start is not informative here.
        there = -few.second(factor @ result.x)
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
    """A log density of x (D,) as a function of displacements (S,) of the searched coordinates from an origin.

    The units are all, or ``some``, whose sum is scaled up.
    """

    raced: Raced
    rest: Any
    search: np.ndarray
    origin: np.ndarray
    some: np.ndarray | None
    scale: float

    def at(self, shift: np.ndarray) -> np.ndarray:
        """Return x (D,)."""
        out = self.origin.copy()
        out[self.search] += shift
        return out

    def value_and_gradient(self, shift: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the log density and its gradient (S,)."""
        x = self.at(shift)
        value, gradient = self.raced.value_and_gradient(x, self.some)
        other, other_gradient = self.rest.rest_value_and_gradient(x)
        return self.scale * value + other, (self.scale * gradient + other_gradient)[self.search]

    def second(self, shift: np.ndarray) -> np.ndarray:
        """Return the Hessian (S, S)."""
        x = self.at(shift)
        found = self.scale * self.raced.hessian(x, self.some)
        return (found + self.rest.rest_hessian(x, self.search))[np.ix_(self.search, self.search)]

    def objective(
        self, z: np.ndarray, factor: np.ndarray, n_units: int = 1
    ) -> tuple[float, np.ndarray]:
        """Return what is minimised over z (S,), minus the log density for a displacement by factor z."""
        value, gradient = self.value_and_gradient(factor @ z)
        if not np.isfinite(value):
            return 1e300, np.zeros(z.size)
        return -value / n_units, -(factor.T @ gradient) / n_units


def _trust_region(density: _Density) -> np.ndarray:
    """Return the mode (D,) by Newton steps from the origin of the displacements."""
    x0, search, n_units = density.origin, density.search, density.raced.n_units
    unit = np.ones(search.size)
    precision = np.abs(n_units * (density.second(0.0 * unit).diagonal() / n_units))
    wide = (precision > 0.0) & (precision < _LARGE_UNIT**-2)
    unit[wide] = precision[wide] ** -0.5
    density = replace(density, origin=x0.copy())
    density.origin[search] = 0.0
    finite = partial(np.nan_to_num, nan=0.0, posinf=0.0, neginf=0.0)
    try:
        result = optimize.minimize(
            density.objective,
            x0[search] / unit,
            args=(np.diag(unit), n_units),
            jac=True,
            hess=lambda z, *_: np.outer(unit, unit) * finite(-density.second(unit * z) / n_units),
            method="trust-exact" if search.size <= 300 else "trust-krylov",
            options={"gtol": 1e-3 / np.sqrt(n_units), "maxiter": 100, "max_trust_radius": 1e300},
        )
    except UnboundLocalError:  # SciPy finds no step if curvatures differ by rounding errors or more
        return x0
    return density.at(unit * result.x)


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
    steps = [factor @ z for z in directions]
    curvatures = (0.5 * step @ (gradient(-step) - gradient(step)) for step in steps)
    if not (suspected or max(curvatures) > _SUSPECT):
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
    curvature = 0.5 * step @ (gradient(-step) - gradient(step))
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
