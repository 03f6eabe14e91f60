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
_LEAVES = {"const", "column", "group", "local", "dot"}

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
        simple = _SIMPLE[op](self, args, numbers) if op in _SIMPLE else None
        if simple is not None:
            return simple
        kinds = [self.nodes[a].kind for a in args]
        if op == "switch":
            kind = _FLOAT if _FLOAT in kinds[1:] else max(kinds[1:])
        elif op in TRUTH:
            kind = _BOOLEAN
        elif op == "int":
            kind = _INTEGER
        elif op in _KEEPS_KIND and _FLOAT not in kinds:
            kind = _INTEGER
        else:
            kind = _FLOAT
        return self._add(Node(op, args, None, kind))

    def number(self, node: int):
        """Return the value of a constant node, else None."""
        n = self.nodes[node]
        if n.op != "const":
            return None
        return float.fromhex(n.value) if isinstance(n.value, str) else n.value

    def sum(self, nodes: Sequence[int]) -> int:
        """Add the sum of nodes; 0 if there are none."""
        total = self.const(0.0)
        for n in nodes:
            total = self.make("add", total, n)
        return total

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
            node = self.nodes[n]
            args = tuple(memo[a] for a in node.args)
            if args == node.args:
                memo[n] = n
            elif node.op == "entry":
                memo[n] = self.entry(str(node.value), args[0])
            else:
                memo[n] = self.make(node.op, *args)
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
            found = self.nodes[n]
            if out[n] is not None or found.op in _LEAVES or found.op == "entry":
                continue
            total = self._tangent(n, [out[a] for a in found.args])
            out[n] = None if total is None or self.number(total) == 0.0 else total
        slope = out[node]
        return self.const(0.0) if slope is None else slope

    def _tangent(self, n: int, slopes: Sequence[int | None]) -> int | None:
        """Return the derivative of an operation from those of its arguments."""
        node = self.nodes[n]
        if node.op in _FLAT or all(s is None for s in slopes):
            return None
        if node.op in _CHOICES:
            return self._chosen_tangent(node, slopes)
        if node.op not in DERIVATIVE_RULES:
            raise NotImplementedError(f"{node.op} has no derivative here")
        rule = DERIVATIVE_RULES[node.op]
        terms = (
            self.make("mul", rule(self, node.args, n, k), slope)
            for k, slope in enumerate(slopes)
            if slope is not None
        )
        return self.sum(list(terms))

    def _chosen_tangent(self, node: Node, slopes: Sequence[int | None]) -> int | None:
        """Select the derivative of the chosen argument, because that of the other may be infinite."""
        if node.op == "switch":
            condition = node.args[0]
        else:
            condition = self.make(_CHOICES[node.op], *node.args)
        if slopes[-2] is None and slopes[-1] is None:
            return None
        yes, no = (0.0 if s is None else s for s in slopes[-2:])
        return self.make("switch", condition, yes, no)

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
                    values[n] = np.asarray(
                        sources[node.op][node.value], np.int64 if node.kind == _INTEGER else float
                    )
                elif node.op == "entry":
                    values[n] = np.asarray(arrays[node.value])[values[node.args[0]]]
                elif node.op == "dot":
                    name, first, columns = node.value
                    at = arrays[name][first : first + len(columns)]
                    values[n] = sum(np.asarray(row[c], float) * b for c, b in zip(columns, at))
                else:
                    arguments = [values[a] for a in node.args]
                    if node.op not in TRUTH:
                        arguments = [_as_number(a) for a in arguments]
                    values[n] = ARRAY[node.op](*arguments)
        return [values[n] for n in nodes]


def _as_number(value):
    """Convert truth values to 0 and 1."""
    value = np.asarray(value)
    return value.astype(np.int64) if value.dtype.kind == "b" else value


# --- simplification -----------------------------------------------------------------------------


