"""Bounds of the third-order remainder of rows, for decisions that read few rows.

The *arguments* of a row's log-likelihood are the largest parts of its expression that are affine in the parameters
eta: linear predictors and shared scalars. Let R be the log-likelihood minus its second-order Taylor polynomial around
a centre, and d_a the change of argument a. By Taylor's theorem,

    |R(eta)| <= 1/6 sum_abc sup |l_abc| |d_a d_b d_c|,

with third derivatives l_abc by arguments and suprema over a box that contains eta and the centre. The parameters are
in *blocks* (:class:`amc_pymc.tall.decisions.Blocks`), of which a row reads some, with lengths p_j of their changes,
and |d_a| <= sum_j A_aj p_j. Let t_j be a typical length, u_a = sum_j A_aj t_j, and E_a the part of the sum above,
with u in the place of d, that is due to argument a: a third of a term for each time that a occurs in it. Products
are at most means of powers, and powers of means at most means of powers, so

    |R(eta)| <= sum_j c_j p_j^3,    c_j = sum_a E_a A_aj / (u_a t_j^2).

Suprema are found by interval arithmetic. Bounds of expressions are expressions of the same graph, so they are
evaluated, printed and compiled as all others. They are not rounded outwards: they hold up to some rounding errors of
double precision.

Moore, Kearfott & Cloud (2009). Introduction to Interval Analysis. doi:10.1137/1.9780898717716.
"""

from __future__ import annotations

import math

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from amc_pymc.engine import ROW, Graph
from amc_pymc.engine.graph import TRUTH, Node
from amc_pymc.engine.jit import njit
from amc_pymc.engine.printer import ROWS, Printed, Printer, call, of_parameters, room_of
from amc_pymc.engine.row_kernels.loops import (
    DOTS_AT,
    MOST_OPERATIONS,
    N_DOTS,
    N_ENTRIES,
    RowProgram,
    gather,
    product,
)

#: Number of arguments; stages: their gradients by leaves, and the bound.
_N_ARGUMENTS, _GRADIENTS, _BOUND, _END = (DOTS_AT + k for k in (1, 2, 6, 10))

_compiled = njit(cache=True)


def arguments_of(graph: Graph, row: int) -> list[int]:
    """Return the largest parts of an expression that are affine in eta, without constants and signs.

    Examples
    --------
    >>> from amc_pymc.engine import ROW, Graph
    >>> from amc_pymc.engine.row_kernels.bounds import arguments_of
    >>> g = Graph()
    >>> slope, log_sd = (
    ...     g.make("entry", g.const(0), value="eta"),
    ...     g.make("entry", g.const(1), value="eta"),
    ... )
    >>> mean = g.make("mul", g.make("column", value=0), slope)
    >>> scaled = g.make(
    ...     "div", g.make("sub", g.make("column", value=1), mean), g.make("exp", log_sd)
    ... )
    >>> arguments_of(g, g.make("mul", scaled, scaled)) == [log_sd, mean]
    True
    """
    affine = graph.affine(row)
    found, seen, stack = set(), set(), [row]
    while stack:
        n = stack.pop()
        if n in seen or n not in affine:
            continue
        seen.add(n)
        node = graph.nodes[n]
        varying = [a for a in node.args if a in affine]
        offset = node.op in ("add", "sub", "neg", "float") and len(varying) == 1
        if affine[n] and not offset:
            found.add(n)
        else:
            stack.extend(node.args)
    for n in sorted(found, reverse=True):  # a sum of other arguments is none itself
        parts = {a for a in graph.nodes[n].args if a in affine}
        if graph.nodes[n].op in ("add", "sub") and parts <= found:
            found.remove(n)
    return sorted(found)


