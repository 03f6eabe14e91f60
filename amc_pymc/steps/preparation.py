"""Preparation of a ``pm.Model`` for samplers: densities, mode, control variate, Gaussian approximation, forecast."""

from __future__ import annotations

import contextlib
import logging
import time

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from pymc import Model
from scipy import linalg
from threadpoolctl import threadpool_limits

from amc_pymc.engine.jit import reports_of_compiling
from amc_pymc.engine.row_kernels import row_bounds
from amc_pymc.flags import flag
from amc_pymc.progress import progress
from amc_pymc.reading import extract_rows
from amc_pymc.reading.coefficients import Coefficients
from amc_pymc.reading.densities import ModelDensities, RowDensities, parts_of
from amc_pymc.reading.factors import Factor, element_states
from amc_pymc.reading.graphs import WithoutCaches, interpreted_function, log_density
from amc_pymc.reading.group_densities import TOLERANCE, GroupedModel, choose_nodes
from amc_pymc.reading.groups import take_groups
from amc_pymc.reading.layout import FlatLayout
from amc_pymc.reading.packed_rows import RowPacking
from amc_pymc.reading.rows import choose_observed, possible_points
from amc_pymc.rng import as_generator
from amc_pymc.rows import InMemory, open_source, stored_rows
from amc_pymc.steps.settings import Options, chosen_factor
from amc_pymc.tall.mode import likelihood_mode, posterior_mode
from amc_pymc.tall.racing.rules import AutoRace, ExactRace
from amc_pymc.tall.samplers.compiled import unit_changes
from amc_pymc.tall.samplers.preparation import (
    Preparation,
    expected_acceptance,
    fit_surface,
    gaussian_surface,
    log_weights,
    probe_moves,
    with_forecast,
)
from amc_pymc.tall.samplers.raced import (
    GaussianFit,
    NoProxy,
    Raced,
    RacedModel,
    fit_gaussian,
    gaussian_factor,
    surrogate_at,
)
from amc_pymc.tall.split import NoSurface
from amc_pymc.tall.thinning import Thinning, fit_thinning

#: Seed of subsamples, probes, and points at which packed rows are checked; independent of the user's seed.
_SEED = 20161
_log = logging.getLogger("amc_pymc")
#: Forecast acceptance rates below which moves get heavier tails, and below which the expansion at the mode is tried too:
#: it had 0.85 for an ARCH model of order 5, where the expansion in coefficients had 0.
_FITS_WELL, _POOR = 0.9, 0.05
#: Acceptance rate below which a flag is raised: at 0.2, effects of a sparse Poisson regression had R-hat 1.2 after
#: 2 x 1,500 draws, at 0.05 those of rare events 1.7. The number of units below which all are read, so that no expansion is needed.
_HOPELESS, _FEW_UNITS = 0.3, 50
#: Fewest and most draws by which the acceptance rate is measured, and the number of rows that this may read (each of
#: which a quadrature over effects evaluates at every node).
_FEWEST_WEIGHTS, _MOST_WEIGHTS, _WEIGHT_ROWS = 50, 200, 20_000_000
#: Largest number of coefficients for it: the length of many is known so well that a Student t does not fit it.
_MOST_WITH_TAILS = 10
#: Degrees of freedom of a posterior with heavy tails.
_FREEDOM = 5.0
#: Number of draws of a Gaussian approximation, from which chains that would start far out start.
_DRAWS = 300
#: Numbers of points, and of states of discrete variables, at which parameters of rows are looked at.
_POSSIBLE, _MOST_STATES = 16, 2_000
#: Number of points at which the quadrature error is measured, and their scale relative to the Gaussian
#: approximation (too narrow for standard deviations, whose posterior is skewed).
_NODE_POINTS, _NODE_WIDTH = 20, 1.5
#: Number of rows on which the mode search starts.
_SUBSAMPLE = 20_000
#: Maximum number of coordinates D of the expansion, which stores D + D^2 sums and makes D passes over the data.
_MOST_COORDINATES = 500
#: Error probability of decisions that is advised without a control variate, whose lack is not flagged up to it.
_SMALL_DELTA = 0.01
#: Number of rows by which the acceptance of thinned decisions is predicted.
_SOME = 5_000
#: Cost of a step apart from its rows, in evaluations of a row, and number of products in a proposal that cost as much.
_STEP, _PRODUCTS = 50.0, 200.0
#: How many times the rows of a race a thinned decision may read.
_MORE_ROWS = 2.0
#: Largest loss of acceptance by thinning, as a logarithm: where it is larger, chains stick.
_MOST_LOST = 0.2
#: Fields of a thinning with numbers of four bytes for every row.
_TABLES = ("bounds", "numbers", "pairs", "chances", "aliases")
_TAKING_APART = "Taking the model apart"


