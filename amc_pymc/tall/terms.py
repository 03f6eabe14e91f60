"""Terms of the log prior and coefficients that rows read: as compiled functions, and what is Gaussian in them.

Both are given as families of expressions of x (D,). A family is one expression with a table: element k of the family is
its value with row k of the table. Each element reads few coordinates of x, its *leaves*. For every family one function
writes, for all elements, the value, the first derivatives by leaves, the lower triangle of the second and that of the
third, and the positions of the leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from amc_pymc.engine import Families, Family, Graph
from amc_pymc.engine.graph import form_of
from amc_pymc.engine.jit import njit, record
from amc_pymc.engine.printer import N_KEPT, ROWS, Printed, Printer, call, of_parameters
from amc_pymc.engine.row_kernels.loops import line, residual_changes, residuals_at

#: Place of the number of families in a program, and width of the description of each: first row of the table,
#: number of elements, number of leaves, and a stage.
N_FAMILIES, _WIDTH = 0, 7


class Written(NamedTuple):
    """Families of expressions of "eta", which is (x, f(x)) and, for terms of a prior, A x; and the functions f of x (D,)."""

    graph: Graph
    families: tuple[Family, ...] = ()
    functions: tuple[Family, ...] = ()


@record
class Terms(NamedTuple):
    """Programs of families and of the functions f that they read, see :func:`printed_families`."""

    program: np.ndarray
    table: np.ndarray
    functions: np.ndarray
    functions_table: np.ndarray


def compiled_terms(written: Written, order: int) -> Terms:
    """Compile families, with derivatives up to an order, and the functions that they read."""
    functions = written.functions if written.families else ()
    return Terms(
        *printed_families(written.graph, written.families, order).arrays,
        *printed_families(written.graph, functions, 1).arrays,
    )


def printed_families(graph: Graph, families: Sequence[Family], order: int = 3) -> Printed:
    """Generate the functions of some families.

    Parameters
    ----------
    graph : Graph
    families : sequence of Family
        Expressions of entries of "eta".
    order : int
        Largest order of the derivatives.
    """
    printer, described, first = Printer(graph), list[int | str](), 0
    for k, family in enumerate(families):
        leaves = graph.leaves([family.expression], "entry")
        numbers, outputs = range(len(leaves)), []
        # Order by order; of the leaves a >= b >= c of a derivative, the last one is fastest.
        for n in range(order + 1):
            for by in sorted(c[::-1] for c in combinations_with_replacement(numbers, n)):
                each = (leaves[a] for a in by)
                outputs.append(reduce(graph.derivative, each, family.expression))
        places = [graph.nodes[n].args[0] for n in leaves]
        stage = printer.stage(f"family{k}", ("eta",), outputs, places)
        described += [first, len(family.table), len(leaves), *stage]
        first += len(family.table)
    if not families:  # a library needs a function
        printer.function("nothing", ("out",), [])
    width = max((f.table.shape[1] for f in families), default=0)
    table = np.zeros((max(1, width), max(1, first)))
    for place, family in zip(described[::_WIDTH], families, strict=True):
        table[: family.table.shape[1], int(place) : int(place) + len(family.table)] = family.table.T
    return printer.printed((len(families), *described), table=tuple(map(tuple, table.tolist())))


@njit(cache=True)
def with_values(x, program, table):
    """Return x (D,), followed by the values of all elements."""
    size = x.size
    for f in range(program[N_FAMILIES]):
        size += family_at(program, f)[1]
    out = np.empty(size)
    for d in range(x.size):
        out[d] = x[d]
    begin = x.size
    for f in range(program[N_FAMILIES]):
        n, _, values, _ = derivatives_of(x, program, table, f)
        for k in range(n):
            out[begin] = values[0, k]
            begin += 1
    return out


@njit(cache=True)
def family_at(program, f):
    """Return the first row in the table, the number of elements and the number of leaves of a family."""
    place = 1 + f * _WIDTH
    return program[place], program[place + 1], program[place + 2]


@njit(cache=True)
def derivatives_of(x, program, table, f):
    """Return the numbers n of elements and L of leaves, values and derivatives (K, n), and positions (L, n) of leaves."""
    first, n, n_leaves = family_at(program, f)
    stage = 1 + f * _WIDTH + 3
    shared = of_parameters(program, stage, x)
    out = np.empty((program[stage + N_KEPT], n))
    at = np.empty((max(1, n_leaves), n), np.int64)
    call(program[stage + ROWS], x, shared, table[0, first:], table.shape[1], n, out, n, at)
    return n, n_leaves, out, at


# --- sums ------------------------------------------------------------------------------------------


@njit(cache=True)
def total(x, program, table):
    """Return the sum of all elements."""
    return with_values(x, program, table)[x.size :].sum()


@njit(cache=True)
def add_slopes(x, program, table, weights, out):
    """Add the first derivatives of all elements by x to ``out`` (D,), times weights if there are any; return it."""
    begin = 0
    for f in range(program[N_FAMILIES]):
        n, n_leaves, found, at = derivatives_of(x, program, table, f)
        for k in range(n):
            weight = weights[begin + k] if weights.size else 1.0
            for a in range(n_leaves):
                out[at[a, k]] += weight * found[1 + a, k]
        begin += n
    return out


@njit(cache=True)
def add_curves(x, program, table, weights, out):
    """Add second derivatives of all elements by x to ``out`` (D, D), times weights if there are any; return it."""
    begin = 0
    for f in range(program[N_FAMILIES]):
        n, n_leaves, found, at = derivatives_of(x, program, table, f)
        for k in range(n):
            weight, t = (weights[begin + k] if weights.size else 1.0), n_leaves
            for a in range(n_leaves):
                for b in range(a + 1):
                    t += 1
                    out[at[a, k], at[b, k]] += weight * found[t, k]
                    if a != b:
                        out[at[b, k], at[a, k]] += weight * found[t, k]
        begin += n
    return out


@njit(cache=True)
def values_of_points(xs, program, table, out):
    """Write z (P, D + W) at points (P, D)."""
    for p in range(xs.shape[0]):
        out[p] = with_values(xs[p], program, table)


@njit(cache=True)
def add_slopes_of_points(xs, program, table, weights, out):
    """Add weighted first derivatives of all elements by x at points (P, D) to ``out`` (P, D)."""
    for p in range(xs.shape[0]):
        add_slopes(xs[p], program, table, weights[p], out[p])


# --- expansions in parameters -----------------------------------------------------------------------


@njit(cache=True)
def _along(at, du, dv, program, table):
    """Return z, its derivatives along du and dv, and that along du plus half of the second one along both."""
    z = with_values(at, program, table)
    out = np.zeros((4, z.size))
    out[0] = z
    for k, direction in enumerate((du, dv, du)):
        out[1 + k, : at.size] = direction
    begin = at.size
    for f in range(program[N_FAMILIES]):
        n, n_leaves, found, places = derivatives_of(at, program, table, f)
        for k in range(n):
            u, v, both, t = 0.0, 0.0, 0.0, n_leaves
            for a in range(n_leaves):
                i = places[a, k]
                u += found[1 + a, k] * du[i]
                v += found[1 + a, k] * dv[i]
                for b in range(a + 1):
                    t += 1
                    j = places[b, k]
                    both += found[t, k] * du[i] * dv[j]
                    if a != b:
                        both += found[t, k] * du[j] * dv[i]
            out[1, begin + k], out[2, begin + k], out[3, begin + k] = u, v, u + 0.5 * both
        begin += n
    return out


@njit(cache=True)
def rewards(points, centre, units, mask, data, rows, program, table):
    """Return residual changes (2, m) of rows that are expanded in x; row 0 is zero."""
    at, du, dv, expands = line(points[0], points[1], centre, mask)
    z = _along(at, du, dv, program, table)
    here = with_values(points[0], program, table)
    there = with_values(points[1], program, table)
    return residual_changes(here, there, z[0], z[1], z[2], z[3], expands, units, data, rows)


@njit(cache=True)
def state_rewards(points, centre, units, mask, data, rows, program, table):
    """Return log-likelihoods (K, m) at K points minus Taylor polynomials in x around a centre."""
    size = with_values(centre, program, table).size
    z, expands = np.empty((points.shape[0], 5, size)), False
    for k in range(points.shape[0]):
        at, _, _, expands = line(points[k], points[k], centre, mask)
        z[k, 0] = with_values(points[k], program, table)
        z[k, 1:] = _along(at, points[k] - at, points[k] - at, program, table)
    return residuals_at(z, expands, units, data, rows)


# --- terms that read many coordinates --------------------------------------------------------------
# A zero-sum constraint or a penalty on a mean reads all levels of a factor, but only through a few sums. Such a term is
# written with *combinations* u = A x, which extend x. A simplex reads all its coordinates through the sum of their
# exponentials. Such sums are *functions* f(x). Terms read (x, f, u).


#: Largest number of coordinates that a term reads one by one.
_FEW = 5


def with_few_entries(
    graph: Graph, families: Sequence[Family], size: int
) -> tuple[Written, np.ndarray]:
    """Return terms of (x, f, A x) that each read few entries, with the functions f of x (D,), and A (L, D)."""
    apart = _taken_apart(graph, families)
    narrow, functions = with_functions(graph, apart, size, linear=False)
    narrow, sums = with_combinations(graph, narrow, size, size + len(functions))
    return Written(graph, narrow, functions), sums


def with_functions(
    graph: Graph, families: Sequence[Family], size: int, linear: bool
) -> tuple[tuple[Family, ...], tuple[Family, ...]]:
    """Return families of (x, f) in which the wide ones read functions f of x (D,), and these functions.

    Functions are sums and maxima of at least six parts that are the same for all elements; linear ones only if
    ``linear``.

    Examples
    --------
    >>> from amc_pymc.engine import Family, Graph
    >>> from amc_pymc.tall.terms import with_functions
    >>> g = Graph()
    >>> powers = [g.make("exp", g.make("entry", g.const(k), value="eta")) for k in range(8)]
    >>> shares = Family(g.make("div", powers[0], g.fold("add", powers)), np.zeros((1, 0)), 0)
    >>> (share,), functions = with_functions(g, [shares], 8, linear=False)
    >>> [g.nodes[n].op for n in g.nodes[share.expression].args], len(functions)
    (['exp', 'entry'], 1)
    """
    found: dict[int, int] = {}
    out = []
    for family in families:
        change = {}
        if reads_many(graph, family.expression):
            for node in _common_sums(graph, family.expression, size, linear):
                at = found.setdefault(node, len(found))
                change[node] = graph.make("entry", graph.const(size + at), value="eta")
        (expression,) = graph.replaced([family.expression], change)
        out.append(Family(expression, family.table, family.first))
    return tuple(out), tuple(Family(n, np.zeros((1, 0)), 0) for n in found)


def _common_sums(graph: Graph, expression: int, size: int, linear: bool) -> list[int]:
    """Return the largest sums of many entries below an expression that read no columns."""
    affine, out, seen = graph.affine(expression, size, switches=False), [], {expression}
    stack = list(graph.nodes[expression].args)
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if not reads_many(graph, n):
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
    >>> from amc_pymc.tall.terms import with_combinations
    >>> g = Graph()
    >>> total = g.fold("add", [g.make("entry", g.const(k), value="eta") for k in range(6)])
    >>> terms, a = with_combinations(
    ...     g, [Family(g.make("mul", total, total), np.zeros((1, 0)), 0)], 6
    ... )
    >>> a, terms[0].table[0]  # a position in (x, A x), and an offset
    (array([[1., 1., 1., 1., 1., 1.]]), array([6., 0.]))
    """
    rows, begin = list[np.ndarray](), size if begin is None else begin
    out = [
        _combined(graph, family, size, begin, rows)
        if reads_many(graph, family.expression)
        else family
        for family in terms
    ]
    return tuple(out), np.array(rows).reshape(-1, size)


