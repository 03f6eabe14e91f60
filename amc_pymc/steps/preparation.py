"""Preparation of a ``pm.Model`` for samplers: mode, control variate, Gaussian approximation."""

from __future__ import annotations

import logging

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from pymc import Model
from scipy import linalg
from threadpoolctl import threadpool_limits

from amc_pymc.engine.jit import reports_of_compiling
from amc_pymc.engine.row_kernels import row_bounds
from amc_pymc.flags import flag
from amc_pymc.progress import ProgressReport, progress
from amc_pymc.reading.coefficients import coefficient_form, parts_of
from amc_pymc.reading.data_control import DataControl
from amc_pymc.reading.densities import ModelDensities, RowDensities
from amc_pymc.reading.discrete_rows import DiscreteRows, smooth_parameters
from amc_pymc.reading.group_densities import GroupedModel
from amc_pymc.reading.native_rows import NativeRows, StoredRows
from amc_pymc.reading.node_choice import TOLERANCE, choose_nodes
from amc_pymc.reading.parameters import ParameterCut, cut_parameters
from amc_pymc.reading.rows import CallbackRows, possible_points
from amc_pymc.reading.support import element_states
from amc_pymc.reading.timing import Stopwatch, in_words
from amc_pymc.rng import as_generator
from amc_pymc.steps.grouping import Turn
from amc_pymc.steps.model_densities import (
    check_rows_resolved,
    checked_densities,
    grouped_densities,
)
from amc_pymc.steps.settings import Options, TaylorProxy
from amc_pymc.steps.shared_thinning import SharedThinning
from amc_pymc.steps.stored_densities import stored_densities
from amc_pymc.steps.stored_groups import large_groups, stored_group_densities
from amc_pymc.tall.proxies import DataProxy, gaussian_factor
from amc_pymc.tall.racing import AutoRace, ExactRace
from amc_pymc.tall.samplers import Preparation
from amc_pymc.tall.samplers.compiled import unit_changes
from amc_pymc.tall.samplers.forecast import probe_moves, with_forecast
from amc_pymc.tall.samplers.mode import likelihood_mode, posterior_mode
from amc_pymc.tall.samplers.preparation import GaussianFit, NoProxy, fit_gaussian
from amc_pymc.tall.samplers.raced import Layout, Raced, RacedModel
from amc_pymc.tall.samplers.surface import NoSurface, fit_surface, gaussian_surface
from amc_pymc.tall.samplers.surrogate import expanded_hessian, surrogate_at
from amc_pymc.tall.split import TooWide
from amc_pymc.tall.thinning import Thinning, fit_thinning

__all__ = ["moved_coordinates", "prepare"]

_log = logging.getLogger("amc_pymc")
_POSSIBLE = 16
#: Forecast acceptance rate below which moves get heavier tails.
_FITS_WELL = 0.9
#: Largest number of coefficients for it: the length of many is known so well that a Student t does not fit it.
_MOST_WITH_TAILS = 10
#: Number of draws of a Gaussian approximation, from which chains that would start far out start.
_DRAWS = 300
_MOST_STATES = 2_000
#: Number of points at which the quadrature error is measured, and their scale relative to the Gaussian
#: approximation (too narrow for standard deviations, whose posterior is skewed).
_NODE_POINTS, _NODE_WIDTH = 20, 1.5
_MORE = "raise TaylorProxy(max_dim=) if memory and time allow"
#: Error probability of decisions that is advised without a control variate, whose lack is not flagged up to it.
_SMALL_DELTA = 0.01
#: Seed of subsamples and probes of the preparation, independent of the user's seed.
_SEED = 20161
#: Number of rows by which the acceptance of thinned decisions is predicted.
_SOME = 5_000
#: Cost of a step apart from its rows, in evaluations of a row, and number of products in a proposal that cost as much.
_STEP, _PRODUCTS = 50.0, 200.0
#: How many times the rows of a race a thinned decision may read.
_MORE_ROWS = 2.0
#: Largest loss of acceptance by thinning, as a logarithm: where it is larger, chains stick.
_MOST_LOST = 0.2
#: Stages shown by the progress bar.
_STAGES = (
    "Taking the model apart",
    "Searching the mode",
    "Compiling races",
    "Measuring residuals",
)