def prepare(
    model: Model,
    active_names: Sequence[str],
    options: Options,
    *,
    point: dict[str, np.ndarray],
    fit: bool = True,
) -> Preparation:
    """Decompose the model, check that its parts add up, and fit the control variate.

    The factor of :func:`chosen_factor` is integrated out. ``fit=False`` omits the Gaussian approximation of the
    posterior, which proposals need.
    """
    stored, factor = None, chosen_factor(model, active_names, options)
    begin = time.perf_counter()
    if options.rows is not None:  # writing a store has its own progress bar
        continuous = [v.name for v in model.value_vars if v.dtype.startswith("float")]
        names = [n for n in active_names if n in continuous] or active_names
        stored = stored_densities(model, names, options, point)
    with stages(_TAKING_APART, options.progressbar) as say:
        densities = stored or _densities(model, factor, options, point)
        preparing = _Preparing(model, active_names, options, fit, densities, point, say)
        try:
            prepared = preparing.run()
        except NoProxy as reason:
            prepared = preparing.without_proxy(str(reason))
    seconds = time.perf_counter() - begin
    _log.info("Prepared in %.1f s.", seconds)
    return replace(prepared, seconds=seconds)


def surface_alone(
    model: Model, point: dict[str, np.ndarray], progressbar: bool
) -> Preparation | None:
    """Fit prior times surrogate to a model's rows, without moves or decisions.

    None or ``NoProxy`` if there is none.
    """
    options, names = Options(progressbar=progressbar), [v.name for v in model.value_vars]
    with stages(_TAKING_APART, progressbar) as say:
        densities = checked_densities(model, options, point)
        return _Preparing(model, names, options, True, densities, point, say).with_surface()


@contextlib.contextmanager
def stages(text: str, progressbar: bool) -> Iterator[Callable[[str], None]]:
    """Show what runs, and the names of functions that are compiled; yield a function that changes the text.

    Matrices are small, and threads of the linear algebra would wait for each other.
    """
    with progress(text, None, enabled=progressbar) as bar:

        def say(changed: str) -> None:
            nonlocal text
            text = changed
            bar.advance()
            bar.update(description=text)

        def compiling(name: str) -> None:
            bar.update(description=f"Compiling {name}, once per installation" if name else text)

        with reports_of_compiling(compiling), threadpool_limits(1, "blas"):
            yield say


def moved_coordinates(layout: FlatLayout, active_names: Sequence[str]) -> np.ndarray:
    """Return the coordinates of the continuous variables that a step moves."""
    return layout.indices(
        [n for n in active_names if n in layout.names and layout.is_continuous(n)]
    )


# --- densities ------------------------------------------------------------------------------------


def _densities(
    model: Model, factor: Factor | None, options: Options, point: dict[str, np.ndarray]
) -> ModelDensities | GroupedModel:
    """Return the densities of the factor's groups, or of rows if there is none."""
    if factor is not None:
        densities = grouped_densities(model, factor, options.observed_vars, point)
        if densities.expand.size >= densities.reads.size:
            return densities
        if options.marginalize != "auto":
            raise ValueError(
                f"marginalize names {factor.label}, and the rows depend on discrete variables "
                "besides: their control variate would not hold. Sum these out, or pass "
                "marginalize=None."
            )
        _log.info(
            "Not integrating %s out after all: the rows depend on discrete variables besides.",
            factor.label,
        )
    return checked_densities(model, options, point)


