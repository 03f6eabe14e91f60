"""The log-likelihood of one row as a scalar expression, and the columns of data that it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain

import numpy as np
import pytensor.tensor as pt

from pytensor.graph.basic import Variable

from amc_pymc.engine import GROUP, LOCAL, ROW, Families, Graph
from amc_pymc.reading.graphs import rebuilt
from amc_pymc.reading.layout import FlatLayout
from amc_pymc.reading.rows import RowLogp
from amc_pymc.reading.scalars import (
    ElementReader,
    Index,
    NotScalar,
    Unaddressable,
    flat_position,
    stabilised,
)


class Columns:
    """Columns of data of one kind of unit, in the order in which expressions first read them.

    Parameters
    ----------
    graph : Graph
    kind : {"column", "group"}
        Type of the leaves that represent them.
    complete : bool
        Whether the arrays hold all units; if not, what they have in common may not hold elsewhere.

    Attributes
    ----------
    arrays : list of arrays
        The columns.
    """

    def __init__(self, graph: Graph, kind: str, complete: bool = True):
        self.graph, self.kind, self.complete = graph, kind, complete
        self.arrays: list[np.ndarray] = []
        self._makers: list[Callable[[], np.ndarray]] = []
        self._known: dict = {}

    def node(self, key, values: Callable[[], np.ndarray]) -> int:
        """Return the leaf of a column, which is computed when first requested."""
        if key not in self._known:
            g, array = self.graph, values()
            if array.dtype.kind == "b" and self.complete and array.all() == array.any():
                self._known[key] = g.const(bool(array[0]))
                return self._known[key]
            self.arrays.append(array)
            self._makers.append(values)
            leaf = g.leaf(self.kind, len(self.arrays) - 1, "f" if array.dtype.kind == "f" else "i")
            self._known[key] = g.make("ne", leaf, g.const(0)) if array.dtype.kind == "b" else leaf
        return self._known[key]

    def compute(self) -> None:
        """Compute all columns anew, from other data."""
        for k, make in enumerate(self._makers):
            self.arrays[k] = make()

    def derived(self, key, array: Callable[[], np.ndarray], index: Sequence[int]) -> int:
        """Return the column of the elements of an array at indices computed from columns."""
        if not self._of_data(index):
            raise Unaddressable("an array of data is indexed by parameters")

        def values():
            where = self._evaluated(index)
            return np.asarray(array()[tuple(np.asarray(w, np.int64) for w in where)])

        return self.node((key, *index), values)

    def _evaluated(self, nodes: Sequence[int]) -> list[np.ndarray]:
        """Return the values of expressions of data in all units."""
        sources = {"row" if self.kind == "column" else "group": self.arrays}
        return self.graph.evaluate(nodes, **sources)

    def _of_data(self, nodes: Sequence[int]) -> bool:
        """Whether expressions depend on data alone."""
        return not any(self.graph.leaves(nodes, leaf) for leaf in ("entry", "local", "dot"))

    def may_be_negative(self, index: int) -> bool:
        """Whether an index may be negative in some unit, or depends on more than data."""
        if not (self.complete and self._of_data([index])):
            return True
        return bool(np.any(self._evaluated([index])[0] < 0))

    def makes(self, node: int) -> bool:
        """Whether an expression depends on these columns alone."""
        own = {"column": ROW, "group": GROUP}[self.kind]
        return self.graph.depends(node) == own and self._of_data([node])

    def alike(self, node: int) -> float | None:
        """Return the value of an expression of data if it is the same in all units, else None."""
        unknown = not self.complete and self.graph.leaves([node], self.kind)
        if unknown or not self._of_data([node]):
            return None
        (values,) = self._evaluated([node])
        first = np.ravel(values)[0]
        return float(first) if np.all(values == first) else None

    def with_codes(self, outputs: Sequence[int]) -> list[int]:
        """Replace products with one-hot columns in outputs by entries that a code selects."""
        if not self.complete:
            return list(outputs)
        g = self.graph
        change = {n: self._coded(*g.nodes[n].value) for n in g.leaves(outputs, "dot")}
        return g.replaced(outputs, {n: new for n, new in change.items() if new is not None})

    def _coded(self, array: str, first: int, columns: tuple[int, ...]) -> int | None:
        """Return the sum of the terms that are not one-hot and of the entries that a row's codes select."""
        g = self.graph
        codes, ones = _one_hot([self.arrays[c] for c in columns])
        if not codes:
            return None
        total = g.const(0.0)
        for n, (_, code) in enumerate(codes):
            position = self.node(("code", n, first, columns), partial(np.asarray, code))
            at = g.make("add", g.const(first), g.make("maximum", position, g.const(0)))
            chosen = g.make("ge", position, g.const(0))
            entry = g.entry(array, at)
            total = g.make("add", total, g.make("switch", chosen, entry, g.const(0.0)))
        for k in ones:
            total = g.make("add", total, g.entry(array, g.const(first + k)))
        rest = np.setdiff1d(np.arange(len(columns)), [*ones, *chain(*(m for m, _ in codes))])
        for run in np.split(rest, np.flatnonzero(np.diff(rest) != 1) + 1) if rest.size else ():
            total = g.make("add", total, self._product(array, first, columns, run.tolist()))
        return total

    def _product(self, array, first, columns, run: Sequence[int]) -> int:
        g = self.graph
        if len(run) > 1:
            return g.leaf("dot", (array, first + run[0], tuple(columns[k] for k in run)))
        entry = g.entry(array, g.const(first + run[0]))
        return g.make("mul", g.leaf("column", columns[run[0]]), entry)

    def used(self, outputs: Sequence[int]) -> tuple[list[int], list[np.ndarray]]:
        """Return outputs with the columns that they read renumbered, and these columns.

        Columns of products come first, one after the other.
        """
        g = self.graph
        dots = [c for n in g.leaves(outputs, "dot") for c in g.nodes[n].value[2]]
        others = [g.nodes[n].value for n in g.leaves(outputs, self.kind)]
        chosen = list(dict.fromkeys([*dots, *others]))
        place = {c: k for k, c in enumerate(chosen)}
        change = {
            n: g.leaf(self.kind, place[g.nodes[n].value], g.nodes[n].kind)
            for n in g.leaves(outputs, self.kind)
        }
        for n in g.leaves(outputs, "dot"):
            name, first, columns = g.nodes[n].value
            change[n] = g.leaf("dot", (name, first, tuple(place[c] for c in columns)))
        return g.replaced(outputs, change), [self.arrays[c] for c in chosen]