def prepare(
    model: Model,
    active_names: Sequence[str],
    options: Options,
    *,
    point: dict[str, np.ndarray],
    fit: bool = True,
    turn: Turn | None = None,
) -> Preparation:
    """Decompose the model, check that its parts add up, and fit the control variate.

    ``fit=False`` omits the Gaussian approximation of the posterior, which proposals need;
    ``turn`` specifies what is integrated out.
    """
    watch = Stopwatch()
    with watch.running():
        stored: ModelDensities | GroupedModel | None = None
        if options.rows is not None:  # writing a store has its own progress bar
            watch.begin("store")
            stored = _stored(model, active_names, options, point, turn)
        with progress(_STAGES[0], len(_STAGES), enabled=options.progressbar) as bar:
            stages = _Stages(bar, watch)
            with reports_of_compiling(stages.compiling):
                densities = stored or _densities(model, turn, options, point)
                bare = _bare(densities, point)
                try:
                    # Matrices are small, and threads of the linear algebra would wait for each other.
                    with threadpool_limits(1, "blas"):
                        prepared = _prepared(bare, model, active_names, options, fit, stages)
                    stages.end("Prepared")
                except NoProxy as reason:
                    densities.forget_expansion()
                    prepared = _without_proxy(bare, options, str(reason))
                    stages.end("Prepared without a control variate")
    _log.info("Prepared in %s.", in_words(watch.seconds))
    return replace(prepared, seconds=watch.seconds)


def _bare(densities: ModelDensities | GroupedModel, point: dict[str, np.ndarray]) -> Preparation:
    """Return a preparation with nothing but the densities."""
    start = densities.ravel(point)
    if isinstance(densities, DiscreteRows):
        return Preparation(densities, densities.raced, start, densities.cut)
    flags = large_groups(densities.groups) if isinstance(densities, GroupedModel) else ()
    return Preparation(densities, densities, start, flags=flags)


def _without_proxy(bare: Preparation, options: Options, reason: str) -> Preparation:
    """Return the preparation without a control variate, or raise an error if the user insists."""
    if options.insist:
        name = "data" if isinstance(options.proxy, DataProxy) else "taylor"
        raise ValueError(f"proxy='{name}' cannot be used: {reason}") from None
    flags = bare.flags
    if options.race.delta > _SMALL_DELTA:
        flags += (flag("no_control_variate", reason=reason),)
    return replace(bare, rows_spent=bare.densities.rows_evaluated, no_proxy=reason, flags=flags)


def _prepared(
    bare: Preparation, model: Model, active_names: Sequence[str], options: Options, fit: bool,
    stages: _Stages,
) -> Preparation:  # fmt: skip
    """Return the preparation with a control variate; raise ``NoProxy`` if none is possible."""
    rng, densities, proxy = as_generator(_SEED), bare.densities, options.proxy
    _check_rows_graph(densities, proxy)
    if isinstance(proxy, DataProxy):
        stages.begin("Searching the mode and sorting rows into bins", "mode")
        active = moved_coordinates(densities.layout, active_names)
        return _with_gaussian(_with_data_proxy(bare, proxy, rng, fit), active, rng)
    active = moved_coordinates(densities.layout, active_names)
    prepared = _with_surface(bare, model, active_names, proxy, rng, fit, stages)
    if prepared is not None:
        return _finished(prepared, active, options, rng, stages)
    prepared = _with_taylor(bare, model, active, proxy, rng, fit, stages)
    return _finished(prepared, active, options, rng, stages)


