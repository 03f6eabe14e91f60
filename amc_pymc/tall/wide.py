"""Terms that read many coordinates: sums are taken apart, and what is left of them gets names.

A zero-sum constraint or a penalty on a mean reads all levels of a factor, but only through a few sums. Such a term is
written with *combinations* u = A x, which extend x. A simplex reads all its coordinates through the sum of their
exponentials. Such sums are *functions* f(x). Terms read (x, f, u).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amc_pymc.engine import Families, Family, Graph
from amc_pymc.engine.families import form_of
from amc_pymc.engine.leaves import leaves_of

__all__ = ["taken_apart", "with_combinations", "with_functions"]

#: Largest number of coordinates that a term reads one by one.
_FEW = 5
_SUMS = ("add", "sub", "neg", "float")


def with_functions(
    graph: Graph, families: Sequence[Family], size: int, linear: bool
) -> tuple[tuple[Family, ...], tuple[Family, ...]]:
    """Return families of (x, f) in which the wide ones read functions f of x (D,), and these functions.

    Functions are sums and maxima of at least six parts that are the same for all elements; linear ones only if
    ``linear``.

    Examples
    --------
    >>> from amc_pymc.engine import Family, Graph
    >>> from amc_pymc.tall.wide import with_functions
    >>> g = Graph()
    >>> powers = [g.make("exp", g.entry("eta", g.const(k))) for k in range(8)]
    >>> shares = Family(g.make("div", powers[0], g.sum(powers)), np.zeros((1, 0)), 0)
    >>> (share,), functions = with_functions(g, [shares], 8, linear=False)
    >>> [g.nodes[n].op for n in g.nodes[share.expression].args], len(functions)
    (['exp', 'entry'], 1)
    """
    found: dict[int, int] = {}
    out = []
    for family in families:
        change = {}
        if _is_wide(graph, family):
            for node in _common_sums(graph, family.expression, size, linear):
                at = found.setdefault(node, len(found))
                change[node] = graph.entry("eta", graph.const(size + at))
        (expression,) = graph.replaced([family.expression], change)
        out.append(Family(expression, family.table, family.first))
    return tuple(out), tuple(Family(n, np.zeros((1, 0)), 0) for n in found)


def _common_sums(graph: Graph, expression: int, size: int, linear: bool) -> list[int]:
    """Return the largest sums of many entries below an expression that read no columns."""
    affine, out, seen = _linear(graph, expression, size), [], {expression}
    stack = list(graph.nodes[expression].args)
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        wide = len(leaves_of(graph, n)[0]) > _FEW
        if not wide:
            continue
        alike = len(_joined(graph, n)) > _FEW and not graph.leaves([n], "column")
        if alike and (linear or not affine.get(n)):
            out.append(n)
        else:
            stack.extend(graph.nodes[n].args)
    return out


def _joined(graph: Graph, node: int) -> list[int]:
    """Return what a sum adds up, or a maximum compares."""
    op = graph.nodes[node].op
    if op not in ("add", "sub", "maximum"):
        return [node]
    same = ("maximum",) if op == "maximum" else ("add", "sub")
    return [
        each
        for a in graph.nodes[node].args
        for each in (_joined(graph, a) if graph.nodes[a].op in same else [a])
    ]


def with_combinations(
    graph: Graph, terms: Sequence[Family], size: int, begin: int | None = None
) -> tuple[tuple[Family, ...], np.ndarray]:
    """Return terms of (x, u) in which the wide ones read combinations u = A x, and A (L, D).

    The place of the combinations is ``begin``, by default D = ``size``.

    Examples
    --------
    >>> from amc_pymc.engine import Family, Graph
    >>> from amc_pymc.tall.wide import with_combinations
    >>> g = Graph()
    >>> total = g.sum([g.entry("eta", g.const(k)) for k in range(6)])
    >>> terms, a = with_combinations(
    ...     g, [Family(g.make("mul", total, total), np.zeros((1, 0)), 0)], 6
    ... )
    >>> a, terms[0].table[0]  # a position in (x, A x), and an offset
    (array([[1., 1., 1., 1., 1., 1.]]), array([6., 0.]))
    """
    rows, begin = list[np.ndarray](), size if begin is None else begin
    out = [
        _combined(graph, family, size, begin, rows) if _is_wide(graph, family) else family
        for family in terms
    ]
    return tuple(out), np.array(rows).reshape(-1, size)


def taken_apart(graph: Graph, terms: Sequence[Family]) -> list[Family]:
    """Return terms in which wide sums are taken apart into families of their own."""
    return [
        each
        for family in terms
        for each in (_taken_apart(graph, family) if _is_wide(graph, family) else [family])
    ]


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
    groups: dict[int, list[int]] = {}
    for n in _summands(graph, whole):
        groups.setdefault(form_of(graph, n), []).append(n)
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
        _, *cases = graph.nodes[node].args
        valid = [n for n in cases if graph.number(n) != -np.inf]
        if len(valid) != 1:
            break
        (node,) = valid
    return node


def _combined(
    graph: Graph, family: Family, size: int, begin: int, rows: list[np.ndarray]
) -> Family:
    change, table = {}, family.table
    for node in _largest_linear(graph, family.expression, size):
        a, offset = _coefficients(graph, node, family, size)
        columns = [np.full(len(table), float(begin + len(rows)))]
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


def _largest_linear(graph: Graph, expression: int, size: int) -> list[int]:
    """Return the largest parts that are affine in at least two entries of x (D,)."""
    linear = _linear(graph, expression, size)
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


def _linear(graph: Graph, expression: int, size: int) -> dict[int, bool]:
    """Return the nodes that depend on entries, and whether they are affine in entries of x (D,)."""
    linear = dict[int, bool]()
    for n in graph.upstream([expression]):
        node = graph.nodes[n]
        varying = [a for a in node.args if a in linear]
        if node.op == "entry":
            place = graph.number(node.args[0])
            linear[n] = place is None or place < size
        elif varying:
            linear[n] = all(linear[a] for a in varying) and (
                node.op in _SUMS
                or (node.op == "mul" and len(varying) == 1)
                or (node.op == "div" and varying == [node.args[0]])
            )
    return linear


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
