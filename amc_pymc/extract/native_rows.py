"""Rows of a model as compiled kernels over packed data."""

from __future__ import annotations

import logging

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType

import numpy as np

from amc_pymc.expressions import Families, Graph
from amc_pymc.expressions.kernels import load_kernels
from amc_pymc.extract.row_program import Column, Columns, parameter_leaf, row_expression
from amc_pymc.extract.rows import RowLogp
from amc_pymc.extract.scalars import NotScalar
from amc_pymc.row_kernels import SHARED_LOOPS, TooLarge, printed_source, row_program
from amc_pymc.row_store import RowStore

__all__ = ["NativeRows", "StoredRows", "native_rows", "packed_columns"]

_log = logging.getLogger("amc_pymc")
#: Integers from here on are not exact as floats.
_LARGEST = 2**53


@dataclass(frozen=True, eq=False)
class NativeRows:
    """Kernels of rows and the data that they read.

    Attributes
    ----------
    source : str
        Of the kernels.
    data : (N, C) array
        Columns that a row reads, row by row.
    """

    source: str
    data: np.ndarray

    @cached_property
    def kernels(self) -> ModuleType:
        """The compiled module of :mod:`amc_pymc.row_kernels.template`."""
        return load_kernels(self.source, SHARED_LOOPS)

    def release(self) -> None:
        """There is no memory that can be read again."""

    def touch(self, n_rows: float) -> None:
        """There is none."""


@dataclass(frozen=True, eq=False)
class StoredRows:
    """The same for rows in a store.

    Attributes
    ----------
    source : str
    store : RowStore
    """

    source: str
    store: RowStore

    @property
    def data(self) -> np.ndarray:
        """Columns that a row reads, row by row (N, C), mapped into memory."""
        return self.store.data

    @cached_property
    def kernels(self) -> ModuleType:
        """As of :class:`NativeRows`."""
        return load_kernels(self.source, SHARED_LOOPS)

    def release(self) -> None:
        """Let go of memory that can be read again."""
        self.store.release()

    def touch(self, n_rows: float) -> None:
        """Take note of rows read at random, whose memory is let go of now and then."""
        self.store.touch(n_rows)

    def __getstate__(self):
        return {"source": self.source, "store": self.store}


def native_rows(rows: RowLogp) -> NativeRows | None:
    """Kernels of rows; None, with the reason in the log, if a row is no scalar expression."""
    graph = Graph()
    columns = Columns(graph, "column")
    try:
        leaf = parameter_leaf(graph, rows.layout, columns=[columns])
        families = Families(graph)
        row = row_expression(rows, graph, columns, leaf, families=families)
        (row,), used = columns.used(columns.with_codes([row]))
        source = printed_source(row_program(graph, row, len(used), families, rows.layout.size))
        data = packed_columns(used, rows.n_rows)
    except (NotScalar, TooLarge, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        _log.debug("Rows of %s are compiled by PyTensor: %s", ", ".join(rows.observed_vars), reason)
        return None
    return NativeRows(source, data)


def packed_columns(columns: Sequence[Column], n_rows: int) -> np.ndarray:
    """Columns row by row (N, C), as floats."""
    out = np.zeros((n_rows, max(1, len(columns))))
    for k, column in enumerate(columns):
        if column.values.dtype.kind in "iu" and np.abs(column.values).max(initial=0) >= _LARGEST:
            raise NotScalar("an integer in the data is too large for a float")
        out[:, k] = column.values
    return out
