"""The densities of a model whose rows lie in a store, and its data only stand for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amc_pymc.extract.densities import ModelDensities
from amc_pymc.extract.native_rows import NativeRows, StoredRows
from amc_pymc.extract.partitioned_rows import PartitionedRows
from amc_pymc.extract.row_packing import RowPacking
from amc_pymc.extract.rows import possible_points
from amc_pymc.rng import as_generator
from amc_pymc.row_store import held_partitions, open_source, stored_rows
from amc_pymc.step_methods.model_densities import (
    check_densities,
    check_rows_finite,
    plain_densities,
)
from amc_pymc.step_methods.settings import Options

__all__ = ["stored_densities"]

#: The point at which packed rows are checked does not depend on the user's seed.
_SEED = 20161


def stored_densities(
    model, active_names: Sequence[str], options: Options, point: dict[str, np.ndarray]
) -> ModelDensities:
    """Densities of the rows of ``options.rows``, for a step that moves some variables.

    The model is taken apart on its placeholders and checked against itself there. Each chunk of the
    source is checked against the model's graph while it is packed. The data of the model are left
    as they are.

    Raises
    ------
    ValueError, TypeError, OSError, ImportError
        As :func:`amc_pymc.row_store.stored_rows` and :class:`RowPacking`.
    """
    rows = options.rows
    assert rows is not None
    plain = plain_densities(model, options.observed_vars, None, point, options.compile_kwargs)
    _refuse_other_steps(plain, active_names)
    _, around = possible_points(model, plain.layout, dict(point), as_generator(_SEED), 2)
    packing = RowPacking(
        model, plain.row_log_density, plain.ravel(point), around, *plain.rest_graph
    )
    source = open_source(rows, packing.placeholders)
    few = plain.of_packed(NativeRows(packing.source, packing.pack_placeholders()))
    check_densities(model, few, point)
    parts = None if source.client is None else held_partitions(rows, source, packing)
    store = stored_rows(rows, source, packing, partitions=parts, progressbar=options.progressbar)
    stored = StoredRows(packing.source, store)
    if parts is not None:
        stored = PartitionedRows(packing.source, store, parts)
    densities = plain.of_packed(stored)
    check_rows_finite(densities, densities.ravel(point), "the initial point")
    return densities


def _refuse_other_steps(densities: ModelDensities, active_names: Sequence[str]) -> None:
    """Other steps would see the placeholders only."""
    names, layout = densities.rows.value_vars, densities.layout
    discrete = [n for n in names if not layout.is_continuous(n)]
    if discrete:
        raise ValueError(
            "rows= cannot be used with rows that depend on discrete variables "
            f"({', '.join(discrete)}): whatever samples these would see the placeholders only. Sum "
            "them out."
        )
    left = [n for n in names if n not in active_names]
    if left:
        raise ValueError(
            f"vars leaves out {', '.join(left)}, on which rows depend: with rows=, other steps "
            "would see the placeholders only. Let this step sample all variables that rows read."
        )
