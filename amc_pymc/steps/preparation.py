"""What racing steps do before the first draw: arguments, densities, mode, control variate, moves, forecast."""

from __future__ import annotations

import contextlib
import logging
import time

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np

from pymc import Model
from pymc.util import get_value_vars_from_user_vars
from pytensor.graph.basic import Variable
from scipy import linalg
from threadpoolctl import threadpool_limits

from amc_pymc.arguments import positive_int
from amc_pymc.engine.jit import reports_of_compiling
from amc_pymc.engine.row_kernels import row_bounds
from amc_pymc.flags import flag
from amc_pymc.progress import progress
from amc_pymc.reading import extract_rows
from amc_pymc.reading.densities import ModelDensities, RowDensities, parts_of
from amc_pymc.reading.factors import Factor, element_states, find_factors
from amc_pymc.reading.graphs import interpreted_function, log_densities, lowered
from amc_pymc.reading.group_densities import TOLERANCE, GroupedModel, choose_nodes
from amc_pymc.reading.groups import take_groups
from amc_pymc.reading.packed_rows import Coefficients
from amc_pymc.reading.row_packing import RowPacking
from amc_pymc.reading.rows import may_read_levels, possible_points
from amc_pymc.rng import as_generator
from amc_pymc.rows import InMemory, Rows, open_source, stored_rows
from amc_pymc.tall.decisions import fit_thinning, residuals
from amc_pymc.tall.mode import (
    GaussianFit,
    fit_gaussian,
    gaussian_factor,
    likelihood_mode,
    posterior_mode,
)
from amc_pymc.tall.racing import AutoRace, ExactRace, as_race
from amc_pymc.tall.samplers.chain import Audits
from amc_pymc.tall.samplers.fit import (
    Preparation,
    expected_acceptance,
    fit_surface,
    gaussian_surface,
    log_weights,
    probe_moves,
    with_forecast,
)
from amc_pymc.tall.surrogate import no_surrogate, surrogate_at
from amc_pymc.tall.terms import NoSurface
from amc_pymc.tall.units import NoProxy, Raced, RacedModel

_log = logging.getLogger("amc_pymc")

# --- arguments ---------------------------------------------------------------------------------


#: Default size of the first batch of groups, whose residuals are sums over many rows.
_GROUPS = 20


@dataclass(kw_only=True)
class Options:
    """Checked arguments shared by all racing steps; documented in RacingMetropolis.

    ``race`` and ``audits`` become settings; ``race_of_groups`` is the race over groups instead of rows.
    """

    observed_vars: Sequence[Any] | None = None
    delta: float | None = None
    race: Any = "auto"
    batch_size: int | None = None
    audits: Any = 200
    transitions_per_draw: Any = 1
    rows: Any = None
    marginalize: Any = None
    progressbar: bool = True
    race_of_groups: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        named = self.race
        self.race = self.race_of_groups = as_race(named, self.delta, self.batch_size)
        if named in ("auto", "normal"):  # remainders of groups have no bounds
            size = _GROUPS if self.batch_size is None else self.batch_size
            self.race_of_groups = as_race("normal", self.delta, size)
        if not isinstance(self.audits, Audits):
            self.audits = Audits(self.audits)
        if self.transitions_per_draw != "auto":
            positive_int("transitions_per_draw", self.transitions_per_draw)
        if self.rows is not None and not isinstance(self.rows, Rows):
            self.rows = Rows(self.rows)
        if self.marginalize in (None, "auto"):
            return
        one = not isinstance(self.marginalize, list | tuple)
        self.marginalize = wanted = [self.marginalize] if one else list(self.marginalize)
        if not wanted or not all(isinstance(v, str | Variable) for v in wanted):
            raise ValueError(
                "marginalize must be 'auto', None or variables with a value for each group, "
                f"got {wanted}"
            )


# --- variables ------------------------------------------------------------------------------------


#: Kind of the variables of a step, what it does with them, and where other variables belong.
_KINDS = {
    False: ("continuous", "moves", "Leave them out: pm.sample gives them a step of their own."),
    True: ("discrete", "draws", "Give them to RacingMetropolis, or leave them to pm.sample."),
}