def _finished(
    prepared: Preparation, active: np.ndarray, options: Options, rng: np.random.Generator,
    stages: _Stages,
) -> Preparation:  # fmt: skip
    """Choose quadrature nodes, measure residuals, and forecast decisions."""
    densities, proxy = prepared.densities, cast(TaylorProxy, options.proxy)
    groups = isinstance(densities, GroupedModel)
    if groups:
        stages.say("Choosing the nodes of the quadrature", "quadrature nodes")
        prepared = _with_nodes(prepared, cast(GroupedModel, densities))
    stages.begin(_STAGES[2], "residuals")
    _compile_races(prepared)
    stages.begin(_STAGES[3], "residuals")
    race = options.race_of_groups if groups else options.race
    prepared = _with_tails(with_forecast(prepared, active, race, proxy.exact_rows, rng))
    if isinstance(race, ExactRace | AutoRace):
        prepared = _with_thinning(prepared, race, active)
    spent = densities.rows_evaluated + prepared.raced.rows_evaluated
    return replace(prepared, rows_spent=spent)


def _with_thinning(
    prepared: Preparation, race: ExactRace | AutoRace, active: np.ndarray
) -> Preparation:
    """Add bounds of all rows, if they are known and thinned decisions cost less than those of the race."""
    raced, fit, surrogate = prepared.raced, prepared.fit, prepared.surrogate
    native = raced.native if isinstance(raced, RowDensities) else None
    if fit is None or surrogate is None or prepared.kinked:
        return prepared
    if not isinstance(native, NativeRows | StoredRows) or native.program is None:
        return prepared
    bounds = row_bounds(native.program, native.data, native.release)
    if bounds is None:
        return prepared
    covariance = _covariance(prepared, fit)
    if not np.diag(covariance)[raced.reads].all():  # rows read what does not vary as it is
        return prepared
    thinning = fit_thinning(bounds, raced.n_units, surrogate.centre, covariance)
    if thinning is not None and isinstance(race, AutoRace):
        forecast = prepared.forecast
        assert forecast is not None
        step, lost = _STEP + active.size**2 / _PRODUCTS, _lost(prepared, thinning, active)
        costs = (step + thinning.expected) * np.exp(lost), step + forecast.rows
        if lost > _MOST_LOST or costs[0] > costs[1]:
            return prepared
        most = min(thinning.most, _MORE_ROWS * forecast.rows - thinning.exact.size)
        thinning = thinning._replace(most=most)
    if thinning is None:
        return prepared
    _log.info("Decisions are exact, and read %.2g rows on average.", thinning.expected)
    return replace(prepared, tables=SharedThinning(thinning))


def _lost(prepared: Preparation, thinning: Thinning, active: np.ndarray) -> float:
    """Return minus the logarithm of the chance that thinning accepts a move of which nothing else is known."""
    rng, raced, centre = as_generator(_SEED), prepared.raced, thinning.centre
    units = np.setdiff1d(rng.integers(0, raced.n_units, _SOME), thinning.exact)
    if not units.size:
        return 0.0
    probes = probe_moves(prepared, active, rng)
    changes = [unit_changes(raced.rewards, points, centre, units) for points in probes]
    return float(-np.minimum(changes, 0.0).mean() * (raced.n_units - thinning.exact.size))


def _covariance(prepared: Preparation, fit: GaussianFit) -> np.ndarray:
    """Return an approximate covariance (E, E) of what rows read."""
    surface, size = prepared.surface, prepared.raced.layout.size
    if surface is None or (prepared.cut is None and not surface.moving):
        inside = np.ix_(fit.coordinates, fit.coordinates)
        factor, _ = gaussian_factor(fit.precision[inside])
        covariance = np.zeros((size, size))
        covariance[inside] = factor @ factor.T
        return covariance
    found = np.cov(prepared.eta(surface.draws).T)
    curvature = (
        np.zeros(size) if prepared.surrogate is None else -np.diag(prepared.surrogate.hessian)
    )
    left_out = np.flatnonzero((np.diag(found) == 0.0) & (curvature > 0.0))
    found[left_out, left_out] = 1.0 / curvature[left_out]  # coefficients without their indicators
    weight = len(surface.draws) / (len(surface.draws) + size)
    return weight * found + (1.0 - weight) * np.diag(np.diag(found))


