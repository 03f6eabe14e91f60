"""From a ``pm.Model`` to what racing steps need: densities, mode, control variate, exact rows."""

from __future__ import annotations

import logging

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt

from numba import njit

from amc_pymc.extract import FlatLayout, RowLogp, extract_rows
from amc_pymc.extract.data_control import DataControl
from amc_pymc.extract.densities import ModelDensities, RowDensities
from amc_pymc.extract.parameters import ParameterCut, cut_parameters
from amc_pymc.extract.rows import (
    CallbackRows,
    choose_observed,
    interpreted_mode,
    possible_points,
    row_count,
)
from amc_pymc.extract.support import element_states
from amc_pymc.progress import progress
from amc_pymc.proxies import (
    DataProxy,
    choose_exact_rows,
    find_mode,
    gaussian_factor,
    summarise_residuals,
)
from amc_pymc.step_methods.compiled import (
    Densities,
    Surrogate,
    as_they_are,
    no_control,
    no_gradient,
    no_row_gradient,
)
from amc_pymc.step_methods.settings import Race, TaylorProxy

__all__ = [
    "PREPARATION_SEED",
    "GaussianFit",
    "Preparation",
    "fit_gaussian",
    "prepare",
    "row_changes",
    "state_values",
    "surrogate_at",
]

_log = logging.getLogger("amc_pymc")
#: Residuals this small against the log-likelihood's own size are rounding errors.
_ROUNDING = 1e-11
_PROBES = 4
_POSSIBLE = 16
_MOST_STATES = 2_000
#: Subsamples and probes of the preparation do not depend on the user's seed.
PREPARATION_SEED = 20161