def chosen_vars(vars: Any, model: Model, step: str, *, discrete: bool = False) -> list[Any]:
    """Return the value variables of continuous or discrete ``vars``; default: all of the model."""
    (kind, does, advice), (other, *_) = _KINDS[discrete], _KINDS[not discrete]
    own = [v for v in model.value_vars if v.dtype.startswith("float") is not discrete]
    if vars is None or (isinstance(vars, list) and vars == [None]):
        if not own:
            raise ValueError(f"The model has no {kind} free variable for {step}")
        return own
    vars = named_vars("vars", vars if isinstance(vars, list | tuple) else [vars], model)
    chosen = list(dict.fromkeys(get_value_vars_from_user_vars(vars, model)))
    wrong = ", ".join(v.name for v in chosen if v not in own)
    if wrong:
        raise ValueError(
            f"vars holds {other} variables ({wrong}); {step} {does} {kind} ones. {advice}"
        )
    return chosen


def named_vars(argument: str, vars: Sequence[Any], model: Model) -> list[Any]:
    """Return variables with free variables of the model in the place of their names."""
    free = {rv.name: rv for rv in model.free_RVs}
    unknown = [v for v in vars if isinstance(v, str) and v not in free]
    if unknown:
        raise ValueError(
            f"{argument} names {', '.join(unknown)}; free variables of this model: "
            f"{', '.join(free)}"
        )
    return [free[v] if isinstance(v, str) else v for v in vars]


# --- local effects --------------------------------------------------------------------------------


#: Why effects of rows in a store are not integrated out.
_IN_STORE = "its rows are in a store, and groups must be in memory"
#: Least number of levels for which a race over groups does not read most of them.
_FEW_LEVELS = 250
#: Maximum number of rows for which reading most groups is cheap.
_FEW_ROWS = 20_000
#: Number of rows per level from which effects of few levels stay among the parameters: they are often nearly Gaussian,
#: and a decision then reads some hundred rows. Where moves are rejected, as with rare events, draws take more of them.
_INFORMED = 250


def chosen_factor(model: Model, active_names: Sequence[str], options: Options) -> Factor | None:
    """Return the factor that a step integrates out, None if it integrates none out.

    By default, this is the factor with the most levels among those whose variables are all sampled,
    if a race over its groups is worthwhile.

    Raises
    ------
    ValueError
        If ``marginalize`` names variables that cannot be integrated out.
    """
    wanted = options.marginalize
    if wanted is None:
        return None
    grouped = may_read_levels(model, options.observed_vars)
    factors = find_factors(model, options.observed_vars) if grouped else []
    if options.rows is not None:
        factors = [replace(f, reason=f.reason or _IN_STORE) for f in factors]
    if wanted != "auto":
        factor = grouped_by(wanted, factors, model, "marginalize")
        problem = _not_sampled(factor, active_names)
        if problem:
            raise ValueError(f"marginalize names {factor.label}, but {problem}")
        return factor
    chosen = next((f for f in factors if not _reason_against(f, active_names)), None)
    if chosen is not None:
        _log.info(
            "Integrating %s out: %s groups of %.3g rows on average. Races read groups.",
            chosen.label, f"{chosen.n_levels:,}", chosen.levels.size / chosen.n_levels,
        )  # fmt: skip
    elif factors:
        reasons = (f"{f.label}: {_reason_against(f, active_names)}" for f in factors)
        _log.info("Not integrated out: %s.", "; ".join(reasons))
    return chosen


def _reason_against(factor: Factor, active_names: Sequence[str]) -> str:
    """Return why a factor is not integrated out by default; empty if it may be."""
    problem = factor.reason or _not_sampled(factor, active_names)
    n, levels = factor.levels.size, factor.n_levels
    pays = levels >= _FEW_LEVELS or (n <= _FEW_ROWS and n < _INFORMED * levels)
    if problem or pays:
        return problem
    return (
        f"a race over {levels:,} groups of {n / levels:,.0f} rows each would read most of them "
        f"(marginalize={list(factor.variables)} insists)"
    )


def _not_sampled(factor: Factor, active_names: Sequence[str]) -> str:
    """Return why a step that samples some variables cannot integrate a factor out; empty if it can."""
    pairs = zip(factor.names, factor.variables, strict=True)
    missing = ", ".join(user for name, user in pairs if name not in active_names)
    if missing:
        return f"vars leaves out {missing}"
    return "" if set(active_names) - set(factor.names) else "vars names nothing besides"


