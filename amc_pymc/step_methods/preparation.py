"""From a ``pm.Model`` to what racing steps need: densities, mode, control variate, exact rows."""

from __future__ import annotations

import logging

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt

from numba import njit
from pytensor.graph.replace import clone_replace

from amc_pymc.bounds import expected_rows
from amc_pymc.extract import FlatLayout, RowLogp, extract_rows
from amc_pymc.extract.densities import ModelDensities
from amc_pymc.extract.rows import (
    CallbackRows,
    choose_observed,
    interpreted_mode,
    row_count,
)
from amc_pymc.progress import progress
from amc_pymc.proxies import (
    choose_exact_rows,
    find_mode,
    gaussian_factor,
    summarise_residuals,
)
from amc_pymc.step_methods.metropolis_kernel import Surrogate
from amc_pymc.step_methods.settings import Race, TaylorProxy

__all__ = [
    "PREPARATION_SEED",
    "GaussianFit",
    "Preparation",
    "fit_gaussian",
    "prepare",
    "row_changes",
    "surrogate_at",
]

_log = logging.getLogger("amc_pymc")
#: Residuals this small against the log-likelihood's own size are rounding errors.
_ROUNDING = 1e-11
_PROBES = 4
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

    ``surrogate`` and ``fit`` are None without a control variate, ``exact_rows`` are evaluated at
    every decision, ``rounding_only`` says that the control variate is exact but for rounding,
    ``rows_spent`` counts the row evaluations made, ``forecast`` predicts the cost of a decision.
    """

    densities: ModelDensities
    start: np.ndarray
    surrogate: Surrogate | None
    fit: GaussianFit | None
    exact_rows: np.ndarray
    rounding_only: bool
    rows_spent: int
    notes: tuple[str, ...] = ()
    forecast: Forecast | None = None


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
    proxy: TaylorProxy | None,
    insist: bool,
    point: dict[str, np.ndarray],
    rng: np.random.Generator,
    row_logp: Callable | None = None,
    compile_kwargs: dict[str, Any] | None = None,
    progressbar: bool = True,
) -> Preparation:
    """Take the model apart, check it against itself, and fit the control variate."""
    with progress("Preparing rows (compiles at first use)", 4, enabled=progressbar) as bar:
        densities, other_discrete = _densities(
            model, observed_vars, row_logp, point, compile_kwargs, proxy is not None
        )
        bar.advance()
        layout = densities.layout
        start = layout.ravel(point)
        _check_start(densities, start)
        _check_total(model, densities, start)
        bar.update(description="Searching the mode")
        bar.advance()
        reason = _why_no_proxy(densities, proxy, other_discrete)
        bare = Preparation(densities, start, None, None, np.empty(0, np.int64), False, 0)
        if reason:
            if insist:
                raise ValueError(f"proxy='taylor' cannot be used: {reason}")
            if race.delta > 0.0:
                _warn_without_proxy(reason)
            densities.expand = np.empty(0, np.int64)
            return replace(bare, rows_spent=densities.rows_evaluated, notes=(reason,))
        prepared = _with_proxy(bare, active_names, race, proxy, rng, bar)
        if prepared.surrogate is None and insist:
            raise ValueError(f"proxy='taylor' cannot be used: {prepared.notes[0]}")
    return prepared


# --- the model's densities ----------------------------------------------------------------------


def _densities(model, observed_vars, row_logp, point, compile_kwargs, want_proxy):
    observed = choose_observed(model, observed_vars)
    layout = FlatLayout.from_model(model, point)
    rest = model.logp(vars=[v for v in _all_factors(model) if v not in observed])
    names = tuple(str(rv.name) for rv in observed)
    rows: RowLogp | CallbackRows
    if row_logp is None:
        rows = extract_rows(model, names)
    else:
        rows = CallbackRows(row_logp, row_count(model, observed), names, layout.names, layout)
    discrete = [n for n in rows.value_vars if not layout.is_continuous(n)]
    expand = layout.indices([n for n in rows.value_vars if layout.is_continuous(n)])
    if discrete or not want_proxy or row_logp is not None:
        expand = np.empty(0, np.int64)
    densities = ModelDensities(
        rows, rest, model.value_vars, expand=expand, compile_kwargs=compile_kwargs
    )
    return densities, discrete


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
    values = densities.layout.split(x)
    swap = {v: v.type.filter_variable(values[v.name], allow_convert=True) for v in model.value_vars}
    total = clone_replace([model.logp()], swap, rebuild_strict=False)[0]
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


def _why_no_proxy(densities, proxy, discrete) -> str:
    if proxy is None:
        return "proxy=None"
    if isinstance(densities.rows, CallbackRows):
        return "row_logp has no derivatives"
    if discrete:
        return f"the rows depend on discrete variables ({', '.join(discrete)})"
    if not densities.expand.size:
        return "the rows depend on no continuous variable"
    if densities.expand.size > proxy.max_dim:
        local = densities.rows.row_local
        advice = (
            f"{', '.join(local)} has one value per row; integrate it out"
            if local
            else "raise TaylorProxy(max_dim=) if memory and time allow"
        )
        return (
            f"the rows depend on {densities.expand.size} coordinates, more than "
            f"max_dim={proxy.max_dim} ({advice})"
        )
    return ""


def _warn_without_proxy(reason: str) -> None:
    _log.warning(
        "No control variate: %s. Races will read a large part of the rows, and many decisions are "
        "close, so that errors of probability delta bias the posterior visibly. Use "
        "delta=0.01 and batch_size=200, and compare with race='exact'.",
        reason,
    )


def _with_proxy(bare, active_names, race, proxy, rng, bar) -> Preparation:
    densities, layout = bare.densities, bare.densities.layout
    continuous = layout.indices([n for n in layout.names if layout.is_continuous(n)])
    mode, problem = _search(densities, bare.start, continuous, proxy, rng), ""
    if not mode.converged:
        problem = mode.message
        mode = _search(densities, bare.start, densities.expand, proxy, rng)
    surrogate = surrogate_at(densities, mode.x)
    fit = surrogate and fit_gaussian(densities, surrogate, continuous)
    if not (surrogate and fit):
        reason = f"the derivatives are not finite at the mode ({mode.message or 'found'})"
        _warn_without_proxy(reason)
        densities.expand = np.empty(0, np.int64)
        return replace(bare, rows_spent=densities.rows_evaluated, notes=(reason,))
    notes = (f"mode search: {problem}",) if problem else ()
    if problem:
        _log.info("Mode search over all variables: %s", problem)
    bar.update(description="Measuring residuals")
    bar.advance()
    active = layout.indices(active_names)
    exact_rows, rounding_only, forecast = _residual_rows(
        densities, surrogate, fit, active, race, proxy, rng
    )
    bar.advance()
    return replace(
        bare,
        surrogate=surrogate,
        fit=fit,
        exact_rows=exact_rows,
        rounding_only=rounding_only,
        rows_spent=densities.rows_evaluated,
        notes=notes,
        forecast=forecast,
    )


def _search(densities, start, search, proxy, rng):
    n_rows = densities.n_rows

    def value_and_gradient(x, rows):
        scale = 1.0 if rows is None else n_rows / len(rows)
        value, gradient = densities.value_and_gradient(x, rows)
        rest, rest_gradient = densities.rest_value_and_gradient(x)
        return scale * value + rest, scale * gradient + rest_gradient

    def hessian(x, rows):
        scale = 1.0 if rows is None else n_rows / len(rows)
        return scale * densities.hessian(x, rows) + densities.rest_hessian(x, search)

    return find_mode(
        value_and_gradient, hessian, start, search, n_rows, rng, subsample=proxy.subsample
    )


def surrogate_at(densities: ModelDensities, centre: np.ndarray) -> Surrogate | None:
    """Population sums of row gradients and Hessians at a centre, by one pass over all rows.

    None where they are not finite.
    """
    _, gradient = densities.value_and_gradient(centre)
    hessian = densities.hessian(centre)
    inside = _mask(centre.size, densities.expand)
    if not (np.all(np.isfinite(gradient)) and np.all(np.isfinite(hessian))):
        return None
    return Surrogate(centre.copy(), gradient * inside, hessian * np.outer(inside, inside))


def fit_gaussian(densities, surrogate: Surrogate, coordinates) -> GaussianFit | None:
    """Laplace approximation at the surrogate's centre; None where it is not finite."""
    hessian = surrogate.hessian + densities.rest_hessian(surrogate.centre, coordinates)
    if not np.all(np.isfinite(hessian)):
        return None
    inside = _mask(surrogate.centre.size, coordinates)
    precision = -hessian * np.outer(inside, inside)
    return GaussianFit(surrogate.centre.copy(), precision, coordinates)