@dataclass(frozen=True, eq=False)
class RowBounds:
    """Bounds of the rows of a model.

    Attributes
    ----------
    program : RowProgram
    printed : Printed
    parts : list of (n, C) arrays
        Data of the rows.
    n_arguments : int
    dense : (W,) int array
        Positions of eta that are read by all rows, as parts of their linear predictors.
    release : callable
        Called after each part has been read, to release its memory.
    """

    program: RowProgram
    printed: Printed
    parts: list[np.ndarray]
    n_arguments: int
    dense: np.ndarray
    release: Callable[[], None]

    def positions(self, centre: np.ndarray) -> np.ndarray:
        """Return the positions of eta (A, N) of the entries that each row reads."""
        graph = self.program.graph
        entries = graph.leaves([self.program.row], "entry")
        places = [graph.nodes[n].args[0] for n in entries]
        out, begin = np.empty((len(places), sum(map(len, self.parts))), np.int32), 0
        for part in self.parts:
            found = graph.evaluate(places, row=part.T, eta=centre)
            for a, positions in enumerate(found):
                out[a, begin : begin + len(part)] = positions
            begin += len(part)
            self.release()
        return out

    def __call__(
        self, centre: np.ndarray, blocks: Any, radii: np.ndarray, sizes: np.ndarray, cuts: int
    ) -> np.ndarray:
        """Return factors c_j (1 + A, N) of all rows; see :func:`third_bounds`."""
        own = blocks.place, blocks.gains, blocks.sds, blocks.covariance, blocks.dense.size
        args = radii, sizes, cuts, centre, *own
        out = []
        for part in self.parts:
            out.append(third_bounds(*args, part, *self.printed.arrays))
            self.release()
        return np.concatenate(out, axis=1)


def row_bounds(
    program: RowProgram, data: np.ndarray, release: Callable[[], None]
) -> RowBounds | None:
    """Return bounds of rows; None if their expression has no third derivatives, or is too large.

    Parameters
    ----------
    program : RowProgram
        It must not have families.
    data : (N, C) array
    release : callable
        Called after some rows have been read, to release their memory.
    """
    g = program.graph
    entries, dots = (g.leaves([program.row], op) for op in ("entry", "dot"))
    arguments = arguments_of(g, program.row)
    n = len(arguments)
    # Offsets from the centre, half-widths of a box of arguments, and their typical changes follow the data.
    offsets, widths, sizes = (
        [g.make("column", value=program.n_columns + first + k) for k in range(n)]
        for first in (0, n, 2 * n)
    )
    middles = [g.make("add", a, offset) for a, offset in zip(arguments, offsets)]
    (row,) = g.replaced([program.row], dict(zip(arguments, middles)))
    try:
        sums = _remainder_bounds(g, row, dict(zip(middles, widths)), dict(zip(middles, sizes)))
    except NotImplementedError:
        sums = None
    if sums is None:
        return None
    slopes = [g.derivative(a, leaf) for a in arguments for leaf in (*entries, *dots)]
    p = Printer(g)
    stages = [
        *p.stage("slopes", ("eta",), slopes, [g.nodes[e].args[0] for e in entries]),
        *p.stage("bound", ("eta",), sums),
    ]
    head = (len(entries), len(dots), program.n_columns, _END, n)
    printed = p.printed((*head, *stages), dots)
    # Positions that all rows read: entries of linear predictors, but not of shared arguments alone, and of products.
    own = [a for a in arguments if g.depends[a] & ROW]
    shared = [a for a in arguments if a not in own]
    read = {*g.leaves(own, "entry")} - {*g.leaves(shared, "entry")}
    numbers = [g.numbers[g.nodes[e].args[0]] for e in read]
    dense = {int(k) for k in numbers if k is not None}
    for _, first, columns in (g.nodes[d].value for d in g.leaves(arguments, "dot")):
        dense.update(range(first, first + len(columns)))
    parts = np.split(data, range(_CHUNK, len(data), _CHUNK))
    return RowBounds(program, printed, parts, n, np.array(sorted(dense), np.int64), release)


