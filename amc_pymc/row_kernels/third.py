"""Bounds of the third-order remainder of rows, for decisions that read few rows.

The *arguments* of a row's log-likelihood are the largest parts of its expression that are affine in the parameters
eta: linear predictors and shared scalars. Let R be the log-likelihood minus its second-order Taylor polynomial around
a centre c, and d_k the change of argument k. By Taylor's theorem,

    |R(eta)| <= 1/6 sum_abc sup |l_abc| |d_a d_b d_c|,

with third derivatives l_abc by arguments and suprema over a box that contains eta and c. Let x_k be the gradient of
argument k and S a covariance matrix of eta. Then |d_k| <= sqrt(x_k'S x_k) |w| with |w|^2 = (eta - c)'S^-1 (eta - c).
Arguments that are the same for all rows (scalars such as log sigma) read few coordinates of eta, in which their
changes are bounded by a shorter |v|, with the covariance of these coordinates alone. So the bound is

    sum_j c_j |w|^(3 - j) |v|^j,   j = 0, ..., 3 the number of shared arguments among a, b, c.
"""

from __future__ import annotations

import math

from collections import Counter
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from amc_pymc.expressions import ROW, Graph
from amc_pymc.expressions.intervals import bounds
from amc_pymc.expressions.leaves import (
    DOTS_AT,
    N_COLUMNS,
    N_DOTS,
    N_ENTRIES,
    described_dots,
    leaves_of,
    product,
)
from amc_pymc.expressions.machine import Printed, call
from amc_pymc.expressions.stages import ROWS, of_parameters, room_of
from amc_pymc.jit import njit
from amc_pymc.row_kernels.derived import StagePrinter
from amc_pymc.row_kernels.printed import RowProgram, TooLarge, check_size

__all__ = ["RowBounds", "arguments_of", "printed_third", "row_bounds", "third_bounds"]

#: Numbers of arguments of their own and of shared ones; stages: their gradients by leaves, and the bound.
_N_OWN, _N_SHARED, _GRADIENTS, _BOUND, _END = (DOTS_AT + k for k in (1, 2, 3, 7, 11))

_compiled = njit(cache=True, error_model="numpy")


