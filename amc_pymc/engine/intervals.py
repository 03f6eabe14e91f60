"""Bounds of expressions over boxes, by interval arithmetic.

The bounds are expressions of the same graph, so they are evaluated, printed and compiled as all others. Results
are not rounded outwards: bounds hold up to some rounding errors of double precision.

Moore, Kearfott & Cloud (2009). Introduction to Interval Analysis. doi:10.1137/1.9780898717716.
"""

from __future__ import annotations

import math

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from amc_pymc.engine.graph import TRUTH, Graph, Node

#: Nodes of a lower and an upper bound; the same node if a value does not change within the box.
type Interval = tuple[int, int]

#: Place and value of the minimum of log Gamma on the positive numbers, a little lowered for rounding.
_GAMMA_AT, _GAMMA_LEAST = 1.4616321449683623, -0.1214862905358497 - 1e-13
#: Largest number of terms of a sum in which terms are compared.
_LONGEST_SUM = 40


def bounds(
    graph: Graph, outputs: Sequence[int], box: Mapping[int, int]
) -> tuple[list[Interval], int]:
    """Return bounds of expressions over a box, and whether their graph is smooth there.

    Parameters
    ----------
    graph : Graph
    outputs : sequence of int
        Nodes of floats.
    box : mapping of int to int
        Half-width of each leaf that varies: leaf n lies in [n - box[n], n + box[n]]. Others are constant.

    Returns
    -------
    intervals : list of (int, int)
        Nodes of lower and upper bounds. They are infinite or nan where nothing is known.
    smooth : int
        Node of a truth value. False if a condition, an absolute value or another operation with a kink or jump
        may change sides within the box.

    Examples
    --------
    >>> from amc_pymc.engine import Graph
    >>> from amc_pymc.engine.intervals import bounds
    >>> g = Graph()
    >>> x, width = g.leaf("local", 0), g.leaf("local", 1)
    >>> square = g.make("mul", g.make("sub", x, g.const(1.0)), g.make("sub", x, g.const(1.0)))
    >>> [(low, high)], smooth = bounds(g, [square], {x: width})
    >>> [float(v) for v in g.evaluate([low, high, smooth], local=[1.5, 1.0])]
    [0.0, 2.25, 1.0]
    """
    found = _Bounds(graph, outputs, box)
    intervals = [found.of(n) for n in outputs]
    return intervals, found.smooth


