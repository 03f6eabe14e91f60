"""Terms that read many coordinates: sums are taken apart, and linear combinations get names.

A zero-sum constraint or a penalty on a mean reads all levels of a factor, but only through a few sums. Such a term is
written with *combinations* u = A x, which extend x: the terms read (x, u).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amc_pymc.expressions import Families, Family, Graph
from amc_pymc.expressions.leaves import leaves_of

__all__ = ["with_combinations"]

#: Largest number of coordinates that a term reads one by one.
_FEW = 3
_SUMS = ("add", "sub", "neg", "float")


def with_combinations(
    graph: Graph, terms: Sequence[Family], size: int
) -> tuple[tuple[Family, ...], np.ndarray]:
    """Return terms of (x, A x) in which the wide ones read combinations, and A (L, D).

    Examples
    --------
    >>> from amc_pymc.expressions import Family, Graph
    >>> from amc_pymc.tall.wide import with_combinations
    >>> g = Graph()
    >>> total = g.sum([g.entry("eta", g.const(k)) for k in range(5)])
    >>> terms, a = with_combinations(
    ...     g, [Family(g.make("mul", total, total), np.zeros((1, 0)), 0)], 5
    ... )
    >>> a, terms[0].table[0]  # a position in (x, A x), and an offset
    (array([[1., 1., 1., 1., 1.]]), array([5., 0.]))
    """
    rows: list[np.ndarray] = []
    out = [
        _combined(graph, each, size, rows) if _is_wide(graph, each) else each
        for family in terms
        for each in (_taken_apart(graph, family) if _is_wide(graph, family) else [family])
    ]
    return tuple(out), np.array(rows).reshape(-1, size)


def _is_wide(graph: Graph, family: Family) -> bool:
    return _many(graph, family.expression)


def _many(graph: Graph, node: int) -> bool:
    """Whether an expression reads many coordinates."""
    return len(leaves_of(graph, node)[0]) > _FEW


def _taken_apart(graph: Graph, family: Family) -> list[Family]:
    """Return the terms of a sum, grouped by their form; checks of several elements are left out."""
    if len(family.table) > 1:
        return [Family(_unchecked(graph, family.expression), family.table, 0)]
    values = [graph.const(v) for v in family.table[0]]
    kinds = {n: graph.nodes[n] for n in graph.leaves([family.expression], "column")}
    change = {n: values[v.value] for n, v in kinds.items()}
    change = {n: graph.make("int", m) if kinds[n].kind == "i" else m for n, m in change.items()}
    (whole,) = graph.replaced([family.expression], change)
    groups: dict[str, list[int]] = {}
    for n in _summands(graph, whole):
        groups.setdefault(_form(graph, n), []).append(n)
    out = []
    for nodes in groups.values():
        found = Families(graph)
        if len(nodes) > 1 and found.add(nodes) is not None:
            out += found.all
        else:
            out += [Family(n, np.zeros((1, 0)), 0) for n in nodes]
    return out


def _summands(graph: Graph, node: int) -> list[int]:
    """Return terms that add up to an expression; checks of its arguments are left out."""
    node = _unchecked(graph, node)
    op, args = graph.nodes[node].op, graph.nodes[node].args
    if op == "add":
        return [n for a in args for n in _summands(graph, a)]
    if op in ("sub", "neg"):
        minus = [graph.make("neg", n) for n in _summands(graph, args[-1])]
        return minus if op == "neg" else [*_summands(graph, args[0]), *minus]
    if op in ("mul", "div"):
        for k, a in enumerate(args if op == "mul" else args[:1]):
            parts, others = _summands(graph, a), (*args[:k], *args[k + 1 :])
            if len(parts) > _FEW and not any(_many(graph, b) for b in others):
                return [graph.make(op, *args[:k], n, *args[k + 1 :]) for n in parts]
    return [node]


def _unchecked(graph: Graph, node: int) -> int:
    """Return an expression without the condition that it is minus infinity unless its arguments are valid."""
    while graph.nodes[node].op == "switch":
        _, valid, otherwise = graph.nodes[node].args
        if graph.number(otherwise) != -np.inf:
            break
        node = valid
    return node


def _form(graph: Graph, node: int) -> str:
    """Return the operations of an expression, without its constants."""
    found = graph.nodes[node]
    return f"{found.op}({','.join(_form(graph, a) for a in found.args)})"


def _combined(graph: Graph, family: Family, size: int, rows: list[np.ndarray]) -> Family:
    change, table = {}, family.table
    for node in _largest_linear(graph, family.expression):
        a, offset = _coefficients(graph, node, family, size)
        columns = [np.full(len(table), float(size + len(rows)))]
        if np.all(a == a[0]):
            rows.append(a[0])
        else:
            columns[0] += np.arange(len(table))
            rows.extend(a)
        at, columns = graph.leaf("column", table.shape[1], "i"), [*columns, offset]
        new = graph.entry("eta", at)
        change[node] = graph.make("add", new, graph.leaf("column", table.shape[1] + 1))
        table = np.column_stack([table, *columns])
    (expression,) = graph.replaced([family.expression], change)
    return Family(expression, table, family.first)


def _largest_linear(graph: Graph, expression: int) -> list[int]:
    """Return the largest parts that are affine in at least two entries."""
    linear = dict[int, bool]()
    for n in graph.upstream([expression]):
        node = graph.nodes[n]
        varying = [a for a in node.args if a in linear]
        if node.op == "entry":
            linear[n] = True
        elif varying:
            linear[n] = all(linear[a] for a in varying) and (
                node.op in _SUMS
                or (node.op == "mul" and len(varying) == 1)
                or (node.op == "div" and varying == [node.args[0]])
            )
    out, stack, seen = [], [expression], set[int]()
    while stack:
        n = stack.pop()
        if n in seen or n not in linear:
            continue
        seen.add(n)
        if linear[n] and len(leaves_of(graph, n)[0]) > 1:
            out.append(n)
        elif not linear[n]:
            stack.extend(graph.nodes[n].args)
    return out


def _coefficients(
    graph: Graph, node: int, family: Family, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the coefficients (n, D) and the offset (n,) of an affine expression in each row of the table."""
    leaves, _ = leaves_of(graph, node)
    n, rows = len(family.table), family.table.T
    out, at = np.zeros((n, size)), np.arange(n)
    places = graph.evaluate([graph.nodes[a].args[0] for a in leaves], row=rows)
    slopes = graph.evaluate([graph.partial(node, a) for a in leaves], row=rows)
    for place, slope in zip(places, slopes):
        np.add.at(out, (at, np.broadcast_to(np.asarray(place, np.int64), n)), slope)
    (offset,) = graph.evaluate([node], row=rows, eta=np.zeros(size))
    return out, np.broadcast_to(np.asarray(offset, float), n).copy()