#: Smallest number of one-hot columns that a code replaces.
_FEW_HOT = 3


def _one_hot(columns: Sequence[np.ndarray]) -> tuple[list[tuple[list[int], np.ndarray]], list[int]]:
    """Find sets of columns of which at most one is 1 in a row, with their codes, and columns of ones.

    The code of a row is the position of the column that is 1, or -1.
    """
    sets: list[tuple[list[int], np.ndarray]] = []
    ones = []
    for k, column in enumerate(columns):
        is_one = column == 1.0
        if not np.all(is_one | (column == 0.0)):
            continue
        if is_one.all():
            ones.append(k)
            continue
        for members, code in sets:
            if not np.any(is_one & (code >= 0)):
                break
        else:
            members, code = [], np.full(len(column), -1)
            sets.append((members, code))
        members.append(k)
        code[is_one] = k
    return [found for found in sets if len(found[0]) >= _FEW_HOT], ones


def row_expression(
    rows: RowLogp,
    graph: Graph,
    columns: Columns,
    leaf: Callable[[str, Index], int],
    arrays: Sequence[np.ndarray] | None = None,
    families: Families | None = None,
) -> int:
    """Return the log-likelihood of one row as an expression.

    Parameters
    ----------
    rows : RowLogp
    graph : Graph
        Graph to which the expression is added.
    columns : Columns
        Columns of rows, to which new ones are added.
    leaf : callable
        ``(name, index) -> node`` of an element of a value variable. For variables in
        ``rows.row_local``, with one entry per row, the first index is the column of row numbers.
    arrays : sequence of arrays, optional
        Data in place of ``rows.arrays``; columns read them when they are computed.
    families : Families, optional
        As for :class:`~amc_pymc.reading.scalars.ElementReader`.

    Returns
    -------
    int
        A node of ``graph``.

    Raises
    ------
    NotScalar
        If an operation has no scalar form.
    """
    memo: dict[Variable, Variable] = {rows._length: pt.constant(1, dtype="int64")}
    leaves: dict[Variable, Callable[[Index], int]] = {}
    shapes = dict(zip(rows.layout.names, rows.layout.shapes))
    arrays = rows.arrays if arrays is None else arrays
    for name, placeholder in rows._values.items():
        local = name in rows.row_local
        shape = (1, *shapes[name][1:]) if local else shapes[name]
        new = placeholder.type.clone(shape=shape)(name)
        memo[placeholder] = new
        leaves[new] = _value_leaf(rows, name, columns, leaf) if local else partial(leaf, name)
    for k, row_input in enumerate(rows._inputs):
        array, axis = row_input.array, row_input.axis
        own = [*array.shape[1 : axis + 1], 1, *array.shape[axis + 1 :]]
        new = row_input.placeholder.type.clone(shape=tuple(own))()
        memo[row_input.placeholder] = new
        leaves[new] = _column_leaf(k, arrays, axis, columns, graph)
    try:
        (output,) = rebuilt([rows._output], memo)
    except (TypeError, ValueError) as error:  # as many rows as columns: their axes are confused
        raise NotScalar(f"its shapes are not those of one row ({error})") from error
    reader = ElementReader(graph, leaves, columns, families)
    return reader.element(stabilised(output), (graph.const(0),))