def _mask(size, coordinates):
    out = np.zeros(size)
    out[coordinates] = 1.0
    return out


def _residual_rows(densities, surrogate, fit, active, race, proxy, rng):
    """Rows to evaluate exactly, whether residuals are rounding errors only, and the forecast."""
    n_rows = densities.n_rows
    probes = _probe_moves(fit, active, rng)
    rewards = densities.rewards

    def residuals(points, rows):
        return np.nan_to_num(row_changes(rewards, points, surrogate.centre, rows), nan=0.0)

    summary = summarise_residuals(residuals, probes, n_rows)
    densities.rows_evaluated += 5 * n_rows * len(probes)
    some = np.sort(rng.choice(n_rows, size=min(n_rows, 5000), replace=False))
    size = np.abs(densities.values(fit.mean, some)).mean()
    rounding_only = bool(np.sqrt(summary.squares.max() / n_rows) <= _ROUNDING * max(size, 1e-3))
    log_u = np.log(rng.random(32))

    def predicted(sd, n_raced):
        if race.delta == 0.0 or race.first_batch(n_raced) >= n_raced:
            return float(n_raced)
        gaps = np.abs(summary.totals[:, None] - log_u[None, :]).ravel() / n_raced
        bound, first = race.bound(n_raced), race.first_batch(n_raced)
        return float(np.mean(expected_rows(gaps / max(sd, 1e-300), n_raced, first, bound)))

    exact = _exact_rows(summary, predicted, proxy, rounding_only)
    power = np.square(summary.scale, dtype=np.float64)
    n_raced = n_rows - exact.size
    left = np.sqrt(max(power.sum() - power[exact].sum(), 0.0) / max(1, n_raced))
    plain = np.mean([_plain_sd(densities, points, some) for points in probes])
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
    return float(np.nanstd(densities.values(points[1], rows) - densities.values(points[0], rows)))


def _probe_moves(fit, active, rng) -> list[np.ndarray]:
    """Pairs of points (2, D) between which a chain at stationarity would move."""
    everywhere = fit.coordinates
    out = []
    for _ in range(_PROBES):
        x = fit.draw(fit.mean, everywhere, rng)
        out.append(np.stack([x, fit.draw(x, active, rng)]))
    return out