class _Stages:
    """Progress of the preparation, and assignment of its time to tasks."""

    def __init__(self, bar: ProgressReport, watch: Stopwatch):
        self._bar, self._watch, self._left = bar, watch, len(_STAGES)
        self._text = _STAGES[0]
        watch.begin("model")

    def say(self, text: str, task: str | None = None) -> None:
        """Change the text, and optionally the task, within a stage."""
        self._text = text
        self._bar.update(description=text)
        if task is not None:
            self._watch.begin(task)

    def compiling(self, name: str) -> None:
        """Show the name of a function that is being compiled; "" after the last."""
        shown = f"Compiling {name}, once per installation" if name else self._text
        self._bar.update(description=shown)

    def begin(self, text: str, task: str) -> None:
        """Begin the next stage."""
        self._left -= 1
        self._bar.advance()
        self.say(text, task)

    def end(self, text: str) -> None:
        """Complete all remaining stages."""
        self._bar.update(description=text)
        self._bar.advance(self._left)


def _compile_derivatives(model: Raced, x: np.ndarray) -> None:
    """Compile the functions of the mode search by calls on one unit."""
    one = np.zeros(1, np.int64)
    with np.errstate(all="ignore"):
        model.value_and_gradient(x, one)
        model.hessian(x, one)


def _compile_races(prepared: Preparation) -> None:
    """Compile the functions that measure residuals by a call on one unit."""
    raced, surrogate = prepared.raced, prepared.surrogate
    if surrogate is not None:
        points = np.stack([surrogate.centre, surrogate.centre])
        unit_changes(raced.rewards, points, surrogate.centre, np.zeros(1, np.int64))


def _stored(
    model: Model,
    active_names: Sequence[str],
    options: Options,
    point: dict[str, np.ndarray],
    turn: Turn | None,
) -> ModelDensities | GroupedModel:
    """Return the densities of groups or rows in a store."""
    assert options.rows is not None
    if turn is not None:  # discrete names only matter as effects of groups
        moved = {v.name for v in model.value_vars if v.dtype.startswith("float")}
        active_names = [n for n in active_names if n in moved]
    if turn is None or turn.factor is None:
        return stored_densities(model, active_names, options, point)
    return stored_group_densities(
        model,
        turn.factor,
        options.observed_vars,
        options.rows,
        point,
        options.compile_kwargs,
        active_names=active_names,
        progressbar=options.progressbar,
    )


def _densities(
    model: Model, turn: Turn | None, options: Options, point: dict[str, np.ndarray]
) -> ModelDensities | GroupedModel:
    """Return the densities of the turn's groups, or of rows if it has none."""
    if turn is not None and turn.factor is not None and isinstance(options.proxy, TaylorProxy):
        args = model, turn.factor, options.observed_vars, point, options.compile_kwargs
        densities = grouped_densities(*args, turn.held)
        if not _discrete(densities):
            return densities
        if turn.insists:
            raise ValueError(
                f"marginalize names {turn.factor.label}, and the rows depend on discrete variables "
                "besides: their control variate would not hold. Sum these out, or pass "
                "marginalize=None."
            )
        _log.info(
            "Not integrating %s out after all: the rows depend on discrete variables besides.",
            turn.factor.label,
        )
    return checked_densities(
        model, options.observed_vars, options.row_logp, point, options.compile_kwargs
    )


