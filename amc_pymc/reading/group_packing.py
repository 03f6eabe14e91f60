"""Columns that groups of rows read, and the group of each row, computed chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from amc_pymc.engine.machine import Printed
from amc_pymc.reading.groups import (
    Factor,
    GroupExpressions,
    Groups,
    effects_at,
    group_expressions,
    sorted_by_level,
)
from amc_pymc.reading.row_packing import RowPacking, refusal
from amc_pymc.reading.row_program import Column
from amc_pymc.reading.rows import RowLogp
from amc_pymc.tall.groups import ROWS_BEYOND, GroupKernels, printed_groups

__all__ = ["GroupPacking"]


class GroupPacking(RowPacking):
    """Packing of rows into columns for a model whose group effects are integrated out.

    Parameters
    ----------
    model : pm.Model
    factor : Factor
        Factor whose effects are integrated out.
    rows, start, point, rest, rest_inputs
        As for :class:`RowPacking`.

    Raises
    ------
    ValueError
        As for :class:`RowPacking`, and if the group of a row is not one number of its data.

    Attributes
    ----------
    expressions : GroupExpressions
    level_names : tuple of str
        Names of the ``pm.Data`` that determine the group of a row.
    n_levels : int
    beyond : int
        Number of rows that kernels may read beyond the last one.
    """

    expressions: GroupExpressions
    beyond = ROWS_BEYOND

    def __init__(
        self,
        model,
        factor: Factor,
        rows: RowLogp,
        start: np.ndarray,
        point: np.ndarray,
        rest,
        rest_inputs,
    ):
        self._model, self._factor, self.n_levels = model, factor, factor.n_levels
        super().__init__(model, rows, start, point, rest, rest_inputs)
        place = self._columns.input_of(self.expressions.level)
        if place is None:
            raise refusal(f"the group of a row in {factor.label} is not one number of its data")
        self.level_names, self._read_levels = self._data.reader(place)
        self._now = np.empty(0, np.int64)

    def _print(self) -> tuple[Sequence[Column], Printed]:
        columns = self._columns
        self.expressions = group_expressions(
            self._model, self._factor, [self._rows], columns, [columns], arrays=self._arrays
        )
        return self.expressions.row_columns, printed_groups(self.expressions.program)

    @cached_property
    def _group_kernels(self) -> GroupKernels:
        return GroupKernels(self.printed)

    def _values(self, x: np.ndarray, packed: np.ndarray) -> np.ndarray:
        found = self.expressions
        point = self._rows.layout.unravel(x)
        eta = found.centring.effects(found.layout.ravel(point))
        effects = effects_at(self._factor, point)
        return self._group_kernels.row_values(eta, effects, self._now, packed.T)

    def levels(self, chunk: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the group (m,) of each row of a chunk, which must contain the data ``level_names``."""
        values = self._read_levels(*(chunk[name] for name in self.level_names))
        return np.asarray(values, np.int64)

    def pack(self, chunk: dict[str, np.ndarray], first: int) -> np.ndarray:
        """Pack rows as :class:`RowPacking` does; all rows must belong to existing groups."""
        self._now = self.levels(chunk)
        return super().pack(chunk, first)

    def placeholders_in_groups(self) -> Groups:
        """Return the groups of the placeholder rows in the model."""
        self._now = self.levels(self._data.first)
        packed = self.pack_placeholders()
        order, first = sorted_by_level(self._now, self.n_levels)
        rows = packed[np.append(order, np.repeat(order[-1:], ROWS_BEYOND))]
        return self.expressions.groups(rows.T, first, order)
