"""Data about a model that all chains share: prior times surrogate, fitted to it, and the cost of decisions."""

from __future__ import annotations

import logging
import math

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from scipy import linalg, optimize, special

from amc_pymc.engine import Family, Graph
from amc_pymc.flags import Flag, flag
from amc_pymc.tall.mode import search_mode
from amc_pymc.tall.racing.rules import Race
from amc_pymc.tall.refresh import Refresh, log_surface, refresh_of, run_on_surface
from amc_pymc.tall.samplers.compiled import unit_changes
from amc_pymc.tall.samplers.raced import (
    GaussianFit,
    Moments,
    NoProxy,
    Raced,
    RacedModel,
    Surrogate,
    gaussian_factor,
    no_surrogate,
    surrogate_at,
    surrogate_change,
    surrogate_total,
)
from amc_pymc.tall.split import NoSurface, Parts, Split, split
from amc_pymc.tall.surrogate import (
    Surface,
    conditional,
    dense_prior,
    narrow_order,
    ordered,
    rows_of,
)
from amc_pymc.tall.terms import Written, compiled_terms
from amc_pymc.tall.thinning import Thinning

_log = logging.getLogger("amc_pymc")


class Forecast(NamedTuple):
    """Predicted cost of a decision between two independent draws of the Gaussian fit.

    ``rows`` are the expected units read per decision, including exact ones, ``acceptance`` is the acceptance rate of
    such moves if only the units were not Gaussian.
    """

    rows: float = math.nan
    acceptance: float = math.nan


@dataclass(frozen=True)
class Preparation:
    """Data about a model that are shared by all chains.

    ``densities`` is the model as a function of x, ``raced`` the population of units as a function of
    the parameters eta(x), the same object if ``cut`` is None. ``cut`` has this map x (D,) -> eta (E,) for Python
    (``evaluate``) and as a first-class function (``native``). ``surrogate`` is None without a control variate,
    ``fit`` and ``surface`` are None for a sampler without moves. ``exact_rows`` are units evaluated at every decision.
    ``rounding_only`` says whether the control variate is exact up to rounding, ``kinked`` whether log-likelihoods have
    kinks.
    ``rows_spent`` counts row evaluations, ``flags`` are doubts about every run, ``forecast_flags`` those about a
    forecast only, ``no_proxy`` says why there is no control variate, ``forecast`` predicts the cost of a decision.
    ``surface`` is prior times surrogate, with moves tuned on it. ``quadrature_error`` is the standard deviation over
    posterior points of the error that the nodes over local effects leave, in nats. ``tables`` hold a ``thinning``
    with bounds of rows, with which decisions are exact. ``seconds`` is the wall time of the preparation.
    """

    densities: RacedModel
    raced: Raced
    start: np.ndarray
    cut: Any = None
    surrogate: Surrogate | None = None
    fit: GaussianFit | None = None
    exact_rows: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    rounding_only: bool = False
    kinked: bool = False
    rows_spent: int = 0
    flags: tuple[Flag, ...] = ()
    forecast_flags: tuple[Flag, ...] = ()
    no_proxy: str = ""
    forecast: Forecast = field(default_factory=Forecast)
    surface: SurfaceFit | None = None
    tables: Any = None
    quadrature_error: float = 0.0
    seconds: float = 0.0

    def eta(self, x: np.ndarray) -> np.ndarray:
        """Return parameters (..., E) at points (..., D)."""
        if self.cut is None:
            return x
        found: np.ndarray = np.apply_along_axis(self.cut.evaluate, -1, x)
        return found

    @property
    def thinning(self) -> Thinning | None:
        """Thinning of decisions, if any."""
        return None if self.tables is None else self.tables.thinning

    @property
    def first_surrogate(self) -> Surrogate:
        """Surrogate of a new chain; zero without a control variate."""
        return self.surrogate or no_surrogate(self.eta(self.start))


# --- level expansions of groups --------------------------------------------------------------------
# As the standard deviation s of effects goes to zero, log-likelihoods of groups become constant, and the posterior of
# x = log s has the tail of its prior, while a quadratic in x has the tail of a Gaussian: a chain on prior times such a
# surrogate hardly ever visits the tail and, once there, stays. The log-likelihood of balanced Gaussian groups is a
# function of log(a + s^2), where a is the variance of a group's mean given its effect. Moves therefore expand it in
#
#     w = log(a + exp(2 x)),
#
# with the same value, gradient and Hessian at the centre, and with a such that the limit far to the left is the right one.
# The same holds for x mirrored, as for the logarithm of a precision.