class _Bounds:
    """Bounds of the nodes of one graph over one box."""

    def __init__(self, graph: Graph, outputs: Sequence[int], box: Mapping[int, int]):
        self.g, self.smooth = graph, graph.const(True)
        self.form = cache(self._form)
        self._known: dict[int, Interval] = {
            n: (graph.make("sub", n, r), graph.make("add", n, r)) for n, r in box.items()
        }

        # Nodes whose values, not only whose sides of a condition, enter the outputs.
        self._values: set[int] = set()
        stack = list(outputs)
        while stack:
            n = stack.pop()
            node = graph.nodes[n]
            if n in self._values or node.op in TRUTH or node.op == "held":
                continue
            self._values.add(n)
            stack.extend(node.args[1:] if node.op == "switch" else node.args)

    def of(self, output: int) -> Interval:
        """Return the bounds of a node."""
        for n in self.g.upstream([output]):
            if n not in self._known:
                self._known[n] = self._computed(n)
        return self._known[output]

    def _computed(self, n: int) -> Interval:
        node = self.g.nodes[n]
        parts = [self._known[a] for a in node.args]
        if all(low == high for low, high in parts) or node.op == "held":
            return n, n  # what is held may have any value: it cancels
        if node.op in TRUTH:
            self.smooth = self.g.make("and", self.smooth, self._decided(node, parts))
            return n, n
        rule = _RULES.get(node.op)
        return rule(self, n, *parts) if rule else self.unknown()

    def require(self, n: int, condition: int) -> None:
        """Add a condition of smoothness if the value of a node matters."""
        if n in self._values:
            self.smooth = self.g.make("and", self.smooth, condition)

    def unknown(self) -> Interval:
        """Return bounds that say nothing."""
        return self.g.const(-math.inf), self.g.const(math.inf)

    def hull(self, nodes: Sequence[int]) -> Interval:
        """Return the smallest and largest of some values."""
        low = high = nodes[0]
        for n in nodes[1:]:
            low, high = self.g.make("minimum", low, n), self.g.make("maximum", high, n)
        return low, high

    def product(self, a: Interval, b: Interval) -> Interval:
        """Return the bounds of a product of two numbers that vary independently."""
        return self.hull(sorted({self.g.make("mul", x, y) for x in a for y in b}))

    def either(self, condition: int, yes: Interval, no: Interval) -> Interval:
        """Return the bounds that a condition selects."""
        low, high = (self.g.make("switch", condition, y, n) for y, n in zip(yes, no))
        return low, high

    # --- sums, in which what is added and subtracted cancels ------------------------------------------

    def _form(self, n: int) -> dict[int, float]:
        """Return the factors of the nodes of which a node is a linear combination; -1 stands for 1."""
        node, number = self.g.nodes[n], self.g.number(n)
        if number is not None and math.isfinite(number):
            return {-1: float(number)}
        if node.op in ("neg", "float"):
            return _combined(self.form(node.args[0]), {}, -1.0 if node.op == "neg" else 1.0)
        if node.op in ("add", "sub"):
            a, b = map(self.form, node.args)
            found = _combined(b, a, 1.0 if node.op == "add" else -1.0)
            return found if len(found) <= _LONGEST_SUM else {n: 1.0}
        return {n: 1.0}

    def sum(self, form: Mapping[int, float]) -> Interval:
        """Return the bounds of a linear combination of nodes with known bounds."""
        g = self.g
        low = high = g.const(form.get(-1, 0.0))
        for n, factor in form.items():
            if n >= 0:
                ends = self._known[n] if factor > 0.0 else self._known[n][::-1]
                low, high = (
                    g.make("add", total, g.make("mul", factor, end))
                    for total, end in zip((low, high), ends)
                )
        return low, high

    # --- conditions -----------------------------------------------------------------------------------

    def _decided(self, node: Node, parts: Sequence[Interval]) -> int:
        """Return whether a condition has one value in the box."""
        g = self.g
        if node.op in ("and", "or", "xor", "not"):
            return g.const(True)  # if its arguments have
        if node.op in ("isnan", "isinf"):
            ((low, high),) = parts
            return g.make("lt", g.make("sub", high, low), math.inf)
        low, high = self._difference(*node.args)
        above, below = (
            "ge" if node.op in ("ge", "lt") else "gt",
            "le" if node.op in ("le", "gt") else "lt",
        )
        return g.make("or", g.make(above, low, 0.0), g.make(below, high, 0.0))

    def _difference(self, a: int, b: int) -> Interval:
        """Return bounds of a - b, or of another number with the same sign."""
        form = _combined(self.form(b), self.form(a), -1.0)
        if sorted(form.values()) == [-1.0, 1.0] and -1 not in form:
            x, y = (self.g.nodes[n] for n in sorted(form, key=lambda n: -form[n]))
            if x.op == y.op and x.op in _INCREASING:  # f(x) - f(y) has the sign of x - y
                form = _combined(self.form(y.args[0]), self.form(x.args[0]), -1.0)
        return self.sum(form)


def _combined(a: Mapping[int, float], b: Mapping[int, float], factor: float) -> dict[int, float]:
    """Return ``factor`` a + b."""
    out = dict(b)
    for n, value in a.items():
        out[n] = out.get(n, 0.0) + factor * value
    return {n: value for n, value in out.items() if value != 0.0}


# --- rules ----------------------------------------------------------------------------------------------

#: Takes a node and the bounds of its arguments; returns its own.
type Rule = Callable[..., Interval]


def _rising(b: _Bounds, n: int, *parts: Interval) -> Interval:
    low, high = (b.g.again(n, ends) for ends in zip(*parts))
    return low, high


def _falling(b: _Bounds, n: int, *parts: Interval) -> Interval:
    return _rising(b, n, *parts)[::-1]


