"""Graphs of scalar expressions, their derivatives and their dependencies.

A row's log-likelihood is one number computed from the row's data, parameters and the local effects of
its group. As a graph of scalar operations it can be differentiated and printed as code
(:mod:`amc_pymc.engine.printer`). Equal expressions are one node, so a derivative shares
subexpressions with the value.
"""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from amc_pymc.engine.functions import ARRAY

#: Flags of dependencies besides parameters: the row's data, the group's data, local effects.
ROW, GROUP, LOCAL = 1, 2, 4

_FLOAT, _INTEGER, _BOOLEAN = "f", "i", "b"


class Node(NamedTuple):
    """An operation or a leaf.

    ``args`` are numbers of other nodes, ``value`` is the content of a leaf: a constant's number, an
    array's name, a column. ``kind`` is "f", "i" or "b" for float, integer or truth value.
    """

    op: str
    args: tuple[int, ...]
    value: Any
    kind: str


#: Leaves: ``const`` (number), ``column`` and ``group`` (a column of the row's or group's data),
#: ``local`` (j-th local effect), ``entry`` (array name; its argument is the position) and ``dot``
#: (array name, first position, columns): sum over columns of data times consecutive entries.
_LEAVES = {"const", "column", "group", "local", "entry", "dot"}

_KEEPS_KIND = {
    *("add", "sub", "mul", "neg", "abs", "sign", "held", "maximum", "minimum", "floordiv", "mod")
}
TRUTH = {"lt", "gt", "le", "ge", "eq", "ne", "and", "or", "xor", "not", "isnan", "isinf"}


