"""Choice of the local effects that a step integrates out, and of its turns."""

from __future__ import annotations

import logging

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pymc import Model
from pymc.util import get_value_vars_from_user_vars
from pytensor.graph.traversal import ancestors

from amc_pymc.reading.factors import Factor, find_factors
from amc_pymc.reading.graphs import initial_point_of, log_densities
from amc_pymc.reading.layout import FlatLayout
from amc_pymc.steps.racing_step import named_vars
from amc_pymc.steps.settings import Options, TaylorProxy

_log = logging.getLogger("amc_pymc")
#: Why effects of rows in a store are not integrated out.
_IN_STORE = "its rows are in a store, and groups must be in memory"
#: Least number of levels for which a race over groups does not read most of them.
_FEW_LEVELS = 250
#: Maximum number of rows for which reading most groups is cheap.
_FEW_ROWS = 20_000
#: Number of levels below which effects stay among the parameters if they have this many rows each: they are nearly
#: Gaussian, and a decision reads some hundred rows.
_FEW_INFORMED, _INFORMED = 50, 250


@dataclass(frozen=True, eq=False)
class Turn:
    """Value variables that are updated together.

    Attributes
    ----------
    names : tuple of str
        Names of the variables, including those of the factor.
    factor : Factor or None
        Factor that is integrated out.
    held : tuple of str
        Variables that are held fixed as data.
    insists : bool
        Whether the user asked for this factor.
    """

    names: tuple[str, ...]
    factor: Factor | None = None
    held: tuple[str, ...] = ()
    insists: bool = False


def chosen_turns(
    model: Model,
    active_names: Sequence[str],
    options: Options,
    factors: Sequence[Factor] | None = None,
) -> list[Turn]:
    """Choose what a step integrates out, and return its turns.

    By default, this is the factor with the most levels among those whose variables are all sampled,
    if a race over its groups is worthwhile. Further factors with too many effects for the
    coordinates of a control variate are integrated out in turns, each given the effects of the
    others. ``factors`` are those of :func:`find_factors`, if already found.

    Raises
    ------
    ValueError
        If ``marginalize`` names variables that cannot be integrated out.
    """
    wanted = options.marginalize
    rows = [Turn(tuple(active_names))]
    if wanted is None:
        return rows
    asked = not isinstance(wanted, str)
    if options.row_logp is not None or options.proxy is None:
        if asked:
            raise ValueError("marginalize needs proxy='taylor' and no row_logp")
        return rows
    if factors is None:
        factors = possible_factors(model, options)
    if asked:
        chosen = _asked(wanted, factors, model, active_names)
    else:
        chosen = [f for f in factors if not _reason_against(f, active_names)]
        chosen = _too_large(chosen, model, active_names, options.proxy)
    if not asked:
        _say(chosen, factors, active_names)
    if not chosen:
        return rows
    return _turns(chosen, model, active_names, options, asked)


def possible_factors(model: Model, options: Options) -> list[Factor]:
    """Return the factors of :func:`find_factors`, with reasons against them if rows are in a store."""
    factors = find_factors(model, options.observed_vars)
    if options.rows is None:
        return factors
    return [replace(f, reason=f.reason or _IN_STORE) for f in factors]


def _sizes(model: Model, without: set[str]) -> dict[str, int]:
    """Return the numbers of entries of value variables."""
    layout = FlatLayout.from_model(model, initial_point_of(model))
    return {n: size for n, size in zip(layout.names, layout.sizes) if n not in without}


def _asked(
    wanted: Sequence[Any], factors: Sequence[Factor], model: Model, active_names: Sequence[str]
) -> list[Factor]:
    """Return the factors of the variables that the user names."""
    wanted = named_vars("marginalize", wanted, model)
    chosen: list[Factor] = []
    for variable in wanted:
        factor = grouped_by(variable, factors, model, "marginalize")
        if factor not in chosen:
            chosen.append(factor)
    for factor in chosen:
        problem = _not_sampled(factor, active_names)
        if problem:
            raise ValueError(f"marginalize names {factor.label}, but {problem}")
    return chosen


def _too_large(
    factors: Sequence[Factor], model: Model, active_names: Sequence[str], proxy: TaylorProxy
) -> list[Factor]:
    """Return the first factor, and others until the remaining coordinates fit in ``max_dim``."""
    sizes = _sizes(model, set())
    left = sum(sizes[n] for n in active_names if n in sizes)
    chosen: list[Factor] = []
    for factor in factors:
        if chosen and left <= proxy.max_dim:
            break
        chosen.append(factor)
        left -= sum(sizes[n] for n in factor.names)
    return chosen