#: Distance from the centre at which log-likelihoods have reached their limits.
_LIMIT = 8.0
#: Smallest and largest logarithm of s^2 / a.
_LEAST, _MOST = -7.0, 2.0 * _LIMIT
#: Difference of the limit from that of the quadratic, in nats, below which a coordinate is left as it is.
_SAME = 1.0


class Plateaus(NamedTuple):
    """Coordinates x (P,) with a limit, their signs, numbers a, and the surrogate in (x, w)."""

    coordinates: np.ndarray
    signs: np.ndarray
    numbers: np.ndarray
    surrogate: Surrogate

    def total(self, x: np.ndarray) -> float:
        """Return the surrogate at x (D,), minus its value at the centre."""
        w = np.log(self.numbers + np.exp(2.0 * self.signs * x[self.coordinates]))
        return float(surrogate_total(np.append(x, w), self.surrogate))

    def parts(self, parts: Parts) -> Parts:
        """Return the same terms of the prior, with w among the coefficients."""
        graph, families = Graph(), list[Family]()
        for k, (j, sign, a) in enumerate(zip(*self[:3], strict=True)):
            twice = graph.make("mul", graph.const(2.0 * sign), graph.entry("eta", graph.const(j)))
            inside = graph.make("add", graph.const(a), graph.make("exp", twice))
            families.append(Family(graph.make("log", inside), np.zeros((1, 0)), k))
        return parts._replace(coefficients=Written(graph, tuple(families), ()))


def find_plateaus(raced: Raced, wide: np.ndarray, surrogate: Surrogate) -> Plateaus | None:
    """Return the coordinates among those not well informed in which log-likelihoods have other limits than quadratics.

    Parameters
    ----------
    raced : Raced
    wide : int array
        Coordinates.
    surrogate : Surrogate
        Expansion of the units' sum in x.
    """
    centre, gradient, hessian = surrogate
    here, size = raced.all_values(centre).sum(), centre.size
    found: list[tuple[int, float, float]] = []
    for j in np.intersect1d(wide, raced.expand):
        sides = [_side(raced, surrogate, here, int(j), sign) for sign in (1.0, -1.0)]
        higher, sign, ratio = max(sides)
        if higher > _SAME and ratio > 0.0:
            found.append((int(j), sign, ratio))
    if not found:
        return None
    at, first, second = np.arange(size), np.ones(size), np.zeros(size)
    numbers = []
    for k, (j, sign, ratio) in enumerate(found):
        share = ratio / (1.0 + ratio)
        at[j], first[j], second[j] = size + k, 2.0 * sign * share, 4.0 * share * (1.0 - share)
        numbers.append(math.exp(2.0 * sign * centre[j]) / ratio)
    coordinates, signs = (np.array(part) for part in list(zip(*found, strict=True))[:2])
    w = np.log(numbers + np.exp(2.0 * signs * centre[coordinates]))
    whole = np.zeros(size + w.size), np.zeros((size + w.size, size + w.size))
    slope = gradient / first
    whole[0][at] = slope
    whole[1][np.ix_(at, at)] = (hessian - np.diag(slope * second)) / np.outer(first, first)
    return Plateaus(coordinates, signs, np.array(numbers), Surrogate(np.append(centre, w), *whole))


def _side(
    raced: Raced, surrogate: Surrogate, here: float, j: int, sign: float
) -> tuple[float, float, float]:
    """Return by how much the limit where ``sign`` x_j is small exceeds the quadratic, ``sign``, and s^2 / a or 0."""
    far = surrogate.centre.copy()
    far[j] -= sign * _LIMIT
    with np.errstate(all="ignore"):
        limit = float(raced.all_values(far).sum() - here)
    slope, curvature = sign * surrogate.gradient[j], surrogate.hessian[j, j]
    higher = limit - 0.5 * curvature * _LIMIT**2 + slope * _LIMIT

    def excess(log_ratio: float) -> float:
        ratio = math.exp(log_ratio)
        share, w = ratio / (1.0 + ratio), -math.log1p(ratio)
        by_w = slope / (2.0 * share)
        twice = (curvature - 2.0 * slope * (1.0 - share)) / (4.0 * share**2)
        return by_w * w + 0.5 * twice * w * w - limit

    if not math.isfinite(higher) or not excess(_LEAST) > 0.0 > excess(_MOST):
        return -math.inf, sign, 0.0
    return higher, sign, math.exp(optimize.brentq(excess, _LEAST, _MOST))