@dataclass(frozen=True)
class GaussianFit:
    """Gaussian approximation N(mean, precision^-1) of the posterior on the continuous coordinates.

    ``mean`` is (D,), ``precision`` (D, D) with zeros outside ``coordinates``.
    """

    mean: np.ndarray
    precision: np.ndarray
    coordinates: np.ndarray

    def moves(self, active: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cholesky factor (A, A) and gain (A, D) of the active coordinates given the others."""
        within = self.precision[np.ix_(active, active)]
        factor, _ = gaussian_factor(within)
        others = np.setdiff1d(self.coordinates, active)
        gain = np.zeros((active.size, self.mean.size))
        if others.size:
            gain[:, others] = -factor @ (factor.T @ self.precision[np.ix_(active, others)])
        return factor, gain

    def draw(self, x: np.ndarray, active: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A point with its active coordinates drawn given the rest of ``x``."""
        factor, gain = self.moves(active)
        out = x.copy()
        shift = gain @ (x - self.mean)
        out[active] = self.mean[active] + shift + factor @ rng.standard_normal(active.size)
        return out


class Forecast(NamedTuple):
    """Predicted cost of a decision between two independent draws of the Gaussian fit.

    ``residual_sd`` and ``plain_sd`` are standard deviations over rows of what a race samples, with
    and without control variate (natural log); ``rows`` and ``plain_rows`` the expected rows of a
    decision, those evaluated exactly included.
    """

    residual_sd: float
    plain_sd: float
    rows: float
    plain_rows: float


@dataclass(frozen=True)
class Preparation:
    """Everything about a model that all chains share.

    ``densities`` are those of the model at x, ``raced`` gives the compiled rewards of a race in
    terms of the parameters eta(x): x itself unless ``cut`` says otherwise. ``surrogate`` and
    ``fit`` are None without a Taylor control variate, ``control`` is the control variate in data
    space if there is one, ``exact_rows`` are evaluated at every decision, ``rounding_only`` says
    that the control variate is exact but for rounding, ``rows_spent`` counts the row evaluations
    made, ``forecast`` predicts the cost of a decision. ``slope`` is a surrogate in x, from which
    gradients are estimated.
    """

    densities: ModelDensities
    raced: Any
    start: np.ndarray
    cut: ParameterCut | None = None
    surrogate: Surrogate | None = None
    control: DataControl | None = None
    fit: GaussianFit | None = None
    exact_rows: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    rounding_only: bool = False
    rows_spent: int = 0
    notes: tuple[str, ...] = ()
    forecast: Forecast | None = None
    slope: Surrogate | None = None

    @property
    def parameters(self):
        """First-class ``x (D,) -> eta (E,)``."""
        return as_they_are if self.cut is None else self.cut.native

    def eta(self, x: np.ndarray) -> np.ndarray:
        """Parameters (..., E) at points (..., D)."""
        if self.cut is None:
            return x
        return np.apply_along_axis(self.cut.evaluate, -1, x)

    @property
    def control_native(self):
        """First-class population sum of the control variate in data space; zero without one."""
        return no_control if self.control is None else self.control.total

    def control_total(self, eta: np.ndarray) -> float:
        """Population sum of the control variate in data space."""
        return call_total(self.control_native, eta)

    def compiled(self, rewards, *, gradients: bool = False) -> Densities:
        """What compiled loops need, with ``rewards`` of the kind their race takes."""
        densities = self.densities
        return Densities(
            rewards,
            densities.rest,
            densities.rest_gradient if gradients else no_gradient,
            densities.row_gradient if gradients else no_row_gradient,
            self.parameters,
            self.control_native,
        )


@njit(cache=True)
def call_total(total, eta):
    """Value of a first-class function of parameters."""
    return total(eta)


@njit(cache=True)
def state_values(rewards, points, centre, rows):
    """Residuals (K, m) of the rows at several parameters."""
    return rewards(points, centre, rows)


@njit(cache=True)
def row_changes(rewards, points, centre, rows):
    """Changes (m,) of the rows' residuals from points[0] to points[1]."""
    return rewards(points, centre, rows)[1].copy()


def prepare(
    model,
    active_names: Sequence[str],
    *,
    observed_vars: Sequence[Any] | None,
    race: Race,
    proxy: TaylorProxy | DataProxy | None,
    insist: bool,
    point: dict[str, np.ndarray],
    rng: np.random.Generator,
    row_logp: Callable | None = None,
    compile_kwargs: dict[str, Any] | None = None,
    fit: bool = True,
    progressbar: bool = True,
) -> Preparation:
    """Take the model apart, check it against itself, and fit the control variate.

    ``fit=False`` leaves out the Gaussian approximation of the posterior, which proposals need.
    """
    with progress("Preparing rows (compiles at first use)", 4, enabled=progressbar) as bar:
        densities = _densities(model, observed_vars, row_logp, point, compile_kwargs)
        bar.advance()
        start = densities.layout.ravel(point)
        _check_start(densities, start)
        _check_total(model, densities, start)
        bar.update(description="Searching the mode")
        bar.advance()
        bare = Preparation(densities, densities, start)
        maker = _with_data_proxy if isinstance(proxy, DataProxy) else _with_taylor
        try:
            prepared = maker(bare, model, active_names, race, proxy, rng, bar, fit)
        except NoProxy as reason:
            if insist:
                raise ValueError(f"proxy={_named(proxy)} cannot be used: {reason}") from None
            if race.delta > 0.0:
                _warn_without_proxy(str(reason))
            densities.expand = np.empty(0, np.int64)
            return replace(bare, rows_spent=densities.rows_evaluated, notes=(str(reason),))
    return prepared


class NoProxy(Exception):
    """There can be no control variate, and why."""


def _named(proxy) -> str:
    return "'data'" if isinstance(proxy, DataProxy) else "'taylor'"


# --- the model's densities ----------------------------------------------------------------------


def _densities(model, observed_vars, row_logp, point, compile_kwargs) -> ModelDensities:
    observed = choose_observed(model, observed_vars)
    layout = FlatLayout.from_model(model, point)
    rest = model.logp(vars=[v for v in _all_factors(model) if v not in observed])
    names = tuple(str(rv.name) for rv in observed)
    rows: RowLogp | CallbackRows
    if row_logp is None:
        rows = extract_rows(model, names)
        expand = layout.indices([n for n in rows.value_vars if layout.is_continuous(n)])
    else:
        rows = CallbackRows(row_logp, row_count(model, observed), names, layout.names, layout)
        expand = np.empty(0, np.int64)
    return ModelDensities(
        rows, rest, model.value_vars, expand=expand, compile_kwargs=compile_kwargs
    )


def _all_factors(model):
    return [*model.basic_RVs, *model.potentials]


def _check_start(densities: ModelDensities, start: np.ndarray) -> None:
    """Every row and the rest must be finite where the chain starts."""
    bad_x = ~np.isfinite(start)
    if bad_x.any():
        labels = densities.layout.labels()
        shown = ", ".join(f"{labels[k]} = {start[k]}" for k in np.flatnonzero(bad_x)[:5])
        raise ValueError(f"initial_point is not finite: {shown}")
    check_rows_finite(densities, start, "the initial point")


def check_rows_finite(densities: ModelDensities, x: np.ndarray, where: str) -> None:
    """Raise a ValueError that names rows whose log-likelihood is not finite."""
    values = densities.all_values(x)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        shown = ", ".join(f"row {n}: {values[n]}" for n in bad[:5])
        raise ValueError(
            f"The log-likelihood of {', '.join(densities.rows.observed_vars)} is not finite at "
            f"{where} in {bad.size} of "
            f"{values.size} rows ({shown}{', ...' if bad.size > 5 else ''}). Clean these rows or "
            "start where they are possible."
        )


def _check_total(model, densities, start) -> None:
    """Rows plus rest must add up to the model's logp."""
    if isinstance(densities.rows, CallbackRows):
        return
    x = pt.vector("x")
    total = densities.layout.substitute([model.logp()], model.value_vars, x)[0]
    fn = pytensor.function([x], total, mode=interpreted_mode(), on_unused_input="ignore")
    expected = float(fn(start))
    got = float(densities.all_values(start).sum()) + densities.rest_value_and_gradient(start)[0]
    if not np.isfinite(expected):
        raise ValueError(f"The model's logp is {expected} at the initial point; start elsewhere")
    if abs(got - expected) > 1e-8 * max(1.0, abs(expected)):
        raise ValueError(
            f"The rows and the rest add up to a log density of {got}, the model says {expected}. "
            "Pass row_logp=, or report this model as a bug of amc_pymc."
        )


# --- the control variate ------------------------------------------------------------------------


def _check_rows_graph(densities, proxy) -> None:
    if proxy is None:
        raise NoProxy("proxy=None")
    if isinstance(densities.rows, CallbackRows):
        raise NoProxy("row_logp has no derivatives")


def _expandable(bare: Preparation, model, proxy: TaylorProxy, rng) -> Preparation:
    """Parameters of the rows in which they can be expanded."""
    densities, layout = bare.densities, bare.densities.layout
    rows = densities.rows
    _check_rows_graph(densities, proxy)
    cut: ParameterCut | None = None
    raced: RowDensities = densities
    if not all(layout.is_continuous(n) for n in rows.value_vars):
        cut = cut_parameters(densities.row_log_density, bare.start)
        _check_parameters(cut, bare, model, rng)
        smooth = np.setdiff1d(np.arange(cut.rows.layout.size), cut.rough())
        raced = RowDensities(cut.rows, expand=smooth, compile_kwargs=densities.compile_kwargs)
    if not raced.expand.size:
        raise NoProxy("the rows depend on no continuous quantity")
    if raced.expand.size > proxy.max_dim:
        local = rows.row_local
        advice = (
            f"{', '.join(local)} has one value per row; integrate it out"
            if local
            else "raise TaylorProxy(max_dim=) if memory and time allow"
        )
        raise NoProxy(
            f"the rows depend on {raced.expand.size} coordinates, more than "
            f"max_dim={proxy.max_dim} ({advice})"
        )
    return replace(bare, cut=cut, raced=raced)


def _check_parameters(cut: ParameterCut, bare: Preparation, model, rng) -> None:
    """Parameters made from discrete variables must be finite, conditions and indices constant."""
    rough, layout = cut.rough(), bare.densities.layout
    names = [n for n in bare.densities.rows.value_vars if not layout.is_continuous(n)]
    points = possible_points(model, layout, layout.unravel(bare.start), rng, _POSSIBLE)
    points += _each_state(model, bare, names, rng)
    first = cut.evaluate(bare.start)[rough]
    for x in points:
        with np.errstate(all="ignore"):
            eta = cut.evaluate(x)
        if np.any(eta[rough] != first):
            raise NoProxy(
                f"the rows depend on {', '.join(names)} as an index or a condition, not through a "
                "quantity that can be expanded"
            )
        if not np.all(np.isfinite(eta)):
            raise NoProxy(f"what the rows make of {', '.join(names)} is not finite in some state")


def _each_state(model, bare: Preparation, names, rng) -> list[np.ndarray]:
    """The start with one element of a bounded discrete variable in each of its states."""
    layout, points = bare.densities.layout, []
    for v in model.value_vars:
        if v.name not in names:
            continue
        try:
            states = element_states(model, v)
        except ValueError:  # unbounded: draws from the prior have to do
            continue
        where = layout.slices[v.name]
        pairs = [(c, s) for c, k in zip(range(where.start, where.stop), states) for s in k]
        for j in rng.permutation(len(pairs))[:_MOST_STATES]:
            x = bare.start.copy()
            x[pairs[j][0]] = pairs[j][1]
            points.append(x)
    return points


def _warn_without_proxy(reason: str) -> None:
    _log.warning(
        "No control variate: %s. Races will read a large part of the rows, and many decisions are "
        "close, so that errors of probability delta bias the posterior visibly. Use "
        "delta=0.01 and batch_size=200, and compare with race='exact'.",
        reason,
    )


def _with_taylor(bare, model, active_names, race, proxy, rng, bar, fit) -> Preparation:
    bare = _expandable(bare, model, proxy, rng)
    densities, layout = bare.densities, bare.densities.layout
    continuous = layout.indices([n for n in layout.names if layout.is_continuous(n)])
    x, notes = bare.start, ()
    if fit or bare.cut is None:
        x, notes = _posterior_mode(bare, continuous, proxy, rng)
    centre = x if bare.cut is None else _likelihood_mode(bare, proxy, rng)
    surrogate = surrogate_at(bare.raced, centre)
    gaussian = None
    if surrogate and fit and continuous.size:
        hessian = surrogate.hessian if bare.cut is None else _inside(densities, x)
        gaussian = fit_gaussian(densities, hessian, x, continuous)
    if not surrogate or (fit and continuous.size and not gaussian):
        raise NoProxy(f"the derivatives are not finite at the mode ({'; '.join(notes) or 'found'})")
    bar.update(description="Measuring residuals")
    bar.advance()
    slope = surrogate if bare.cut is None else None
    prepared = replace(bare, surrogate=surrogate, slope=slope, fit=gaussian, notes=notes)
    probes = _probe_moves(prepared, layout.indices(active_names), rng)
    exact_rows, rounding_only, forecast = _residual_rows(prepared, probes, race, proxy, rng)
    bar.advance()
    return replace(
        prepared,
        exact_rows=exact_rows,
        rounding_only=rounding_only,
        rows_spent=densities.rows_evaluated + bare.raced.rows_evaluated,
        forecast=forecast,
    )


def _with_data_proxy(bare, model, active_names, race, proxy, rng, bar, fit) -> Preparation:
    """A control variate in data space; its bins look at the posterior mode where there is one."""
    densities, layout = bare.densities, bare.densities.layout
    _check_rows_graph(densities, proxy)
    continuous = layout.indices([n for n in layout.names if layout.is_continuous(n)])
    x, notes, gaussian, slope = bare.start, (), None, None
    if continuous.size:
        x, notes = _posterior_mode(bare, continuous, TaylorProxy(), rng)
        slope = surrogate_at(densities, x) if fit else None
        gaussian = slope and fit_gaussian(densities, slope.hessian, x, continuous)
    try:
        control = DataControl(
            densities.row_log_density, proxy, x, rng, compile_kwargs=densities.compile_kwargs
        )
    except ValueError as error:
        raise NoProxy(str(error)) from error
    bar.advance(2)
    return replace(
        bare,
        raced=control,
        control=control,
        fit=gaussian,
        slope=slope,
        exact_rows=control.exact,
        rows_spent=densities.rows_evaluated,
        notes=notes,
    )


def _posterior_mode(bare, continuous, proxy, rng):
    """Mode over the continuous coordinates given the others, and what to say of the search."""
    densities = bare.densities
    mode = _search(densities, bare.start, continuous, proxy, rng)
    if mode.converged:
        return mode.x, ()
    _log.info("Mode search over all variables: %s", mode.message)
    notes = (f"mode search: {mode.message}",)
    return _search(densities, bare.start, densities.expand, proxy, rng).x, notes


def _likelihood_mode(bare, proxy, rng) -> np.ndarray:
    """Parameters that fit the rows best, held back by a prior 10 units (or values) wide."""
    raced, start = bare.raced, bare.eta(bare.start)
    width = 10.0 * np.maximum(1.0, np.abs(start[raced.expand]))

    def prior(eta):
        z = (eta - start)[raced.expand] / width
        gradient = np.zeros(eta.size)
        gradient[raced.expand] = -z / width
        return -0.5 * float(z @ z), gradient

    def prior_hessian(eta, coordinates):
        out = np.zeros((start.size, start.size))
        out[raced.expand, raced.expand] = -1.0 / width**2
        return out

    mode = _maximise(raced, prior, prior_hessian, start, raced.expand, proxy, rng)
    return mode.x if np.all(np.isfinite(mode.x)) else start


def _search(densities, start, search, proxy, rng):
    return _maximise(
        densities,
        densities.rest_value_and_gradient,
        densities.rest_hessian,
        start,
        search,
        proxy,
        rng,
    )


def _maximise(rows, rest, rest_hessian, start, search, proxy, rng):
    n_rows = rows.n_rows

    def value_and_gradient(x, some):
        scale = 1.0 if some is None else n_rows / len(some)
        value, gradient = rows.value_and_gradient(x, some)
        other, other_gradient = rest(x)
        return scale * value + other, scale * gradient + other_gradient

    def hessian(x, some):
        scale = 1.0 if some is None else n_rows / len(some)
        return scale * rows.hessian(x, some) + rest_hessian(x, search)

    with np.errstate(all="ignore"):  # the search may step where rows are impossible
        return find_mode(
            value_and_gradient, hessian, start, search, n_rows, rng, subsample=proxy.subsample
        )


def surrogate_at(raced: RowDensities, centre: np.ndarray) -> Surrogate | None:
    """Population sums of row gradients and Hessians at a centre, by one pass over all rows.

    None where they are not finite.
    """
    _, gradient = raced.value_and_gradient(centre)
    hessian = _inside(raced, centre)
    if not (np.all(np.isfinite(gradient)) and np.all(np.isfinite(hessian))):
        return None
    return Surrogate(centre.copy(), gradient * _mask(centre.size, raced.expand), hessian)


def _inside(raced: RowDensities, x: np.ndarray) -> np.ndarray:
    """Hessian of the rows' sum, zero outside the coordinates expanded."""
    inside = _mask(x.size, raced.expand)
    return raced.hessian(x) * np.outer(inside, inside)


def fit_gaussian(densities, hessian, x, coordinates) -> GaussianFit | None:
    """Laplace approximation at x from the rows' Hessian; None where it is not finite."""
    hessian = hessian + densities.rest_hessian(x, coordinates)
    if not np.all(np.isfinite(hessian)):
        return None
    inside = _mask(x.size, coordinates)
    precision = -hessian * np.outer(inside, inside)
    return GaussianFit(x.copy(), precision, coordinates)


def _mask(size, coordinates):
    out = np.zeros(size)
    out[coordinates] = 1.0
    return out


def _residual_rows(prepared, probes, race, proxy, rng):
    """Rows to evaluate exactly, whether residuals are rounding errors only, and the forecast."""
    raced, surrogate = prepared.raced, prepared.surrogate
    n_rows = raced.n_rows
    rewards = raced.rewards

    def residuals(points, rows):
        return np.nan_to_num(row_changes(rewards, points, surrogate.centre, rows), nan=0.0)

    with np.errstate(all="ignore"):
        summary = summarise_residuals(residuals, probes, n_rows)
    if not (np.all(np.isfinite(summary.totals)) and np.all(np.isfinite(summary.squares))):
        raise NoProxy("rows are impossible a posterior standard deviation from the mode")
    raced.rows_evaluated += 5 * n_rows * len(probes)
    some = np.sort(rng.choice(n_rows, size=min(n_rows, 5000), replace=False))
    size = np.abs(raced.values(surrogate.centre, some)).mean()
    rounding_only = bool(np.sqrt(summary.squares.max() / n_rows) <= _ROUNDING * max(size, 1e-3))
    log_u = np.log(rng.random(32))

    def predicted(sd, n_raced):
        gaps = np.abs(summary.totals[:, None] - log_u[None, :]).ravel() / n_raced
        return float(np.mean(race.expected_rows(gaps / max(sd, 1e-300), n_raced)))

    exact = _exact_rows(summary, predicted, proxy, rounding_only)
    power = np.square(summary.scale, dtype=np.float64)
    n_raced = n_rows - exact.size
    left = np.sqrt(max(power.sum() - power[exact].sum(), 0.0) / max(1, n_raced))
    plain = np.mean([_plain_sd(raced, points, some) for points in probes])
    forecast = Forecast(
        float(left),
        float(plain),
        exact.size + (predicted(left, n_raced) if n_raced > 1 else n_raced),
        predicted(plain, n_rows) if n_rows > 1 else 1.0,
    )
    return exact, rounding_only, forecast


def _exact_rows(summary, predicted, proxy, rounding_only) -> np.ndarray:
    if proxy.exact_rows == "auto":
        none = rounding_only or summary.scale.size < 1000
        return np.empty(0, np.int64) if none else choose_exact_rows(summary, predicted)
    order = np.argsort(summary.scale)[::-1][: proxy.exact_rows]
    return np.sort(order).astype(np.int64)


def _plain_sd(densities, points, rows) -> float:
    with np.errstate(invalid="ignore"):
        changes = densities.values(points[1], rows) - densities.values(points[0], rows)
    return float(np.nanstd(changes))


def _probe_moves(prepared: Preparation, active: np.ndarray, rng) -> list[np.ndarray]:
    """Pairs of points (2, E) between which a chain at stationarity would move."""
    fit = prepared.fit
    if prepared.cut is not None or fit is None:
        assert prepared.surrogate is not None
        centre, expand = prepared.surrogate.centre, prepared.raced.expand
        fit = GaussianFit(centre, -prepared.surrogate.hessian, expand)
        active = expand
    out = []
    for _ in range(_PROBES):
        x = fit.draw(fit.mean, fit.coordinates, rng)
        out.append(np.stack([x, fit.draw(x, active, rng)]))
    return out