def _turns(
    chosen: Sequence[Factor],
    model: Model,
    active_names: Sequence[str],
    options: Options,
    insists: bool,
) -> list[Turn]:
    """Return a turn for each factor, with its own variables and those that belong to none.

    Variables that a turn does not move are data to it, unless there is only one factor and they fit
    in ``max_dim``.
    """
    sizes = _sizes(model, set(chosen[0].names))
    few = len(chosen) == 1 and sum(sizes.values()) <= options.proxy.max_dim
    own = [set(f.names) | _hyperparameters(f, model, active_names) for f in chosen]
    turns = []
    for k, factor in enumerate(chosen):
        others = set().union(*(names for j, names in enumerate(own) if j != k))
        moved = tuple(n for n in active_names if n not in others)
        held = () if few else tuple(n for n in _sizes(model, set(moved)))
        turns.append(Turn(moved, factor, held, insists))
    return turns


def _hyperparameters(factor: Factor, model: Model, active_names: Sequence[str]) -> set[str]:
    """Return the variables on which only the prior of a factor's effects depends."""
    values = {v: v.name for v in model.value_vars}
    local = {model.values_to_rvs[v] for v, name in values.items() if name in factor.names}

    def read(parts: Sequence[Any]) -> set[str]:
        return {values[v] for v in ancestors(log_densities(model, parts)) if v in values}

    found = (set(active_names) - set(factor.names)) & read(list(local))
    for part in {*model.basic_RVs, *model.potentials} - local:
        found -= read([part]) - {values.get(model.rvs_to_values.get(part))}
    return found


def reasons_against(factors: Sequence[Factor], active_names: Sequence[str]) -> tuple[str, ...]:
    """Return the factors that ``marginalize="auto"`` does not integrate out, with reasons."""
    reasons = ((f.label, _reason_against(f, active_names)) for f in factors)
    return tuple(f"{label}: {reason}" for label, reason in reasons if reason)


def _reason_against(factor: Factor, active_names: Sequence[str]) -> str:
    """Return why a factor is not integrated out by default; empty if it may be."""
    problem = factor.reason or _not_sampled(factor, active_names)
    if problem or _pays(factor):
        return problem
    return (
        f"a race over {factor.n_levels:,} groups of {_n_rows(factor) / factor.n_levels:,.0f} rows "
        f"each would read most of them (marginalize={list(factor.variables)} insists)"
    )


def _not_sampled(factor: Factor, active_names: Sequence[str]) -> str:
    """Return why a step that samples some variables cannot integrate a factor out; empty if it can."""
    pairs = zip(factor.names, factor.variables, strict=True)
    missing = ", ".join(user for name, user in pairs if name not in active_names)
    if missing:
        return f"vars leaves out {missing}"
    return "" if set(active_names) - set(factor.names) else "vars names nothing besides"


def _n_rows(factor: Factor) -> int:
    return sum(levels.size for levels in factor.levels)


def _pays(factor: Factor) -> bool:
    n, levels = _n_rows(factor), factor.n_levels
    informed = levels < _FEW_INFORMED and n >= _INFORMED * levels
    return levels >= _FEW_LEVELS or (n <= _FEW_ROWS and not informed)


def _say(chosen: Sequence[Factor], factors: Sequence[Factor], active_names: Sequence[str]) -> None:
    """Log what is integrated out and what is not."""
    if factors and not chosen:
        against = (f"{f.label} out: {_reason_against(f, active_names)}" for f in factors)
        _log.info("Not integrating %s.", "; nor ".join(against))
    if not chosen:
        return
    left = "".join(
        f" {f.label} ({f.n_levels:,} levels) {'stay' if len(f.variables) > 1 else 'stays'}"
        f"{f': {f.reason}' if f.reason else ''}."
        for f in factors
        if f not in chosen
    )
    rows = " and ".join(f"{_n_rows(f) / f.n_levels:,.3g}" for f in chosen)
    _log.info(
        "Integrating %s out%s: %s groups of %s rows on average. Races read groups.%s",
        " and ".join(f.label for f in chosen),
        " in turns" if len(chosen) > 1 else "",
        " and ".join(f"{f.n_levels:,}" for f in chosen),
        rows,
        left,
    )


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