def grouped_by(wanted: Any, factors: Sequence[Factor], model: Model, argument: str) -> Factor:
    """Return the factor of the variables named in an argument."""
    wanted = wanted if isinstance(wanted, list | tuple) else [wanted]
    named = named_vars(argument, wanted, model)
    names = {v.name for v in get_value_vars_from_user_vars(named, model)}
    factor = next((f for f in factors if names <= set(f.names)), None)
    if factor is None:
        known = "; ".join(f.label for f in factors) or "none"
        users = {str(model.values_to_rvs[v].name) for v in model.value_vars if v.name in names}
        raise ValueError(
            f"{argument} names {', '.join(sorted(users))}, which is not one grouping factor of this "
            "model's rows: each of them must read one entry, found by a single index in the data. "
            f"Grouping factors: {known}."
        )
    if factor.reason:
        raise ValueError(
            f"{argument} names {factor.label}, which cannot be integrated out: {factor.reason}"
        )
    return factor


# --- preparation -------------------------------------------------------------------------------


#: Seed of subsamples, probes, and points at which packed rows are checked; independent of the user's seed.
_SEED = 20161
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
        densities: ModelDensities | GroupedModel | None = stored
        if factor is not None:
            densities = grouped_densities(model, factor, options.observed_vars, point)
            if densities.expand.size < densities.reads.size:
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
                densities = None
        if densities is None:
            densities = ModelDensities(model, options.observed_vars)
            check_densities(model, densities, point)
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
        densities = ModelDensities(model)
        check_densities(model, densities, point)
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
            bar.advance(1, text)

        def compiling(name: str) -> None:
            bar.advance(0, f"Compiling {name}, once per installation" if name else text)

        with reports_of_compiling(compiling), threadpool_limits(1, "blas"):
            yield say


# --- densities ------------------------------------------------------------------------------------


def check_densities(
    model: Model, densities: ModelDensities | GroupedModel, point: dict[str, np.ndarray]
) -> None:
    """Raise an error if rows are not finite at a point, or densities do not add up to that of the model."""
    start = densities.ravel(point)
    check_rows_finite(densities, start, "the initial point")
    got = densities.rest_value_and_gradient(start)[0]
    if isinstance(densities, GroupedModel):
        got += densities.complete(start, densities.effects(point))
        got -= densities.groups.centring.log_jacobian(start)
    else:
        got += sum(map(np.sum, densities.value_chunks(start)))
    whole = lowered(log_densities(model, [*model.basic_RVs, *model.potentials]))
    fn = interpreted_function(model.value_vars, whole)
    expected = float(sum(map(np.sum, fn(*(point[v.name] for v in model.value_vars)))))
    if not np.isfinite(expected):
        raise ValueError(f"The model's logp is {expected} at the initial point; start elsewhere")
    if not abs(got - expected) <= 1e-8 * max(1.0, abs(expected)):
        raise ValueError(
            f"The rows and the rest add up to a log density of {got}, the model says {expected}. "
            "Please report this model as a bug of amc_pymc."
        )


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
    densities = GroupedModel(groups, log_densities(model, others), kept)
    check_densities(model, densities, point)
    return densities