def moved_coordinates(layout: Layout, active_names: Sequence[str]) -> np.ndarray:
    """Return the coordinates of the continuous variables that a step moves."""
    names = [n for n in active_names if n in layout.names and layout.is_continuous(n)]
    return layout.indices(names)


def _check_rows_graph(densities: Any, proxy: TaylorProxy | DataProxy | None) -> None:
    if proxy is None:
        raise NoProxy("proxy=None")
    if isinstance(densities, ModelDensities) and isinstance(densities.rows, CallbackRows):
        raise NoProxy("row_logp has no derivatives")


def _continuous(layout: Layout) -> np.ndarray:
    return layout.indices([n for n in layout.names if layout.is_continuous(n)])


def _discrete(densities: RacedModel) -> bool:
    """Whether units depend on discrete variables."""
    return densities.expand.size < densities.reads.size


def _with_surface(
    bare: Preparation, user_model: Model, active_names: Sequence[str], proxy: TaylorProxy,
    rng: np.random.Generator, fit: bool, stages: _Stages,
) -> Preparation | None:  # fmt: skip
    """Fit prior times surrogate; None if the prior has no scalar form, or rows read what is not moved."""
    model, layout = bare.densities, bare.densities.layout
    moved = set(active_names) >= {n for n in layout.names if layout.is_continuous(n)}
    if not fit or not moved:
        return None
    if isinstance(model, GroupedModel) and model.groups.held is not None:
        return None
    form = (
        None if isinstance(model, GroupedModel) else coefficient_form(cast(ModelDensities, model))
    )
    parts = parts_of(cast(ModelDensities, model), form)
    if parts is None:
        return None
    if form is not None:
        bare = replace(bare, cut=form.map, raced=form.raced)
    discrete = np.flatnonzero(layout.discrete)
    if np.isin(discrete, parts.reads).any():
        return None
    binary = _binary(user_model, bare, [n for n in layout.names if n in active_names])
    _refuse_many(bare.raced.expand.size, proxy, _MORE)
    blocks = [np.r_[s] for n, s in layout.slices.items() if layout.is_continuous(n)]
    stages.begin("Compiling derivatives", "mode")
    _compile_derivatives(model, bare.start)
    stages.say(_STAGES[1])
    try:
        surrogate, gaussian, surface, flags, kinked = fit_surface(
            model,
            bare.raced,
            bare.eta,
            parts,
            blocks,
            binary,
            bare.start,
            subsample_of(model, proxy),
            partial(check_rows_resolved, model),
            rng,
        )
    except (TooWide, NoSurface) as reason:
        _log.debug("Prior times surrogate is not used: %s", reason)
        return None
    return replace(
        bare,
        surrogate=surrogate,
        fit=gaussian,
        surface=surface,
        kinked=kinked,
        forecast_flags=flags,
    )


def _with_tails(prepared: Preparation) -> Preparation:
    """Give moves of few coefficients the tails of a Student t if many would be rejected."""
    surface, forecast = prepared.surface, prepared.forecast
    if surface is None or forecast is None or forecast.acceptance > _FITS_WELL:
        return prepared
    if surface.gaussian.size > _MOST_WITH_TAILS:
        return prepared
    return replace(prepared, surface=surface.with_tails())


def _binary(model: Model, bare: Preparation, names: Sequence[str]) -> np.ndarray:
    """Return the coordinates of sampled variables that are 0 or 1."""
    layout, found = bare.densities.layout, []
    for v in model.value_vars:
        if v.name not in names or layout.is_continuous(v.name):
            continue
        try:
            states = element_states(model, v)
        except ValueError:  # unbounded
            continue
        if all(np.array_equal(k, [0, 1]) for k in states):
            found.append(v.name)
    return layout.indices(found)