def _simple_add(g: Graph, args, numbers) -> int | None:
    a, b = args
    if numbers[0] == 0:
        return b
    for x, y in ((a, b), (b, a)):  # (c - y) + y
        if g.nodes[x].op == "sub" and g.nodes[x].args[1] == y:
            return g.nodes[x].args[0]
    return a if numbers[1] == 0 else None


def _simple_sub(g: Graph, args, numbers) -> int | None:
    if numbers[1] == 0:
        return args[0]
    a, b = (g.nodes[n] for n in args)
    if a.op == b.op == "sub" and a.args[1] == b.args[1]:  # (x - c) - (y - c)
        return g.make("sub", a.args[0], b.args[0])
    return g.make("neg", args[1]) if numbers[0] == 0 else None


def _simple_mul(g: Graph, args, numbers) -> int | None:
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


def _simple_div(g: Graph, args, numbers) -> int | None:
    if numbers[1] == 1:
        return args[0]
    return args[0] if numbers[0] == 0 else None


def _simple_neg(g: Graph, args, numbers) -> int | None:
    node = g.nodes[args[0]]
    return node.args[0] if node.op == "neg" else None


def _simple_switch(g: Graph, args, numbers) -> int | None:
    condition, yes, no = args
    if numbers[0] is not None:
        return yes if numbers[0] else no
    if yes == no:
        return yes
    # switch(c, f(a), f(b)) is f(switch(c, a, b)): one evaluation instead of two.
    left, right = g.nodes[yes], g.nodes[no]
    if left.op != right.op or left.op in _LEAVES or left.op == "entry" or left.op == "switch":
        return None
    differ = [k for k, (a, b) in enumerate(zip(left.args, right.args)) if a != b]
    if len(differ) != 1:
        return None
    (k,) = differ
    inside = g.make("switch", condition, left.args[k], right.args[k])
    return g.make(left.op, *(inside if j == k else a for j, a in enumerate(left.args)))


def _simple_comparison(op: str) -> Callable:
    """Return a rule that knows that a sigmoid lies between 0 and 1."""

    def rule(g: Graph, args, numbers) -> int | None:
        if g.nodes[args[0]].op == "sigmoid" and numbers[1] == {"ge": 0, "le": 1}[op]:
            return g.const(True)
        return None

    return rule


def _simple_logical(decisive: bool) -> Callable:
    """Return the rule of an operation whose result is ``decisive`` if an argument is."""

    def rule(g: Graph, args, numbers) -> int | None:
        for k in (0, 1):
            if numbers[k] is not None:
                return g.const(decisive) if bool(numbers[k]) is decisive else args[1 - k]
        return args[0] if args[0] == args[1] else None

    return rule


def _simple_pow(g: Graph, args, numbers) -> int | None:
    powers: dict[Any, Callable[[int], int]] = {
        0: lambda a: g.const(1.0),
        1: lambda a: a,
        2: lambda a: g.make("mul", a, a),
    }
    powers |= {0.5: lambda a: g.make("sqrt", a), -1: lambda a: g.make("div", 1.0, a)}
    rule = powers.get(numbers[1])
    return rule(args[0]) if rule else None


def _simple_log(g: Graph, args, numbers) -> int | None:
    node = g.nodes[args[0]]
    if node.op == "exp":
        return node.args[0]
    if node.op == "sigmoid":
        return g.make("neg", g.make("softplus", g.make("neg", node.args[0])))
    return None


def _simple_same_kind(kind: str) -> Callable:
    return lambda g, args, numbers: args[0] if g.nodes[args[0]].kind == kind else None


_SIMPLE: dict[str, Callable[[Graph, tuple, list], int | None]] = {
    "add": _simple_add,
    "sub": _simple_sub,
    "mul": _simple_mul,
    "div": _simple_div,
    "neg": _simple_neg,
    "switch": _simple_switch,
    "and": _simple_logical(False),
    "or": _simple_logical(True),
    "pow": _simple_pow,
    "log": _simple_log,
    "ge": _simple_comparison("ge"),
    "le": _simple_comparison("le"),
    "float": _simple_same_kind(_FLOAT),
    "int": _simple_same_kind(_INTEGER),
}


