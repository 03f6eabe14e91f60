"""Data about a model that all chains share: prior times surrogate, fitted to it, and the cost of decisions."""

from __future__ import annotations

import logging
import math

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from scipy import linalg, optimize, special

from amc_pymc.engine import Family, Graph
from amc_pymc.flags import Flag, flag
from amc_pymc.tall.decisions import Thinning, residuals
from amc_pymc.tall.mode import GaussianFit, Moments, find_mode, gaussian_factor
from amc_pymc.tall.racing import Race
from amc_pymc.tall.refresh import Known, Refresh, log_surface, run_on_surface
from amc_pymc.tall.surrogate import (
    Surface,
    Surrogate,
    conditional,
    dense_prior,
    n_wide,
    narrow_order,
    no_surrogate,
    ordered,
    rows_of,
    surrogate_at,
    surrogate_change,
    surrogate_total,
)
from amc_pymc.tall.terms import NoSurface, Parts, Split, Written, compiled_terms, split
from amc_pymc.tall.units import NoProxy, Raced, RacedModel

_log = logging.getLogger("amc_pymc")


class Forecast(NamedTuple):
    """Predicted cost of a decision between two independent draws of the Gaussian fit.

    ``rows`` are the expected units read per decision, including exact ones, ``acceptance`` is the acceptance rate of
    such moves if only the units were not Gaussian.
    """

    rows: float = math.nan
    acceptance: float = math.nan


_NOT_FITTED = no_surrogate(np.empty(0))


