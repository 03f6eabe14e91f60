"""Coefficients: functions of parameters that rows read in place of these.

Rows that read ``sd * z[group]`` or ``x * tau * scale`` are nonlinear in parameters, but linear in these products. A
product is the same for all rows with the same indices, so it becomes one coefficient for each distinct set of indices.
The same holds for what rows compute from discrete variables, such as ``mu[k]`` or ``gamma * beta``: rows are smooth
functions of it.

Rows are functions of z = (x, w): parameters x (D,) and coefficients w (W,). With J = dw / dx and f(x) = l(z(x)),

    f' = l_x + J' l_w,    f'' = [I J'] l'' [I; J] + sum_j l_w_j w_j''.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, cached_property, partial, reduce
from typing import Any, NamedTuple

import numpy as np

from scipy import sparse

from amc_pymc.engine import Family, Graph
from amc_pymc.engine.first_class import FirstClassFunction
from amc_pymc.engine.row_kernels import RowProgram
from amc_pymc.reading.graphs import WithoutCaches
from amc_pymc.tall.samplers.compiled import GRADIENT
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

_SUMS, _PRODUCTS = ("add", "sub", "neg", "float"), ("mul", "div")
#: Largest number of coefficients of one product.
_MOST = 4_000


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
        self._values, self._slopes, self._curves = orders

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
        chain = sparse.vstack([sparse.eye_array(x.size), self._jacobian(x)], format="csr")
        out = np.ascontiguousarray(chain.T @ (chain.T @ curves).T)
        add_curves(x, *self.arrays, slopes[x.size :], out)
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

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Arrays of the compiled coefficients with their derivatives."""
        return self._curves.arrays

    def _jacobian(self, x: np.ndarray) -> Any:
        """Return the derivatives (W, D) of the coefficients by x."""
        program, table = self.arrays
        found = [sparse.csr_array((0, x.size))]
        for f in range(program[N_FAMILIES]):
            n, n_leaves, values, at = derivatives_of(x, program, table, f)
            rows = np.tile(np.arange(n), n_leaves)
            where = rows, at[:n_leaves].ravel()
            found.append(
                sparse.csr_array((values[1 : 1 + n_leaves].ravel(), where), shape=(n, x.size))
            )
        if self._combinations is not None:
            found.append(sparse.csr_array(self._combinations))
        return sparse.vstack(found)