def _remainder_bounds(
    g: Graph, row: int, widths: dict[int, int], sizes: dict[int, int]
) -> list[int] | None:
    """Return the part E_a of each argument in 1/6 sum_abc sup |l_abc| u_a u_b u_c, with suprema over a box.

    All are infinite if nothing is known; None if there are too many operations. ``widths`` are half-widths of the
    box, ``sizes`` are u.
    """
    combinations, thirds = [], []
    for abc in combinations_with_replacement(widths, 3):
        node = row
        for argument in abc:
            node = g.derivative(node, argument)
        if g.numbers[node] != 0.0:
            combinations.append(abc)
            thirds.append(node)
    if len(g.upstream(thirds)) > MOST_OPERATIONS:
        return None
    bounds = Bounds(g, [row, *thirds], widths)
    parts = dict.fromkeys(widths, g.const(0.0))
    for abc, (low, high) in zip(combinations, bounds.intervals[1:], strict=True):
        term = g.make("maximum", g.make("abs", low), g.make("abs", high))
        for a in abc:
            term = g.make("mul", term, sizes[a])
        # There are 3! / (product of times!) such terms, and a has times / 3 of each.
        times = Counter(abc)
        orders = math.prod(map(math.factorial, times.values()))
        for a, number in times.items():
            share = g.make("mul", term, number / (3.0 * orders))
            parts[a] = g.make("add", parts[a], share)
    sums = list(parts.values())
    known = g.make("and", bounds.smooth, g.make("lt", g.fold("add", sums), math.inf))
    sums = [g.make("switch", known, n, math.inf) for n in sums]
    return sums if len(g.upstream(sums)) // 2 <= MOST_OPERATIONS else None


#: Maximum numbers of rows of a block, and of a part of the data.
_BLOCK, _CHUNK = 256, 1_000_000


@_compiled
def third_bounds(
    radii, sizes, cuts, centre, place, gains, sds, covariance, n_dense, data, program, table
):
    """Return factors c_j (1 + A, N) of the rows' blocks; infinite where nothing is known.

    The first block is that of coordinates read by all rows, the others those of the A entries that a row reads.
    Derivatives are bounded in ``cuts`` parts of the range of each argument separately: the more, the tighter.

    Parameters
    ----------
    radii, sizes : (2,) array
        Largest and typical lengths p_j of the first block and of the others.
    cuts : int
    centre : (E,) array
    place, gains, sds, covariance, n_dense : arrays and int
        Fields of :class:`amc_pymc.tall.decisions.Blocks`.
    data : (N, C) array
    program, table : arrays of the printed code of :class:`RowBounds`
    """
    (n_rows, n_columns), rows = data.shape, np.arange(data.shape[0])
    n_arguments, n_entries = program[_N_ARGUMENTS], program[N_ENTRIES]
    out = np.zeros((1 + n_entries, n_rows))
    block = np.empty((n_columns + 3 * n_arguments, _BLOCK))
    widths, typical = block[n_columns + n_arguments :], block[n_columns + 2 * n_arguments :]
    at = np.empty((max(1, n_entries), _BLOCK), np.int64)
    here, there = of_parameters(program, _GRADIENTS, centre), of_parameters(program, _BOUND, centre)
    slopes, found = room_of(program, _GRADIENTS, _BLOCK), room_of(program, _BOUND, _BLOCK)
    size = n_entries
    for b in range(program[N_DOTS]):
        size += product(program, b)[1]
    places, values = np.empty(size, np.int64), np.empty(size)
    along, most = np.empty(covariance.shape[0]), np.empty((n_arguments, _BLOCK))
    lengths = np.empty((n_arguments, _BLOCK, 1 + n_entries))
    for begin in range(0, n_rows, _BLOCK):
        n = min(_BLOCK, n_rows - begin)
        gather(data, rows, begin, n, block[:n_columns])
        call(program[_GRADIENTS + ROWS], centre, here, block, _BLOCK, n, slopes, _BLOCK, at)
        for k in range(n_arguments):
            for j in range(n):
                _gradient(program, slopes, at, block, k, j, places, values)
                own = lengths[k, j]
                for a in range(1, 1 + n_entries):
                    own[a] = 0.0
                along[:] = 0.0
                for a in range(size):
                    if values[a] == 0.0:
                        continue
                    p = place[places[a]]
                    if p < n_dense:
                        along[p] += values[a]
                    else:
                        own[1 + a] = abs(values[a]) * sds[p - n_dense]
                        for b in range(along.size):
                            along[b] += values[a] * gains[p - n_dense, b]
                own[0] = _length(covariance, along)
                rest = own[1:].sum()
                widths[k, j] = (radii[0] * own[0] + radii[1] * rest) / cuts
                typical[k, j] = sizes[0] * own[0] + sizes[1] * rest
        most[:] = 0.0
        for part in range(cuts**n_arguments):
            for k in range(n_arguments):
                middle = 2.0 * (part % cuts) + 1.0 - cuts
                part //= cuts
                for j in range(n):
                    block[n_columns + k, j] = middle * widths[k, j]
            call(program[_BOUND + ROWS], centre, there, block, _BLOCK, n, found, _BLOCK)
            for k in range(n_arguments):
                for j in range(n):
                    most[k, j] = max(most[k, j], found[k, j])
        for k in range(n_arguments):
            for j in range(n):
                for a in range(1 + n_entries):
                    if lengths[k, j, a] > 0.0 and most[k, j] > 0.0:
                        scale = typical[k, j] * sizes[min(a, 1)] ** 2
                        out[a, begin + j] += most[k, j] * lengths[k, j, a] / scale
    return out