def reads_many(graph: Graph, node: int) -> bool:
    """Whether an expression reads many coordinates."""
    return len(graph.leaves([node], "entry")) > _FEW


def _taken_apart(graph: Graph, terms: Sequence[Family]) -> list[Family]:
    """Return terms in which wide sums are taken apart by the form of what they add up.

    Checks of the arguments of wide terms are left out.
    """
    out = list[Family]()
    for family in terms:
        if not reads_many(graph, family.expression):
            out.append(family)
        elif len(family.table) > 1:
            out.append(Family(_unchecked(graph, family.expression), family.table, 0))
        else:
            out += _by_form(graph, family)
    return out


def _by_form(graph: Graph, family: Family) -> list[Family]:
    """Return the terms of a sum, grouped by their form."""
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
            if len(parts) > _FEW and not any(reads_many(graph, b) for b in others):
                return [graph.make(op, *args[:k], n, *args[k + 1 :]) for n in parts]
    return [node]


def _unchecked(graph: Graph, node: int) -> int:
    """Return an expression without the condition that it is minus infinity unless its arguments are valid."""
    while graph.nodes[node].op == "switch":
        _, *cases = graph.nodes[node].args
        valid = [n for n in cases if graph.numbers[n] != -np.inf]
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
        at, columns = graph.make("column", value=table.shape[1], kind="i"), [*columns, offset]
        new = graph.make("entry", at, value="eta")
        change[node] = graph.make("add", new, graph.make("column", value=table.shape[1] + 1))
        table = np.column_stack([table, *columns])
    (expression,) = graph.replaced([family.expression], change)
    return Family(expression, table, family.first)


