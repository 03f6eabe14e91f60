"""Bounds of the third-order remainder of rows, for decisions that read few rows.

The *arguments* of a row's log-likelihood are the largest parts of its expression that are affine in the parameters
eta: linear predictors and shared scalars. Let R be the log-likelihood minus its second-order Taylor polynomial around
a centre, and d_a the change of argument a. By Taylor's theorem,

    |R(eta)| <= 1/6 sum_abc sup |l_abc| |d_a d_b d_c|,

with third derivatives l_abc by arguments and suprema over a box that contains eta and the centre. The parameters are
in *blocks* (:class:`amc_pymc.tall.thinning.Blocks`), of which a row reads some, with lengths p_j of their changes,
and |d_a| <= sum_j A_aj p_j. Let t_j be a typical length, u_a = sum_j A_aj t_j, and E_a the part of the sum above,
with u in the place of d, that is due to argument a: a third of a term for each time that a occurs in it. Products
are at most means of powers, and powers of means at most means of powers, so

    |R(eta)| <= sum_j c_j p_j^3,    c_j = sum_a E_a A_aj / (u_a t_j^2).
"""

from __future__ import annotations

import math

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from amc_pymc.engine import ROW, Graph
from amc_pymc.engine.intervals import bounds
from amc_pymc.engine.jit import njit
from amc_pymc.engine.leaves import (
    DOTS_AT,
    N_DOTS,
    N_ENTRIES,
    described_dots,
    leaves_of,
    product,
)
from amc_pymc.engine.machine import Printed, call
from amc_pymc.engine.printer import ROWS, Printer, of_parameters, room_of
from amc_pymc.engine.row_kernels.loops import RowProgram, TooLarge, check_size, gather

#: Number of arguments; stages: their gradients by leaves, and the bound.
_N_ARGUMENTS, _GRADIENTS, _BOUND, _END = (DOTS_AT + k for k in (1, 2, 6, 10))

_compiled = njit(cache=True)


def arguments_of(graph: Graph, row: int) -> list[int]:
    """Return the largest parts of an expression that are affine in eta, without constants and signs.

    Examples
    --------
    >>> from amc_pymc.engine import ROW, Graph
    >>> from amc_pymc.engine.row_kernels.third import arguments_of
    >>> g = Graph()
    >>> slope, log_sd = g.entry("eta", g.const(0)), g.entry("eta", g.const(1))
    >>> mean = g.make("mul", g.leaf("column", 0), slope)
    >>> scaled = g.make("div", g.make("sub", g.leaf("column", 1), mean), g.make("exp", log_sd))
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
    data : (N, C) array
    n_arguments : int
    dense : (W,) int array
        Positions of eta that are read by all rows, as parts of their linear predictors.
    release : callable
        Called after some rows have been read, to release their memory.
    """

    program: RowProgram
    printed: Printed
    data: np.ndarray
    n_arguments: int
    dense: np.ndarray
    release: Callable[[], None]

    def positions(self, centre: np.ndarray) -> np.ndarray:
        """Return the positions of eta (A, N) of the entries that each row reads."""
        graph = self.program.graph
        places = [graph.nodes[n].args[0] for n in leaves_of(graph, self.program.row)[0]]
        out, begin = np.empty((len(places), len(self.data)), np.int32), 0
        for part in self._parts():
            found = graph.evaluate(places, row=part.T, eta=centre)
            for a, positions in enumerate(found):
                out[a, begin : begin + len(part)] = positions
            begin += len(part)
        return out

    def __call__(
        self, centre: np.ndarray, blocks: Any, radii: np.ndarray, sizes: np.ndarray, cuts: int
    ) -> np.ndarray:
        """Return factors c_j (1 + A, N) of all rows; see :func:`third_bounds`."""
        own = blocks.place, blocks.gains, blocks.sds, blocks.covariance, blocks.dense.size
        args = radii, sizes, cuts, centre, *own
        parts = [third_bounds(*args, part, *self.printed.arrays) for part in self._parts()]
        return np.concatenate(parts, axis=1)

    def _parts(self) -> Iterator[np.ndarray]:
        for begin in range(0, len(self.data), _CHUNK):
            yield self.data[begin : begin + _CHUNK]
            self.release()


def row_bounds(
    program: RowProgram, data: np.ndarray, release: Callable[[], None]
) -> RowBounds | None:
    """Return bounds of rows; None if their expression has no third derivatives, or is too large."""
    graph, arguments = program.graph, arguments_of(program.graph, program.row)
    own = [a for a in arguments if graph.depends(a) & ROW]
    shared = [a for a in arguments if a not in own]
    dense = _numbered(graph, own) - _numbered(graph, shared)
    for _, first, columns in (graph.nodes[n].value for n in graph.leaves(arguments, "dot")):
        dense.update(range(first, first + len(columns)))
    try:
        printed = printed_third(program)
    except (TooLarge, NotImplementedError):
        return None
    places = np.array(sorted(dense), np.int64)
    return RowBounds(program, printed, data, len(arguments), places, release)


def _numbered(graph: Graph, outputs: list[int]) -> set[int]:
    """Return the positions of eta of the entries that are the same for all rows."""
    numbers = (graph.number(graph.nodes[n].args[0]) for n in graph.leaves(outputs, "entry"))
    return {int(n) for n in numbers if n is not None}


def printed_third(program: RowProgram) -> Printed:
    """Generate the function of a row's bound, from an expression without coefficients of families.

    Raises
    ------
    TooLarge
    """
    g = program.graph
    entries, dots = leaves_of(g, program.row)
    arguments = arguments_of(g, program.row)
    n = len(arguments)
    # Offsets from the centre, half-widths of a box of arguments, and their typical changes follow the data.
    offsets, widths, sizes = (
        [g.leaf("column", program.n_columns + first + k) for k in range(n)]
        for first in (0, n, 2 * n)
    )
    middles = [g.make("add", a, offset) for a, offset in zip(arguments, offsets)]
    (row,) = g.replaced([program.row], dict(zip(arguments, middles)))
    sums = _remainder_bounds(g, row, dict(zip(middles, widths)), dict(zip(middles, sizes)))
    slopes = [g.partial(a, leaf) for a in arguments for leaf in (*entries, *dots)]
    p = Printer(g)
    stages = [
        *p.stage("slopes", ("eta",), slopes, [g.nodes[e].args[0] for e in entries]),
        *p.stage("bound", ("eta",), sums),
    ]
    head = (len(entries), len(dots), program.n_columns, _END, n)
    return Printed(p.text, (*head, *stages, *described_dots(g, dots, _END)))


def _remainder_bounds(
    g: Graph, row: int, widths: dict[int, int], sizes: dict[int, int]
) -> list[int]:
    """Return the part E_a of each argument in 1/6 sum_abc sup |l_abc| u_a u_b u_c, with suprema over a box.

    All are infinite if nothing is known. ``widths`` are half-widths of the box, ``sizes`` are u.
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
    parts = dict.fromkeys(widths, g.const(0.0))
    for abc, (low, high) in zip(combinations, intervals[1:], strict=True):
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
    known = g.make("and", smooth, g.make("lt", g.sum(sums), math.inf))
    sums = [g.make("switch", known, n, math.inf) for n in sums]
    check_size(len(g.upstream(sums)) // 2)
    return sums


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
        Fields of :class:`amc_pymc.tall.thinning.Blocks`.
    data : (N, C) array
    program, table : arrays of :func:`printed_third`
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
