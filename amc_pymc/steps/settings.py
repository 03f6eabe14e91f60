"""Arguments of racing step methods: options, variables to sample, and local effects to integrate out."""

from __future__ import annotations

import logging

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pymc import Model
from pymc.util import get_value_vars_from_user_vars
from pytensor.graph.basic import Variable

from amc_pymc.arguments import positive_int
from amc_pymc.reading.factors import Factor, find_factors
from amc_pymc.rows import Rows, as_rows
from amc_pymc.tall.racing.rules import as_race
from amc_pymc.tall.samplers.chain import Audits

_log = logging.getLogger("amc_pymc")
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
    rows: Rows | None = None
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
        self.rows = as_rows(self.rows)
        if self.marginalize in (None, "auto"):
            return
        one = not isinstance(self.marginalize, list | tuple)
        self.marginalize = wanted = [self.marginalize] if one else list(self.marginalize)
        if not wanted or not all(isinstance(v, str | Variable) for v in wanted):
            raise ValueError(
                "marginalize must be 'auto', None or variables with a value for each group, "
                f"got {wanted}"
            )

    @classmethod
    def among(cls, arguments: Mapping[str, Any]) -> Options:
        """Return the options among a step's arguments."""
        names = [f for f, spec in cls.__dataclass_fields__.items() if spec.init]
        return cls(**{name: arguments[name] for name in names if name in arguments})

    def sampler_settings(self, *, groups: bool = False) -> dict[str, Any]:
        """Return the settings of a :class:`~amc_pymc.tall.samplers.chain.Sampler`."""
        number = 1 if self.transitions_per_draw == "auto" else self.transitions_per_draw
        race = self.race_of_groups if groups else self.race
        return {"race": race, "audits": self.audits, "transitions": number}


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
    factors = find_factors(model, options.observed_vars)
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