def _largest_linear(graph: Graph, expression: int, size: int) -> list[int]:
    """Return the largest parts that are affine in at least two entries of x (D,)."""
    linear = graph.affine(expression, size, switches=False)
    out, stack, seen = [], [expression], set[int]()
    while stack:
        n = stack.pop()
        if n in seen or n not in linear:
            continue
        seen.add(n)
        if linear[n] and len(graph.leaves([n], "entry")) > 1:
            out.append(n)
        elif not linear[n]:
            stack.extend(graph.nodes[n].args)
    return out


def _coefficients(
    graph: Graph, node: int, family: Family, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the coefficients (n, D) and the offset (n,) of an affine expression in each row of the table."""
    leaves = graph.leaves([node], "entry")
    n, rows = len(family.table), family.table.T
    out, at = np.zeros((n, size)), np.arange(n)
    places = graph.evaluate([graph.nodes[a].args[0] for a in leaves], row=rows)
    slopes = graph.evaluate([graph.derivative(node, a) for a in leaves], row=rows)
    for place, slope in zip(places, slopes):
        np.add.at(out, (at, np.broadcast_to(np.asarray(place, np.int64), n)), slope)
    (offset,) = graph.evaluate([node], row=rows, eta=np.zeros(size))
    return out, np.broadcast_to(np.asarray(offset, float), n).copy()


# --- coordinates that are Gaussian given the others -------------------------------------------------
# Coordinates v are Gaussian given the others, hyperparameters, if the third derivatives of all terms, and the second
# derivatives of all coefficients, by coordinates of v are zero. So they are recognised however a model is written:
# centred, scaled, by products of scales, or by differences of neighbours.


#: Largest number of coordinates that one term or coefficient may read.
_WIDEST = 8
#: Operations with kinks or jumps, which derivatives do not show.
_ROUGH = frozenset("abs sign maximum minimum floor ceil floordiv mod int switch".split())
#: Number of points at which a condition is evaluated, and their distance from the first.
_TRIALS, _FAR = 16, 2.0
#: Points at which derivatives are computed, and the size, relative to the largest, of one that is zero.
_POINTS, _ZERO = 3, 1e-9


class NoSurface(Exception):
    """Prior times surrogate cannot be sampled; the message gives the reason."""


#: Number of coordinates beyond which a combination is wide, and the largest number of such.
_WIDE, _MOST_WIDE = 30, 4


class Parts(NamedTuple):
    """Terms of the log prior and coefficients that rows read.

    Attributes
    ----------
    prior : Written
    combinations : (L, D) array
        A.
    coefficients : Written
    reads : int array
        Coordinates that rows read directly.
    """

    prior: Written
    combinations: np.ndarray
    coefficients: Written
    reads: np.ndarray


@dataclass(frozen=True, eq=False)
class Split:
    """Coordinates of x, and the terms that depend on more than the first two kinds.

    Attributes
    ----------
    inner : (V,) int array
        Gaussian given the others.
    nearly : (E,) int array
        Read by rows, with priors of their own: the prior is expanded together with the rows.
    outer : (F,) int array
        Hyperparameters.
    terms : tuple of Family
    own : tuple of arrays and families
        Terms of ``nearly``, and the coordinates that they read.
    wide : (W,) int array
        Combinations of many Gaussian coordinates, each read by terms that read nothing else.
    """

    inner: np.ndarray
    nearly: np.ndarray
    outer: np.ndarray
    terms: tuple[Family, ...]
    own: tuple[tuple[np.ndarray, Family], ...] = ()
    wide: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))


def split(
    parts: Parts, blocks: Sequence[np.ndarray], x: np.ndarray, rng: np.random.Generator
) -> Split:
    """Divide the coordinates of some variables.

    Parameters
    ----------
    parts : Parts
    blocks : sequence of int arrays
        Coordinates of each continuous variable that is moved.
    x : (D,) array
        A possible point.
    rng : numpy.random.Generator
        For the points at which derivatives are compared with zero.

    Raises
    ------
    NoSurface
        If a term or a coefficient reads too many coordinates.
    """
    points = x + 0.5 * rng.standard_normal((_POINTS, x.size))
    far = x + _FAR * rng.standard_normal((_TRIALS, x.size))
    none = np.zeros((0, x.size))
    terms = _orders(parts.prior, parts.combinations, 3, points, far)
    coefficients = _orders(parts.coefficients, none, 2, points, far)
    inner = np.zeros(x.size, bool)
    for block in sorted(blocks, key=len, reverse=True):
        inner[block] = True
        if not all(each.is_zero(inner) for each in (*terms, *coefficients)):
            inner[block] = False
    nearly = np.zeros(x.size, bool)  # variables that rows read directly and nothing else depends on
    for block in blocks:
        own_terms = [t for t in terms if np.isin(t.coordinates, block).any()]
        nearly[block] = (
            np.isin(block, parts.reads).all()
            and not inner[block].any()
            and all(np.isin(t.coordinates, block).all() and not t.rough for t in own_terms)
            and not any(np.isin(c.coordinates, block).any() for c in coefficients)
        )
    moved = np.sort(np.concatenate(blocks)) if blocks else np.empty(0, np.int64)
    outer = np.array([d for d in moved if not (inner[d] or nearly[d])], np.int64)
    plain = inner | nearly
    # Combinations of many Gaussian coordinates, if they are few, of which terms read nothing else.
    wide = np.flatnonzero(np.count_nonzero(parts.combinations[:, inner], axis=1) > _WIDE)
    for term in terms:
        if term.n_leaves > 1:
            wide = np.setdiff1d(wide, term.combinations)
    wide = wide if wide.size <= _MOST_WIDE else wide[:0]
    kept = tuple(
        t.family
        for t in terms
        if not plain[t.coordinates].all() or np.isin(t.combinations, wide).any()
    )
    own = tuple((t.coordinates, t.family) for t in terms if nearly[t.coordinates].any())
    return Split(np.flatnonzero(inner), np.flatnonzero(nearly), outer, kept, own, wide)


def _orders(
    written: Written, combinations: np.ndarray, order: int, points: np.ndarray, far: np.ndarray
) -> list[_Order]:
    """Return the derivatives of all families, in points (K, D) that are close and ones that are far."""
    graph, functions = written.graph, [f.expression for f in written.functions]
    read = np.zeros((len(functions), points.shape[1]), bool)
    for k, function in enumerate(functions):
        leaves = graph.leaves([function], "entry")
        read[k, graph.evaluate([graph.nodes[a].args[0] for a in leaves])] = True
    with np.errstate(all="ignore"):
        close, distant = (
            np.array(
                [[*x, *graph.evaluate(functions, eta=x), *(combinations @ x)] for x in each], float
            )
            for each in (points, far)
        )
    marked = combinations != 0.0
    return [_Order(graph, f, close, distant, read, marked, order) for f in written.families]


class _Order:
    """Derivatives of one order of a family by the coordinates that its elements read.

    Points are (x, f, A x). ``functions`` (M, D) and ``combinations`` (L, D) mark the coordinates that f and A x read.
    """

    def __init__(
        self,
        graph: Graph,
        family: Family,
        points: np.ndarray,
        far: np.ndarray,
        functions: np.ndarray,
        combinations: np.ndarray,
        order: int,
    ):
        self.family = family
        leaves = graph.leaves([family.expression], "entry")
        if len(leaves) > _WIDEST or graph.leaves([family.expression], "dot"):
            raise NoSurface(f"a term reads {len(leaves)} parameters")
        n, rows = len(family.table), family.table.T
        self._functions, self._combinations = functions, combinations
        places = graph.evaluate([graph.nodes[a].args[0] for a in leaves], row=rows)
        self._places = [np.broadcast_to(np.asarray(p, np.int64), n) for p in places]
        read = np.zeros(points.shape[1], bool)
        read[np.concatenate([np.empty(0, np.int64), *self._places])] = True
        size = functions.shape[1]
        own, of_functions, of_sums = np.split(read, [size, size + len(functions)])
        through, summed = functions[of_functions].any(axis=0), combinations[of_sums].any(axis=0)
        self.n_leaves = len(leaves)
        self.combinations = np.flatnonzero(of_sums)
        self.coordinates = np.flatnonzero(own | through | summed)
        self._through = np.flatnonzero(through)
        rough = _rough(graph, family, far)
        self.rough = [p for p, a in zip(self._places, leaves) if a in rough]
        self._leaves = list(combinations_with_replacement(range(len(leaves)), order))
        nodes = [
            reduce(graph.derivative, (leaves[a] for a in combination), family.expression)
            for combination in self._leaves
        ]
        with np.errstate(all="ignore"):
            values = [
                np.abs([np.broadcast_to(v, n) for v in graph.evaluate(nodes, row=rows, eta=p)])
                for p in points
            ]
        self._values = np.max(values, axis=0) if nodes else np.zeros((0, n))

    def is_zero(self, inside: np.ndarray) -> bool:
        """Whether the derivatives by marked coordinates are zero, and no kink depends on these."""
        if inside[self._through].any():
            return False
        more = ((m & inside).any(axis=1) for m in (self._functions, self._combinations))
        inside = np.concatenate([inside, *more])
        if any(inside[p].any() for p in self.rough):
            return False
        largest = np.nanmax(self._values, initial=0.0)
        for combination, value in zip(self._leaves, self._values):
            marked = np.logical_and.reduce([inside[self._places[a]] for a in combination])
            if not np.all(value[marked] <= _ZERO * max(largest, 1.0)):
                return False
        return True


def _rough(graph: Graph, family: Family, points: np.ndarray) -> set[int]:
    """Return the entries on which kinks and jumps of an expression depend.

    A condition that has the same outcome at all points, such as that a scale is positive, is none.
    """
    out = set[int]()
    for n in graph.upstream([family.expression]):
        node = graph.nodes[n]
        if node.op not in _ROUGH:
            continue
        args = node.args[:1] if node.op == "switch" else node.args
        entries = [e for a in args for e in graph.leaves([a], "entry")]
        if not entries:
            continue
        with np.errstate(all="ignore"):
            values = [graph.evaluate(args, row=family.table.T, eta=p) for p in points]
        sides = [_side(node.op, *found) for found in values]
        if any(np.any(side != sides[0]) for side in sides):
            out |= set(entries)
    return out


def _side(op: str, first: np.ndarray, second: np.ndarray | float = 0.0) -> np.ndarray:
    """Return on which side of a kink or jump values are."""
    if op == "switch":
        return np.asarray(first, bool)
    if op in ("abs", "sign", "maximum", "minimum"):
        return np.asarray(first) > second
    return np.floor(first)