@dataclass
class Graph:
    """A set of nodes, identified by their numbers.

    Examples
    --------
    >>> from amc_pymc.engine import Graph
    >>> g = Graph()
    >>> x = g.leaf("local", 0)
    >>> y = g.make("mul", x, g.make("exp", x))
    >>> slope = g.partial(y, x)
    >>> [float(v) for v in g.evaluate([y, slope], local=[1.0])]
    [2.718281828459045, 5.43656365691809]
    """

    nodes: list[Node] = field(default_factory=list)
    _known: dict[Node, int] = field(default_factory=dict)
    _depends: list[int] = field(default_factory=list)

    # --- building -------------------------------------------------------------------------------

    def const(self, value) -> int:
        """Add a constant, whose kind is that of the Python value."""
        if isinstance(value, bool):
            return self._add(Node("const", (), value, _BOOLEAN))
        if isinstance(value, int):
            return self._add(Node("const", (), value, _INTEGER))
        value = float(value)
        # -0.0 and 0.0 are equal but not the same, and nan equals nothing.
        return self._add(Node("const", (), value.hex() if value == value else "nan", _FLOAT))

    def leaf(self, op: str, value, kind: str = _FLOAT) -> int:
        """Add a leaf: ``column``, ``group``, ``local`` or ``dot``."""
        return self._add(Node(op, (), value, kind))

    def entry(self, array: str, position: int) -> int:
        """Add the entry of an array of parameters at a position, which is an integer node."""
        return self._add(Node("entry", (position,), array, _FLOAT))

    def make(self, op: str, *given: float) -> int:
        """Add an operation on nodes, or floats in the place of constants, simplified where this is easy."""
        args = tuple(self.const(a) if isinstance(a, float) else int(a) for a in given)
        numbers = [self.number(a) for a in args]
        if op != "held" and all(v is not None for v in numbers):
            with np.errstate(all="ignore"):
                return self.const(ARRAY[op](*map(_as_number, numbers)).item())
        simple = _SIMPLE[op](self, numbers, *args) if op in _SIMPLE else None
        if simple is not None:
            return simple
        kinds = [self.nodes[a].kind for a in args]
        if op == "switch":
            kind = _FLOAT if _FLOAT in kinds[1:] else max(kinds[1:])
        elif op in TRUTH:
            kind = _BOOLEAN
        elif op == "int" or (op in _KEEPS_KIND and _FLOAT not in kinds):
            kind = _INTEGER
        else:
            kind = _FLOAT
        return self._add(Node(op, args, None, kind))

    def again(self, node: int, args: Sequence[int]) -> int:
        """Add the operation of a node, or an entry of the same array, with other arguments."""
        op, _, array, _ = self.nodes[node]
        return self.entry(array, args[0]) if op == "entry" else self.make(op, *args)

    def number(self, node: int):
        """Return the value of a constant node, else None."""
        n = self.nodes[node]
        if n.op != "const":
            return None
        return float.fromhex(n.value) if isinstance(n.value, str) else n.value

    def sum(self, nodes: Sequence[int]) -> int:
        """Add the sum of nodes; 0 if there are none."""
        return reduce(lambda total, n: self.make("add", total, n), nodes, self.const(0.0))

    def _add(self, node: Node) -> int:
        known = self._known.get(node)
        if known is not None:
            return known
        self.nodes.append(node)
        own = {"column": ROW, "dot": ROW, "group": GROUP, "local": LOCAL}.get(node.op, 0)
        for a in node.args:
            own |= self._depends[a]
        self._depends.append(own)
        self._known[node] = len(self.nodes) - 1
        return self._known[node]

    # --- reading --------------------------------------------------------------------------------

    def depends(self, node: int) -> int:
        """Return the sum of the flags ``ROW``, ``GROUP`` and ``LOCAL`` that apply to a node."""
        return self._depends[node]

    def upstream(self, nodes: Sequence[int]) -> list[int]:
        """Return nodes and all their ancestors, arguments first."""
        seen: set[int] = set()
        stack = list(nodes)
        while stack:
            n = stack.pop()
            if n not in seen:
                seen.add(n)
                stack.extend(self.nodes[n].args)
        return sorted(seen)  # arguments have smaller numbers

    def affine(self, node: int, size: float = math.inf, switches: bool = True) -> dict[int, bool]:
        """Return the ancestors of a node that depend on parameters, and whether they are affine in them.

        Entries at positions from ``size`` on are functions of parameters, which are not affine. ``switches`` says
        whether those between affine values by data are.
        """
        found: dict[int, bool] = {}
        for n in self.upstream([node]):
            op, args = self.nodes[n].op, self.nodes[n].args
            varying = [a for a in args if a in found]
            if op == "entry":
                place = self.number(args[0])
                found[n] = place is None or place < size
            elif op == "dot":
                found[n] = True
            elif varying:
                found[n] = all(found[a] for a in varying) and (
                    op in ("add", "sub", "neg", "float")
                    or (op == "mul" and len(varying) == 1)
                    or (op == "div" and varying == [args[0]])
                    or (op == "switch" and switches and args[0] not in found)
                )
        return found

    def leaves(self, nodes: Sequence[int], op: str) -> list[int]:
        """Return the nodes of one operation upstream of some nodes."""
        return [n for n in self.upstream(nodes) if self.nodes[n].op == op]

    def replaced(self, nodes: Sequence[int], change: dict[int, int]) -> list[int]:
        """Return nodes in which some ancestors are replaced."""
        memo: dict[int, int] = {}
        for n in self.upstream(nodes):
            if n in change:
                memo[n] = change[n]
                continue
            args = tuple(memo[a] for a in self.nodes[n].args)
            memo[n] = n if args == self.nodes[n].args else self.again(n, args)
        return [memo[n] for n in nodes]

    # --- derivatives ----------------------------------------------------------------------------

    def partial(self, node: int, leaf: int) -> int:
        """Return the derivative of a node with respect to a leaf."""
        one = self.const(1.0)
        return self.forward(node, lambda n: one if n == leaf else None)

    def directional(self, node: int, direction: str) -> int:
        """Return the derivative of a node along a direction of "eta".

        Entries of ``direction`` are the derivatives of those of "eta"; other leaves are constant.
        """

        def tangent(n: int) -> int | None:
            found = self.nodes[n]
            if found.op == "entry" and found.value == "eta":
                return self.entry(direction, found.args[0])
            if found.op == "dot" and found.value[0] == "eta":
                return self.leaf("dot", (direction, *found.value[1:]))
            return None

        return self.forward(node, tangent)

    def forward(self, node: int, tangent: Callable[[int], int | None]) -> int:
        """Differentiate in forward mode; ``tangent`` gives the derivative of leaves, None if it is zero."""
        out: dict[int, int | None] = {}
        for n in self.upstream([node]):
            out[n] = tangent(n)
            if out[n] is not None or self.nodes[n].op in _LEAVES:
                continue
            total = self._tangent(n, [out[a] for a in self.nodes[n].args])
            out[n] = None if total is None or self.number(total) == 0.0 else total
        slope = out[node]
        return self.const(0.0) if slope is None else slope

    def _tangent(self, n: int, slopes: Sequence[int | None]) -> int | None:
        """Return the derivative of an operation from those of its arguments."""
        node = self.nodes[n]
        if node.op in _FLAT or all(s is None for s in slopes):
            return None
        if node.op in _CHOICES:  # between derivatives, as that which is not chosen may be infinite
            choice = _CHOICES[node.op]
            condition = self.make(choice, *node.args) if choice else node.args[0]
            return self.make("switch", condition, *(0.0 if s is None else s for s in slopes[-2:]))
        if node.op not in DERIVATIVE_RULES:
            raise NotImplementedError(f"{node.op} has no derivative here")
        rule = DERIVATIVE_RULES[node.op]
        terms = (
            self.make("mul", rule(self, n, k, *node.args), slope)
            for k, slope in enumerate(slopes)
            if slope is not None
        )
        return self.sum(list(terms))

    # --- evaluation -----------------------------------------------------------------------------

    def evaluate(
        self,
        nodes: Sequence[int],
        *,
        row: Sequence | np.ndarray = (),
        group: Sequence | np.ndarray = (),
        local: Sequence = (),
        **arrays: np.ndarray,
    ) -> list[np.ndarray]:
        """Evaluate nodes with NumPy.

        Columns of rows and groups and local effects are numbers or arrays that broadcast; arrays of
        parameters are passed by name.
        """
        sources = {"column": row, "group": group, "local": local}
        values: dict[int, Any] = {}
        with np.errstate(all="ignore"):
            for n in self.upstream(nodes):
                node = self.nodes[n]
                if node.op == "const":
                    values[n] = self.number(n)
                elif node.op in sources:
                    column = sources[node.op][node.value]
                    values[n] = np.asarray(column, np.int64 if node.kind == _INTEGER else float)
                elif node.op == "entry":
                    values[n] = np.asarray(arrays[node.value])[values[node.args[0]]]
                elif node.op == "dot":
                    name, first, columns = node.value
                    at = arrays[name][first : first + len(columns)]
                    values[n] = sum(np.asarray(row[c], float) * b for c, b in zip(columns, at))
                else:
                    arguments = [values[a] for a in node.args]
                    if node.op not in TRUTH:
                        arguments = list(map(_as_number, arguments))
                    values[n] = ARRAY[node.op](*arguments)
        return [values[n] for n in nodes]


