"""Rows of a model as compiled kernels over packed data, which are in memory or in a store.

Rows are functions of z = (x, w): the value variables x (D,) and *coefficients* w, which are functions of x. Full sums
are computed in chunks of rows. The columns of a store are computed chunk by chunk from rows of the model's data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors

from amc_pymc.engine import Families, Graph
from amc_pymc.engine.leaves import leaves_of
from amc_pymc.engine.machine import Printed
from amc_pymc.engine.row_kernels import RowProgram, TooLarge, loops, printed_rows
from amc_pymc.reading.coefficients import Coefficients, depending, with_products
from amc_pymc.reading.graphs import WithoutCaches, interpreted_function
from amc_pymc.reading.row_program import Columns, ParameterLeaves, row_expression
from amc_pymc.reading.rows import RowLogp, data_frontier
from amc_pymc.reading.scalars import NotScalar
from amc_pymc.rows import InMemory, Placeholder, RowStore

#: Errors of rows that are not one expression of numbers, or too long a one.
NO_SCALAR_FORM = NotScalar, TooLarge, RecursionError
#: Number of rows that a full pass evaluates at once, and number of rows read at random at once; each of these may map
#: several pages of a store into memory.
CHUNK, _FEW = 16_384, 4_096
#: Integers of this magnitude or more are refused, because floats may not represent them exactly.
_LARGEST = 2**53


@dataclass(frozen=True, eq=False)
class PackedRows(WithoutCaches):
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
        chosen = any(
            depending(program.graph, f.expression, f.table, discrete)
            for f in program.families[n_before:]
        )
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
        return super().__getstate__() | {"program": None}


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


# --- rows in a store --------------------------------------------------------------------------------------


#: Tolerances for rounding differences between packed rows and the model's graph, by its dtype.
_TOLERANCES = {"float64": 1e-7, "float32": 1e-3}


class RowPacking:
    """Conversion of rows of a model's data to packed columns.

    Parameters
    ----------
    model : pm.Model
        Model whose data are placeholders: some rows that represent all.
    rows : RowLogp
        Log-likelihood of its observed rows, newly extracted.
    start : (D,) array
        Point at which all rows must have finite log-likelihoods.
    point : (D,) array
        Point at which packed rows are compared with the model's graph.
    rest : variable
        All other terms of the log posterior, in terms of ``rest_inputs``.
    rest_inputs : sequence of variables

    Raises
    ------
    ValueError
        If rows cannot be printed, data are not ``pm.Data``, or data are used other than row by row.

    Attributes
    ----------
    program : RowProgram
        Expression of a row.
    printed : Printed
        Code of the kernels of rows.
    placeholders : tuple of Placeholder
        Data whose rows are read.
    n_columns : int
    """

    def __init__(
        self, model, rows: RowLogp, start: np.ndarray, point: np.ndarray, rest, rest_inputs
    ):
        if rows.row_local:
            raise refusal(f"{', '.join(rows.row_local)} has one value per row")
        self._rows, self._start, self._point = rows, start, point
        self._data = _Data(model, rows, data_frontier([rest], rest_inputs))
        self.placeholders = self._data.placeholders
        self._arrays = list(rows.arrays)
        self._columns = Columns(Graph(), "column", complete=False)
        try:
            self.program, used = lowered_rows(rows, self._columns, self._arrays)
            alone, self._coefficients = separated(self.program)
            self.printed = printed_rows(alone)
        except NO_SCALAR_FORM as error:
            reason = f"the log-likelihood of a row is not one expression of numbers ({error})"
            raise refusal(reason) from error
        self.n_columns = max(1, len(used))
        places = {id(column): k for k, column in enumerate(self._columns.arrays)}
        self._used = [places[id(column)] for column in used]
        self._data.check_halves()
        self._function = rows.compile()

    def _values(self, x: np.ndarray, packed: np.ndarray) -> np.ndarray:
        """Return the log-likelihoods (m,) of packed rows at x (D,)."""
        z = x if self._coefficients is None else self._coefficients.evaluate(x)
        return loops.values(z, np.arange(len(packed)), packed, self.printed.arrays[0])

    def pack(self, chunk: dict[str, np.ndarray], first: int) -> np.ndarray:
        """Return the packed columns (m, C) of a chunk of the source that starts at row ``first``.

        Raises
        ------
        ValueError
            If the model's graph refuses rows, their log-likelihoods are not finite at the start,
            or the columns do not reproduce them.
        """
        out = self._pack(chunk, first)
        values = self._values(self._start, out)
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            raise ValueError(
                f"The log-likelihood of {', '.join(self._rows.observed_vars)} is not finite at the "
                f"initial point in row {first + bad[0]} of the source ({values[bad[0]]}) and "
                f"{bad.size - 1} more of this chunk. Clean these rows or start where they are "
                "possible."
            )
        return out

    def _pack(self, chunk: dict[str, np.ndarray], first: int) -> np.ndarray:
        m = len(next(iter(chunk.values())))
        where = f"rows {first} to {first + m - 1} of the source"
        try:
            self._arrays[:] = self._data.evaluate(chunk)
            with np.errstate(all="ignore"):
                found = self._function(self._point, np.arange(m), *self._arrays)
                expected = np.broadcast_to(found, (m,))
            self._columns.compute()
        except IndexError as error:
            raise ValueError(f"rows: an index in {where} is out of bounds: {error}") from error
        used = [self._columns.arrays[k] for k in self._used]
        try:
            out = packed_columns(used, m)
        except NotScalar as error:
            raise ValueError(f"rows: {error}, in {where}") from error
        got = self._values(self._point, out)
        tolerance = _TOLERANCES[str(expected.dtype)]
        alike = np.isclose(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
        if not alike.all():
            bad = int(np.flatnonzero(~alike)[0])
            raise ValueError(
                f"rows: row {first + bad} of the source has the log-likelihood {expected[bad]} by "
                f"the model's graph and {got[bad]} by its kernel: the placeholders do not stand "
                "for it. Put such a row into the placeholders, or report this model as a bug."
            )
        return out

    def placeholder_rows(self) -> PackedRows:
        """Return the kernels of the rows that the model holds."""
        rows = self._pack(self._data.first, 0)
        return self.packed(InMemory(rows.shape, lambda out: np.copyto(out, rows)))

    def packed(self, store: InMemory | RowStore) -> PackedRows:
        """Return the kernels of stored rows."""
        return PackedRows.of(self.program, store, self._rows.layout.discrete)


class _Data:
    """Data that a graph reads, as a function of the rows of some ``pm.Data``."""

    def __init__(self, model, rows: RowLogp, rest_data: Sequence[Variable]):
        assert rows._cut is not None, "rows were not just extracted"
        per_row, others = rows._cut
        self._forms = [(i.axis, i.array.dtype) for i in rows._inputs]
        names = ", ".join(rows.observed_vars)
        self._shared = _row_data(model, per_row, rows.n_rows, names)
        self.first = {v.name: v.get_value(borrow=True) for v in self._shared}
        self.placeholders = tuple(
            Placeholder(name, np.shape(v)[1:], np.asarray(v).dtype)
            for name, v in self.first.items()
        )
        reads = [v for v in (*others, *rest_data) if set(ancestors([v])) & set(self._shared)]
        self._fixed = list(dict.fromkeys(reads))
        # A function of any number of rows of these data.
        inputs = [v.type.clone(shape=(None, *v.type.shape[1:]))(v.name) for v in self._shared]
        swap = dict(zip(self._shared, inputs))
        graphs = clone_replace([*per_row, *self._fixed], swap, rebuild_strict=False)
        self._function = interpreted_function(inputs, graphs)
        self._known = self._call(self.first)[1]

    def _call(self, chunk) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the data of each row, and all other data."""
        with np.errstate(all="ignore"):
            out = self._function(*(chunk[v.name] for v in self._shared))
        rows = [
            np.ascontiguousarray(np.moveaxis(np.asarray(a), axis, 0), dtype)
            for a, (axis, dtype) in zip(out, self._forms)
        ]
        return rows, [np.asarray(v) for v in out[len(rows) :]]

    def evaluate(self, chunk) -> list[np.ndarray]:
        """Return the data of each row of a chunk, rows first."""
        rows, fixed = self._call(chunk)
        for variable, now, known in zip(self._fixed, fixed, self._known):
            if not np.array_equal(now, known, equal_nan=now.dtype.kind == "f"):
                raise refusal(
                    f"the model reads {self._names([variable])} not only row by row, but also as a "
                    f"whole ({variable}), which is not the same for all rows"
                )
        return rows

    def check_halves(self) -> None:
        """Check that the data of a row do not depend on other rows."""
        n = len(next(iter(self.first.values())))
        whole = self.evaluate(self.first)
        for part in (slice(0, max(1, n // 2)), slice(n - max(1, n // 3), n)):
            try:
                got = self.evaluate({name: v[part] for name, v in self.first.items()})
            except _Refusal:
                raise
            except Exception as error:
                raise refusal(
                    "data of the model that are no pm.Data have as many rows as the placeholders; "
                    f"make them pm.Data and pass their rows, too ({error}). Numbers of groups may "
                    "be pm.Data if there are more or fewer groups than placeholders"
                ) from error
            for a, b in zip(whole, got):
                if a[part].shape != b.shape or not np.allclose(a[part], b, equal_nan=True):
                    raise refusal(
                        f"what the model makes of a row of {self._names(self._shared)} depends on "
                        "other rows (as with x - x.mean()); compute it beforehand, or pass the "
                        "number itself"
                    )

    def _names(self, variables) -> str:
        found = set(ancestors(variables)) & set(self._shared)
        return ", ".join(sorted(repr(v.name) for v in found))


class _Refusal(ValueError):
    """Error for a model whose rows cannot be read from a source."""


def refusal(reason: str) -> _Refusal:
    """Return the error that states the reason."""
    return _Refusal(f"rows= cannot be used with this model: {reason}.")


def _row_data(
    model, per_row: Sequence[Variable], n_rows: int, observed: str
) -> list[SharedVariable]:
    """Return the data containers whose rows the rows of a model read."""
    if n_rows < 2:
        raise refusal("the placeholders have one row; give them some hundred representative ones")
    containers = {v for v in model.data_vars if isinstance(v, SharedVariable)}
    found: dict[SharedVariable, None] = {}
    for variable in per_row:
        own = [
            v
            for v in ancestors([variable])
            if v in containers and np.shape(v.get_value(borrow=True))[:1] == (n_rows,)
        ]
        if not own:
            raise refusal(
                f"the rows of {observed} read data that are no pm.Data with {n_rows} rows "
                f"({variable}); make them pm.Data, also what is observed"
            )
        found.update(dict.fromkeys(own))
    return sorted(found, key=lambda v: str(v.name))
