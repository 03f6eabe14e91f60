"""Expressions as the source code of functions that Numba compiles.

What an expression depends on decides where it is computed: parts made of parameters alone once for
all rows, parts without local effects once for a row, and only the rest at every node of a
quadrature. Each function leaves what the next one needs in an array.
"""

from __future__ import annotations

import re

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from amc_pymc.expressions.functions import SOURCE
from amc_pymc.expressions.graph import LOCAL, Graph

__all__ = ["Stages", "print_function", "print_loops"]


@dataclass(frozen=True)
class Stages:
    """Which expressions are handed from stage to stage on the way to some outputs.

    ``shared`` depend on parameters only, ``kept`` on a unit's data too, but not on local effects.
    """

    shared: tuple[int, ...]
    kept: tuple[int, ...]

    @classmethod
    def of(cls, graph: Graph, outputs: Sequence[int]) -> Stages:
        """The stages of some outputs."""
        shared: dict[int, None] = {}
        kept: dict[int, None] = {}

        def hand_over(n: int, to_local: bool) -> None:
            if graph.nodes[n].op == "const":
                return
            if graph.depends(n) == 0:
                shared[n] = None
            elif to_local and not graph.depends(n) & LOCAL:
                kept[n] = None

        for n in graph.upstream(outputs):
            depends = graph.depends(n)
            if depends:
                for a in graph.nodes[n].args:
                    hand_over(a, bool(depends & LOCAL))
        for n in outputs:
            hand_over(n, True)
        return cls(tuple(sorted(shared)), tuple(sorted(kept)))


_DECORATOR = "@njit(cache=True, error_model='numpy', fastmath={{'contract'}}{})"


def print_function(
    graph: Graph,
    name: str,
    arguments: Sequence[str],
    outputs: Sequence[int],
    known: dict[int, str],
    into: str = "",
) -> list[str]:
    """Lines of a compiled function that computes some expressions.

    Parameters
    ----------
    graph : Graph
    name : str
    arguments : sequence of str
        ``eta`` and other arrays of parameters; ``rows`` (C, N) and ``i`` or ``groups`` and ``g`` for
        data; ``u`` for local effects.
    outputs : sequence of int
    known : dict of int to str
        Source of expressions that stages before have computed.
    into : str
        Format of the places that outputs are written to, such as ``"shared[{}]"``; the function
        returns them as a tuple if it is empty.

    Returns
    -------
    list of str
    """
    body, text = _body(graph, outputs, known)
    if into:
        body += [f"{into.format(k)} = {text[n]}" for k, n in enumerate(outputs)] or ["pass"]
    else:
        number = {"b": "select({}, 1.0, 0.0)"}
        values = [number.get(graph.nodes[n].kind, "float({})").format(text[n]) for n in outputs]
        body.append(f"return ({', '.join(values)}{',' if len(values) == 1 else ''})")
    head = [_DECORATOR.format(", forceinline=True"), f"def {name}({', '.join(arguments)}):"]
    return _renumbered([*head, *(f"    {line}" for line in body), ""])


def print_loops(
    graph: Graph, name: str, arguments: Sequence[str], outputs: Sequence[int], known: dict[int, str]
) -> tuple[list[str], int]:
    """Lines of a function that computes expressions for all rows of a group, and their number.

    Rows ``begin`` to ``begin + n - 1`` go to ``kept[k, j]``, one loop for each output k, so that a
    processor computes several rows at once. Products with consecutive entries are among what is
    kept: they come after the outputs.
    """
    dots = graph.leaves(outputs, "dot")
    text = dict(known)
    lines = []
    for k, n in enumerate(dots):
        place = f"kept[{len(outputs) + k}, j]"
        lines += _column_loop(graph.nodes[n].value, place)
        text[n] = place
    for k, n in enumerate(outputs):
        body, found = _body(graph, [n], text)
        lines += ["for j in range(n):", "    i = begin + j", *(f"    {line}" for line in body)]
        lines.append(f"    kept[{k}, j] = {found[n]}")
    head = [_DECORATOR.format(""), f"def {name}({', '.join(arguments)}):"]
    every = [*head, *(f"    {line}" for line in lines or ["pass"]), ""]
    return _renumbered(every), len(outputs) + len(dots)


