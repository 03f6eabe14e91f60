"""Families of terms or coefficients as compiled functions, with derivatives by the coordinates that they read.

A family is one expression with a table: element k of the family is its value with row k of the table. Each element
reads few coordinates of x (D,), its *leaves*. For every family one function writes, for all elements, the value, the
first derivatives by leaves, the lower triangle of the second and that of the third, and the positions of the leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from amc_pymc.engine import Family, Graph
from amc_pymc.engine.jit import njit
from amc_pymc.engine.leaves import leaves_of
from amc_pymc.engine.machine import Printed, call
from amc_pymc.engine.printer import N_KEPT, ROWS, Printer, of_parameters
from amc_pymc.engine.records import record
from amc_pymc.engine.row_kernels.loops import line, residual_changes, residuals_at

#: Place of the number of families in a program, and width of the description of each: first row of the table,
#: number of elements, number of leaves, and a stage.
N_FAMILIES, _WIDTH = 0, 7


class Written(NamedTuple):
    """Families of expressions of "eta", which is (x, f(x)) and, for terms of a prior, A x; and the functions f of x (D,)."""

    graph: Graph
    families: tuple[Family, ...]
    functions: tuple[Family, ...]

    @classmethod
    def nothing(cls) -> Written:
        """Return no families."""
        return cls(Graph(), (), ())


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
        leaves, _ = leaves_of(graph, family.expression)
        outputs = [family.expression]
        for by in _derivatives(leaves, order):
            node = family.expression
            for leaf in by:
                node = graph.partial(node, leaf)
            outputs.append(node)
        places = [graph.nodes[n].args[0] for n in leaves]
        stage = printer.stage(f"family{k}", ("eta",), outputs, places)
        described += [first, len(family.table), len(leaves), *stage]
        first += len(family.table)
    if not families:  # a library needs a function
        printer.once("nothing", ("out",), [])
    width = max((f.table.shape[1] for f in families), default=0)
    table = np.zeros((max(1, width), max(1, first)))
    for place, family in zip(described[::_WIDTH], families, strict=True):
        table[: family.table.shape[1], int(place) : int(place) + len(family.table)] = family.table.T
    return Printed(printer.text, (len(families), *described), tuple(map(tuple, table.tolist())))


def _derivatives(leaves: Sequence[int], order: int) -> list[tuple[int, ...]]:
    """Return the leaves of each derivative: a >= b >= c, the last one fastest, order by order."""
    numbered = range(len(leaves))
    places = [
        each
        for k in range(1, order + 1)
        for each in sorted(c[::-1] for c in combinations_with_replacement(numbered, k))
    ]
    return [tuple(leaves[a] for a in each) for each in places]


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
    """Add the first derivatives of all elements by x to ``out`` (D,), times weights if there are any."""
    begin = 0
    for f in range(program[N_FAMILIES]):
        n, n_leaves, found, at = derivatives_of(x, program, table, f)
        for k in range(n):
            weight = weights[begin + k] if weights.size else 1.0
            for a in range(n_leaves):
                out[at[a, k]] += weight * found[1 + a, k]
        begin += n


@njit(cache=True)
def add_curves(x, program, table, weights, out):
    """Add second derivatives of all elements by x to ``out`` (D, D), times weights if there are any."""
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
