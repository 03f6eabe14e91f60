"""Rows of a model as compiled kernels over packed data, which are in memory or in a store.

Rows are functions of z = (x, w): the value variables x (D,) and *coefficients* w (W,), which are functions of x that
rows read in place of these. Rows that read ``sd * z[group]`` or ``x * tau * scale`` are nonlinear in parameters, but
linear in these products. A product is the same for all rows with the same indices, so it becomes one coefficient for
each distinct set of indices. The same holds for what rows compute from discrete variables, such as ``mu[k]`` or
``gamma * beta``: rows are smooth functions of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial, reduce
from typing import Any, NamedTuple

import numpy as np

from scipy import sparse

from amc_pymc.engine import Families, Family, Graph
from amc_pymc.engine.jit import FirstClassFunction
from amc_pymc.engine.printer import Printed
from amc_pymc.engine.row_kernels import RowProgram, TooLarge, printed_rows
from amc_pymc.reading.graphs import WithoutCaches
from amc_pymc.reading.rows import RowLogp
from amc_pymc.reading.scalars import Columns, NotScalar, ParameterLeaves
from amc_pymc.rows import InMemory, RowStore
from amc_pymc.tall.decisions import GRADIENT
from amc_pymc.tall.terms import (
    N_FAMILIES,
    add_curves,
    add_slopes,
    add_slopes_of_points,
    derivatives_of,
    printed_families,
    values_of_points,
    with_values,
)

#: Errors of rows that are not one expression of numbers, or too long a one.
NO_SCALAR_FORM = NotScalar, TooLarge, RecursionError
#: Integers of this magnitude or more are refused, because floats may not represent them exactly.
_LARGEST = 2**53


@dataclass(frozen=True, eq=False)
class PackedRows(WithoutCaches):
    """Code of the kernels of rows as functions of z, with the data that they read.

    Attributes
    ----------
    printed : Printed
        Code of the kernels, which :mod:`amc_pymc.engine.row_kernels.loops` call.
    store : InMemory or RowStore
        Columns of data (N, C) that rows read.
    program : RowProgram or None
        Expression of a row; None in other processes.
    coefficients : Coefficients or None
        Map from x to z, if they differ.
    along_curves : bool
        Whether Taylor polynomials may follow z(x).
    """

    printed: Printed
    store: RowStore
    program: RowProgram | None = None
    coefficients: Coefficients | None = None
    along_curves: bool = False

    @cached_property
    def reads(self) -> np.ndarray:
        """Coordinates of z that rows read."""
        assert self.program is not None
        graph = self.program.graph
        entries, dots = (graph.leaves([self.program.row], op) for op in ("entry", "dot"))
        places = [graph.nodes[e].args[0] for e in entries]
        found = [np.unique(p) for p in graph.evaluate(places, row=self.store.data.T)]
        for d in dots:
            _, first, columns = graph.nodes[d].value
            found.append(first + np.arange(len(columns)))
        return np.unique(np.concatenate([np.empty(0), *found])).astype(np.int64)

    def __getstate__(self):
        return super().__getstate__() | {"program": None}


def pack_rows(
    rows: RowLogp,
    program: RowProgram | None = None,
    store: RowStore | None = None,
    *,
    second_order: bool = True,
) -> PackedRows:
    """Return kernels of rows, whose products of parameters are coefficients.

    Parameters
    ----------
    rows : RowLogp
    program, store : RowProgram, RowStore, optional
        Those of the rows, if they were lowered and stored already.
    second_order : bool
        Whether there are second derivatives, not only values and gradients.

    Raises
    ------
    NotScalar, TooLarge, RecursionError
        One of ``NO_SCALAR_FORM``, if a row is not a scalar expression.
    """
    if program is None or store is None:
        program, used = lowered_rows(rows, Columns(Graph(), "column"))
        shape = rows.n_rows, max(1, len(used))
        store = InMemory(shape, lambda out: packed_columns(used, rows.n_rows, out))
    known, discrete = len(program.families), rows.layout.discrete
    may_add = isinstance(store, InMemory)
    program, data = with_products(program, store.data, may_add, discrete)
    if may_add and data is not store.data:
        store = InMemory(data.shape, lambda out: np.copyto(out, data))
    coefficients = None
    if program.families:
        found = (
            depending(program.graph, f.expression, f.table, discrete)
            for f in program.families[known:]
        )
        coefficients = Coefficients(program.graph, program.families, any(found))
    printed = printed_rows(program, second_order=second_order)
    return PackedRows(printed, store, program, coefficients)


def lowered_rows(
    rows: RowLogp, columns: Columns, arrays: Sequence[np.ndarray] | None = None
) -> tuple[RowProgram, list[np.ndarray]]:
    """Return the expression of a row, with functions of parameters as families, and the columns that it reads.

    ``arrays`` take the place of the rows' data. Raise ``NotScalar`` if an operation has no scalar form.
    """
    graph, families = columns.graph, Families(columns.graph, rows.layout.size)
    leaf = ParameterLeaves(graph, rows.layout, columns)
    row = rows.expression(graph, columns, leaf, arrays, families)
    (row,), used = columns.used([row])
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


# --- coefficients ----------------------------------------------------------------------------------
# With J = dw / dx and f(x) = l(z(x)), the derivatives of rows by x are
#
#     f' = l_x + J' l_w,    f'' = [I J'] l'' [I; J] + sum_j l_w_j w_j''.


class Coefficients(WithoutCaches):
    """Map from x (D,) to z (D + W,), x followed by the coefficients.

    Parameters
    ----------
    graph : Graph
    families : sequence of Family
        Expressions of entries of "eta", x, and of the columns of their tables.
    chosen : bool
        Whether discrete variables scale or choose some, other than in products of matrices.
    combinations : (L, D) array, optional
        A, if x and the coefficients are followed by A x.

    Attributes
    ----------
    curves : Printed
        Coefficients with first and second derivatives.
    """

    def __init__(
        self,
        graph: Graph,
        families: Sequence[Family],
        chosen: bool = False,
        combinations: np.ndarray | None = None,
    ):
        self.graph, self.families = graph, tuple(families)
        self.size = sum(len(f.table) for f in families)
        self.chosen, self._combinations = chosen, combinations
        orders = (printed_families(graph, families, order) for order in range(3))
        self._values, self._slopes, self.curves = orders

    def __getstate__(self):
        return {k: v for k, v in super().__getstate__().items() if k not in ("graph", "families")}

    @cached_property
    def native(self) -> Any:
        """First-class ``x (D,) -> z (D + W,)``."""
        return FirstClassFunction(with_values, GRADIENT, list(self._values.arrays))

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        """Return z at x."""
        z: np.ndarray = with_values(np.asarray(x, float), *self._values.arrays)
        return z if self._combinations is None else np.concatenate([z, self._combinations @ x])

    def gradient(self, x: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """Convert a gradient by z to that by x."""
        out = slopes[: x.size].copy()
        add_slopes(x, *self._slopes.arrays, slopes[x.size :], out)
        if self._combinations is not None:
            out += slopes[x.size + self.size :] @ self._combinations
        return out

    def hessian(self, x: np.ndarray, slopes: np.ndarray, curves: np.ndarray) -> np.ndarray:
        """Convert a Hessian by z to that by x, given the gradient by z."""
        program, table = self.curves.arrays
        jacobian = [sparse.eye_array(x.size)]  # of z by x
        for f in range(program[N_FAMILIES]):
            n, n_leaves, values, at = derivatives_of(x, program, table, f)
            where = np.tile(np.arange(n), n_leaves), at[:n_leaves].ravel()
            found = values[1 : 1 + n_leaves].ravel(), where
            jacobian.append(sparse.csr_array(found, shape=(n, x.size)))
        if self._combinations is not None:
            jacobian.append(sparse.csr_array(self._combinations))
        chain = sparse.vstack(jacobian, format="csr")
        out = np.ascontiguousarray(chain.T @ (chain.T @ curves).T)
        add_curves(x, program, table, slopes[x.size :], out)
        return out

    def of_points(self, xs: np.ndarray) -> np.ndarray:
        """Return z (P, D + W) at points (P, D)."""
        out = np.empty((len(xs), xs.shape[1] + self.size))
        values_of_points(xs, *self._values.arrays, out)
        return out

    def gradients(self, xs: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """Convert gradients by z (P, D + W) to those by x (P, D)."""
        out = slopes[:, : xs.shape[1]].copy()
        add_slopes_of_points(xs, *self._slopes.arrays, slopes[:, xs.shape[1] :].copy(), out)
        return out


# --- search ------------------------------------------------------------------------------------------


_SUMS, _PRODUCTS = ("add", "sub", "neg", "float"), ("mul", "div")
#: Largest number of coefficients of one product.
_MOST = 4_000


def with_products(
    program: RowProgram, data: np.ndarray, may_add: bool = True, discrete: np.ndarray | None = None
) -> tuple[RowProgram, np.ndarray]:
    """Return the program of a row that reads such functions as coefficients, and its data.

    Parameters
    ----------
    program : RowProgram
    data : (N, C) array
    may_add : bool
        Whether columns may be added to the data, for products that are selected by several indices.
    discrete : (D,) bool array, optional
        Which parameters are discrete, default none.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.engine import Graph
    >>> from amc_pymc.reading.packed_rows import with_products
    >>> from amc_pymc.engine.row_kernels import RowProgram
    >>> g = Graph()
    >>> effect = g.make("entry", g.make("column", value=1, kind="i"), value="eta")
    >>> scaled = g.make("mul", g.make("exp", g.make("entry", g.const(0), value="eta")), effect)
    >>> error = g.make("sub", g.make("column", value=0), scaled)
    >>> row = RowProgram(g, g.make("mul", error, error), 2, n_parameters=4)
    >>> found, data = with_products(row, np.array([[0.5, 1], [0.1, 3], [0.2, 2]]))
    >>> found.families[0].table.ravel(), data.shape  # the indices 1 to 3, and no new column
    (array([1., 2., 3.]), (3, 2))
    """
    graph, rough = program.graph, set[int]()
    if discrete is not None and discrete.any():
        program = replace(program, row=_as_numbers(program, data, discrete))
        rough = depending(graph, program.row, data, discrete)
    upstream, of_values = graph.upstream([program.row]), set[int]()
    for n in upstream:
        op, args = graph.nodes[n].op, graph.nodes[n].args
        if op in ("column", "dot") or (op != "entry" and not of_values.isdisjoint(args)):
            of_values.add(n)
    affine = graph.affine(program.row)
    if of_values.issuperset(affine):  # no function of parameters alone
        return program, data
    found = _Search(
        graph,
        program.n_parameters,
        rough,
        of_values,
        affine,
        Counter(a for n in upstream for a in graph.nodes[n].args),
        cache(partial(_levels, data, may_add)),
        program.n_columns,
        sum(len(f.table) for f in program.families),
    )
    found.visit(program.row, times_data=False)
    if not found.change:
        return program, data
    (row,) = graph.replaced([program.row], found.change)
    families = (*program.families, *found.families)
    columns = np.column_stack([data, *found.codes]) if found.codes else data
    return replace(program, row=row, n_columns=found.n_columns, families=families), columns


@dataclass
class _Search:
    """Products of parameters below the expression of a row.

    Attributes
    ----------
    graph : Graph
    begin : int
        Place of the first coefficient in z.
    rough, of_values : set of int
        Nodes that depend on discrete parameters, and on data other than through the position of an entry.
    affine : dict
        Nodes that depend on parameters, and whether they are affine in these.
    uses : Counter
        How many nodes read each node.
    levels_of : callable
        Sets of indices in some columns.
    n_columns, size : int
        Numbers of columns of data and of coefficients so far.
    change : dict
        Nodes that coefficients replace.
    families, codes : list
        New coefficients, and new columns of data.
    """

    graph: Graph
    begin: int
    rough: set[int]
    of_values: set[int]
    affine: dict[int, bool]
    uses: Counter[int]
    levels_of: Callable[[tuple[int, ...]], _Levels]
    n_columns: int
    size: int
    change: dict[int, int] = field(default_factory=dict)
    families: list[Family] = field(default_factory=list)
    codes: list[np.ndarray] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)
    _coded: dict[tuple[int, ...], int] = field(default_factory=dict)
    _first: dict[tuple[int, tuple[int, ...]], int] = field(default_factory=dict)

    def visit(self, node: int, times_data: bool) -> None:
        """Look for products in a node; ``times_data`` says whether it is multiplied by data."""
        rough = node in self.rough
        if node in self._seen or not (rough or not self.affine.get(node, True)):
            return
        self._seen.add(node)
        op, args = self.graph.nodes[node].op, self.graph.nodes[node].args
        may, sums = node not in self.of_values, op in (*_SUMS, *_PRODUCTS)
        if may and sums and self._is_coefficient(node, times_data or rough):
            self._add(node, node)
        elif may and rough and self._absorbs(node) and self._is_function(node):
            self._add(node, node)
        elif op == "mul":
            self._visit_product(node, times_data)
        elif op in _SUMS or (op == "div" and args[1] not in self.affine):
            for a in args:
                self.visit(a, times_data)
        else:
            for a in args:
                self.visit(a, False)

    def _visit_product(self, node: int, times_data: bool) -> None:
        factors = _factors(self.graph, node)
        varying = [f for f in factors if f in self.affine]
        others = [f for f in factors if f not in self.affine]
        times_data |= not self.of_values.isdisjoint(others)
        if len(varying) > 1:
            whole = reduce(partial(self.graph.make, "mul"), varying)
            self.affine[whole] = False
            may = self.of_values.isdisjoint(varying)
            if may and self._is_coefficient(whole, times_data or node in self.rough):
                self._add(node, whole, others)
                return
            times_data = False
        for f in varying:
            self.visit(f, times_data)

    def _is_coefficient(self, node: int, times_data: bool) -> bool:
        """Whether a node that depends on data through indices has no more of these than its parts."""
        g, columns = self.graph, _index_columns(self.graph, node)
        if not (_sums_products(g, node) and (columns or times_data)):
            return False
        n = len(self.levels_of(columns).table)
        parts = [a for a in g.nodes[node].args if a in self.affine]
        most = max(len(self.levels_of(_index_columns(g, a)).table) for a in parts)
        return 0 < n <= min(most, _MOST)

    def _absorbs(self, node: int) -> bool:
        """Whether a discrete variable becomes a number in a node, chooses one, or is all that it depends on."""
        nodes, (op, args, *_) = self.graph.nodes, self.graph.nodes[node]
        if op in ("entry", "float", "switch"):
            return args[0] in self.rough
        varying = [a for a in args if a in self.affine]
        alone = all(nodes[a].op == "float" and self.uses[a] == 1 for a in varying)
        return alone and op not in (*_SUMS, *_PRODUCTS)

    def _is_function(self, node: int) -> bool:
        """Whether a node that depends on data through indices is a number, and has few of these."""
        if self.graph.nodes[node].kind != "f":
            return False
        return 0 < len(self.levels_of(_index_columns(self.graph, node)).table) <= _MOST

    def _add(self, node: int, whole: int, others: Sequence[int] = ()) -> None:
        """Replace a node by a coefficient, times factors that do not depend on parameters."""
        g, columns = self.graph, _index_columns(self.graph, whole)
        levels = self.levels_of(columns)
        own = {
            g.make("column", value=c, kind="i"): g.make("column", value=k, kind="i")
            for k, c in enumerate(columns)
        }
        (expression,) = g.replaced([whole], own)
        if columns and levels.code is not None and columns not in self._coded:
            self._coded[columns] = self.n_columns
            self.codes.append(levels.code)
            self.n_columns += 1
        key = expression, columns
        if key not in self._first:
            self._first[key] = self.size
            self.families.append(Family(expression, levels.table, self.size))
            self.size += len(levels.table)
        at = g.const(self.begin + self._first[key])
        if columns:
            number = g.make("column", value=self._coded.get(columns, columns[0]), kind="i")
            number = g.make("sub", number, g.const(levels.first))
            if levels.stride > 1:
                number = g.make("floordiv", number, g.const(levels.stride))
            at = g.make("add", at, number)
        out = g.make("entry", at, value="eta")
        self.change[node] = reduce(lambda out, f: g.make("mul", f, out), others, out)


class _Levels(NamedTuple):
    """Sets of indices (L, K) of rows, and the number of the set of each row.

    That is ``code`` if there is one, else (i - first) / stride for the first index i.
    """

    table: np.ndarray
    first: int = 0
    stride: int = 1
    code: np.ndarray | None = None


def _levels(data: np.ndarray, may_add: bool, columns: tuple[int, ...]) -> _Levels:
    """Return the sets of indices in some columns; none if there are too many, or a column would have to be added."""
    if not columns:
        return _Levels(np.zeros((1, 0)))
    low = np.array([int(data[:, c].min()) for c in columns])
    high = np.array([int(data[:, c].max()) for c in columns])
    stride = max(1, int(np.gcd.reduce((data[:, columns[0]] - low[0]).astype(np.int64))))
    if np.all(high - low < _MOST * stride) and all(
        np.array_equal(data[:, c] - k, data[:, columns[0]] - low[0])
        for c, k in zip(columns[1:], low[1:])
    ):
        steps = np.arange(0, high[0] - low[0] + 1, stride)
        return _Levels((low + steps[:, None]).astype(float), int(low[0]), stride)
    if not may_add:
        return _Levels(np.zeros((0, len(columns))))
    values = data[:, list(columns)].astype(np.int64)
    codes = np.zeros(len(values), np.int64)
    for column in values.T:
        codes = codes * (column.max(initial=0) + 1) + column
    _, first, code = np.unique(codes, return_index=True, return_inverse=True)
    return _Levels(values[first].astype(float), code=code.astype(float))


def _as_numbers(program: RowProgram, data: np.ndarray, discrete: np.ndarray) -> int:
    """Return the expression of a row in which integers that are computed with are converted first."""
    graph, memo = program.graph, dict[int, int]()
    rough = depending(graph, program.row, data, discrete)
    for n in graph.upstream([program.row]):
        node = graph.nodes[n]
        args = [memo[a] for a in node.args]
        if node.kind == "f" and node.op not in ("entry", "switch"):
            for k, a in enumerate(node.args):
                if a in rough and graph.nodes[a].kind == "i":
                    args[k] = graph.make("float", args[k])
        memo[n] = graph.make(node.op, *args, value=node.value) if args else n
    return memo[program.row]


def depending(graph: Graph, row: int, data: np.ndarray, marked: np.ndarray) -> set[int]:
    """Return the nodes of the expression of a row that depend on marked parameters (D,)."""
    out = set[int]()
    for n in graph.upstream([row]) if marked.any() else ():
        node = graph.nodes[n]
        if any(a in out for a in node.args):
            out.add(n)
        elif node.op == "entry" and not graph.leaves([node.args[0]], "entry"):
            (places,) = graph.evaluate([node.args[0]], row=data.T)
            places = np.asarray(places, np.int64)
            if marked[places[places < marked.size]].any():
                out.add(n)
    return out


def _sums_products(graph: Graph, node: int) -> bool:
    """Whether a node is a sum of terms each of which is affine in an entry, the others being fixed."""
    if graph.nodes[node].op in _SUMS:
        return all(_sums_products(graph, a) for a in graph.nodes[node].args)
    entries, curved = dict[int, set[int]](), dict[int, set[int]]()  # read, and not affine in these
    for n in graph.upstream([node]):
        op, args = graph.nodes[n].op, graph.nodes[n].args
        if op == "entry":
            entries[n], curved[n] = {n}, set()
            continue
        entries[n] = set().union(*(entries[a] for a in args))
        if op not in (*_SUMS, *_PRODUCTS):
            curved[n] = entries[n]
            continue
        curved[n] = set().union(*(curved[a] for a in args))
        if op == "mul":
            curved[n] |= {e for e in entries[n] if sum(e in entries[a] for a in args) > 1}
        elif op == "div":
            curved[n] |= entries[args[1]]
    return not entries[node] or curved[node] != entries[node]


def _factors(graph: Graph, node: int) -> list[int]:
    if graph.nodes[node].op != "mul":
        return [node]
    return [f for a in graph.nodes[node].args for f in _factors(graph, a)]


def _index_columns(graph: Graph, node: int) -> tuple[int, ...]:
    return tuple(sorted(graph.nodes[n].value for n in graph.leaves([node], "column")))
