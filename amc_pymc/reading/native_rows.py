"""Rows of a model as compiled kernels over packed data."""

from __future__ import annotations

import logging

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from amc_pymc.engine import Families, Graph
from amc_pymc.engine.machine import Printed
from amc_pymc.engine.row_kernels import RowKernels, RowProgram, TooLarge, printed_rows, row_program
from amc_pymc.reading.row_program import Column, Columns, parameter_leaf, row_expression
from amc_pymc.reading.rows import RowLogp
from amc_pymc.reading.scalars import NotScalar
from amc_pymc.rows import RowStore, SharedArray, shared_array

__all__ = ["NativeRows", "StoredRows", "native_rows", "packed_columns"]

_log = logging.getLogger("amc_pymc")
#: Integers of this magnitude or more are refused, because floats may not represent them exactly.
_LARGEST = 2**53


@dataclass(frozen=True, eq=False)
class NativeRows:
    """Kernels of rows, with the data that they read.

    Attributes
    ----------
    printed : Printed
        Code of the kernels.
    data : (N, C) array
        Columns of data that the rows read.
    shared : SharedArray or None
        Memory of the data, if processes share it.
    program : RowProgram or None
        Expression of a row; None in other processes.
    """

    printed: Printed
    data: np.ndarray
    shared: SharedArray | None = None
    program: RowProgram | None = None

    @cached_property
    def kernels(self) -> RowKernels:
        """Compiled loops."""
        return RowKernels(self.printed)

    def with_program(self, printed: Printed, program: RowProgram, data: np.ndarray) -> NativeRows:
        """Return rows with other code, and data that may have more columns."""
        if data is self.data:
            return NativeRows(printed, data, self.shared, program)
        shared = shared_array(data.shape)
        if shared is None:
            return NativeRows(printed, data, None, program)
        shared.draft()[:] = data
        return NativeRows(printed, shared.data, shared, program)

    def release(self) -> None:
        """Do nothing: the data stay in memory."""

    def touch(self, n_rows: float) -> None:
        """Do nothing: the data stay in memory."""

    def __getstate__(self):
        data = self.data if self.shared is None else None
        return {"printed": self.printed, "data": data, "shared": self.shared}

    def __setstate__(self, state):
        if state["shared"] is not None:
            state = state | {"data": state["shared"].data}
        self.__dict__.update(state)


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Kernels of rows in a store, with the interface of :class:`NativeRows`.

    Attributes
    ----------
    printed : Printed
    store : RowStore
    program : RowProgram or None
        Expression of a row; None in other processes.
    """

    printed: Printed
    store: RowStore
    program: RowProgram | None

    @property
    def data(self) -> np.ndarray:
        """Columns of data (N, C) that the rows read, mapped into memory."""
        return self.store.data

    @cached_property
    def kernels(self) -> RowKernels:
        """Compiled loops."""
        return RowKernels(self.printed)

    def with_program(self, printed: Printed, program: RowProgram, data: np.ndarray) -> StoredRows:
        """Return rows with other code."""
        return replace(self, printed=printed, program=program)

    def release(self) -> None:
        """Release mapped memory, which can be read again."""
        self.store.release()

    def touch(self, n_rows: float) -> None:
        """Count rows read at random, whose memory is released from time to time."""
        self.store.touch(n_rows)

    def __getstate__(self):
        return {"printed": self.printed, "store": self.store, "program": None}


def native_rows(rows: RowLogp) -> NativeRows | None:
    """Return kernels of rows; None, with the reason logged, if a row is not a scalar expression."""
    graph = Graph()
    columns = Columns(graph, "column")
    try:
        leaf = parameter_leaf(graph, rows.layout, columns=[columns])
        families = Families(graph)
        row = row_expression(rows, graph, columns, leaf, families=families)
        (row,), used = columns.used(columns.with_codes([row]))
        program = row_program(graph, row, len(used), families, rows.layout.size)
        printed = printed_rows(program)
        shared = shared_array((rows.n_rows, max(1, len(used))))
        data = packed_columns(used, rows.n_rows, None if shared is None else shared.draft())
    except (NotScalar, TooLarge, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        _log.debug("Rows of %s are compiled by PyTensor: %s", ", ".join(rows.observed_vars), reason)
        return None
    return NativeRows(printed, data if shared is None else shared.data, shared, program)


def packed_columns(
    columns: Sequence[Column], n_rows: int, out: np.ndarray | None = None
) -> np.ndarray:
    """Pack columns as floats (N, C), into ``out`` if given, which must hold zeros."""
    out = np.zeros((n_rows, max(1, len(columns)))) if out is None else out
    for k, column in enumerate(columns):
        if column.values.dtype.kind in "iu" and np.abs(column.values).max(initial=0) >= _LARGEST:
            raise NotScalar("an integer in the data is too large for a float")
        out[:, k] = column.values
    return out