# --- fits ------------------------------------------------------------------------------------------


#: Lengths of the chain's windows, after each of which masses are estimated, until no standard deviation changes by more
#: than this factor; and the number of draws after them.
_WINDOWS, _CHANGE, _KEPT = (40, 80, 160, 320), 1.5, 300
#: Target acceptance rate of trajectories, their length in standard deviations, and their largest number of steps.
_TARGET, _LENGTH, _MOST_LEAPS = 0.8, 1.5, 12
#: Largest number of times that the expansion is moved to the chain's mean, and the distance, in standard deviations per
#: root coordinate, below which it stays.
_MOST_ROUNDS, _SETTLED = 4, 0.3
#: Largest number of groups whose expansions are level. Races of more read a part of them, with control variates that do
#: not hold where only level expansions do: 15 % of audited decisions were wrong for 3,566 groups.
_FEW_GROUPS = 1_000
#: Largest posterior standard deviation of a variable whose prior is expanded together with the rows.
_NARROW = 0.2
#: Correlation of successive hyperparameters that is small enough, and the largest number of trajectories for it.
_ALIKE, _MOST_REPEATS = 0.3, 8
#: Weight of a diagonal matrix in an estimated covariance, in draws.
_SHRINKAGE = 10.0
#: Difference of two second derivatives of the prior, relative to them, that rounding errors may have produced.
_ROUNDING = 1e-9
#: Smallest eigenvalue of the rows' curvature, relative to the largest.
_FLOOR = 1e-9
#: Difference of log densities, in nats, from the least of the draws below which a chain does not start.
_FAR = 10.0


