"""Densities of a hierarchical model whose rows are stored by group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pymc import Model

from amc_pymc.reading.group_densities import GroupedModel
from amc_pymc.reading.group_packing import GroupPacking
from amc_pymc.reading.groups import Factor
from amc_pymc.reading.rows import possible_points
from amc_pymc.rng import as_generator
from amc_pymc.rows import Rows, open_source, stored_groups
from amc_pymc.steps.grouping import in_store
from amc_pymc.steps.model_densities import (
    SEED,
    check_groups,
    check_rows_finite,
    grouped_model,
    plain_densities,
    refuse_other_steps,
)
from amc_pymc.steps.settings import Options

__all__ = ["stored_group_densities"]


def stored_group_densities(
    model: Model,
    factor: Factor,
    observed_vars: Sequence[Any] | None,
    rows: Rows,
    point: dict[str, np.ndarray],
    compile_kwargs: dict[str, Any] | None = None,
    *,
    active_names: Sequence[str] | None = None,
    progressbar: bool = True,
) -> GroupedModel:
    """Return densities of groups of stored rows, with the effects of a factor integrated out.

    As in :func:`stored_densities`, the model is decomposed on its placeholders, and each chunk of
    the source is checked against the model's graph. ``active_names`` are the variables that a step
    moves, if there is one.

    Raises
    ------
    ValueError, TypeError, OSError, ImportError
        As for :func:`amc_pymc.rows.stored_groups` and :class:`GroupPacking`, or if the factor
        cannot be integrated out with rows in a store.
    """
    factor = in_store(factor, model, observed_vars)
    if factor.reason:
        raise ValueError(f"{factor.label} cannot be integrated out: {factor.reason}")
    options = Options(observed_vars=observed_vars, compile_kwargs=compile_kwargs)
    plain = plain_densities(model, options, point)
    _, around = possible_points(model, plain.layout, dict(point), as_generator(SEED), 2)
    packing = GroupPacking(
        model, factor, plain.row_log_density, plain.ravel(point), around, *plain.rest_graph
    )
    source = open_source(rows, packing.placeholders)
    few = packing.placeholders_in_groups()
    checked = grouped_model(model, few, compile_kwargs)
    if active_names is not None:
        refuse_other_steps(checked, [n for n in active_names if n not in factor.names])
    check_groups(model, checked, point)
    store = stored_groups(rows, source, packing, progressbar=progressbar)
    none = few.rows[:, :0]
    groups = replace(few, store=store, first=store.first, rows=none, order=np.empty(0, np.int64))
    densities = grouped_model(model, groups, compile_kwargs)
    check_rows_finite(densities, densities.ravel(point), "the initial point")
    return densities