# --- rules of differentiation -------------------------------------------------------------------
# A rule takes the graph, the arguments, the operation itself and the place k of an argument; it returns the derivative
# of the operation by that argument, a node or a float.


#: Piecewise constant operations; ``held`` is the identity, treated as a constant.
_FLAT = {*TRUTH, "held", "sign", "floor", "ceil", "int", "floordiv"}
#: Operations that choose between their last two arguments, and the comparison that selects the first.
_CHOICES = {"switch": "", "maximum": "ge", "minimum": "le"}
_TWO_OVER_ROOT_PI = 2.0 / math.sqrt(math.pi)


def _div_rule(g, args, y, k):
    if k == 0:
        return g.make("div", 1.0, args[1])
    return g.make("neg", g.make("div", y, args[1]))


def _pow_rule(g, args, y, k):
    a, b = args
    if k == 0:
        return g.make("mul", b, g.make("pow", a, g.make("sub", b, 1.0)))
    slope = g.make("mul", y, g.make("log", a))  # 0^b is constant
    return g.make("switch", g.make("eq", a, 0.0), 0.0, slope)


def _erf_rule(sign: float):
    def rule(g, args, y, k):
        square = g.make("mul", args[0], args[0])
        return g.make("mul", sign * _TWO_OVER_ROOT_PI, g.make("exp", g.make("neg", square)))

    return rule


def _erfcx_rule(g, args, y, k):
    twice = g.make("mul", 2.0, g.make("mul", args[0], y))
    return g.make("sub", twice, _TWO_OVER_ROOT_PI)


def _log1mexp_rule(g, args, y, k):
    return g.make("neg", g.make("exp", g.make("sub", args[0], y)))


def _arctan_rule(g, args, y, k):
    return g.make("div", 1.0, g.make("add", 1.0, g.make("mul", args[0], args[0])))


def _by(op: str):
    return lambda g, args, y, k: g.make(op, args[0])


DERIVATIVE_RULES: dict[str, Callable] = {
    "add": lambda g, args, y, k: 1.0,
    "float": lambda g, args, y, k: 1.0,
    "sub": lambda g, args, y, k: -1.0 if k else 1.0,
    "mul": lambda g, args, y, k: args[1 - k],
    "div": _div_rule,
    "neg": lambda g, args, y, k: -1.0,
    "pow": _pow_rule,
    "sqrt": lambda g, args, y, k: g.make("div", 0.5, y),
    "exp": lambda g, args, y, k: y,
    "expm1": lambda g, args, y, k: g.make("add", y, 1.0),
    "log": lambda g, args, y, k: g.make("div", 1.0, args[0]),
    "log1p": lambda g, args, y, k: g.make("div", 1.0, g.make("add", 1.0, args[0])),
    "sigmoid": lambda g, args, y, k: g.make("mul", y, g.make("sub", 1.0, y)),
    "softplus": _by("sigmoid"),
    "log1mexp": _log1mexp_rule,
    "sin": _by("cos"),
    "cos": lambda g, args, y, k: g.make("neg", g.make("sin", args[0])),
    "tanh": lambda g, args, y, k: g.make("sub", 1.0, g.make("mul", y, y)),
    "arctan": _arctan_rule,
    "erf": _erf_rule(1.0),
    "erfc": _erf_rule(-1.0),
    "erfcx": _erfcx_rule,
    "gamma": lambda g, args, y, k: g.make("mul", y, g.make("digamma", args[0])),
    "gammaln": _by("digamma"),
    "digamma": _by("trigamma"),
    "trigamma": _by("tetragamma"),
    "abs": _by("sign"),
    "mod": lambda g, args, y, k: g.make("neg", g.make("floor", g.make("div", *args))) if k else 1.0,
}