def _sum(b: _Bounds, n: int, x: Interval, y: Interval) -> Interval:
    """Add or subtract; terms that both arguments contain vary together."""
    node, form = b.g.nodes[n], b.form(n)
    if n not in form and len(form) < sum(len(b.form(a)) for a in node.args):
        return b.sum(form)
    return _rising(b, n, x, y[::-1] if node.op == "sub" else y)


def _mul(b: _Bounds, n: int, x: Interval, y: Interval) -> Interval:
    first, second = b.g.nodes[n].args
    return _valley(b, n, x) if first == second else b.product(x, y)


def _div(b: _Bounds, n: int, x: Interval, y: Interval) -> Interval:
    inverse = b.g.make("div", 1.0, y[1]), b.g.make("div", 1.0, y[0])
    return b.either(_one_side(b, y), b.product(x, inverse), b.unknown())


def _pow(b: _Bounds, n: int, x: Interval, y: Interval) -> Interval:
    power = b.g.number(b.g.nodes[n].args[1])
    if power is not None and float(power).is_integer() and power > 0:
        return _rising(b, n, x, y) if power % 2 else _valley(b, n, x)
    corners = {b.g.make("pow", base, exponent) for base in x for exponent in y}
    return b.either(b.g.make("gt", x[0], 0.0), b.hull(sorted(corners)), b.unknown())


def _valley(b: _Bounds, n: int, part: Interval, place: float = 0.0, least: float = 0.0) -> Interval:
    """Return the bounds of a function of the first argument that falls up to a place and rises from there."""
    g, (low, high), args = b.g, part, b.g.nodes[n].args
    ends = b.hull([g.again(n, [end if a == args[0] else a for a in args]) for end in part])
    inside = g.make("and", g.make("le", low, place), g.make("ge", high, place))
    return g.make("switch", inside, least, ends[0]), ends[1]


def _one_side(b: _Bounds, part: Interval) -> int:
    """Return whether an interval does not contain zero."""
    return b.g.make("or", b.g.make("gt", part[0], 0.0), b.g.make("lt", part[1], 0.0))


def _if_on_one_side(rule: Rule) -> Rule:
    """Return a rule for a function with a kink or jump at zero."""

    def smooth(b: _Bounds, n: int, x: Interval) -> Interval:
        b.require(n, _one_side(b, x))
        return rule(b, n, x)

    return smooth


def _steps(b: _Bounds, n: int, x: Interval) -> Interval:
    """Return the bounds of a piecewise constant function."""
    low, high = _rising(b, n, x)
    b.require(n, b.g.make("eq", low, high))
    return low, high


def _chosen(b: _Bounds, n: int, x: Interval, y: Interval) -> Interval:
    """Return the bounds of a maximum or minimum, smooth if one argument is larger throughout."""
    g = b.g
    b.require(n, g.make("or", g.make("gt", x[0], y[1]), g.make("gt", y[0], x[1])))
    return _rising(b, n, x, y)


def _if_positive(rule: Rule) -> Rule:
    """Return a rule that holds for positive arguments."""
    return lambda b, n, x: b.either(b.g.make("gt", x[0], 0.0), rule(b, n, x), b.unknown())


_INCREASING = set("exp expm1 log log1p sqrt sigmoid softplus tanh arctan erf float".split())
#: Operations that are not in this table, such as a sine, have unknown bounds.
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_INCREASING, _rising),
    **dict.fromkeys(("neg", "erfc", "erfcx", "log1mexp"), _falling),
    **dict.fromkeys(("add", "sub"), _sum),
    **dict.fromkeys(("floor", "ceil", "int"), _steps),
    **dict.fromkeys(("maximum", "minimum"), _chosen),
    "mul": _mul,
    "div": _div,
    "pow": _pow,
    "abs": _if_on_one_side(_valley),
    "sign": _if_on_one_side(_rising),
    "gammaln": _if_positive(lambda b, n, x: _valley(b, n, x, _GAMMA_AT, _GAMMA_LEAST)),
    "digamma": _if_positive(_rising),
    "trigamma": _if_positive(_falling),
    "tetragamma": _if_positive(_rising),
    "switch": lambda b, n, condition, yes, no: b.either(condition[0], yes, no),
}
