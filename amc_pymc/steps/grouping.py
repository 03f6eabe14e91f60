"""Choice of the local effects that a step integrates out."""

from __future__ import annotations

import logging

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pymc import Model
from pymc.util import get_value_vars_from_user_vars

from amc_pymc.reading.factors import Factor, find_factors
from amc_pymc.steps.preparation import prepare
from amc_pymc.steps.racing_step import named_vars
from amc_pymc.steps.settings import Options
from amc_pymc.tall.samplers.preparation import Preparation

_log = logging.getLogger("amc_pymc")
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


def prepare_grouped(
    model: Model, names: Sequence[str], options: Options, point: dict[str, np.ndarray]
) -> Preparation:
    """Prepare a model with the factor of :func:`chosen_factor` integrated out."""
    chosen = chosen_factor(model, names, options)
    return prepare(model, names, options, point=point, factor=chosen)


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