def check_rows_finite(densities: RacedModel, x: np.ndarray, where: str) -> None:
    """Raise a ValueError that names rows whose log-likelihood is not finite."""
    unit, number, first = densities.unit, 0, 0
    shown: list[str] = []
    for values in densities.value_chunks(x):
        found = np.flatnonzero(~np.isfinite(values))
        shown += [f"{unit} {first + n}: {values[n]}" for n in found[: 5 - len(shown)]]
        number, first = number + found.size, first + values.size
    if not number:
        return
    raise ValueError(
        f"The log-likelihood of {', '.join(densities.observed_vars)} is not finite at {where} in {number} "
        f"of {first} {unit}s ({', '.join(shown)}{', ...' if number > 5 else ''}). Clean these {unit}s or "
        "start where they are possible."
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
    placeholders = extract_rows(model, options.observed_vars)
    left = [n for n in placeholders.value_vars if n not in active_names]
    if left:
        raise ValueError(
            f"vars leaves out {', '.join(left)}, on which rows depend: with rows=, other steps would see "
            "the placeholders only. Let this step sample all variables that rows read: RacingMetropolis "
            "continuous ones, RacingGibbs discrete ones, and sum others out."
        )
    layout = placeholders.layout
    _, around = possible_points(model, layout, dict(point), as_generator(_SEED), 2)
    packing = RowPacking(model, placeholders, layout.ravel(point), around)
    source = open_source(rows, packing.placeholders)
    densities = ModelDensities(model, options.observed_vars, packing.placeholder_rows())
    check_densities(model, densities, point)
    store = stored_rows(rows, source, packing, progressbar=options.progressbar)
    return densities.of_packed(packing.packed(store))


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
        layout = self.layout
        #: Coordinates of all continuous variables, and of those that the step moves.
        self.continuous = np.flatnonzero(~layout.discrete)
        self.active = np.intersect1d(self.continuous, layout.indices(active_names))
        self.rng = as_generator(_SEED)
        #: Number of units on which the mode search starts.
        self.subsample = max(1, _SUBSAMPLE * densities.n_units // densities.n_rows)
        start = densities.ravel(point)
        self.bare = Preparation(densities, densities, start)
        if self.rows is not None and self.rows.packed.coefficients is not None:
            self.bare = Preparation(
                densities, self.rows.raced, start, self.rows.packed.coefficients
            )

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
            self.bare.raced.expand = np.empty(0, np.int64)
            if self.options.race.delta > _SMALL_DELTA:
                flags += (flag("no_control_variate", reason=reason),)
        zero = no_surrogate(self.bare.eta(self.bare.start))
        return replace(self.bare, surrogate=zero, rows_spent=spent, no_proxy=reason, flags=flags)

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

    @cached_property
    def states(self) -> dict[str, list[np.ndarray]]:
        """States of the elements of discrete variables that have bounds."""
        found, layout = dict[str, list[np.ndarray]](), self.layout
        for v in self.model.value_vars:
            if v.name in layout.names and v.name not in layout.continuous:
                with contextlib.suppress(ValueError):  # unbounded
                    found[v.name] = element_states(self.model, v)
        return found

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
        blocks = [np.r_[layout.slices[n]] for n in layout.continuous]
        moved = [n for n in layout.names if n in self.names and n not in layout.continuous]
        binary = [
            n for n in moved
            if n in self.states and all(np.array_equal(k, [0, 1]) for k in self.states[n])
        ]  # fmt: skip
        self.say("Searching the mode")
        try:
            return fit_surface(
                bare, parts, blocks, layout.indices(binary), self.subsample, self.rng
            )
        except NoSurface as reason:
            _log.debug("Prior times surrogate is not used: %s", reason)
            return None

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
        discrete = [n for n in rows.value_vars if n not in self.layout.continuous]
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
        for name, states in self.states.items():  # of others, draws from the prior must suffice
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
    assert fit is not None
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
    if fit is None or prepared.kinked:
        return prepared
    if not isinstance(raced, RowDensities) or raced.packed.coefficients is not None:
        return prepared
    assert raced.packed.program is not None
    bounds = row_bounds(raced.packed.program, raced.store.data, raced.store.release)
    if bounds is None:
        return prepared
    covariance = _covariance(prepared, fit)
    if not np.diag(covariance)[raced.reads].all():  # rows read what does not vary as it is
        return prepared
    thinning = fit_thinning(bounds, raced.n_units, surrogate.centre, covariance)
    if thinning is None:
        return prepared
    if isinstance(race, AutoRace):
        # Minus the logarithm of the chance that thinning accepts a move of which nothing else is known.
        rng, lost, n_thinned = as_generator(_SEED), 0.0, raced.n_units - thinning.exact.size
        units = np.setdiff1d(rng.integers(0, raced.n_units, _SOME), thinning.exact)
        if units.size:
            args = surrogate.centre, units
            changes = [residuals(raced.rewards, p, *args)[1] for p in probe_moves(prepared, rng)]
            lost = -np.minimum(changes, 0.0).mean() * n_thinned
        forecast, step = prepared.forecast, _STEP + active.size**2 / _PRODUCTS
        if lost > _MOST_LOST or (step + thinning.expected) * np.exp(lost) > step + forecast.rows:
            return prepared
        most = min(thinning.most, _MORE_ROWS * forecast.rows - thinning.exact.size)
        thinning = thinning._replace(most=most)
    _log.info("Decisions are exact, and read %.2g rows on average.", thinning.expected)
    tables: dict[str, InMemory] = {}
    for name in _TABLES:
        table = getattr(thinning, name)
        tables[name] = InMemory(table.shape, partial(np.copyto, src=table), table.dtype)
    shared: dict[str, Any] = {name: table.data for name, table in tables.items()}
    return replace(prepared, thinning=thinning._replace(**shared), tables=tables)


def _covariance(prepared: Preparation, fit: GaussianFit) -> np.ndarray:
    """Return an approximate covariance (E, E) of what rows read."""
    surface, surrogate = prepared.surface, prepared.surrogate
    assert surface is not None
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