@_compiled
def _gradient(program, slopes, at, block, k, j, places, values):
    """Write the gradient by eta of argument k of row j, as positions and values."""
    n_entries = program[N_ENTRIES]
    place = k * (n_entries + program[N_DOTS])
    for a in range(n_entries):
        places[a] = at[a, j]
        values[a] = slopes[place + a, j]
    s = n_entries
    for b in range(program[N_DOTS]):
        first, size, columns = product(program, b)
        slope = slopes[place + n_entries + b, j]
        for c in range(size):
            places[s] = first + c
            values[s] = slope * block[program[columns + c], j]
            s += 1


@_compiled
def _length(covariance, values):
    """Return the square root of a quadratic form."""
    total = 0.0
    for a in range(values.size):
        if values[a] == 0.0:
            continue
        along = 0.5 * covariance[a, a] * values[a]
        for b in range(a):
            along += covariance[a, b] * values[b]
        total += 2.0 * values[a] * along
    return math.sqrt(max(total, 0.0))


# --- interval arithmetic ----------------------------------------------------------------------------

#: Nodes of a lower and an upper bound; the same node if a value does not change within the box.
type Interval = tuple[int, int]

#: Place and value of the minimum of log Gamma on the positive numbers, a little lowered for rounding.
_GAMMA_AT, _GAMMA_LEAST = 1.4616321449683623, -0.1214862905358497 - 1e-13
#: Largest number of terms of a sum in which terms are compared.
_LONGEST_SUM = 40