def checked_densities(
    model: Model, options: Options, point: dict[str, np.ndarray]
) -> ModelDensities:
    """Decompose the model, and check at a point that its densities add up."""
    densities = plain_densities(model, options, point)
    check_densities(model, densities, point)
    return densities


def check_densities(model: Model, densities: ModelDensities, point: dict[str, np.ndarray]) -> None:
    """Raise an error if rows are not finite at a point, or densities do not add up."""
    start = densities.layout.ravel(point)
    check_rows_finite(densities, start, "the initial point")
    got = densities.all_values(start).sum() + densities.rest_value_and_gradient(start)[0]
    terms = [*model.basic_RVs, *model.potentials]
    _check_sum(model, densities.layout.unravel(start), float(got), terms)


def grouped_densities(
    model: Model,
    factor: Factor,
    observed_vars: Sequence[Any] | None,
    point: dict[str, np.ndarray],
) -> GroupedModel:
    """Decompose the model with the local effects of a factor integrated out, and check it."""
    groups = take_groups(model, factor, observed_vars)
    local = [v for v in model.value_vars if v.name in groups.factor.names]
    kept = [v for v in model.value_vars if v not in local]
    terms = [model.values_to_rvs[v] for v in local]
    terms += [v for v in model.basic_RVs if v.name in groups.observed_vars]
    others = [v for v in [*model.basic_RVs, *model.potentials] if v not in set(terms)]
    densities = GroupedModel(groups, log_density(model, others), kept)
    start = densities.ravel(point)
    got = densities.complete(start, densities.effects(point))
    got += densities.rest_value_and_gradient(start)[0] - groups.centring.log_jacobian(start)
    _check_sum(model, point, got, [*terms, *others])
    check_rows_finite(densities, start, "the initial point")
    return densities


def plain_densities(model: Model, options: Options, point: dict[str, np.ndarray]) -> ModelDensities:
    """Decompose the model into densities of rows and the rest."""
    observed = choose_observed(model, options.observed_vars)
    layout = FlatLayout.from_model(model, point)
    factors = [*model.basic_RVs, *model.potentials]
    rest = log_density(model, [v for v in factors if v not in observed])
    rows = extract_rows(model, observed)
    # Rows that depend on nothing are expanded in all variables: they are their control variates then.
    read = rows.value_vars or layout.names
    expand = layout.indices([n for n in read if layout.is_continuous(n)])
    return ModelDensities(rows, rest, model.value_vars, expand=expand)


def check_rows_finite(densities: RacedModel, x: np.ndarray, where: str) -> None:
    """Raise a ValueError that names rows whose log-likelihood is not finite."""
    if densities.all_finite(x):
        return
    unit, number, first = densities.unit, 0, 0
    shown: list[str] = []
    for values in densities.value_chunks(x):
        found = np.flatnonzero(~np.isfinite(values))
        shown += [f"{unit} {first + n}: {values[n]}" for n in found[: 5 - len(shown)]]
        number, first = number + found.size, first + values.size
    raise ValueError(
        f"The log-likelihood of {', '.join(densities.observed_vars)} is not finite at {where} in {number} "
        f"of {first} {unit}s ({', '.join(shown)}{', ...' if number > 5 else ''}). Clean these {unit}s or "
        "start where they are possible."
    )


def _check_sum(
    model: Model, point: dict[str, np.ndarray], got: float, terms: Sequence[Any]
) -> None:
    """Check a value against the model's log density of some terms."""
    whole = log_density(model, terms)
    fn = interpreted_function(model.value_vars, whole)
    expected = float(fn(*(point[v.name] for v in model.value_vars)))
    if np.isfinite(expected) and abs(got - expected) <= 1e-8 * max(1.0, abs(expected)):
        return
    if not np.isfinite(expected):
        raise ValueError(f"The model's logp is {expected} at the initial point; start elsewhere")
    raise ValueError(
        f"The rows and the rest add up to a log density of {got}, the model says {expected}. "
        "Please report this model as a bug of amc_pymc."
    )