def _with_nodes(prepared: Preparation, model: GroupedModel) -> Preparation:
    """Choose the nodes of the quadrature, and expand groups with these."""
    fit, surrogate = prepared.fit, prepared.surrogate
    if fit is None or surrogate is None:
        return prepared
    error = choose_nodes(model, _node_points(fit, model.layout), as_generator(_SEED))
    surrogate = surrogate_at(model, surrogate.centre) or surrogate
    flags = prepared.forecast_flags
    if error >= TOLERANCE:
        flags += (flag("quadrature_varies", error=error, limit=TOLERANCE),)
    return replace(prepared, surrogate=surrogate, forecast_flags=flags, quadrature_error=error)


def _node_points(fit: GaussianFit, layout: Layout) -> list[np.ndarray]:
    """Return the mode and points around it, which do not depend on the order of the variables."""
    at, labels = fit.coordinates, layout.labels()
    values, vectors = linalg.eigh(fit.precision[np.ix_(at, at)])
    root = (vectors / np.sqrt(values)) @ vectors.T  # symmetric, to treat all coordinates alike
    points = np.tile(fit.mean, (_NODE_POINTS + 1, 1))
    for k, label in enumerate(labels[c] for c in at):
        z = as_generator([_SEED, *label.encode()]).standard_normal(_NODE_POINTS)
        points[1:, at] += _NODE_WIDTH * z[:, None] * root[k]
    return list(points)


# --- the control variate in parameters ------------------------------------------------------------


def _with_taylor(
    bare: Preparation,
    model: Model,
    active: np.ndarray,
    proxy: TaylorProxy,
    rng: np.random.Generator,
    fit: bool,
    stages: _Stages,
) -> Preparation:
    bare = _expandable(bare, model, proxy, rng)
    densities, continuous = bare.densities, _continuous(bare.densities.layout)
    x, precision, flags = bare.start, None, bare.forecast_flags
    stages.begin("Compiling derivatives", "mode")
    if fit or bare.cut is None:
        _compile_derivatives(densities, x)
    if bare.cut is not None:
        _compile_derivatives(bare.raced, bare.eta(x))
    stages.say(_STAGES[1])
    if fit or bare.cut is None:
        subsample = subsample_of(densities, proxy)
        mode, flags = posterior_mode(densities, x, continuous, subsample, rng)
        check_rows_resolved(densities, mode)
        x, precision = mode.x, mode.precision
    centre = x if bare.cut is None else likelihood_mode(bare, proxy.subsample, rng)
    surrogate = surrogate_at(bare.raced, centre)
    gaussian, wanted = None, fit and continuous.size > 0
    if surrogate and wanted:
        hessian = surrogate.hessian if bare.cut is None else expanded_hessian(densities, x)
        gaussian = fit_gaussian(densities, hessian, x, continuous, precision)
    if not surrogate or (wanted and not gaussian):
        found = "; ".join(f.happened for f in flags) or "found"
        raise NoProxy(f"the derivatives are not finite at the mode ({found})")
    fitted = replace(bare, surrogate=surrogate, fit=gaussian, forecast_flags=flags)
    fitted = _with_gaussian(fitted, active, rng)
    if bare.cut is not None:
        return fitted
    return replace(fitted, kinked=precision is not None)


def _with_gaussian(
    prepared: Preparation, active: np.ndarray, rng: np.random.Generator
) -> Preparation:
    """Take the Gaussian approximation as the surface of moves, if there is one."""
    fit = prepared.fit
    if fit is None:
        return prepared
    draws = np.stack([fit.draw(fit.mean, fit.coordinates, rng) for _ in range(_DRAWS)])
    return replace(prepared, surface=gaussian_surface(fit, active, draws))