def _renumbered(lines: Sequence[str]) -> list[str]:
    """Lines whose variables are numbered as they come, whatever else is in the graph."""
    known: dict[str, int] = {}

    def new(found: re.Match) -> str:
        return f"t{known.setdefault(found[1], len(known))}"

    return [re.sub(r"\bt(\d+)\b", new, line) for line in lines]


def _column_loop(value, place: str) -> list[str]:
    """Sum of columns times consecutive entries, one column after the other."""
    array, first, columns = value
    lines = ["for j in range(n):", f"    {place} = 0.0"]
    if list(columns) == list(range(columns[0], columns[0] + len(columns))):
        return [
            *lines,
            f"for k in range({len(columns)}):",
            f"    b = {array}[{first} + k]",
            "    for j in range(n):",
            f"        {place} += rows[{columns[0]} + k, begin + j] * b",
        ]
    for k, c in enumerate(columns):
        lines += [
            f"b = {array}[{first + k}]",
            "for j in range(n):",
            f"    {place} += rows[{c}, begin + j] * b",
        ]
    return lines


def _body(
    graph: Graph, outputs: Sequence[int], known: dict[int, str]
) -> tuple[list[str], dict[int, str]]:
    """Statements that compute some expressions, and the source of each."""
    text, lines = dict(known), []
    for n in _needed(graph, outputs, known):
        node = graph.nodes[n]
        if node.op == "const":
            text[n] = _literal(graph.number(n))
            continue
        lines += _loop(n, node.value) if node.op == "dot" else [
            f"t{n} = {_operation(graph, node, text)}"
        ]  # fmt: skip
        text[n] = f"t{n}"
    return lines, text


def _needed(graph: Graph, outputs: Sequence[int], known: dict[int, str]) -> list[int]:
    """Nodes to compute, arguments first."""
    seen: set[int] = set()
    stack = [n for n in outputs if n not in known]
    while stack:
        n = stack.pop()
        if n not in seen:
            seen.add(n)
            stack.extend(a for a in graph.nodes[n].args if a not in known)
    return sorted(seen)


def _operation(graph: Graph, node, text: dict[int, str]) -> str:
    """Numbers are floats throughout, also those that stand for integers."""
    if node.op in ("column", "group", "local"):
        place = {"column": "rows[{}, i]", "group": "groups[g, {}]", "local": "u[{}]"}[node.op]
        return place.format(node.value)
    arguments = [text[a] for a in node.args]
    if node.op == "entry":
        constant = graph.nodes[node.args[0]].op == "const"
        return f"{node.value}[{arguments[0] if constant else f'int({arguments[0]})'}]"
    if node.op == "int":
        return f"math.trunc({arguments[0]})"
    if node.op == "float" and graph.nodes[node.args[0]].kind == "b":
        return f"select({arguments[0]}, 1.0, 0.0)"
    truth = {"switch": [0], "and": [0, 1], "or": [0, 1], "not": [0], "xor": [0, 1]}
    for k in truth.get(node.op, ()):
        if graph.nodes[node.args[k]].kind != "b":
            arguments[k] = f"({arguments[k]} != 0.0)"
    return SOURCE[node.op].format(*arguments)


def _loop(n: int, value) -> list[str]:
    """Sum of a row's columns times consecutive entries."""
    array, first, columns = value
    if list(columns) == list(range(columns[0], columns[0] + len(columns))):
        return [
            f"t{n} = 0.0",
            f"for k in range({len(columns)}):",
            f"    t{n} += rows[{columns[0]} + k, i] * {array}[{first} + k]",
        ]
    terms = [f"rows[{c}, i] * {array}[{first + k}]" for k, c in enumerate(columns)]
    return [f"t{n} = {' + '.join(terms)}"]


def _literal(value) -> str:
    if isinstance(value, bool | int):
        return f"({value})" if value < 0 else str(value)
    if np.isnan(value):
        return "math.nan"
    if np.isinf(value):
        return "math.inf" if value > 0 else "(-math.inf)"
    return f"({value!r})" if value < 0 else repr(float(value))