class Bounds:
    """Bounds of expressions over a box.

    Parameters
    ----------
    graph : Graph
    outputs : sequence of int
        Nodes of floats.
    box : mapping of int to int
        Half-width of each node that varies, a leaf or a sum that is treated as one: n lies in [n - box[n], n + box[n]].
        Others are constant.

    Attributes
    ----------
    intervals : list of (int, int)
        Nodes of lower and upper bounds of the outputs. They are infinite or nan where nothing is known.
    smooth : int
        Node of a truth value. False if a condition, an absolute value or another operation with a kink or jump
        may change sides within the box.

    Examples
    --------
    >>> from amc_pymc.engine import Graph
    >>> from amc_pymc.engine.row_kernels.bounds import Bounds
    >>> g = Graph()
    >>> x, width = g.make("local", value=0), g.make("local", value=1)
    >>> square = g.make("mul", g.make("sub", x, g.const(1.0)), g.make("sub", x, g.const(1.0)))
    >>> found = Bounds(g, [square], {x: width})
    >>> nodes = [*found.intervals[0], found.smooth]
    >>> [float(v) for v in g.evaluate(nodes, local=[1.5, 1.0])]
    [0.0, 2.25, 1.0]
    """

    def __init__(self, graph: Graph, outputs: Sequence[int], box: Mapping[int, int]):
        g = self.g = graph
        self.outputs, self.smooth = outputs, g.const(True)
        #: Of each node: its bounds, and the linear combination of nodes that it is; -1 stands for 1.
        self._known = {n: (g.make("sub", n, r), g.make("add", n, r)) for n, r in box.items()}
        self.forms: dict[int, dict[int, float]] = {n: {n: 1.0} for n in box}
        for n in g.upstream(outputs, box):
            node, number, form = g.nodes[n], g.numbers[n], {n: 1.0}
            forms, parts = [self.forms[a] for a in node.args], [self._known[a] for a in node.args]
            if number is not None and math.isfinite(number):
                form = {-1: float(number)}
            elif node.op in ("neg", "float"):
                form = _combined(forms[0], {}, -1.0 if node.op == "neg" else 1.0)
            elif node.op in ("add", "sub"):
                found = _combined(forms[1], forms[0], 1.0 if node.op == "add" else -1.0)
                form = found if len(found) <= _LONGEST_SUM else form
            self.forms[n] = form
            constant = all(low == high for low, high in parts)
            if constant or node.op == "held" or node.op in TRUTH:
                self._known[n] = n, n  # what is held may have any value: it cancels
                if not constant and node.op in TRUTH:
                    self.smooth = g.make("and", self.smooth, self._decided(node, parts))
            elif n not in form and len(form) < sum(map(len, forms)):
                self._known[n] = self.sum(form)  # terms that both arguments contain vary together
            else:
                rule = _RULES.get(node.op)
                self._known[n] = rule(self, n, *parts) if rule else self.unknown()
        self.intervals = [self._known[n] for n in outputs]

    @cached_property
    def _values(self) -> set[int]:
        """Nodes whose values, not only whose sides of a condition, enter the outputs."""
        found, stack = set[int](), list(self.outputs)
        while stack:
            n = stack.pop()
            node = self.g.nodes[n]
            if n not in found and node.op not in TRUTH and node.op != "held":
                found.add(n)
                stack.extend(node.args[1:] if node.op == "switch" else node.args)
        return found

    def require(self, n: int, condition: int) -> None:
        """Add a condition of smoothness if the value of a node matters."""
        if n in self._values:
            self.smooth = self.g.make("and", self.smooth, condition)

    def unknown(self) -> Interval:
        """Return bounds that say nothing."""
        return self.g.const(-math.inf), self.g.const(math.inf)

    def hull(self, values: Iterable[int]) -> Interval:
        """Return the smallest and largest of some values."""
        nodes = sorted(set(values))
        return self.g.fold("minimum", nodes), self.g.fold("maximum", nodes)

    def either(self, condition: int, yes: Interval, no: Interval) -> Interval:
        """Return the bounds that a condition selects."""
        low, high = (self.g.make("switch", condition, y, n) for y, n in zip(yes, no))
        return low, high

    # --- sums, in which what is added and subtracted cancels ------------------------------------------

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
        form = _combined(self.forms[b], self.forms[a], -1.0)
        if sorted(form.values()) == [-1.0, 1.0] and -1 not in form:
            x, y = (self.g.nodes[n] for n in sorted(form, key=lambda n: -form[n]))
            if x.op == y.op and x.op in _INCREASING:  # f(x) - f(y) has the sign of x - y
                form = _combined(self.forms[y.args[0]], self.forms[x.args[0]], -1.0)
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


def _monotone(b: Bounds, n: int, *parts: Interval) -> Interval:
    """Return the bounds of a function that rises or falls; a difference falls in its second argument."""
    op = b.g.nodes[n].op
    if op == "sub":
        parts = parts[0], parts[1][::-1]
    low, high = (b.g.make(op, *ends) for ends in zip(*parts))
    return (high, low) if op in _FALLING else (low, high)