def stored_densities(
    model: Model, active_names: Sequence[str], options: Options, point: dict[str, np.ndarray]
) -> ModelDensities:
    """Return the densities of the rows of ``options.rows``, for a step that moves some variables.

    The model is decomposed and checked on its placeholders. Each chunk of the source is checked
    against the model's graph while it is packed. The data of the model are not changed.

    Raises
    ------
    ValueError, TypeError, OSError, ImportError
        As for :func:`amc_pymc.rows.stored_rows` and :class:`RowPacking`.
    """
    rows = options.rows
    assert rows is not None
    plain = plain_densities(model, options, point)
    left = [n for n in plain.layout.names_at(plain.reads) if n not in active_names]
    if left:
        raise ValueError(
            f"vars leaves out {', '.join(left)}, on which rows depend: with rows=, other steps would see "
            "the placeholders only. Let this step sample all variables that rows read: RacingMetropolis "
            "continuous ones, RacingGibbs discrete ones, and sum others out."
        )
    _, around = possible_points(model, plain.layout, dict(point), as_generator(_SEED), 2)
    packing = RowPacking(model, plain.rows, plain.ravel(point), around, *plain.rest_graph)
    source = open_source(rows, packing.placeholders)
    check_densities(model, plain.of_packed(packing.placeholder_rows()), point)
    store = stored_rows(rows, source, packing, progressbar=options.progressbar)
    return plain.of_packed(packing.packed(store))


# --- control variate and moves --------------------------------------------------------------------


