"""Conversion of rows of a model's data, chunk by chunk, to the packed columns of a store."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors

from amc_pymc.engine import Graph
from amc_pymc.engine.row_kernels import loops, printed_rows
from amc_pymc.reading.graphs import interpreted_function, log_densities
from amc_pymc.reading.packed_rows import (
    NO_SCALAR_FORM,
    Coefficients,
    PackedRows,
    lowered_rows,
    pack_rows,
    packed_columns,
)
from amc_pymc.reading.rows import RowLogp, data_frontier
from amc_pymc.reading.scalars import Columns, NotScalar
from amc_pymc.rows import InMemory, Placeholder, RowStore

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

    def __init__(self, model, rows: RowLogp, start: np.ndarray, point: np.ndarray):
        if rows.row_local:
            raise refusal(f"{', '.join(rows.row_local)} has one value per row")
        self._rows, self._start, self._point = rows, start, point
        factors = [*model.basic_RVs, *model.potentials]
        rest = log_densities(model, [v for v in factors if v.name not in rows.observed_vars])
        self._data = _Data(model, rows, data_frontier(rest, model.value_vars))
        self.placeholders = self._data.placeholders
        self._arrays = list(rows.arrays)
        self._columns = Columns(Graph(), "column", complete=False)
        self._coefficients: Coefficients | None = None
        try:
            self.program, used = lowered_rows(rows, self._columns, self._arrays)
            self.printed = printed_rows(self.program)
        except NO_SCALAR_FORM as error:
            reason = f"the log-likelihood of a row is not one expression of numbers ({error})"
            raise refusal(reason) from error
        if self.program.families:
            self._coefficients = Coefficients(self.program.graph, self.program.families)
        self.n_columns = max(1, len(used))
        places = {id(column): k for k, column in enumerate(self._columns.arrays)}
        self._used = [places[id(column)] for column in used]
        self._data.check_halves()
        self._function = interpreted_function(*rows.graph())

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
        return pack_rows(self._rows, self.program, store)


class _Data:
    """Data that a graph reads, as a function of the rows of some ``pm.Data``."""

    def __init__(self, model, rows: RowLogp, rest_data: Sequence[Variable]):
        assert rows._cut is not None, "rows were not just extracted"
        per_row, others = rows._cut
        self._forms = [(axis, a.dtype) for (_, axis), a in zip(rows._inputs, rows.arrays)]
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