class ParameterLeaves:
    """Elements of variables, ``(name, index) -> node``: entries of the flat vector, or local effects.

    Parameters
    ----------
    graph : Graph
    layout : FlatLayout
        Layout of the flat vector.
    columns : Columns, optional
        Columns to which positions that depend on data are added. An expression then does not depend on where in
        the vector a variable begins.
    slots : dict, optional
        Functions ``(graph, index) -> node`` of the variables with local effects.

    Attributes
    ----------
    read : dict
        The node of each entry that was read, by the name of its variable and its index.
    """

    def __init__(
        self,
        graph: Graph,
        layout: FlatLayout,
        columns: Columns | None = None,
        slots: Mapping[str, Callable[[Graph, Index], int]] | None = None,
    ):
        self.graph, self.layout, self.columns, self.slots = graph, layout, columns, slots or {}
        self.read: dict[tuple[str, Index], int] = {}
        self._shapes = dict(zip(layout.names, layout.shapes))

    def __call__(self, name: str, index: Index) -> int:
        """Return the node of an element."""
        g, columns = self.graph, self.columns
        if name in self.slots:
            return self.slots[name](g, index)
        if any(g.depends(i) & LOCAL for i in index):
            raise Unaddressable(f"{name} is indexed by a local effect")
        position = flat_position(g, index, self._shapes[name])
        position = g.make("add", g.const(self.layout.slices[name].start), position)
        if columns is not None and g.number(position) is None and columns.makes(position):
            places = partial(np.arange, self.layout.size)
            position = columns.derived(("position",), places, (position,))
        entry = g.entry("eta", position)
        if not self.layout.is_continuous(name):
            entry = g.make("int", entry)
        self.read[name, index] = entry
        return entry


def _value_leaf(rows: RowLogp, name: str, columns: Columns, leaf):
    """Return the function that reads elements of a variable with one entry per row."""
    number = columns.node(("row",), lambda: np.arange(rows.n_rows))
    return lambda index: leaf(name, (number, *index[1:]))


def _column_leaf(k: int, arrays: Sequence[np.ndarray], axis: int, columns: Columns, graph: Graph):
    """Return the function that reads elements of the k-th array of data, rows first."""

    def leaf(index: Index) -> int:
        own = index[:axis] + index[axis + 1 :]
        numbers = [graph.number(i) for i in own]
        if None in numbers:  # indexed by the row's own data
            rows = columns.node(("row",), lambda: np.arange(len(arrays[k])))
            return columns.derived(("input", k), lambda: arrays[k], (rows, *own))
        return columns.node(("input", k, *numbers), lambda: arrays[k][(slice(None), *numbers)])

    return leaf