def _as_number(value):
    """Convert truth values to 0 and 1."""
    value = np.asarray(value)
    return value.astype(np.int64) if value.dtype.kind == "b" else value


# --- simplification -----------------------------------------------------------------------------
# A rule takes the graph, the values of constant arguments, None for others, and the arguments; it returns an equal node,
# or None.


def _simple_add(g: Graph, numbers, a: int, b: int) -> int | None:
    if numbers[0] == 0:
        return b
    for x, y in ((a, b), (b, a)):  # (c - y) + y
        if g.nodes[x].op == "sub" and g.nodes[x].args[1] == y:
            return g.nodes[x].args[0]
    return a if numbers[1] == 0 else None


def _simple_sub(g: Graph, numbers, a: int, b: int) -> int | None:
    if numbers[1] == 0:
        return a
    x, y = g.nodes[a], g.nodes[b]
    if x.op == y.op == "sub" and x.args[1] == y.args[1]:  # (x - c) - (y - c)
        return g.make("sub", x.args[0], y.args[0])
    return g.make("neg", b) if numbers[0] == 0 else None


def _simple_mul(g: Graph, numbers, *args: int) -> int | None:
    for k in (0, 1):
        if numbers[k] == 1:
            return args[1 - k]
        if numbers[k] == 0:
            return args[k]
        if numbers[k] == -1:
            return g.make("neg", args[1 - k])
    for k in (0, 1):  # a * (b / a)
        other = g.nodes[args[1 - k]]
        if other.op == "div" and other.args[1] == args[k]:
            return other.args[0]
    return None


def _simple_switch(g: Graph, numbers, condition: int, yes: int, no: int) -> int | None:
    if numbers[0] is not None:
        return yes if numbers[0] else no
    if yes == no:
        return yes
    # switch(c, f(a), f(b)) is f(switch(c, a, b)): one evaluation instead of two.
    left, right = g.nodes[yes], g.nodes[no]
    differ = [k for k, (a, b) in enumerate(zip(left.args, right.args)) if a != b]
    if left.op != right.op or left.op in {*_LEAVES, "switch"} or len(differ) != 1:
        return None
    args = list(left.args)
    args[differ[0]] = g.make("switch", condition, args[differ[0]], right.args[differ[0]])
    return g.make(left.op, *args)


def _simple_comparison(bound: int) -> Callable:
    """Return a rule that knows that a sigmoid lies between 0 and 1."""

    def rule(g: Graph, numbers, a: int, b: int) -> int | None:
        return g.const(True) if g.nodes[a].op == "sigmoid" and numbers[1] == bound else None

    return rule


def _simple_logical(decisive: bool) -> Callable:
    """Return the rule of an operation whose result is ``decisive`` if an argument is."""

    def rule(g: Graph, numbers, *args: int) -> int | None:
        for k in (0, 1):
            if numbers[k] is not None:
                return g.const(decisive) if bool(numbers[k]) is decisive else args[1 - k]
        return args[0] if args[0] == args[1] else None

    return rule


def _simple_log(g: Graph, numbers, a: int) -> int | None:
    node = g.nodes[a]
    if node.op == "exp":
        return node.args[0]
    if node.op == "sigmoid":
        return g.make("neg", g.make("softplus", g.make("neg", node.args[0])))
    return None


