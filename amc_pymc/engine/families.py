"""Vectors of coefficients that are functions of parameters, as one expression and a table.

In ``X @ (tau * scale * z)`` each column of data is multiplied by an expression of its own. All have
the same form: they differ in constants and in the entries of parameters that they read. One expression
represents them all, with columns of a table for what differs, so the code printed for a model does not
grow with the number of its coefficients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from amc_pymc.engine.graph import Graph

#: Largest number of families that coefficients of one product form.
_MOST_RUNS = 3


@dataclass(frozen=True, eq=False)
class Family:
    """Consecutive coefficients of the same form.

    Attributes
    ----------
    expression : int
        Node whose ``column`` leaves are columns of the table.
    table : (n, C) array
    first : int
        Position of the first coefficient among all of them.
    """

    expression: int
    table: np.ndarray
    first: int


class Families:
    """Coefficients of a graph, grouped into families.

    Parameters
    ----------
    graph : Graph
    begin : int
        Position in "eta" from which the coefficients are read.

    Examples
    --------
    >>> from amc_pymc.engine import Families, Graph
    >>> g = Graph()
    >>> sd = g.make("exp", g.entry("eta", g.const(0)))
    >>> effects = [g.make("mul", sd, g.entry("eta", g.const(k))) for k in (1, 2, 3)]
    >>> families = Families(g)
    >>> families.add(effects)
    0
    >>> families.all[0].table[:, 0]
    array([1., 2., 3.])
    >>> g.evaluate(
    ...     [families.all[0].expression], row=[[1, 2, 3]], eta=np.array([0.0, 5.0, 6.0, 7.0])
    ... )
    [array([5., 6., 7.])]
    """

    def __init__(self, graph: Graph, begin: int = 0):
        self.graph, self._begin = graph, begin
        self.all: list[Family] = []
        self._known: dict[tuple[int, ...], int] = {}

    def add(self, nodes: Sequence[int]) -> int | None:
        """Add coefficients, a family for each run of the same form; return the position of the first.

        None if there are too many forms.
        """
        key = tuple(nodes)
        if key not in self._known:
            found = self._runs(key)
            if found is None:
                return None
            size = sum(len(f.table) for f in self.all)
            self._known[key] = self._begin + size
            for expression, table in found:
                self.all.append(Family(expression, table, size))
                size += len(table)
        return self._known[key]

    def _runs(self, nodes: tuple[int, ...]) -> list[tuple[int, np.ndarray]] | None:
        """Return expressions and tables of runs of nodes of the same form."""
        out, left = list[tuple[int, np.ndarray]](), nodes
        while left:
            form = form_of(self.graph, left[0])
            n = next((k for k, m in enumerate(left) if form_of(self.graph, m) != form), len(left))
            common = _Common(self.graph, n)
            expression = common.of(left[:n])
            if expression is None or len(out) == _MOST_RUNS:
                return None
            columns = np.column_stack(common.columns) if common.columns else np.zeros((n, 0))
            out.append((expression, columns))
            left = left[n:]
        return out


def form_of(graph: Graph, node: int) -> int:
    """Return a number that is the same for expressions that differ in constants alone."""
    found: dict[int, int] = {}
    for n in graph.upstream([node]):
        op = graph.nodes[n].op
        found[n] = hash((op, *(found[a] for a in graph.nodes[n].args)))
    return found[node]


class _Common:
    """Common form of some expressions, with a column for each difference."""

    def __init__(self, graph: Graph, size: int):
        self.graph, self.size = graph, size
        self.columns: list[np.ndarray] = []
        self._known: dict[tuple[int, ...], int | None] = {}

    def of(self, nodes: tuple[int, ...]) -> int | None:
        """Return the node of the common form, or None."""
        if nodes not in self._known:
            self._known[nodes] = self._form(nodes)
        return self._known[nodes]

    def _form(self, nodes: tuple[int, ...]) -> int | None:
        g = self.graph
        first = g.nodes[nodes[0]]
        if len(set(nodes)) == 1:
            return nodes[0]
        found = [g.nodes[n] for n in nodes]
        if any(
            (n.op, n.kind, len(n.args)) != (first.op, first.kind, len(first.args)) for n in found
        ):
            return None
        if first.op == "const":
            return self._column(nodes, first.kind)
        if not first.args or any(n.value != first.value for n in found):
            return None
        args = [self.of(part) for part in zip(*(n.args for n in found))]
        if None in args:
            return None
        known = [a for a in args if a is not None]
        if first.op == "entry":
            return g.entry(str(first.value), known[0])
        return g.make(first.op, *known)

    def _column(self, nodes: tuple[int, ...], kind: str) -> int | None:
        if kind == "b":
            return None
        self.columns.append(np.array([self.graph.number(n) for n in nodes], float))
        return self.graph.leaf("column", len(self.columns) - 1, kind)
