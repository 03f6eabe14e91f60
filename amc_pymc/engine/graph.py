"""Graphs of scalar expressions, their derivatives and their dependencies.

A row's log-likelihood is one number computed from the row's data, parameters and the local effects of
its group. As a graph of scalar operations it can be differentiated and printed as code
(:mod:`amc_pymc.engine.printer`). Equal expressions are one node, so a derivative shares
subexpressions with the value.
"""

from __future__ import annotations

import math

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from functools import cache, partial, reduce
from operator import or_
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
    >>> x = g.make("local", value=0)
    >>> y = g.make("mul", x, g.make("exp", x))
    >>> slope = g.derivative(y, x)
    >>> [float(v) for v in g.evaluate([y, slope], local=[1.0])]
    [2.718281828459045, 5.43656365691809]
    """

    nodes: list[Node] = field(default_factory=list)
    #: Of each node: its value if it is a constant, else None.
    numbers: list[Any] = field(default_factory=list)
    #: Of each node: the sum of the flags ``ROW``, ``GROUP`` and ``LOCAL`` that apply to it.
    depends: list[int] = field(default_factory=list)
    _known: dict[Node, int] = field(default_factory=dict)

    # --- building -------------------------------------------------------------------------------

    def const(self, value) -> int:
        """Add a constant, whose kind is that of the Python value."""
        if isinstance(value, bool):
            return self.make("const", value=value, kind=_BOOLEAN)
        if isinstance(value, int):
            return self.make("const", value=value, kind=_INTEGER)
        value = float(value)
        # -0.0 and 0.0 are equal but not the same, and nan equals nothing.
        return self.make("const", value=value.hex() if value == value else "nan")

    def make(self, op: str, *given: float, value: Any = None, kind: str = _FLOAT) -> int:
        """Add a leaf or an operation, unless there is an equal one; return its number.

        Parameters
        ----------
        op : str
        *given : int or float
            Arguments: nodes, or floats in the place of constants. That of an ``entry`` is its position, an integer node.
        value : object, optional
            Content of a leaf. Operations, which have none, are simplified where this is easy.
        kind : str
            Kind of a leaf.
        """
        args = tuple(self.const(a) if isinstance(a, float) else int(a) for a in given)
        if value is None:
            numbers = [self.numbers[a] for a in args]
            if op != "held" and None not in numbers:
                with np.errstate(all="ignore"):  # truth values count as 0 and 1
                    return self.const(ARRAY[op](*(+v for v in numbers)).item())
            simple = _simplified(self, op, numbers, args)
            if simple is not None:
                return simple
            kinds = [self.nodes[a].kind for a in args]
            if op == "switch":
                kind = _FLOAT if _FLOAT in kinds[1:] else max(kinds[1:])
            elif op in TRUTH:
                kind = _BOOLEAN
            elif op == "int" or (op in _KEEPS_KIND and _FLOAT not in kinds):
                kind = _INTEGER
        node = Node(op, args, value, kind)
        if node not in self._known:
            self._known[node] = len(self.nodes)
            self.nodes.append(node)
            hexadecimal = op == "const" and isinstance(value, str)
            number = float.fromhex(value) if hexadecimal else value
            self.numbers.append(number if op == "const" else None)
            own = {"column": ROW, "dot": ROW, "group": GROUP, "local": LOCAL}.get(op, 0)
            self.depends.append(reduce(or_, (self.depends[a] for a in args), own))
        return self._known[node]

    def fold(self, op: str, nodes: Sequence[int]) -> int:
        """Add an operation of two arguments on several nodes; 0, the empty sum, if there are none."""
        return reduce(partial(self.make, op), nodes) if nodes else self.const(0.0)

    # --- reading --------------------------------------------------------------------------------

    def upstream(self, nodes: Sequence[int], known: Container[int] = ()) -> list[int]:
        """Return nodes and their ancestors, arguments first, without known ones and what is needed for these alone."""
        seen: set[int] = set()
        stack = list(nodes)
        while stack:
            n = stack.pop()
            if n not in seen and n not in known:
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
                place = self.numbers[args[0]]
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
            op, before, value, _ = self.nodes[n]
            args = tuple(memo[a] for a in before)
            if n in change:
                memo[n] = change[n]
            else:
                memo[n] = n if args == before else self.make(op, *args, value=value)
        return [memo[n] for n in nodes]

    # --- derivatives ----------------------------------------------------------------------------

    def derivative(self, node: int, by: int | str) -> int:
        """Return the derivative of a node by a leaf, or along a direction of "eta".

        Parameters
        ----------
        node : int
        by : int or str
            A leaf, or another node that is treated as one; or the name of an array, which holds the derivatives of the
            entries of "eta". All other leaves are constant.
        """
        slopes: dict[int, int | None] = {}  # None is zero
        for n in self.upstream([node]):
            op, args, value, _ = self.nodes[n]
            given, slope = [slopes[a] for a in args], None
            if n == by:
                slope = self.const(1.0)
            elif isinstance(by, str) and op == "entry" and value == "eta":
                slope = self.make("entry", args[0], value=by)
            elif isinstance(by, str) and op == "dot" and value[0] == "eta":
                slope = self.make("dot", value=(by, *value[1:]))
            elif op in _CHOICES and any(s is not None for s in given):
                # Between derivatives, as that which is not chosen may be infinite.
                condition = self.make(_CHOICES[op], *args) if _CHOICES[op] else args[0]
                pair = [0.0 if s is None else s for s in given[-2:]]
                slope = self.make("switch", condition, *pair)
            elif op not in _FLAT and op not in _LEAVES and any(s is not None for s in given):
                if op not in DERIVATIVE_RULES:
                    raise NotImplementedError(f"{op} has no derivative here")
                rule = DERIVATIVE_RULES[op]
                terms = [
                    self.make("mul", rule(self, n, k, *args), s)
                    for k, s in enumerate(given)
                    if s is not None
                ]
                slope = self.fold("add", terms)
            slopes[n] = None if slope is None or self.numbers[slope] == 0.0 else slope
        found = slopes[node]
        return self.const(0.0) if found is None else found

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
                    values[n] = self.numbers[n]
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
                    given = [np.asarray(values[a]) for a in node.args]
                    if node.op not in TRUTH:  # truth values count as 0 and 1
                        given = [v.astype(np.int64) if v.dtype.kind == "b" else v for v in given]
                    values[n] = ARRAY[node.op](*given)
        return [values[n] for n in nodes]


# --- simplification -----------------------------------------------------------------------------

#: Operations with a constant argument: operation, place and value of the constant, place of the argument that it equals.
_IDENTITIES = {
    ("add", 0, 0): 1,
    ("add", 1, 0): 0,
    ("sub", 1, 0): 0,
    ("mul", 0, 1): 1,
    ("mul", 1, 1): 0,
    ("mul", 0, 0): 0,
    ("mul", 1, 0): 1,
    ("div", 1, 1): 0,
    ("div", 0, 0): 0,
    ("pow", 1, 1): 0,
}
#: The same if it is the negative of the argument.
_NEGATIVES = {("sub", 0, 0): 1, ("mul", 0, -1): 1, ("mul", 1, -1): 0}
#: Powers by their exponents.
_POWERS: dict[Any, Callable[[Graph, int], int]] = {
    0: lambda g, a: g.const(1.0),
    2: lambda g, a: g.make("mul", a, a),
    0.5: lambda g, a: g.make("sqrt", a),
    -1: lambda g, a: g.make("div", 1.0, a),
}


def _simplified(g: Graph, op: str, numbers: Sequence[Any], args: tuple[int, ...]) -> int | None:
    """Return a node that equals an operation; None if no rule applies. ``numbers`` are the values of constants."""
    for k, number in enumerate(numbers):
        if (op, k, number) in _IDENTITIES:
            return args[_IDENTITIES[op, k, number]]
        if (op, k, number) in _NEGATIVES:
            return g.make("neg", args[_NEGATIVES[op, k, number]])
        if op in ("and", "or") and number is not None:
            return g.const(op == "or") if bool(number) is (op == "or") else args[1 - k]
    given = [g.nodes[a] for a in args]
    match op, [node.op for node in given]:
        case "add", ["sub", _] if given[0].args[1] == args[1]:  # (c - y) + y
            return given[0].args[0]
        case "add", [_, "sub"] if given[1].args[1] == args[0]:
            return given[1].args[0]
        case "sub", ["sub", "sub"] if given[0].args[1] == given[1].args[1]:  # (x - c) - (y - c)
            return g.make("sub", given[0].args[0], given[1].args[0])
        case "mul", [_, "div"] if given[1].args[1] == args[0]:  # a * (b / a)
            return given[1].args[0]
        case "mul", ["div", _] if given[0].args[1] == args[1]:
            return given[0].args[0]
        case ("neg", ["neg"]) | ("log", ["exp"]):
            return given[0].args[0]
        case "log", ["sigmoid"]:
            return g.make("neg", g.make("softplus", g.make("neg", given[0].args[0])))
        case (("ge" | "le"), ["sigmoid", _]) if numbers[1] == ("ge", "le").index(op):
            return g.const(True)  # it lies between 0 and 1
        case (("and" | "or"), _) if args[0] == args[1]:
            return args[0]
        case (("float" | "int"), _) if given[0].kind == op[0]:
            return args[0]
        case "pow", _ if numbers[1] in _POWERS:
            return _POWERS[numbers[1]](g, args[0])
        case "switch", _ if numbers[0] is not None:
            return args[1] if numbers[0] else args[2]
        case "switch", [_, yes, no]:
            pairs = list(zip(given[1].args, given[2].args))
            differ = [k for k, (a, b) in enumerate(pairs) if a != b]
            if args[1] == args[2]:
                return args[1]
            if yes == no and yes not in {*_LEAVES, "switch"} and len(differ) == 1:
                # switch(c, f(a), f(b)) is f(switch(c, a, b)): one evaluation instead of two.
                inner = [a for a, _ in pairs]
                inner[differ[0]] = g.make("switch", args[0], *pairs[differ[0]])
                return g.make(yes, *inner)
    return None


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


# --- families of coefficients -------------------------------------------------------------------
# In ``X @ (tau * scale * z)`` each column of data is multiplied by an expression of its own. All have
# the same form: they differ in constants and in the entries of parameters that they read. One expression
# represents them all, with columns of a table for what differs, so the code printed for a model does not
# grow with the number of its coefficients.


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


@dataclass(eq=False)
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
    >>> sd = g.make("exp", g.make("entry", g.const(0), value="eta"))
    >>> effects = [g.make("mul", sd, g.make("entry", g.const(k), value="eta")) for k in (1, 2, 3)]
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

    graph: Graph
    begin: int = 0
    all: list[Family] = field(default_factory=list, init=False)
    _known: dict[tuple[int, ...], int] = field(default_factory=dict, init=False)

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
            self._known[key] = self.begin + size
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
            columns.append(np.array([graph.numbers[n] for n in nodes], float))
            return graph.make("column", value=len(columns) - 1, kind=first.kind)
        if not first.args or any(n.value != first.value for n in found):
            return None
        args = [common(part) for part in zip(*(n.args for n in found))]
        if None in args:
            return None
        return graph.make(first.op, *(a for a in args if a is not None), value=first.value)

    return common(nodes), columns