def _mul(b: Bounds, n: int, x: Interval, y: Interval) -> Interval:
    first, second = b.g.nodes[n].args
    if first == second:
        return _valley(b, n, x)
    return b.hull(b.g.make("mul", p, q) for p in x for q in y)


def _div(b: Bounds, n: int, x: Interval, y: Interval) -> Interval:
    inverse = b.g.make("div", 1.0, y[1]), b.g.make("div", 1.0, y[0])
    corners = [b.g.make("mul", p, q) for p in x for q in inverse]
    return b.either(_one_side(b, y), b.hull(corners), b.unknown())


def _pow(b: Bounds, n: int, x: Interval, y: Interval) -> Interval:
    power = b.g.numbers[b.g.nodes[n].args[1]]
    if power is not None and float(power).is_integer() and power > 0:
        return _monotone(b, n, x, y) if power % 2 else _valley(b, n, x)
    corners = [b.g.make("pow", base, exponent) for base in x for exponent in y]
    return b.either(b.g.make("gt", x[0], 0.0), b.hull(corners), b.unknown())


def _valley(b: Bounds, n: int, part: Interval, place: float = 0.0, least: float = 0.0) -> Interval:
    """Return the bounds of a function of the first argument that falls up to a place and rises from there."""
    g, (low, high), (op, args, *_) = b.g, part, b.g.nodes[n]
    ends = b.hull(g.make(op, *(end if a == args[0] else a for a in args)) for end in part)
    inside = g.make("and", g.make("le", low, place), g.make("ge", high, place))
    return g.make("switch", inside, least, ends[0]), ends[1]


def _one_side(b: Bounds, part: Interval) -> int:
    """Return whether an interval does not contain zero."""
    return b.g.make("or", b.g.make("gt", part[0], 0.0), b.g.make("lt", part[1], 0.0))


def _if_on_one_side(rule: Rule) -> Rule:
    """Return a rule for a function with a kink or jump at zero."""

    def smooth(b: Bounds, n: int, x: Interval) -> Interval:
        b.require(n, _one_side(b, x))
        return rule(b, n, x)

    return smooth


def _steps(b: Bounds, n: int, x: Interval) -> Interval:
    """Return the bounds of a piecewise constant function."""
    low, high = _monotone(b, n, x)
    b.require(n, b.g.make("eq", low, high))
    return low, high


def _chosen(b: Bounds, n: int, x: Interval, y: Interval) -> Interval:
    """Return the bounds of a maximum or minimum, smooth if one argument is larger throughout."""
    g = b.g
    b.require(n, g.make("or", g.make("gt", x[0], y[1]), g.make("gt", y[0], x[1])))
    return _monotone(b, n, x, y)


def _if_positive(rule: Rule) -> Rule:
    """Return a rule that holds for positive arguments."""
    return lambda b, n, x: b.either(b.g.make("gt", x[0], 0.0), rule(b, n, x), b.unknown())


_INCREASING = set("exp expm1 log log1p sqrt sigmoid softplus tanh arctan erf float".split())
_FALLING = {"neg", "erfc", "erfcx", "log1mexp", "trigamma"}
#: Operations that are not in this table, such as a sine, have unknown bounds.
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_INCREASING | _FALLING | {"add", "sub"}, _monotone),
    **dict.fromkeys(("floor", "ceil", "int"), _steps),
    **dict.fromkeys(("maximum", "minimum"), _chosen),
    "mul": _mul,
    "div": _div,
    "pow": _pow,
    "abs": _if_on_one_side(_valley),
    "sign": _if_on_one_side(_monotone),
    "gammaln": _if_positive(lambda b, n, x: _valley(b, n, x, _GAMMA_AT, _GAMMA_LEAST)),
    "digamma": _if_positive(_monotone),
    "trigamma": _if_positive(_monotone),
    "tetragamma": _if_positive(_monotone),
    "switch": lambda b, n, condition, yes, no: b.either(condition[0], yes, no),
}