@dataclass(frozen=True)
class SurfaceFit:
    """Prior times surrogate, with moves tuned on it.

    Attributes
    ----------
    surface : Surface
    mass : (F, F) array
    step : float
    leaps : int
    draws : (K, D) array
        A chain on the surface.
    binary : (B,) int array
        Coordinates that are 0 or 1 and moved too.
    repeats : int
        Number of trajectories, or of turns of the binary coordinates, per move.
    freedom : float
        Degrees of freedom of a Student t that takes the place of the exponential of the expansion; infinite for none.
    plateaus : Plateaus or None
        The expansion, if it is not that of the races.
    """

    surface: Surface
    mass: np.ndarray
    step: float
    leaps: int
    draws: np.ndarray
    binary: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    repeats: int = 1
    freedom: float = math.inf
    plateaus: Plateaus | None = None

    @property
    def moving(self) -> bool:
        """Whether there are hyperparameters or binary variables."""
        return bool(self.binary.size or (self.surface.outer >= 0).any())

    def chain(self, number: int, target: float, rng: np.random.Generator) -> SurfaceFit:
        """Return the same with ``number`` draws, and with a tuned step if ``target`` is positive."""
        refresh, draws = self.moves(), np.empty((number, self.draws.shape[1]))
        run_on_surface(self.draws[-1], refresh, target, draws, rng)
        step = float(refresh.step[0])
        leaps = int(np.clip(math.ceil(_LENGTH / step), 1, _MOST_LEAPS))
        return replace(self, step=step, leaps=leaps, draws=draws)

    def with_covariance(self) -> SurfaceFit:
        """Return the same with masses from the draws, which are shrunk towards a diagonal matrix."""
        phi = self.draws[len(self.draws) // 4 :, np.flatnonzero(self.surface.outer >= 0)]
        weight = len(phi) / (len(phi) + _SHRINKAGE)
        spread = np.diag(np.var(phi, axis=0) + 1e-6)
        whole = np.atleast_2d(np.cov(phi.T)) if phi.shape[1] < len(phi) // 3 else spread
        mass = linalg.cholesky(weight * whole + (1.0 - weight) * spread, lower=True)
        change = np.exp(np.mean(np.log(np.diag(self.mass)) - np.log(np.diag(mass))))
        step = float(np.clip(self.step * change, 1e-3, 1.0))
        return replace(self, mass=np.ascontiguousarray(mass), step=step)

    def correlation(self, coordinates: np.ndarray) -> float:
        """Return the largest correlation of successive draws of coordinates that vary, zero if none does."""
        x = self.draws[:, coordinates]
        shift = (x - x.mean(axis=0))[:, np.ptp(x, axis=0) > 0.0]
        lags = np.mean(shift[1:] * shift[:-1], axis=0) / np.mean(shift**2, axis=0)
        return float(np.max(lags, initial=0.0))

    def start(self, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return x or, if it is far out, a draw."""
        refresh = self.moves()
        least = min(log_surface(d, refresh) for d in self.draws[::10])
        if log_surface(x, refresh) > least - _FAR:
            return x
        out: np.ndarray = self.draws[rng.integers(len(self.draws))].copy()
        return out

    def moves(self) -> Refresh:
        """Return moves of a new chain."""
        return refresh_of(self.surface, self.binary)._replace(
            mass=self.mass,
            step=np.full(1, self.step),
            leaps=np.full(1, self.leaps),
            repeats=np.full(1, self.repeats),
            freedom=np.full(1, self.freedom),
        )


def fit_surface(
    bare: Preparation,
    parts: Parts,
    blocks: Sequence[np.ndarray],
    binary: np.ndarray,
    subsample: int,
    rng: np.random.Generator,
) -> Preparation:
    """Expand rows where prior times surrogate has its mean, and run a chain on it.

    Parameters
    ----------
    bare : Preparation
        The model at x (D,), and its units as functions of z = ``bare.eta(x)``, which begins with x.
    parts : Parts
    blocks : sequence of int arrays
        Coordinates of each continuous variable that is moved.
    binary : (B,) int array
        Coordinates that are 0 or 1 and moved too. Rows are expanded where all are 1.
    subsample : int
    rng : numpy.random.Generator

    Returns
    -------
    Preparation
        With the surrogate of the units in z, mean and precision of x, and the surface.
    """
    model, raced, start = bare.densities, bare.raced, bare.start.copy()
    start[binary] = 1.0
    divided = split(parts, blocks, start, rng)
    read = np.intersect1d(divided.outer, parts.reads)
    searched = np.sort(np.concatenate([divided.inner, divided.nearly, read]))
    if not searched.size:
        searched = divided.outer
    mode = search_mode(model, start, searched, subsample, rng)
    flags = () if mode.converged else (flag("mode_not_found", message=mode.message),)
    x, z, measured = mode.x, bare.eta(mode.x), None
    if mode.precision is not None:
        measured = np.zeros((x.size, x.size))
        measured[np.ix_(searched, searched)] = mode.precision
    for k in range(_MOST_ROUNDS):
        raced.forget_centre()
        found = surrogate_at(raced, z)
        if found is None:
            raise NoProxy("the derivatives are not finite at the mode")
        surrogate = found
        if k == 0:
            divided = _without_wide(divided, blocks, surrogate)
        level = None
        if raced.unit == "group" and raced.n_units <= _FEW_GROUPS:
            level = find_plateaus(raced, divided.outer, surrogate)
        terms, own = (level.parts(parts), level.surrogate) if level else (parts, surrogate)
        surface = surface_at(model, terms, divided, x, own, measured)
        fitted = replace(tuned(surface, binary, x, rng), plateaus=level)
        _log.debug("Step %.2g, %d leaps, %d repeats.", fitted.step, fitted.leaps, fitted.repeats)
        zs = bare.eta(fitted.draws)
        middle, mean, spread = fitted.draws.mean(axis=0), zs.mean(axis=0), zs.std(axis=0)
        if level:  # which holds far from its centre, and may not be found elsewhere
            middle[level.coordinates] = x[level.coordinates]
            mean[level.coordinates] = z[level.coordinates]
        moved = (mean - z)[spread > 0.0] / spread[spread > 0.0]
        if not fitted.moving or np.sqrt(np.mean(np.square(moved))) < _SETTLED:
            break
        if binary.size:  # keep the expansion where all coefficients are informed
            break
        x, z = middle, mean
    return replace(
        bare,
        surrogate=surrogate,
        fit=_gaussian(fitted, divided),
        surface=fitted,
        kinked=mode.precision is not None,
        forecast_flags=flags,
    )


def gaussian_surface(
    fit: GaussianFit,
    active: np.ndarray,
    draws: np.ndarray | None = None,
    freedom: float = math.inf,
) -> SurfaceFit:
    """Return the surface of a Gaussian, on which the active coordinates are moved given the others."""
    size, at = fit.mean.size, fit.coordinates
    none = compiled_terms(Written.nothing(), 0)
    inner = np.full(size, -1)
    inner[active] = np.arange(active.size)
    surface = Surface(
        inner,
        np.full(size, -1),
        none,
        rows_of(np.zeros((0, size))),
        none,
        at,
        fit.mean[at],
        np.zeros(at.size),
        np.ascontiguousarray(fit.precision[np.ix_(at, at)]),
        np.zeros(1),
    )
    draws = np.empty((0, size)) if draws is None else draws
    return SurfaceFit(surface, np.empty((0, 0)), 0.1, 1, draws, freedom=freedom)


def fit_to_moments(
    moments: Moments, coordinates: np.ndarray, active: np.ndarray, freedom: float
) -> SurfaceFit | None:
    """Return the surface of a Gaussian with the mean and covariance of a chain; None if it is degenerate."""
    inside = np.ix_(coordinates, coordinates)
    factor, definite = gaussian_factor(moments.covariance()[inside])
    if not definite:
        return None
    precision = np.zeros((moments.mean.size, moments.mean.size))
    precision[inside] = factor @ factor.T
    fit = GaussianFit(moments.mean.copy(), precision, coordinates)
    return gaussian_surface(fit, active, freedom=freedom)


def _without_wide(divided: Split, blocks: Sequence[np.ndarray], surrogate: Surrogate) -> Split:
    """Turn variables with priors of their own that rows do not determine well into hyperparameters."""
    wide = np.zeros(surrogate.centre.size, bool)
    for block in blocks:
        if np.isin(block, divided.nearly).all() and block.size:
            curvature = -surrogate.hessian[np.ix_(block, block)]
            narrow = linalg.eigvalsh(curvature)[0] * _NARROW**2 >= 1.0
            wide[block] = not narrow
    if not wide.any():
        return divided
    more = [f for at, f in divided.own if wide[at].any()]
    nearly, outer = (
        divided.nearly[~wide[divided.nearly]],
        np.union1d(divided.outer, np.flatnonzero(wide)),
    )
    return Split(divided.inner, nearly, outer, (*divided.terms, *more), wide=divided.wide)


def surface_at(
    model: RacedModel,
    parts: Parts,
    divided: Split,
    x: np.ndarray,
    surrogate: Surrogate,
    measured: np.ndarray | None = None,
) -> Surface:
    """Return prior times surrogate, with the plain part of the prior expanded at x (D,)."""
    size, plain = x.size, np.sort(np.concatenate([divided.inner, divided.nearly]))
    n_functions = surrogate.centre.size - size
    read = np.union1d(parts.reads, plain).astype(np.int64)
    at = np.concatenate([read, size + np.arange(n_functions)])
    numbered = np.full(size, -1)
    numbered[plain] = np.arange(plain.size)
    outer = np.full(size, -1)
    outer[divided.outer] = np.arange(divided.outer.size)
    surface = Surface(
        numbered,
        outer,
        compiled_terms(parts.prior._replace(families=divided.terms), 3),
        rows_of(parts.combinations, len(parts.prior.functions), divided.wide),
        compiled_terms(parts.coefficients, 2),
        read,
        surrogate.centre[at],
        surrogate.gradient[at].copy(),
        -surrogate.hessian[np.ix_(at, at)],
        np.zeros(1),
    )
    slope, precision = dense_prior(x, surface)
    whole = model.rest_value_and_gradient(x)[1]
    known = -model.rest_hessian(x, plain)[np.ix_(plain, plain)]
    curvature = known - precision
    curvature[np.abs(curvature) <= _ROUNDING * np.abs(known)] = 0.0
    places = np.searchsorted(read, plain)
    if measured is not None:
        inside = np.ix_(places, places)
        surface.curvature[inside] = measured[np.ix_(plain, plain)] - precision - curvature
    surface.curvature[np.ix_(places, places)] += curvature
    surface.slope[places] += whole[plain] - slope[plain]
    slope, curvature, highest = _bounded(surface.slope, surface.curvature)
    surface = surface._replace(slope=slope, curvature=curvature, highest=np.full(1, highest))
    upper = np.triu(conditional(x, surface).factor, 1)
    numbered[plain[narrow_order(upper + upper.T)]] = np.arange(plain.size)
    return surface


def _bounded(slope: np.ndarray, curvature: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return slope (C,) and curvature (C, C) without directions in which the expansion has no maximum, and the maximum.

    Directions are those of coordinates with unit curvature, so that units do not matter.
    """
    curvature = 0.5 * (curvature + curvature.T)
    scale = np.sqrt(np.maximum(np.diag(curvature), 0.0))
    scale[scale == 0.0] = 1.0
    values, vectors = linalg.eigh(curvature / np.outer(scale, scale))
    kept = values > _FLOOR * max(values[-1], 0.0)
    along = vectors.T @ (slope / scale)
    highest = 0.5 * float(np.sum(np.square(along[kept]) / values[kept]))
    if values[0] >= -_FLOOR * max(values[-1], 0.0):
        return slope, np.ascontiguousarray(curvature), highest
    basis = scale[:, None] * vectors[:, kept]
    return basis @ along[kept], np.ascontiguousarray((basis * values[kept]) @ basis.T), highest


def tuned(
    surface: Surface, binary: np.ndarray, x: np.ndarray, rng: np.random.Generator
) -> SurfaceFit:
    """Run a chain on the surface from x (D,), and tune masses and step size on the way."""
    found = conditional(x, surface)
    if not found.possible:
        raise NoProxy("the expansion has no maximum")
    n = surface.outer.max(initial=-1) + 1
    fit = SurfaceFit(surface, np.eye(n), 0.1, _MOST_LEAPS, np.array([found.x]), binary)
    if not n:
        return fit.chain(_KEPT, 0.0, rng)
    for number in _WINDOWS:
        before = np.linalg.norm(fit.mass, axis=1)
        fit = fit.chain(number, _TARGET, rng).with_covariance()
        change = np.abs(np.log(np.linalg.norm(fit.mass, axis=1) / before))
        if change.max() < math.log(_CHANGE):
            break
    fit = fit.chain(_WINDOWS[0], _TARGET, rng).chain(_KEPT, 0.0, rng)
    if not np.ptp(fit.draws[:, surface.outer >= 0], axis=0).any():
        raise NoSurface("its hyperparameters cannot be moved")
    lag = fit.correlation(np.flatnonzero(surface.outer >= 0))
    if not lag > _ALIKE:
        return fit
    # The number of trajectories after which hyperparameters are nearly independent.
    repeats = math.ceil(math.log(_ALIKE) / math.log(min(lag, 0.99)))
    return replace(fit, repeats=min(repeats, _MOST_REPEATS))


def _gaussian(fitted: SurfaceFit, divided: Split) -> GaussianFit:
    """Return mean and precision of x, with hyperparameters independent of the rest."""
    mean = fitted.draws.mean(axis=0)
    found = conditional(mean, fitted.surface)
    inner = ordered(fitted.surface.inner)
    out = np.zeros((mean.size, mean.size))
    out[np.ix_(inner, inner)] = found.precision()
    if divided.outer.size:
        spread = np.atleast_2d(np.cov(fitted.draws[:, divided.outer].T))
        spread += 1e-6 * np.eye(divided.outer.size)
        factor, _ = gaussian_factor(spread)
        out[np.ix_(divided.outer, divided.outer)] = factor @ factor.T
    inside = np.sort(np.concatenate([inner, divided.outer]))
    return GaussianFit(found.x, out, inside)


# --- residuals of a Taylor polynomial --------------------------------------------------------------
# The rows' log-likelihoods are expanded around a centre, and the race samples the residuals. If a few
# rows dominate the residual sum, a batch without them underestimates the spread. Such rows are removed
# from the race and evaluated at every decision.


EXACT_ROW_CHOICES = (0, 50, 200, 1000)
#: Standard deviation, in nats, of the estimated sum of the other residuals from as few rows as one, for rows with kinks.
_LEFT = 0.05


class ResidualSummary(NamedTuple):
    """Residuals r (natural log) of N rows over Q probe moves.

    ``largest`` (T,) are the rows with the largest root mean squares over the probes, in decreasing
    order; ``scale`` (T,) are these root mean squares. ``power`` is the sum of all rows' mean squares,
    ``totals`` (Q,) and ``squares`` (Q,) are sums over all rows of r and of r^2.
    """

    n_rows: int
    largest: np.ndarray
    scale: np.ndarray
    power: float
    totals: np.ndarray
    squares: np.ndarray


def summarise_residuals(
    residuals: Callable[[np.ndarray, np.ndarray], np.ndarray],
    probes: list[np.ndarray],
    n_rows: int,
    chunk: int = 16_384,
    *,
    n_largest: int = EXACT_ROW_CHOICES[-1],
) -> ResidualSummary:
    """Summarise residuals by one pass over all rows per probe move.

    ``residuals(points, rows)`` returns (m,) residual changes for a probe's points (2, D). Memory
    use does not depend on the number of rows.
    """
    totals, squares = np.zeros(len(probes)), np.zeros(len(probes))
    n_largest, values, largest = min(n_largest, n_rows), np.empty(0), np.empty(0, np.int64)
    for start in range(0, n_rows, chunk):
        rows = np.arange(start, min(start + chunk, n_rows))
        power = np.zeros(rows.size)
        for q, points in enumerate(probes):
            r = residuals(points, rows)
            totals[q] += r.sum()
            squares[q] += np.square(r).sum()
            power += np.square(r) / len(probes)
        kept = np.flatnonzero(power > (values[-1] if 0 < n_largest == values.size else -np.inf))
        values = np.concatenate([values, power[kept]])
        order = np.argsort(-values, kind="stable")[:n_largest]
        values, largest = values[order], np.concatenate([largest, rows[kept]])[order]
    whole = float(squares.sum() / len(probes))
    return ResidualSummary(n_rows, largest, np.sqrt(values), whole, totals, squares)


def choose_exact_rows(
    summary: ResidualSummary,
    expected_rows: Callable[[float, int], float],
) -> np.ndarray:
    """Choose the exactly evaluated rows that minimise the expected rows read per decision.

    ``expected_rows(sd, n_raced)`` predicts the rows read by a race whose residuals have standard
    deviation ``sd`` per row.
    """
    n_rows = summary.n_rows
    choices = [n for n in EXACT_ROW_CHOICES if n <= min(n_rows // 10, summary.largest.size)] or [0]
    taken = np.append(0.0, np.cumsum(np.square(summary.scale)))
    costs = []
    for n in choices:
        left = max(summary.power - taken[n], 0.0)
        costs.append(n + expected_rows(np.sqrt(left / (n_rows - n)), n_rows - n))
    best = choices[int(np.argmin(costs))]
    return np.sort(summary.largest[:best])


def most_near_kinks(n_rows: int) -> int:
    """Return the largest number of rows that :func:`rows_near_kinks` may choose."""
    return min(n_rows // 4, 2**17)


def rows_near_kinks(summary: ResidualSummary) -> np.ndarray:
    """Return the rows to evaluate exactly if log-likelihoods have kinks.

    Only rows whose kinks lie between the two points of a move have residuals that are not about zero. Batches miss
    these rows, whose number grows with the square root of the number of rows. They are the same for all moves.
    """
    n_rows, number = summary.n_rows, summary.largest.size
    left = summary.power - np.append(0.0, np.cumsum(np.square(summary.scale)))
    sd = np.sqrt(np.maximum(left, 0.0) / np.maximum(1, n_rows - np.arange(number + 1)))
    enough = np.flatnonzero(n_rows * sd <= _LEFT)
    return np.sort(summary.largest[: enough[0] if enough.size else number])


# --- forecast --------------------------------------------------------------------------------------


#: Size of residuals, relative to the log-likelihoods, below which they are rounding errors.
_ROUNDING_ERROR = 1e-11
_PROBES = 4
#: Probe moves for log-likelihoods with kinks, where a move changes the residuals of few rows only.
_KINKED_PROBES = 64
#: Maximum numbers of units and of rows whose residuals are computed at once.
_CHUNK, _CHUNK_ROWS = 16_384, 262_144
#: Number of units below which none is evaluated exactly.
_FEW = 1_000
_SAMPLE = 5_000


def with_forecast(prepared: Preparation, race: Race, rng: np.random.Generator) -> Preparation:
    """Choose the exactly evaluated units and forecast the cost of a decision."""
    raced, surrogate = prepared.raced, prepared.surrogate
    assert surrogate is not None
    n_units = raced.n_units
    kinked = prepared.kinked and raced.unit != "group"  # log-likelihoods of groups are smooth
    probes = probe_moves(prepared, rng, _KINKED_PROBES if kinked else _PROBES)
    most = most_near_kinks(n_units) if kinked else EXACT_ROW_CHOICES[-1]

    def residuals(points: np.ndarray, units: np.ndarray) -> np.ndarray:
        changes = unit_changes(raced.rewards, points, surrogate.centre, units)
        raced.release()
        return np.nan_to_num(changes, nan=0.0)

    with np.errstate(all="ignore"):
        chunk = int(np.clip(_CHUNK_ROWS * raced.n_units // raced.n_rows, 1, _CHUNK))
        summary = summarise_residuals(residuals, probes, n_units, chunk, n_largest=most)
    if not (np.all(np.isfinite(summary.totals)) and np.all(np.isfinite(summary.squares))):
        raise NoProxy("rows are impossible a posterior standard deviation from the mode")
    raced.rows_evaluated += 5 * raced.n_rows * len(probes)
    totals = summary.totals + _beyond(prepared, probes)
    some = np.sort(rng.choice(n_units, size=min(n_units, _SAMPLE), replace=False))
    size = np.abs(raced.values(surrogate.centre, some)).mean()
    rounding_only = bool(
        np.sqrt(summary.squares.max() / n_units) <= _ROUNDING_ERROR * max(size, 1e-3)
    )
    log_u = np.log(rng.random(32))

    def predicted(sd: float, n_raced: int) -> float:
        gaps = np.abs(totals[:, None] - log_u[None, :]).ravel() / n_raced
        return float(np.mean(race.expected_rows(gaps / max(sd, 1e-300), n_raced)))

    exact = np.empty(0, np.int64)
    if kinked:
        exact = rows_near_kinks(summary)
        _log.info(
            "Log-likelihoods have kinks: the %d rows near them are read at every decision.",
            exact.size,
        )
    elif not rounding_only and n_units >= _FEW:
        exact = choose_exact_rows(summary, predicted)
    n_raced = n_units - exact.size
    power = summary.power - np.square(summary.scale[: exact.size]).sum()
    left = np.sqrt(max(power, 0.0) / max(1, n_raced))
    rows = exact.size + (predicted(left, n_raced) if n_raced > 1 else n_raced)
    forecast = Forecast(rows, expected_acceptance(totals))
    return replace(prepared, exact_rows=exact, rounding_only=rounding_only, forecast=forecast)


def probe_moves(
    prepared: Preparation, rng: np.random.Generator, number: int = _PROBES
) -> list[np.ndarray]:
    """Draw pairs of points (2, E) like the moves of a chain at stationarity."""
    if prepared.surface is not None:
        draws = prepared.surface.draws
        ends = rng.integers(1, len(draws), number)
        return [prepared.eta(draws[k - 1 : k + 1]) for k in ends]
    surrogate = prepared.surrogate
    assert surrogate is not None
    fit = GaussianFit(surrogate.centre, -surrogate.hessian, prepared.raced.expand)
    ends = [fit.draw(rng) for _ in range(2 * number)]
    return [np.stack(ends[k : k + 2]) for k in range(0, len(ends), 2)]


def _beyond(prepared: Preparation, probes: list[np.ndarray]) -> np.ndarray:
    """Return by how much the expansion of races changes more than that of moves."""
    surface, surrogate = prepared.surface, prepared.surrogate
    if surface is None or surface.plateaus is None or surrogate is None:
        return np.zeros(len(probes))
    total = surface.plateaus.total
    return np.array([surrogate_change(p, surrogate) - total(p[1]) + total(p[0]) for p in probes])


def log_weights(prepared: Preparation, number: int) -> np.ndarray:
    """Return the logarithms (K,) of the posterior density over prior times surrogate at draws of the latter.

    Up to a constant, a log weight is the log-likelihood of all units minus its expansion. It is -inf where the
    log-likelihood is not finite.
    """
    surface, surrogate, raced = prepared.surface, prepared.surrogate, prepared.raced
    assert surface is not None and surrogate is not None
    some = np.linspace(0, len(surface.draws) - 1, number).astype(int)
    moves = [np.stack([surrogate.centre, eta]) for eta in prepared.eta(surface.draws[some])]
    sums = np.array([sum(np.sum(part) for part in raced.value_chunks(eta)) for _, eta in moves])
    expanded = np.array([surrogate_change(move, surrogate) for move in moves])
    raced.release()
    found = sums - expanded + _beyond(prepared, moves)
    return np.where(np.isfinite(found), found, -np.inf)


def expected_acceptance(totals: np.ndarray) -> float:
    """Return the acceptance rate if log ratios are N(-s^2 / 2, s^2), s^2 the mean of totals^2."""
    return float(2.0 * special.ndtr(-0.5 * np.sqrt(np.mean(np.square(totals)))))