def subsample_of(model: RacedModel, proxy: TaylorProxy) -> int:
    """Return the number of units on which the mode search starts."""
    return max(1, proxy.subsample * model.n_units // model.n_rows)


def _refuse_many(number: int, proxy: TaylorProxy, advice: str) -> None:
    if number > proxy.max_dim:
        raise NoProxy(
            f"the rows depend on {number} coordinates, more than max_dim={proxy.max_dim} ({advice})"
        )


def _expandable(
    bare: Preparation, model: Model, proxy: TaylorProxy, rng: np.random.Generator
) -> Preparation:
    """Find parameters in which rows can be expanded; raise ``NoProxy`` if there are none."""
    if isinstance(bare.densities, GroupedModel):
        _refuse_many(bare.densities.reads.size, proxy, _MORE)
        return bare
    densities = cast(ModelDensities, bare.densities)
    rows, cut = densities.rows, None
    raced: RowDensities = densities
    if not all(densities.layout.is_continuous(n) for n in rows.value_vars):
        cut, raced = _in_parameters(densities, bare.start)
        _check_parameters(cut, bare, model, rng)
    if not raced.expand.size:
        raise NoProxy("the rows depend on no continuous quantity")
    local = ", ".join(
        str(model.values_to_rvs[v]) for v in model.value_vars if v.name in rows.row_local
    )
    advice = f"{local} has one value per row; integrate it out" if local else _MORE
    _refuse_many(raced.expand.size, proxy, advice)
    return replace(bare, cut=cut, raced=raced)


def _in_parameters(densities: ModelDensities, x: np.ndarray) -> tuple[ParameterCut, RowDensities]:
    """Return the parameters that rows compute from discrete variables, and rows in terms of them."""
    if isinstance(densities, DiscreteRows):
        return densities.cut, densities.raced
    cut = cut_parameters(densities.row_log_density, x)
    kwargs = densities.compile_kwargs
    return cut, RowDensities(cut.rows, expand=smooth_parameters(cut), compile_kwargs=kwargs)


def _check_parameters(
    cut: ParameterCut, bare: Preparation, model: Model, rng: np.random.Generator
) -> None:
    """Require finite parameters of discrete variables, and constant conditions and indices."""
    rough, layout = cut.rough(), cut.layout
    rows = cast(ModelDensities, bare.densities).rows
    names = [n for n in rows.value_vars if not layout.is_continuous(n)]
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


def _each_state(
    model: Model, bare: Preparation, names: Sequence[str], rng: np.random.Generator
) -> list[np.ndarray]:
    """Return the start with one element of a bounded discrete variable in each of its states."""
    layout, points = bare.densities.layout, []
    for v in model.value_vars:
        if v.name not in names:
            continue
        try:
            states = element_states(model, v)
        except ValueError:  # unbounded: draws from the prior must suffice
            continue
        where = layout.slices[v.name]
        pairs = [(c, s) for c, k in zip(range(where.start, where.stop), states) for s in k]
        for j in rng.permutation(len(pairs))[:_MOST_STATES]:
            x = bare.start.copy()
            x[pairs[j][0]] = pairs[j][1]
            points.append(x)
    return points


# --- the control variate in data space ------------------------------------------------------------


def _with_data_proxy(
    bare: Preparation, proxy: DataProxy, rng: np.random.Generator, fit: bool
) -> Preparation:
    """Fit the control variate in data space, at the posterior mode if there is one."""
    densities = cast(ModelDensities, bare.densities)
    continuous = _continuous(densities.layout)
    x, flags, gaussian = bare.start, bare.forecast_flags, None
    if continuous.size:
        mode, flags = posterior_mode(densities, x, continuous, TaylorProxy().subsample, rng)
        x = mode.x
        slope = surrogate_at(densities, x) if fit else None
        if slope:
            gaussian = fit_gaussian(densities, slope.hessian, x, continuous, mode.precision)
    kwargs = densities.compile_kwargs
    try:
        control = DataControl(densities.row_log_density, proxy, x, rng, compile_kwargs=kwargs)
    except ValueError as error:
        raise NoProxy(str(error)) from error
    return replace(
        bare,
        control=control,
        fit=gaussian,
        exact_rows=control.exact,
        rows_spent=densities.rows_evaluated,
        forecast_flags=flags,
    )