class _Preparing:
    """What the stages of a preparation share; ``bare`` is one with nothing but the densities."""

    def __init__(
        self, model: Model, active_names: Sequence[str], options: Options, fit: bool,
        densities: ModelDensities | GroupedModel, point: dict[str, np.ndarray], say: Callable[[str], None],
    ):  # fmt: skip
        self.model, self.names, self.options, self.wanted = model, active_names, options, fit
        self.densities, self.layout, self.say = densities, densities.layout, say
        self.groups = None if densities.factor is None else densities
        self.rows = densities if densities.factor is None else None
        self.active = moved_coordinates(self.layout, active_names)
        self.continuous = moved_coordinates(self.layout, self.layout.names)
        self.rng = as_generator(_SEED)
        #: Number of units on which the mode search starts.
        self.subsample = max(1, _SUBSAMPLE * densities.n_units // densities.n_rows)
        start = densities.ravel(point)
        self.bare = Preparation(densities, densities, start)
        if self.rows is not None:
            self.bare = Preparation(densities, self.rows.raced, start, self.rows.coefficients)

    def run(self) -> Preparation:
        """Return the preparation with a control variate; raise ``NoProxy`` if none is possible."""
        if not self.wanted and isinstance(self.options.race, ExactRace):
            raise NoProxy("draws read all rows")  # it would only cost time
        found = self.with_surface()
        if found is None:
            return self.finished(self.with_taylor())
        found = self.finished(found)
        if found.cut is None or found.kinked or found.forecast.acceptance > _POOR:
            return found  # there is no other expansion, or it is as good
        self.rng = as_generator(_SEED)
        with contextlib.suppress(NoProxy):
            other = self.finished(self.with_taylor())
            return max(found, other, key=lambda each: each.forecast.acceptance)
        return found

    def without_proxy(self, reason: str) -> Preparation:
        """Return the preparation without a control variate, for draws of discrete variables or for an error."""
        flags, spent = self.bare.flags, self.densities.rows_evaluated
        if not self.wanted:
            cast(RowDensities, self.bare.raced).forget_expansion()
            if self.options.race.delta > _SMALL_DELTA:
                flags += (flag("no_control_variate", reason=reason),)
        return replace(self.bare, rows_spent=spent, no_proxy=reason, flags=flags)

    def finished(self, prepared: Preparation) -> Preparation:
        """Choose quadrature nodes, measure residuals, and forecast decisions."""
        raced, race = prepared.raced, self.options.race
        if self.groups is not None:
            race = self.options.race_of_groups
            self.say("Choosing the nodes of the quadrature")
            prepared = _with_nodes(prepared, self.groups)
        self.say("Measuring residuals")
        prepared = with_forecast(prepared, race, self.rng)
        prepared = _with_weights(prepared)
        if isinstance(race, ExactRace | AutoRace):
            prepared = _with_thinning(prepared, race, self.active)
        spent = self.densities.rows_evaluated + raced.rows_evaluated
        return replace(prepared, rows_spent=spent)

    def refuse_many(self, number: int, advice: str = "") -> None:
        """Raise ``NoProxy`` if the rows depend on many coordinates."""
        if number > _MOST_COORDINATES:
            raise NoProxy(
                f"the rows depend on {number:,} coordinates, more than {_MOST_COORDINATES}{advice}"
            )

    # --- prior times surrogate ------------------------------------------------------------------

    def with_surface(self) -> Preparation | None:
        """Fit prior times surrogate; None if the prior has no scalar form, or rows read what is not moved."""
        model, bare, layout = self.densities, self.bare, self.layout
        if not self.wanted or not np.isin(self.continuous, self.active).all():
            return None
        parts = parts_of(model)
        if parts is None or layout.discrete[parts.reads].any():
            return None
        if bare.cut is not None and cast(Coefficients, bare.cut).chosen:
            return None
        self.refuse_many(bare.raced.expand.size)
        blocks = [np.r_[s] for n, s in layout.slices.items() if layout.is_continuous(n)]
        own = ((v, states) for v, states in self._states() if v in self.names)
        binary = [v for v, states in own if all(np.array_equal(k, [0, 1]) for k in states)]
        self.say("Searching the mode")
        try:
            return fit_surface(
                bare, parts, blocks, layout.indices(binary), self.subsample, self.rng
            )
        except NoSurface as reason:
            _log.debug("Prior times surrogate is not used: %s", reason)
            return None

    def _states(self) -> Iterator[tuple[str, list[np.ndarray]]]:
        """Yield the discrete variables that have bounds, and the states of their elements."""
        for v in self.model.value_vars:
            if v.name in self.layout.names and not self.layout.is_continuous(v.name):
                with contextlib.suppress(ValueError):  # unbounded
                    yield v.name, element_states(self.model, v)

    # --- Taylor polynomials at a mode -----------------------------------------------------------

    def with_taylor(self) -> Preparation:
        """Expand rows at the posterior mode or, in parameters of discrete variables, that of the likelihood."""
        bare, densities, smooth = self.bare, self.densities, self._expandable()
        if smooth and self.rows is not None:
            bare = replace(bare, cut=None, raced=self.rows.in_parameters())
        x, precision, flags = bare.start, None, bare.forecast_flags
        self.say("Searching the mode")
        if self.wanted or smooth:
            mode, flags = posterior_mode(densities, x, self.continuous, self.subsample, self.rng)
            x, precision = mode.x, mode.precision
        centre = x
        if not smooth:
            args = bare.raced, bare.eta(bare.start), _SUBSAMPLE
            centre = likelihood_mode(*args, self.rng)
        surrogate = surrogate_at(bare.raced, centre)
        gaussian = surface = None
        if surrogate and self.wanted:
            hessian = surrogate.hessian if bare.cut is None else densities.hessian(x)
            gaussian = fit_gaussian(densities, hessian, x, self.continuous, precision)
        if not surrogate or (self.wanted and not gaussian):
            happened = "; ".join(f.happened for f in flags) or "found"
            raise NoProxy(f"the derivatives are not finite at the mode ({happened})")
        if gaussian is not None:
            draws = np.stack([gaussian.draw(self.rng) for _ in range(_DRAWS)])
            surface = gaussian_surface(gaussian, self.active, draws)
        kinked = smooth and precision is not None
        return replace(
            bare, surrogate=surrogate, fit=gaussian, surface=surface, kinked=kinked,
            forecast_flags=flags,
        )  # fmt: skip

    def _expandable(self) -> bool:
        """Raise ``NoProxy`` if rows cannot be expanded; return whether they depend on no discrete variable."""
        if self.rows is None:
            self.refuse_many(self.densities.reads.size)
            return True
        rows = self.rows.rows
        discrete = [n for n in rows.value_vars if not self.layout.is_continuous(n)]
        if discrete:
            self._check_states(discrete)
        raced: Raced = self.bare.raced if discrete else self.densities
        if not raced.expand.size:
            raise NoProxy("the rows depend on no continuous quantity")
        local = ", ".join(
            str(self.model.values_to_rvs[v]) for v in self.model.value_vars
            if v.name in rows.row_local
        )  # fmt: skip
        advice = f" ({local} has one value per row; integrate it out)" if local else ""
        self.refuse_many(raced.expand.size, advice)
        return not discrete

    def _check_states(self, names: Sequence[str]) -> None:
        """Require that rows read coefficients, which are finite in all states, in place of discrete variables."""
        bare, layout, start = self.bare, self.layout, self.bare.start
        if bare.raced.expand.size < bare.raced.reads.size:
            raise NoProxy(
                f"the rows depend on {', '.join(names)} as an index or a condition, not through a "
                "quantity that can be expanded"
            )
        points = possible_points(self.model, layout, layout.unravel(start), self.rng, _POSSIBLE)
        for name, states in self._states():  # of others, draws from the prior must suffice
            if name in names:
                where = layout.slices[name]
                pairs = [(c, s) for c, k in zip(range(where.start, where.stop), states) for s in k]
                for j in self.rng.permutation(len(pairs))[:_MOST_STATES]:
                    points.append(start.copy())
                    points[-1][pairs[j][0]] = pairs[j][1]
        for x in points:
            with np.errstate(all="ignore"):
                eta = bare.eta(x)
            if not np.all(np.isfinite(eta)):
                raise NoProxy(
                    f"what the rows make of {', '.join(names)} is not finite in some state"
                )


# --- what follows from a fit ----------------------------------------------------------------------


def _with_weights(prepared: Preparation) -> Preparation:
    """Measure the acceptance rate at many draws if a few probes say that moves are rejected.

    If it is low, moves of few coefficients get the tails of a Student t. A very low rate is flagged. The standard
    deviation of log weights predicts effective draws better than the Pareto k of the weights.
    """
    forecast, n_rows, surface = prepared.forecast, prepared.densities.n_rows, prepared.surface
    if surface is None or forecast.acceptance > _FITS_WELL:
        return prepared
    number = int(np.clip(_WEIGHT_ROWS / n_rows, _FEWEST_WEIGHTS, _MOST_WEIGHTS))
    logs = log_weights(prepared, number)
    possible, acceptance = logs[logs > -np.inf], 0.0
    if possible.size > 1:
        acceptance = possible.size / number * expected_acceptance(np.diff(possible))
    told = prepared.forecast_flags or prepared.kinked or prepared.raced.n_units < _FEW_UNITS
    flags = prepared.flags
    if acceptance < _HOPELESS and not told:
        flags += (flag("poor_expansion", acceptance=acceptance),)
    if acceptance <= _FITS_WELL and np.sum(surface.surface.inner >= 0) <= _MOST_WITH_TAILS:
        surface = replace(surface, freedom=_FREEDOM)
    forecast = forecast._replace(acceptance=acceptance)
    return replace(prepared, surface=surface, forecast=forecast, flags=flags)


def _with_nodes(prepared: Preparation, model: GroupedModel) -> Preparation:
    """Choose the nodes of the quadrature, and expand groups with these."""
    fit, surrogate = prepared.fit, prepared.surrogate
    assert fit is not None and surrogate is not None
    # The mode and points around it, which do not depend on the order of the variables.
    at, labels = fit.coordinates, model.layout.labels()
    values, vectors = linalg.eigh(fit.precision[np.ix_(at, at)])
    root = (vectors / np.sqrt(values)) @ vectors.T  # symmetric, to treat all coordinates alike
    points = np.tile(fit.mean, (_NODE_POINTS + 1, 1))
    for k, label in enumerate(labels[c] for c in at):
        z = as_generator([_SEED, *label.encode()]).standard_normal(_NODE_POINTS)
        points[1:, at] += _NODE_WIDTH * z[:, None] * root[k]
    error = choose_nodes(model, list(points), as_generator(_SEED))
    surrogate = surrogate_at(model, surrogate.centre) or surrogate
    flags = prepared.forecast_flags
    if error >= TOLERANCE:
        flags += (flag("quadrature_varies", error=error),)
    return replace(prepared, surrogate=surrogate, forecast_flags=flags, quadrature_error=error)


def _with_thinning(
    prepared: Preparation, race: ExactRace | AutoRace, active: np.ndarray
) -> Preparation:
    """Add bounds of all rows, if they are known and thinned decisions cost less than those of the race."""
    raced, fit, surrogate = prepared.raced, prepared.fit, prepared.surrogate
    if fit is None or surrogate is None or prepared.kinked:
        return prepared
    if not isinstance(raced, RowDensities) or raced.coefficients is not None:
        return prepared
    assert raced.packed.program is not None
    bounds = row_bounds(raced.packed.program, raced.packed.data, raced.release)
    if bounds is None:
        return prepared
    covariance = _covariance(prepared, fit)
    if not np.diag(covariance)[raced.reads].all():  # rows read what does not vary as it is
        return prepared
    thinning = fit_thinning(bounds, raced.n_units, surrogate.centre, covariance)
    if thinning is not None and isinstance(race, AutoRace):
        forecast = prepared.forecast
        step, lost = _STEP + active.size**2 / _PRODUCTS, _lost(prepared, thinning)
        if lost > _MOST_LOST or (step + thinning.expected) * np.exp(lost) > step + forecast.rows:
            return prepared
        most = min(thinning.most, _MORE_ROWS * forecast.rows - thinning.exact.size)
        thinning = thinning._replace(most=most)
    if thinning is None:
        return prepared
    _log.info("Decisions are exact, and read %.2g rows on average.", thinning.expected)
    return replace(prepared, tables=SharedThinning(thinning))


def _lost(prepared: Preparation, thinning: Thinning) -> float:
    """Return minus the logarithm of the chance that thinning accepts a move of which nothing else is known."""
    rng, raced, centre = as_generator(_SEED), prepared.raced, thinning.centre
    units = np.setdiff1d(rng.integers(0, raced.n_units, _SOME), thinning.exact)
    if not units.size:
        return 0.0
    probes = probe_moves(prepared, rng)
    changes = [unit_changes(raced.rewards, points, centre, units) for points in probes]
    return float(-np.minimum(changes, 0.0).mean() * (raced.n_units - thinning.exact.size))


def _covariance(prepared: Preparation, fit: GaussianFit) -> np.ndarray:
    """Return an approximate covariance (E, E) of what rows read."""
    surface, surrogate = prepared.surface, prepared.surrogate
    assert surface is not None and surrogate is not None
    size: int = prepared.raced.layout.size
    if prepared.cut is None and not surface.moving:
        inside = np.ix_(fit.coordinates, fit.coordinates)
        factor, _ = gaussian_factor(fit.precision[inside])
        covariance = np.zeros((size, size))
        covariance[inside] = factor @ factor.T
        return covariance
    found = np.cov(prepared.eta(surface.draws).T)
    curvature = -np.diag(surrogate.hessian)
    left_out = np.flatnonzero((np.diag(found) == 0.0) & (curvature > 0.0))
    found[left_out, left_out] = 1.0 / curvature[left_out]  # coefficients without their indicators
    weight = len(surface.draws) / (len(surface.draws) + size)
    return weight * found + (1.0 - weight) * np.diag(np.diag(found))


class SharedThinning(WithoutCaches):
    """A thinning whose tables, if they are large, are in shared memory and not in pickles."""

    def __init__(self, thinning: Thinning):
        self._tables = {name: _shared(getattr(thinning, name)) for name in _TABLES}
        none: dict[str, Any] = dict.fromkeys(_TABLES)
        self._rest = thinning._replace(**none)

    @cached_property
    def thinning(self) -> Thinning:
        """The thinning with its tables."""
        tables: dict[str, Any] = {n: table.data for n, table in self._tables.items()}
        return self._rest._replace(**tables)


def _shared(table: np.ndarray) -> InMemory:
    return InMemory(table.shape, lambda out: np.copyto(out, table), table.dtype)
