"""Rows of a model as compiled kernels over packed data.

Rows are functions of z = (x, w): the value variables x (D,) and *coefficients* w, which are functions of x. Full sums
are computed in chunks of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from amc_pymc.engine import Families, Graph
from amc_pymc.engine.leaves import leaves_of
from amc_pymc.engine.machine import Printed
from amc_pymc.engine.row_kernels import RowProgram, TooLarge, loops, printed_rows
from amc_pymc.reading.coefficients import Coefficients, reads, with_products
from amc_pymc.reading.graphs import state_without_caches
from amc_pymc.reading.row_program import Columns, ParameterLeaves, row_expression
from amc_pymc.reading.rows import RowLogp
from amc_pymc.reading.scalars import NotScalar
from amc_pymc.rows import InMemory, RowStore

#: Errors of rows that are not one expression of numbers, or too long a one.
NO_SCALAR_FORM = NotScalar, TooLarge, RecursionError
#: Number of rows that a full pass evaluates at once, and number of rows read at random at once; each of these may map
#: several pages of a store into memory.
CHUNK, _FEW = 16_384, 4_096
#: Integers of this magnitude or more are refused, because floats may not represent them exactly.
_LARGEST = 2**53


@dataclass(frozen=True, eq=False)
class PackedRows:
    """Kernels of rows as functions of z, with the data that they read.

    Attributes
    ----------
    printed : Printed
        Code of the kernels.
    store : InMemory or RowStore
        Columns of data that rows read.
    program : RowProgram or None
        Expression of a row; None in other processes.
    coefficients : Coefficients or None
        Map from x to z, if they differ.
    along_curves : bool
        Whether Taylor polynomials may follow z(x).
    """

    printed: Printed
    store: InMemory | RowStore
    program: RowProgram | None = None
    coefficients: Coefficients | None = None
    along_curves: bool = False

    @classmethod
    def of(
        cls,
        program: RowProgram,
        store: InMemory | RowStore,
        discrete: np.ndarray,
        *,
        second_order: bool = True,
    ) -> PackedRows:
        """Return rows whose products of parameters are coefficients.

        Without ``second_order`` there are values and gradients only.

        Raises
        ------
        TooLarge
        """
        may_add = isinstance(store, InMemory)
        n_before = len(program.families)
        program, data = with_products(program, store.data, may_add, discrete)
        if may_add and data is not store.data:
            store = InMemory(data.shape, lambda out: np.copyto(out, data))
        chosen = any(reads(program.graph, f, discrete) for f in program.families[n_before:])
        alone, coefficients = separated(program, chosen)
        printed = printed_rows(alone, second_order=second_order)
        return cls(printed, store, alone, coefficients)

    @property
    def data(self) -> np.ndarray:
        """Columns of data (N, C) that the rows read."""
        return self.store.data

    @cached_property
    def functions(self) -> np.ndarray:
        """Addresses of the compiled functions, which :mod:`amc_pymc.engine.row_kernels.loops` call."""
        return self.printed.arrays[0]

    def values(self, z: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the log-likelihoods (m,) of some rows at z."""
        return loops.values(z, rows, self.data, self.functions)

    def z(self, x: np.ndarray) -> np.ndarray:
        """Return what rows read at x."""
        x = np.asarray(x, float)
        return x if self.coefficients is None else self.coefficients.evaluate(x)

    @cached_property
    def reads(self) -> np.ndarray:
        """Coordinates of z that rows read."""
        assert self.program is not None
        graph = self.program.graph
        entries, dots = leaves_of(graph, self.program.row)
        places = [graph.nodes[e].args[0] for e in entries]
        found = [np.unique(p) for p in graph.evaluate(places, row=self.data.T)]
        for d in dots:
            _, first, columns = graph.nodes[d].value
            found.append(first + np.arange(len(columns)))
        return np.unique(np.concatenate([np.empty(0), *found])).astype(np.int64)

    def chunks(self, rows: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Yield some or all row numbers in chunks."""
        if rows is not None:
            for start in range(0, max(1, len(rows)), _FEW):
                yield np.asarray(rows[start : start + _FEW], np.int64)
            return
        for chunk in consecutive(len(self.data)):
            yield chunk
            self.store.release()

    def gradient(self, z: np.ndarray, rows: np.ndarray | None = None) -> tuple[float, np.ndarray]:
        """Return the summed log-likelihood of some or all rows at z, and its gradient."""
        found = [loops.gradient(z, some, self.data, self.functions) for some in self.chunks(rows)]
        return sum(value for value, _ in found), sum(slopes for _, slopes in found)

    def hessian(self, z: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the Hessian of the summed log-likelihood of some or all rows at z."""
        return sum(loops.hessian(z, some, self.data, self.functions) for some in self.chunks(rows))

    def __getstate__(self):
        return state_without_caches(self) | {"program": None}


def separated(program: RowProgram, chosen: bool = False) -> tuple[RowProgram, Coefficients | None]:
    """Return the program of a row that reads z, and the map to z."""
    size = program.n_parameters
    if not program.families:
        return program, None
    found = Coefficients(program.graph, program.families, chosen)
    return replace(program, families=(), n_parameters=size + found.size), found


def pack_rows(rows: RowLogp, *, second_order: bool = True) -> PackedRows:
    """Return kernels of rows; raise one of ``NO_SCALAR_FORM`` if a row is not a scalar expression.

    Without ``second_order`` there are values and gradients only.
    """
    program, used = lowered_rows(rows, Columns(Graph(), "column"))
    shape = rows.n_rows, max(1, len(used))
    store = InMemory(shape, lambda out: packed_columns(used, rows.n_rows, out))
    return PackedRows.of(program, store, rows.layout.discrete, second_order=second_order)


def lowered_rows(
    rows: RowLogp, columns: Columns, arrays: Sequence[np.ndarray] | None = None
) -> tuple[RowProgram, list[np.ndarray]]:
    """Return the expression of a row, with functions of parameters as families, and the columns that it reads.

    ``arrays`` take the place of the rows' data. Raise ``NotScalar`` if an operation has no scalar form.
    """
    graph, families = columns.graph, Families(columns.graph, rows.layout.size)
    leaf = ParameterLeaves(graph, rows.layout, columns)
    row = row_expression(rows, graph, columns, leaf, arrays, families)
    (row,), used = columns.used(columns.with_codes([row]))
    program = RowProgram(graph, row, len(used), tuple(families.all), rows.layout.size)
    return program, used


def packed_columns(
    columns: Sequence[np.ndarray], n_rows: int, out: np.ndarray | None = None
) -> np.ndarray:
    """Pack columns as floats (N, C), into ``out`` if given, which must hold zeros."""
    out = np.zeros((n_rows, max(1, len(columns)))) if out is None else out
    for k, column in enumerate(columns):
        if column.dtype.kind in "iu" and np.abs(column).max(initial=0) >= _LARGEST:
            raise NotScalar("an integer in the data is too large for a float")
        out[:, k] = column
    return out


def consecutive(n_rows: int) -> Iterator[np.ndarray]:
    """Yield the numbers of all rows in chunks."""
    for start in range(0, n_rows, CHUNK):
        yield np.arange(start, min(start + CHUNK, n_rows))
