"""Vectors of coefficients that are functions of parameters, as one expression and a table.

In ``X @ (tau * scale * z)`` each column of data is multiplied by an expression of its own. All have
the same form: they differ in constants and in the entries of parameters that they read. One expression
represents them all, with columns of a table for what differs, so the code printed for a model does not
grow with the number of its coefficients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

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
            expression, varying = _common_form(self.graph, left[:n])
            if expression is None or len(out) == _MOST_RUNS:
                return None
            columns = np.column_stack(varying) if varying else np.zeros((n, 0))
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


def _common_form(graph: Graph, nodes: tuple[int, ...]) -> tuple[int | None, list[np.ndarray]]:
    """Return the node of the common form of some expressions, or None, and a column for each difference."""
    columns: list[np.ndarray] = []

    @cache
    def common(nodes: tuple[int, ...]) -> int | None:
        if len(set(nodes)) == 1:
            return nodes[0]
        found = [graph.nodes[n] for n in nodes]
        first = found[0]
        if len({(n.op, n.kind, len(n.args)) for n in found}) > 1:
            return None
        if first.op == "const" and first.kind != "b":
            columns.append(np.array([graph.number(n) for n in nodes], float))
            return graph.leaf("column", len(columns) - 1, first.kind)
        if not first.args or any(n.value != first.value for n in found):
            return None
        args = [common(part) for part in zip(*(n.args for n in found))]
        return None if None in args else graph.again(nodes[0], [a for a in args if a is not None])

    return common(nodes), columns