def arguments_of(graph: Graph, row: int) -> list[int]:
    """Return the largest parts of an expression that are affine in eta, without constants and signs.

    Examples
    --------
    >>> from amc_pymc.expressions import ROW, Graph
    >>> from amc_pymc.row_kernels.third import arguments_of
    >>> g = Graph()
    >>> slope, log_sd = g.entry("eta", g.const(0)), g.entry("eta", g.const(1))
    >>> mean = g.make("mul", g.leaf("column", 0), slope)
    >>> scaled = g.make("div", g.make("sub", g.leaf("column", 1), mean), g.make("exp", log_sd))
    >>> arguments_of(g, g.make("mul", scaled, scaled)) == [log_sd, mean]
    True
    """
    affine: dict[int, bool] = {}  # nodes that depend on eta, and whether they are affine in it
    for n in graph.upstream([row]):
        node = graph.nodes[n]
        varying = [a for a in node.args if a in affine]
        if node.op in ("entry", "dot"):
            affine[n] = True
        elif varying:
            affine[n] = all(affine[a] for a in varying) and (
                node.op in ("add", "sub", "neg", "float")
                or (node.op in ("mul", "div") and varying == [node.args[0]])
                or (node.op == "mul" and varying == [node.args[1]])
                or (node.op == "switch" and node.args[0] not in affine)
            )
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
    printed : Printed
    data : (N, C) array
    n_arguments : int
    shared : (V,) int array
        Positions of eta that arguments which all rows share read.
    """

    printed: Printed
    data: np.ndarray
    n_arguments: int
    shared: np.ndarray

    def __call__(
        self, centre: np.ndarray, covariance: np.ndarray, radii: np.ndarray, cuts: int
    ) -> np.ndarray:
        """Return factors c_j (4, N) of all rows; see :func:`third_bounds`."""
        units = np.arange(len(self.data))
        return third_bounds(
            radii, centre, covariance, cuts, units, self.data, *self.printed.arrays
        )  # fmt: skip


def row_bounds(program: RowProgram, data: np.ndarray) -> RowBounds | None:
    """Return bounds of rows; None if their expression has no third derivatives, or is too large."""
    if program.families:
        return None
    graph, arguments = program.graph, arguments_of(program.graph, program.row)
    shared = [a for a in arguments if not graph.depends(a) & ROW]
    numbers = (graph.number(graph.nodes[n].args[0]) for n in graph.leaves(shared, "entry"))
    try:
        printed = printed_third(program)
    except (TooLarge, NotImplementedError):
        return None
    places = sorted({int(n) for n in numbers if n is not None})
    return RowBounds(printed, data, len(arguments), np.array(places, np.int64))


def printed_third(program: RowProgram) -> Printed:
    """Generate the function of a row's bound, from an expression without coefficients of families.

    Raises
    ------
    TooLarge
    """
    g = program.graph
    entries, dots = leaves_of(g, program.row)
    arguments = sorted(arguments_of(g, program.row), key=lambda a: not g.depends(a) & ROW)
    n, n_own = len(arguments), sum(bool(g.depends(a) & ROW) for a in arguments)
    # Offsets from the centre and half-widths of a box of arguments follow the columns of data.
    offsets, widths = (
        [g.leaf("column", program.n_columns + first + k) for k in range(n)] for first in (0, n)
    )
    middles = [g.make("add", a, offset) for a, offset in zip(arguments, offsets)]
    (row,) = g.replaced([program.row], dict(zip(arguments, middles)))
    sums = _remainder_bounds(g, row, dict(zip(middles, widths)), set(middles[n_own:]))
    slopes = [g.partial(a, leaf) for a in arguments for leaf in (*entries, *dots)]
    p = StagePrinter(g)
    stages = [
        *p.stage("slopes", ("eta",), slopes, [g.nodes[e].args[0] for e in entries]),
        *p.stage("bound", ("eta",), sums),
    ]
    head: list[int | str] = [0] * _GRADIENTS
    head[N_COLUMNS], head[N_ENTRIES], head[N_DOTS] = program.n_columns, len(entries), len(dots)
    head[DOTS_AT], head[_N_OWN], head[_N_SHARED] = _END, n_own, n - n_own
    return Printed(p.text, (*head, *stages, *described_dots(g, dots, _END)))


def _remainder_bounds(g: Graph, row: int, widths: dict[int, int], shared: set[int]) -> list[int]:
    """Return 1/6 sum_abc sup |l_abc| r_a r_b r_c over a box with half-widths r, by number of shared arguments.

    All four numbers are infinite if nothing is known.
    """
    combinations, thirds = [], []
    for abc in combinations_with_replacement(widths, 3):
        node = row
        for argument in abc:
            node = g.partial(node, argument)
        if g.number(node) != 0.0:
            combinations.append(abc)
            thirds.append(node)
    check_size(len(g.upstream(thirds)))
    intervals, smooth = bounds(g, [row, *thirds], widths)
    sums = [g.const(0.0)] * 4
    for abc, (low, high) in zip(combinations, intervals[1:], strict=True):
        term = g.make("maximum", g.make("abs", low), g.make("abs", high))
        ways = math.factorial(3) // math.prod(map(math.factorial, Counter(abc).values()))
        for factor in (*(widths[a] for a in abc), g.const(ways / 6.0)):
            term = g.make("mul", term, factor)
        j = sum(a in shared for a in abc)
        sums[j] = g.make("add", sums[j], term)
    known = g.make("and", smooth, g.make("lt", g.sum(sums), g.const(math.inf)))
    sums = [g.make("switch", known, n, g.const(math.inf)) for n in sums]
    check_size(len(g.upstream(sums)) // 2)
    return sums


#: Maximum number of rows of a block.
_BLOCK = 256


@_compiled
def third_bounds(radii, centre, covariance, cuts, units, data, program, table):
    """Return factors c_j (4, m) of some rows, for |w| and |v| up to two radii; infinite where nothing is known.

    Derivatives are bounded in ``cuts`` parts of the range of each argument separately: the more, the tighter.

    Parameters
    ----------
    radii : (2,) array
        Largest |w| and |v|.
    centre : (E,) array
    covariance : (E, E) array
    cuts : int
    units : (m,) int array
    data : (N, C) array
    program, table : arrays of :func:`printed_third`
    """
    m, n_columns, n_own = units.size, program[N_COLUMNS], program[_N_OWN]
    n_arguments = n_own + program[_N_SHARED]
    out = np.zeros((4, m))
    width = min(_BLOCK, max(1, m))
    block = np.empty((n_columns + 2 * n_arguments, width))
    widths = block[n_columns + n_arguments :]
    at = np.empty((max(1, program[N_ENTRIES]), width), np.int64)
    here, there = of_parameters(program, _GRADIENTS, centre), of_parameters(program, _BOUND, centre)
    slopes, found = room_of(program, _GRADIENTS, width), room_of(program, _BOUND, width)
    size = program[N_ENTRIES]
    for b in range(program[N_DOTS]):
        size += product(program, b)[1]
    places, values = np.empty(size, np.int64), np.empty(size)
    for begin in range(0, m, width):
        n = min(width, m - begin)
        for j in range(n):
            for c in range(n_columns):
                block[c, j] = data[units[begin + j], c]
        call(program[_GRADIENTS + ROWS], centre, here, block, width, n, slopes, width, at)
        for j in range(n):
            for k in range(n_arguments):
                _gradient(program, slopes, at, block, k, j, places, values)
                radius = radii[0] if k < n_own else radii[1]
                widths[k, j] = radius * _length(covariance, places, values) / cuts
        for part in range(cuts**n_arguments):
            for k in range(n_arguments):
                place = 2.0 * (part % cuts) + 1.0 - cuts
                part //= cuts
                for j in range(n):
                    block[n_columns + k, j] = place * widths[k, j]
            call(program[_BOUND + ROWS], centre, there, block, width, n, found, width)
            for k in range(4):
                for j in range(n):
                    out[k, begin + j] = max(out[k, begin + j], found[k, j])
    for k in range(4):
        for j in range(m):
            out[k, j] *= cuts**3 / (radii[0] ** (3 - k) * radii[1] ** k)
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
def _length(covariance, places, values):
    """Return the square root of a quadratic form of a sparse vector."""
    total = 0.0
    for a in range(places.size):
        if values[a] == 0.0:
            continue
        row = covariance[places[a]]
        along = 0.5 * row[places[a]] * values[a]
        for b in range(a):
            along += row[places[b]] * values[b]
        total += 2.0 * values[a] * along
    return math.sqrt(max(total, 0.0))
