"""Densities of a model whose rows are in a store and whose data are placeholders."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pymc import Model

from amc_pymc.reading.densities import ModelDensities
from amc_pymc.reading.discrete_rows import DiscreteRows
from amc_pymc.reading.group_densities import GroupedModel
from amc_pymc.reading.native_rows import NativeRows, StoredRows
from amc_pymc.reading.parameters import ParameterCut, cut_parameters
from amc_pymc.reading.partitioned_rows import PartitionedRows
from amc_pymc.reading.row_packing import RowPacking
from amc_pymc.reading.rows import possible_points
from amc_pymc.rng import as_generator
from amc_pymc.rows import held_partitions, open_source, stored_rows
from amc_pymc.steps.model_densities import (
    check_densities,
    check_rows_finite,
    plain_densities,
)
from amc_pymc.steps.settings import Options

__all__ = ["SEED", "refuse_other_steps", "stored_densities"]

#: Seed of the points at which packed rows are checked, independent of the user's seed.
SEED = 20161


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
    plain = plain_densities(model, options.observed_vars, None, point, options.compile_kwargs)
    refuse_other_steps(plain, active_names)
    _, around = possible_points(model, plain.layout, dict(point), as_generator(SEED), 2)
    start, own = plain.ravel(point), plain.row_log_density
    smooth = all(plain.layout.is_continuous(n) for n in own.value_vars)
    cut = None if smooth else cut_parameters(own, start)
    rest, inputs = plain.rest_graph
    packing = RowPacking(model, own, start, around, rest, inputs, cut)
    source = open_source(rows, packing.placeholders)
    few = _of_packed(plain, cut, NativeRows(packing.printed, packing.pack_placeholders()))
    check_densities(model, few, point)
    parts = None if source.client is None else held_partitions(rows, source, packing)
    store = stored_rows(rows, source, packing, partitions=parts, progressbar=options.progressbar)
    stored = StoredRows(packing.printed, store, packing.program)
    if parts is not None:
        stored = PartitionedRows(packing.printed, store, packing.program, parts)
    densities = _of_packed(plain, cut, stored)
    check_rows_finite(densities, densities.ravel(point), "the initial point")
    return densities


def _of_packed(
    plain: ModelDensities, cut: ParameterCut | None, packed: NativeRows | StoredRows
) -> ModelDensities:
    return plain.of_packed(packed) if cut is None else DiscreteRows.of(plain, cut, packed)


def refuse_other_steps(
    densities: ModelDensities | GroupedModel, active_names: Sequence[str]
) -> None:
    """Raise an error if other steps, which see placeholders only, would sample what rows read."""
    layout = densities.layout
    left = [n for n in layout.names_at(densities.reads) if n not in active_names]
    draws_discrete = any(not layout.is_continuous(n) for n in active_names if n in layout.names)
    discrete = [n for n in left if not layout.is_continuous(n)]
    continuous = [n for n in left if layout.is_continuous(n)]
    if discrete and not draws_discrete:
        raise ValueError(
            "rows= cannot be used with rows that depend on discrete variables "
            f"({', '.join(discrete)}): whatever samples these would see the placeholders only. Sum "
            "them out, or, if rows depend on discrete variables alone, use RacingGibbs(rows=)."
        )
    if continuous and draws_discrete:
        raise ValueError(
            "RacingGibbs(rows=) cannot be used with rows that depend on continuous variables "
            f"({', '.join(continuous)}): whatever samples these would see the placeholders only. Sum "
            "the discrete ones out and use RacingMetropolis(rows=), or keep the rows in memory."
        )
    if left:
        raise ValueError(
            f"vars leaves out {', '.join(left)}, on which rows depend: with rows=, other steps "
            "would see the placeholders only. Let this step sample all variables that rows read."
        )