@dataclass(frozen=True)
class Preparation:
    """Data about a model that are shared by all chains.

    ``densities`` is the model as a function of x, ``raced`` the population of units as a function of
    the parameters eta(x), the same object if ``cut`` is None. ``cut`` has this map x (D,) -> eta (E,) for Python
    (``evaluate``) and as a first-class function (``native``). ``surrogate`` is zero without a control variate, and empty before it is fitted,
    ``fit`` and ``surface`` are None for a sampler without moves. ``exact_rows`` are units evaluated at every decision.
    ``rounding_only`` says whether the control variate is exact up to rounding, ``kinked`` whether log-likelihoods have
    kinks.
    ``rows_spent`` counts row evaluations, ``flags`` are doubts about every run, ``forecast_flags`` those about a
    forecast only, ``no_proxy`` says why there is no control variate, ``forecast`` predicts the cost of a decision.
    ``surface`` is prior times surrogate, with moves tuned on it. ``quadrature_error`` is the standard deviation over
    posterior points of the error that the nodes over local effects leave, in nats. ``thinning`` has
    bounds of rows, with which decisions are exact; its large ``tables``, by name, may be in shared memory.
    ``seconds`` is the wall time of the preparation.
    """

    densities: RacedModel
    raced: Raced
    start: np.ndarray
    cut: Any = None
    surrogate: Surrogate = _NOT_FITTED
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
    thinning: Thinning | None = None
    tables: Mapping[str, Any] = field(default_factory=dict)
    quadrature_error: float = 0.0
    seconds: float = 0.0

    def eta(self, x: np.ndarray) -> np.ndarray:
        """Return parameters (..., E) at points (..., D)."""
        if self.cut is None:
            return x
        found: np.ndarray = np.apply_along_axis(self.cut.evaluate, -1, x)
        return found

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if self.thinning is not None:
            none: dict[str, Any] = dict.fromkeys(self.tables)
            state["thinning"] = self.thinning._replace(**none)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["thinning"] is not None:
            tables = {name: table.data for name, table in state["tables"].items()}
            state["thinning"] = state["thinning"]._replace(**tables)
        self.__dict__.update(state)


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

    def beyond(self, moves: list[np.ndarray], surrogate: Surrogate) -> np.ndarray:
        """Return by how much the surrogate of races changes more than this one, for moves (2, E)."""
        return np.array(
            [surrogate_change(p, surrogate) - self.total(p[1]) + self.total(p[0]) for p in moves]
        )

    def parts(self, parts: Parts) -> Parts:
        """Return the same terms of the prior, with w among the coefficients."""
        graph, families = Graph(), list[Family]()
        for k, (j, sign, a) in enumerate(zip(*self[:3], strict=True)):
            entry = graph.make("entry", graph.const(j), value="eta")
            twice = graph.make("mul", 2.0 * sign, entry)
            inside = graph.make("add", graph.const(a), graph.make("exp", twice))
            families.append(Family(graph.make("log", inside), np.zeros((1, 0)), k))
        return parts._replace(coefficients=Written(graph, tuple(families)))


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
        """Return moves of a new chain, for which no Gaussian is known."""
        surface, v = self.surface, ordered(self.surface.inner)
        phi = np.flatnonzero(surface.outer >= 0)
        known = Known(
            np.zeros((2, surface.inner.size)),
            np.full(2, np.nan),
            np.zeros(2),
            np.zeros((2, v.size, v.size)),
            np.zeros((2, n_wide(surface), v.size)),
            np.zeros((2, phi.size)),
        )
        return Refresh(
            surface,
            v,
            phi,
            self.mass,
            np.full(1, self.step),
            np.full(1, self.leaps),
            self.binary,
            np.full(1, self.repeats),
            np.full(1, self.freedom),
            known,
            surface._replace(slope=surface.slope.copy(), curvature=surface.curvature.copy()),
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
    mode = find_mode(model, model, start, searched, subsample, rng)
    flags = () if mode.converged else (flag("mode_not_found", message=mode.message),)
    x, z, measured = mode.x, bare.eta(mode.x), None
    if mode.precision is not None:
        measured = np.zeros((x.size, x.size))
        measured[np.ix_(searched, searched)] = mode.precision
    for k in range(_MOST_ROUNDS):
        raced.settled = False
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
    none = compiled_terms(Written(Graph()), 0)
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
    raced: Raced,
    centre: np.ndarray,
    probes: list[np.ndarray],
    chunk: int = 16_384,
    *,
    n_largest: int = EXACT_ROW_CHOICES[-1],
) -> ResidualSummary:
    """Summarise the residuals of units by one pass over all of them per probe move (2, E).

    Those that are NaN count as zero. Memory use does not depend on the number of units.
    """
    n_rows = raced.n_units
    totals, squares = np.zeros(len(probes)), np.zeros(len(probes))
    n_largest, values, largest = min(n_largest, n_rows), np.empty(0), np.empty(0, np.int64)
    for start in range(0, n_rows, chunk):
        rows = np.arange(start, min(start + chunk, n_rows))
        power = np.zeros(rows.size)
        for q, points in enumerate(probes):
            r = np.nan_to_num(residuals(raced.rewards, points, centre, rows)[1], nan=0.0)
            raced.store.release()
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
    race: Race,
    gaps: np.ndarray,
    choices: Sequence[int] | None = None,
) -> tuple[np.ndarray, float]:
    """Choose the exactly evaluated rows that minimise the expected rows read per decision.

    Parameters
    ----------
    summary : ResidualSummary
        The rows chosen are some of those with the largest residuals.
    race : Race
        Race over the others.
    gaps : (G,) array
        Sizes of log ratios minus their thresholds, in nats.
    choices : sequence of int, optional
        Numbers of rows. Default: 0 to 1,000, and at most a tenth of all.

    Returns
    -------
    (X,) int array
        The rows.
    float
        The expected number of rows read, these included.
    """
    if choices is None:
        most = min(summary.n_rows // 10, summary.largest.size)
        choices = [n for n in EXACT_ROW_CHOICES if n <= most]
    taken, costs = np.append(0.0, np.cumsum(np.square(summary.scale))), []
    for n in choices:
        n_raced, read = summary.n_rows - n, summary.n_rows - n
        if n_raced > 1:
            sd = np.sqrt(max(summary.power - taken[n], 0.0) / n_raced)
            read = np.mean(race.expected_rows(gaps / n_raced / max(sd, 1e-300), n_raced))
        costs.append(n + float(read))
    best = int(np.argmin(costs))
    return np.sort(summary.largest[: choices[best]]), costs[best]


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
    n_units = raced.n_units
    kinked = prepared.kinked and raced.unit != "group"  # log-likelihoods of groups are smooth
    probes = probe_moves(prepared, rng, _KINKED_PROBES if kinked else _PROBES)
    most = most_near_kinks(n_units) if kinked else EXACT_ROW_CHOICES[-1]
    with np.errstate(all="ignore"):
        chunk = int(np.clip(_CHUNK_ROWS * raced.n_units // raced.n_rows, 1, _CHUNK))
        summary = summarise_residuals(raced, surrogate.centre, probes, chunk, n_largest=most)
    if not (np.all(np.isfinite(summary.totals)) and np.all(np.isfinite(summary.squares))):
        raise NoProxy("rows are impossible a posterior standard deviation from the mode")
    raced.rows_evaluated += 5 * raced.n_rows * len(probes)
    totals = summary.totals
    if prepared.surface is not None and prepared.surface.plateaus is not None:
        totals = totals + prepared.surface.plateaus.beyond(probes, surrogate)
    some = np.sort(rng.choice(n_units, size=min(n_units, _SAMPLE), replace=False))
    size = np.abs(raced.values(surrogate.centre, some)).mean()
    rounding_only = bool(
        np.sqrt(summary.squares.max() / n_units) <= _ROUNDING_ERROR * max(size, 1e-3)
    )
    gaps, choices = np.abs(totals[:, None] - np.log(rng.random(32))).ravel(), None
    if kinked:
        choices = [rows_near_kinks(summary).size]
        _log.info(
            "Log-likelihoods have kinks: the %d rows near them are read at every decision.",
            *choices,
        )
    elif rounding_only or n_units < _FEW:
        choices = [0]
    exact, rows = choose_exact_rows(summary, race, gaps, choices)
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
    fit = GaussianFit(surrogate.centre, -surrogate.hessian, prepared.raced.expand)
    ends = [fit.draw(rng) for _ in range(2 * number)]
    return [np.stack(ends[k : k + 2]) for k in range(0, len(ends), 2)]


def log_weights(prepared: Preparation, number: int) -> np.ndarray:
    """Return the logarithms (K,) of the posterior density over prior times surrogate at draws of the latter.

    Up to a constant, a log weight is the log-likelihood of all units minus its expansion. It is -inf where the
    log-likelihood is not finite.
    """
    surface, surrogate, raced = prepared.surface, prepared.surrogate, prepared.raced
    assert surface is not None
    some = np.linspace(0, len(surface.draws) - 1, number).astype(int)
    moves = [np.stack([surrogate.centre, eta]) for eta in prepared.eta(surface.draws[some])]
    sums = np.array([sum(np.sum(part) for part in raced.value_chunks(eta)) for _, eta in moves])
    expanded = np.array([surrogate_change(move, surrogate) for move in moves])
    raced.store.release()
    found = sums - expanded
    if surface.plateaus is not None:
        found += surface.plateaus.beyond(moves, surrogate)
    return np.where(np.isfinite(found), found, -np.inf)


def expected_acceptance(totals: np.ndarray) -> float:
    """Return the acceptance rate if log ratios are N(-s^2 / 2, s^2), s^2 the mean of totals^2."""
    return float(2.0 * special.ndtr(-0.5 * np.sqrt(np.mean(np.square(totals)))))