# --- search ------------------------------------------------------------------------------------------


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
    >>> from amc_pymc.reading.coefficients import with_products
    >>> from amc_pymc.engine.row_kernels import RowProgram
    >>> g = Graph()
    >>> effect = g.entry("eta", g.leaf("column", 1, "i"))
    >>> scaled = g.make("mul", g.make("exp", g.entry("eta", g.const(0))), effect)
    >>> error = g.make("sub", g.leaf("column", 0), scaled)
    >>> row = RowProgram(g, g.make("mul", error, error), 2, n_parameters=4)
    >>> found, data = with_products(row, np.array([[0.5, 1], [0.1, 3], [0.2, 2]]))
    >>> found.families[0].table.ravel(), data.shape  # the indices 1 to 3, and no new column
    (array([1., 2., 3.]), (3, 2))
    """
    if discrete is None:
        discrete = np.zeros(program.n_parameters, bool)
    if discrete.any():
        program = replace(program, row=_as_numbers(program, data, discrete))
    found = _Search(program, data, may_add, discrete)
    found.visit(program.row, times_data=False)
    if not found.change:
        return program, data
    (row,) = program.graph.replaced([program.row], found.change)
    families = (*program.families, *found.families)
    columns = np.column_stack([data, *found.codes]) if found.codes else data
    return replace(program, row=row, n_columns=found.n_columns, families=families), columns


class _Search:
    """Products of parameters below the expression of a row."""

    def __init__(self, program: RowProgram, data: np.ndarray, may_add: bool, discrete: np.ndarray):
        self.graph, self.data, self.may_add = program.graph, data, may_add
        self.change: dict[int, int] = {}
        self.families: list[Family] = []
        self.codes: list[np.ndarray] = []
        self.n_columns = program.n_columns
        self._size = sum(len(f.table) for f in program.families)
        self._begin = program.n_parameters
        self._seen: set[int] = set()
        self._coded: dict[tuple[int, ...], int] = {}
        self._first: dict[tuple[int, tuple[int, ...]], int] = {}
        self._affine = program.graph.affine(program.row)
        nodes = program.graph.nodes
        self._uses = Counter(
            a for n in program.graph.upstream([program.row]) for a in nodes[n].args
        )
        self._rough = depending(program.graph, program.row, data, discrete)
        self._levels_of = cache(partial(_levels, data, may_add))

    def visit(self, node: int, times_data: bool) -> None:
        """Look for products in a node; ``times_data`` says whether it is multiplied by data."""
        rough = node in self._rough
        if node in self._seen or not (rough or not self._affine.get(node, True)):
            return
        self._seen.add(node)
        op, args = self.graph.nodes[node].op, self.graph.nodes[node].args
        if op in (*_SUMS, *_PRODUCTS) and self._is_coefficient(node, times_data or rough):
            self._add(node, node)
        elif rough and self._absorbs(node) and self._is_function(node):
            self._add(node, node)
        elif op == "mul":
            self._visit_product(node, times_data)
        elif op in _SUMS or (op == "div" and args[1] not in self._affine):
            for a in args:
                self.visit(a, times_data)
        else:
            for a in args:
                self.visit(a, False)

    def _visit_product(self, node: int, times_data: bool) -> None:
        factors = _factors(self.graph, node)
        varying = [f for f in factors if f in self._affine]
        others = [f for f in factors if f not in self._affine]
        times_data |= any(_columns_of_values(self.graph, f) for f in others)
        if len(varying) > 1:
            whole = reduce(partial(self.graph.make, "mul"), varying)
            self._affine[whole] = False
            if self._is_coefficient(whole, times_data or node in self._rough):
                self._add(node, whole, others)
                return
            times_data = False
        for f in varying:
            self.visit(f, times_data)

    def _is_coefficient(self, node: int, times_data: bool) -> bool:
        """Whether a node depends on data through indices only, which are no more than those of its parts."""
        g = self.graph
        if _columns_of_values(g, node) or g.leaves([node], "dot") or not _sums_products(g, node):
            return False
        columns = _index_columns(g, node)
        if not (columns or times_data):
            return False
        n = len(self._levels_of(columns).table)
        parts = [a for a in g.nodes[node].args if a in self._affine]
        most = max(len(self._levels_of(_index_columns(g, a)).table) for a in parts)
        return 0 < n <= min(most, _MOST)

    def _absorbs(self, node: int) -> bool:
        """Whether a discrete variable becomes a number in a node, chooses one, or is all that it depends on."""
        nodes, (op, args, *_) = self.graph.nodes, self.graph.nodes[node]
        if op in ("entry", "float", "switch"):
            return args[0] in self._rough
        varying = [a for a in args if a in self._affine]
        alone = all(nodes[a].op == "float" and self._uses[a] == 1 for a in varying)
        return alone and op not in (*_SUMS, *_PRODUCTS)

    def _is_function(self, node: int) -> bool:
        """Whether a node depends on data through few indices only."""
        g = self.graph
        if _columns_of_values(g, node) or g.leaves([node], "dot") or g.nodes[node].kind != "f":
            return False
        return 0 < len(self._levels_of(_index_columns(g, node)).table) <= _MOST

    def _add(self, node: int, whole: int, others: Sequence[int] = ()) -> None:
        """Replace a node by a coefficient, times factors that do not depend on parameters."""
        g, columns = self.graph, _index_columns(self.graph, whole)
        levels = self._levels_of(columns)
        own = {g.leaf("column", c, "i"): g.leaf("column", k, "i") for k, c in enumerate(columns)}
        (expression,) = g.replaced([whole], own)
        if columns and levels.code is not None and columns not in self._coded:
            self._coded[columns] = self.n_columns
            self.codes.append(levels.code)
            self.n_columns += 1
        key = expression, columns
        if key not in self._first:
            self._first[key] = self._size
            self.families.append(Family(expression, levels.table, self._size))
            self._size += len(levels.table)
        at = g.const(self._begin + self._first[key])
        if columns:
            number = g.leaf("column", self._coded.get(columns, columns[0]), "i")
            number = g.make("sub", number, g.const(levels.first))
            if levels.stride > 1:
                number = g.make("floordiv", number, g.const(levels.stride))
            at = g.make("add", at, number)
        out = g.entry("eta", at)
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
        memo[n] = graph.again(n, args) if args else n
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


def _columns_of_values(graph: Graph, node: int) -> bool:
    """Whether a node depends on a column of data other than through the position of an entry."""
    stack, seen = [node], set[int]()
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if graph.nodes[n].op == "column":
            return True
        if graph.nodes[n].op != "entry":
            stack.extend(graph.nodes[n].args)
    return False


def _index_columns(graph: Graph, node: int) -> tuple[int, ...]:
    return tuple(sorted(graph.nodes[n].value for n in graph.leaves([node], "column")))
