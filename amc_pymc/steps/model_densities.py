"""Densities of a ``pm.Model``, and checks that they add up to its log density."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pymc import Model
from pytensor.graph.traversal import ancestors

from amc_pymc.reading import FlatLayout, RowLogp, extract_rows
from amc_pymc.reading.densities import ModelDensities
from amc_pymc.reading.group_densities import GroupedModel
from amc_pymc.reading.groups import Factor, Groups, take_groups
from amc_pymc.reading.interpreted import functions_for_few
from amc_pymc.reading.log_density import log_densities, log_density
from amc_pymc.reading.rows import CallbackRows, choose_observed, row_count
from amc_pymc.tall.proxies import Mode
from amc_pymc.tall.samplers import RacedModel

__all__ = [
    "check_densities",
    "check_groups",
    "check_rows_finite",
    "check_rows_resolved",
    "checked_densities",
    "grouped_densities",
    "grouped_model",
    "plain_densities",
]

#: Magnitude above which numbers of double precision have no decimals.
_WHOLE = 2.0**52


def checked_densities(
    model: Model,
    observed_vars: Sequence[Any] | None,
    row_logp: Callable[..., Any] | None,
    point: dict[str, np.ndarray],
    compile_kwargs: dict[str, Any] | None,
) -> ModelDensities:
    """Decompose the model, and check at a point that its densities add up."""
    densities = plain_densities(model, observed_vars, row_logp, point, compile_kwargs)
    check_densities(model, densities, point)
    return densities


def check_densities(model: Model, densities: ModelDensities, point: dict[str, np.ndarray]) -> None:
    """Raise an error if the point or rows are not finite, or densities do not add up."""
    start = densities.layout.ravel(point)
    bad = np.flatnonzero(~np.isfinite(start))
    if bad.size:
        labels = densities.layout.labels()
        shown = ", ".join(f"{labels[k]} = {start[k]}" for k in bad[:5])
        raise ValueError(f"initial_point is not finite: {shown}")
    check_rows_finite(densities, start, "the initial point")
    _check_total(model, densities, start)


def grouped_densities(
    model: Model,
    factor: Factor,
    observed_vars: Sequence[Any] | None,
    point: dict[str, np.ndarray],
    compile_kwargs: dict[str, Any] | None,
    held: Sequence[str] = (),
) -> GroupedModel:
    """Decompose the model with the local effects of a factor integrated out, and check it.

    Variables that are ``held`` are data. Terms of the rest that depend only on these are omitted.
    """
    groups = take_groups(model, factor, observed_vars, held)
    densities = grouped_model(model, groups, compile_kwargs)
    check_groups(model, densities, point)
    return densities


def grouped_model(
    model: Model, groups: Groups, compile_kwargs: dict[str, Any] | None
) -> GroupedModel:
    """Return the densities of groups and of the rest of a model."""
    _, others = _parts(model, groups)
    rest = log_density(model, others)
    kept = [v for v in model.value_vars if v.name not in groups.factor.names]
    return GroupedModel(groups, rest, kept, compile_kwargs=compile_kwargs)


def check_groups(model: Model, densities: GroupedModel, point: dict[str, np.ndarray]) -> None:
    """Raise an error if groups are not finite at a point, or densities do not add up there."""
    densities.groups.hold(point)
    start = densities.ravel(point)
    effects = densities.effects(point)
    got = densities.complete(start, effects) + densities.rest_value_and_gradient(start)[0]
    own = got - densities.groups.centring.log_jacobian(start)
    local, others = _parts(model, densities.groups)
    _check_sum(model, point, own, densities.n_rows, [*local, *others])
    check_rows_finite(densities, start, "the initial point")


def _parts(model: Model, groups: Groups) -> tuple[list[Any], list[Any]]:
    """Return the variables of groups, and the other terms that depend on variables not held."""
    effects = [model.values_to_rvs[v] for v in model.value_vars if v.name in groups.factor.names]
    raced = [v for v in model.basic_RVs if v.name in groups.observed_vars]
    local = [*effects, *raced]
    others = [v for v in [*model.basic_RVs, *model.potentials] if v not in set(local)]
    moved = {v for v in model.value_vars if v.name in groups.layout.names}
    if groups.held is not None:
        others = [v for v in others if moved & set(ancestors(log_densities(model, [v])))]
    return local, others


def plain_densities(
    model: Model,
    observed_vars: Sequence[Any] | None,
    row_logp: Callable[..., Any] | None,
    point: dict[str, np.ndarray],
    compile_kwargs: dict[str, Any] | None,
) -> ModelDensities:
    """Decompose the model into densities of rows and the rest."""
    observed = choose_observed(model, observed_vars)
    layout = FlatLayout.from_model(model, point)
    factors = [*model.basic_RVs, *model.potentials]
    rest = log_density(model, [v for v in factors if v not in observed])
    names = tuple(str(rv.name) for rv in observed)
    rows: RowLogp | CallbackRows
    if row_logp is None:
        rows = extract_rows(model, names)
        # Rows that depend on nothing are expanded in all variables: they are their control variates then.
        read = rows.value_vars or layout.names
        expand = layout.indices([n for n in read if layout.is_continuous(n)])
    else:
        rows = CallbackRows(row_logp, row_count(model, observed), names, layout.names, layout)
        expand = np.empty(0, np.int64)
    return ModelDensities(
        rows, rest, model.value_vars, expand=expand, compile_kwargs=compile_kwargs
    )


def check_rows_finite(densities: RacedModel, x: np.ndarray, where: str) -> None:
    """Raise a ValueError that names rows whose log-likelihood is not finite."""
    if not densities.all_finite(x):
        remedy = f"Clean these {densities.unit}s or start where they are possible."
        _refuse_rows(densities, x, lambda v: ~np.isfinite(v), f"not finite at {where}", remedy)


def check_rows_resolved(densities: RacedModel, mode: Mode) -> None:
    """Raise a ValueError that names rows so unlikely at the mode that numbers of their size have no decimals left.

    Their changes, and those of all sums of rows, are then rounded by more than a nat.
    """
    if abs(mode.value) > _WHOLE:
        remedy = (
            f"Clean these {densities.unit}s, or use a likelihood in which they are less unlikely."
        )
        what = "too large in magnitude for double precision at the mode"
        _refuse_rows(densities, mode.x, lambda v: np.abs(v) > _WHOLE, what, remedy)


def _refuse_rows(
    densities: RacedModel,
    x: np.ndarray,
    bad: Callable[[np.ndarray], np.ndarray],
    what: str,
    remedy: str,
) -> None:
    """Raise a ValueError that names rows whose log-likelihoods are bad, if there are any."""
    unit, number, first = densities.unit, 0, 0
    shown: list[str] = []
    for values in densities.value_chunks(x):
        found = np.flatnonzero(bad(values))
        shown += [f"{unit} {first + n}: {values[n]}" for n in found[: 5 - len(shown)]]
        number, first = number + found.size, first + values.size
    if number:
        raise ValueError(
            f"The log-likelihood of {', '.join(densities.observed_vars)} is {what} in {number} of "
            f"{first} {unit}s ({', '.join(shown)}{', ...' if number > 5 else ''}). {remedy}"
        )


def _check_total(model: Model, densities: ModelDensities, start: np.ndarray) -> None:
    """Check that rows and rest add up to the model's logp."""
    if isinstance(densities.rows, CallbackRows):
        return
    got = float(densities.all_values(start).sum()) + densities.rest_value_and_gradient(start)[0]
    _check_sum(model, densities.layout.unravel(start), got, densities.n_rows)


def _check_sum(
    model: Model,
    point: dict[str, np.ndarray],
    got: float,
    n_rows: int,
    parts: Sequence[Any] | None = None,
) -> None:
    """Check a value against the model's log density of some parts, default all."""
    whole = log_density(model, parts or [*model.basic_RVs, *model.potentials])
    for make in functions_for_few([whole], n_rows):
        fn = make(model.value_vars, whole)
        expected = float(fn(*(point[v.name] for v in model.value_vars)))
        if np.isfinite(expected) and abs(got - expected) <= 1e-8 * max(1.0, abs(expected)):
            return
    if not np.isfinite(expected):
        raise ValueError(f"The model's logp is {expected} at the initial point; start elsewhere")
    raise ValueError(
        f"The rows and the rest add up to a log density of {got}, the model says {expected}. "
        "Pass row_logp=, or report this model as a bug of amc_pymc."
    )
