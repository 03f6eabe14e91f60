"""Which local effects a step integrates out."""

from __future__ import annotations

import logging

from collections.abc import Sequence
from typing import Any

from pymc.util import get_value_vars_from_user_vars

from amc_pymc.extract.groups import Factor, find_factors
from amc_pymc.step_methods.settings import Options, TaylorProxy

__all__ = ["chosen_factor", "grouped_by", "reasons_against"]

_log = logging.getLogger("amc_pymc")
#: Fewer levels than this make a race over groups read most of them, ...
_FEW_LEVELS = 250
#: ... which costs nothing that matters where there are not more rows than this.
_FEW_ROWS = 20_000


def chosen_factor(model, active_names: Sequence[str], options: Options) -> Factor | None:
    """The grouping factor to integrate out, or None.

    It is the one with the most levels among those whose variables are all sampled, if a race
    over its groups pays.

    Raises
    ------
    ValueError
        ``marginalize`` names variables that cannot be integrated out together.
    """
    wanted = options.marginalize
    if wanted is None:
        return None
    asked = not isinstance(wanted, str)
    if options.row_logp is not None or not isinstance(options.proxy, TaylorProxy):
        if asked:
            raise ValueError("marginalize needs proxy='taylor' and no row_logp")
        return None
    factors = find_factors(model, options.observed_vars)
    if asked:
        factor = grouped_by(wanted, factors, model, "marginalize")
        missing = _left_out(factor, active_names)
        if missing:
            raise ValueError(f"marginalize names {factor.label}, but vars leaves out {missing}")
        if not set(active_names) - set(factor.names):
            raise ValueError(
                f"marginalize names {factor.label}, and vars nothing besides: let the step move what "
                "the groups depend on too, or pass marginalize=None"
            )
        return factor
    for factor in factors:
        if not _reason_against(factor, active_names):
            _say(factor, factors)
            return factor
    if factors:
        against = (f"{f.label} out: {_reason_against(f, active_names)}" for f in factors)
        _log.info("Not integrating %s.", "; nor ".join(against))
    return None


def reasons_against(model, active_names: Sequence[str], options: Options) -> tuple[str, ...]:
    """Variables with levels that ``marginalize="auto"`` leaves as they are, each with the reason."""
    if options.marginalize != "auto":
        return ()
    factors = find_factors(model, options.observed_vars)
    reasons = ((f.label, _reason_against(f, active_names)) for f in factors)
    return tuple(f"{label}: {reason}" for label, reason in reasons if reason)


def _reason_against(factor: Factor, active_names: Sequence[str]) -> str:
    """Why a factor is not integrated out unasked; empty if it may be."""
    if factor.reason:
        return factor.reason
    missing = _left_out(factor, active_names)
    if missing:
        return f"vars leaves out {missing}"
    if not set(active_names) - set(factor.names):
        return "vars names nothing besides"
    if not _pays(factor):
        return (
            f"a race over {factor.n_levels:,} groups of {_n_rows(factor) / factor.n_levels:,.0f} "
            f"rows each would read most of them (marginalize={list(factor.variables)} insists)"
        )
    return ""


def _left_out(factor: Factor, active_names: Sequence[str]) -> str:
    """The user's names of the variables of a factor that a step does not sample."""
    pairs = zip(factor.names, factor.variables, strict=True)
    return ", ".join(user for name, user in pairs if name not in active_names)


def _n_rows(factor: Factor) -> int:
    return sum(levels.size for levels in factor.levels)


def _pays(factor: Factor) -> bool:
    return factor.n_levels >= _FEW_LEVELS or _n_rows(factor) <= _FEW_ROWS


def _say(factor: Factor, factors: Sequence[Factor]) -> None:
    others = [f for f in factors if f is not factor]
    left = "".join(
        f" {f.label} ({f.n_levels:,} levels) {'stay' if len(f.variables) > 1 else 'stays'}"
        f"{f': {f.reason}' if f.reason else ''}."
        for f in others
    )
    _log.info(
        "Integrating %s out: %s groups of %s rows on average. Races read groups.%s",
        factor.label,
        f"{factor.n_levels:,}",
        f"{_n_rows(factor) / factor.n_levels:,.3g}",
        left,
    )


def grouped_by(wanted: Any, factors: Sequence[Factor], model, argument: str) -> Factor:
    """The factor that variables named in an argument belong to."""
    wanted = wanted if isinstance(wanted, list | tuple) else [wanted]
    free = {rv.name: rv for rv in model.free_RVs}
    unknown = [v for v in wanted if isinstance(v, str) and v not in free]
    if unknown:
        raise ValueError(
            f"{argument} names {', '.join(unknown)}; free variables of this model: "
            f"{', '.join(free)}"
        )
    named = [free[v] if isinstance(v, str) else v for v in wanted]
    names = {v.name for v in get_value_vars_from_user_vars(named, model)}
    for factor in factors:
        if names <= set(factor.names):
            if factor.reason:
                raise ValueError(
                    f"{argument} names {factor.label}, which cannot be integrated out: "
                    f"{factor.reason}"
                )
            return factor
    known = "; ".join(f.label for f in factors) or "none"
    users = {str(model.values_to_rvs[v].name) for v in model.value_vars if v.name in names}
    raise ValueError(
        f"{argument} names {', '.join(sorted(users))}, which is not one grouping factor of this "
        "model's rows: each of them must read one entry, found by a single index in the data. "
        f"Grouping factors: {known}."
    )