_POWERS: dict[Any, Callable[[Graph, int], int]] = {
    0: lambda g, a: g.const(1.0),
    1: lambda g, a: a,
    2: lambda g, a: g.make("mul", a, a),
    0.5: lambda g, a: g.make("sqrt", a),
    -1: lambda g, a: g.make("div", 1.0, a),
}
_SIMPLE: dict[str, Callable[..., int | None]] = {
    "add": _simple_add,
    "sub": _simple_sub,
    "mul": _simple_mul,
    "div": lambda g, numbers, a, b: a if numbers[1] == 1 or numbers[0] == 0 else None,
    "neg": lambda g, _, a: g.nodes[a].args[0] if g.nodes[a].op == "neg" else None,
    "switch": _simple_switch,
    "and": _simple_logical(False),
    "or": _simple_logical(True),
    "pow": lambda g, numbers, a, b: _POWERS[numbers[1]](g, a) if numbers[1] in _POWERS else None,
    "log": _simple_log,
    "ge": _simple_comparison(0),
    "le": _simple_comparison(1),
    "float": lambda g, _, a: a if g.nodes[a].kind == _FLOAT else None,
    "int": lambda g, _, a: a if g.nodes[a].kind == _INTEGER else None,
}


# --- rules of differentiation -------------------------------------------------------------------
# A rule takes the graph, the operation itself, the place k of an argument, and the arguments; it returns the derivative
# of the operation by argument k, a node or a float.


#: Piecewise constant operations; ``held`` is the identity, treated as a constant.
_FLAT = {*TRUTH, "held", "sign", "floor", "ceil", "int", "floordiv"}
#: Operations that choose between their last two arguments, and the comparison that selects the first.
_CHOICES = {"switch": "", "maximum": "ge", "minimum": "le"}
_TWO_OVER_ROOT_PI = 2.0 / math.sqrt(math.pi)


def _pow_rule(g, y, k, a, b):
    if k == 0:
        return g.make("mul", b, g.make("pow", a, g.make("sub", b, 1.0)))
    slope = g.make("mul", y, g.make("log", a))  # 0^b is constant
    return g.make("switch", g.make("eq", a, 0.0), 0.0, slope)


def _erf_rule(sign: float):
    def rule(g, y, k, x):
        square = g.make("mul", x, x)
        return g.make("mul", sign * _TWO_OVER_ROOT_PI, g.make("exp", g.make("neg", square)))

    return rule


DERIVATIVE_RULES: dict[str, Callable] = {
    "add": lambda g, y, k, a, b: 1.0,
    "float": lambda g, y, k, x: 1.0,
    "sub": lambda g, y, k, a, b: -1.0 if k else 1.0,
    "mul": lambda g, y, k, a, b: a if k else b,
    "div": lambda g, y, k, a, b: g.make("neg", g.make("div", y, b)) if k else g.make("div", 1.0, b),
    "neg": lambda g, y, k, x: -1.0,
    "pow": _pow_rule,
    "sqrt": lambda g, y, k, x: g.make("div", 0.5, y),
    "exp": lambda g, y, k, x: y,
    "expm1": lambda g, y, k, x: g.make("add", y, 1.0),
    "log": lambda g, y, k, x: g.make("div", 1.0, x),
    "log1p": lambda g, y, k, x: g.make("div", 1.0, g.make("add", 1.0, x)),
    "sigmoid": lambda g, y, k, x: g.make("mul", y, g.make("sub", 1.0, y)),
    "softplus": lambda g, y, k, x: g.make("sigmoid", x),
    "log1mexp": lambda g, y, k, x: g.make("neg", g.make("exp", g.make("sub", x, y))),
    "sin": lambda g, y, k, x: g.make("cos", x),
    "cos": lambda g, y, k, x: g.make("neg", g.make("sin", x)),
    "tanh": lambda g, y, k, x: g.make("sub", 1.0, g.make("mul", y, y)),
    "arctan": lambda g, y, k, x: g.make("div", 1.0, g.make("add", 1.0, g.make("mul", x, x))),
    "erf": _erf_rule(1.0),
    "erfc": _erf_rule(-1.0),
    "erfcx": lambda g, y, k, x: g.make(
        "sub", g.make("mul", 2.0, g.make("mul", x, y)), _TWO_OVER_ROOT_PI
    ),
    "gamma": lambda g, y, k, x: g.make("mul", y, g.make("digamma", x)),
    "gammaln": lambda g, y, k, x: g.make("digamma", x),
    "digamma": lambda g, y, k, x: g.make("trigamma", x),
    "trigamma": lambda g, y, k, x: g.make("tetragamma", x),
    "abs": lambda g, y, k, x: g.make("sign", x),
    "mod": lambda g, y, k, a, b: g.make("neg", g.make("floor", g.make("div", a, b))) if k else 1.0,
}
