"""Compiled loops over rows: log-likelihoods, control variates, gradients and Hessians.

Data are packed row by row, (N, C), so a row read at random costs one or two cache lines. Rows are
gathered in blocks of columns, in which several rows are computed at once (SIMD).

With parameters z, l_i(z) is the log-likelihood of row i. Its control variate is the second-order
Taylor polynomial around a centre c, in the coordinates in which ``mask`` is one; with u = z' - z
and v = z' + z - 2 c the residual changes by

    l_i(z') - l_i(z) - [d_u l_i(c) + d_u d_v l_i(c) / 2].

The *leaves* of a row are entries of z and products of columns with consecutive entries. Derivatives
by leaves are scattered to those by z. The program of a model begins with a description of the leaves:
the numbers of entries, products and columns, and the place where products are described, each by its
first entry, its number of entries and the place of its list of columns.

These loops are the same for all models and compiled once. The functions of a block of rows are
generated for each model (:func:`printed_rows`); ``program`` holds their addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from amc_pymc.engine import Family, Graph
from amc_pymc.engine.jit import njit
from amc_pymc.engine.printer import (
    DOT_WIDTH,
    N_SHARED,
    ROWS,
    SHARED,
    Printed,
    Printer,
    call,
    of_parameters,
    room_of,
)

#: Places of the description of leaves in a program.
N_ENTRIES, N_DOTS, N_COLUMNS, DOTS_AT = 0, 1, 2, 3
#: Places of stages in a program: log-likelihoods, their Taylor polynomials, first and second derivatives by leaves.
VALUE, TAYLOR, SLOPES, CURVES, END = (DOTS_AT + 1 + 4 * k for k in range(5))
#: Maximum number of operations of a row and its derivatives; more would take too long to compile.
MOST_OPERATIONS = 6_000
_LINE = ("eta", "du", "dv", "dw")
#: Maximum numbers of rows and of points of a block.
_BLOCK, _POINTS = 256, 64

_compiled = njit(cache=True)
#: For sums over rows, which may be reordered to allow vectorisation.
_in_any_order = njit(cache=True, fastmath={"contract", "nsz", "reassoc"})


class TooLarge(ValueError):
    """The expression of a row is too large for code generation."""


@dataclass(frozen=True, eq=False)
class RowProgram:
    """Expressions from which the functions of a model's rows are generated.

    Attributes
    ----------
    graph : Graph
    row : int
        Log-likelihood of a row.
    n_columns : int
        Number of data columns that a row reads.
    families : tuple of Family
        Coefficients that are functions of parameters; they follow the parameters in ``eta``.
    n_parameters : int
        Size of ``eta`` without coefficients.
    """

    graph: Graph
    row: int
    n_columns: int
    families: tuple[Family, ...] = ()
    n_parameters: int = 0


def printed_rows(
    program: RowProgram, along_curves: bool = False, *, second_order: bool = True
) -> Printed:
    """Generate the functions of a model's rows, in the order of the places above.

    Parameters
    ----------
    program : RowProgram
        Expressions of its families are not part of the functions.
    along_curves : bool
        Whether first derivatives of Taylor polynomials are taken along "dw", which may differ from "du".
    second_order : bool
        Whether there are Taylor polynomials and second derivatives, of which a row may have thousands.

    Raises
    ------
    TooLarge
    """
    g, row = program.graph, program.row
    entries, dots = (g.leaves([row], op) for op in ("entry", "dot"))
    leaves = [*entries, *dots]
    places = [g.nodes[n].args[0] for n in entries]
    if second_order:
        along_u = g.derivative(row, "du")
        curved = g.derivative(along_u, "dv")
        along = g.derivative(row, "dw") if along_curves else along_u
        polynomial = g.make("add", along, g.make("mul", 0.5, curved))
        size = len(g.upstream([polynomial])) + len(leaves) ** 2
        derivatives = derivatives_by(g, row, leaves) if size <= MOST_OPERATIONS else []
        size = max(size, len(g.upstream([polynomial, *derivatives])))
    else:
        derivatives = [g.derivative(row, n) for n in leaves]
        size = len(g.upstream(derivatives))
    if size > MOST_OPERATIONS:
        raise TooLarge(f"a row and its derivatives take {size} operations")
    p = Printer(g)
    value = p.stage("value", ("eta",), [row])
    taylor: list[int | str] = [0] * len(value)
    curves = taylor
    if second_order:
        taylor = p.stage("taylor", _LINE, [polynomial])
        curves = p.stage("curves", ("eta",), [row, *derivatives], places)
    slopes = p.stage("slopes", ("eta",), [row, *derivatives[: len(leaves)]], places)
    head = (len(entries), len(dots), program.n_columns, END)
    return p.printed((*head, *value, *taylor, *slopes, *curves), dots)


def derivatives_by(graph: Graph, output: int, leaves: Sequence[int]) -> list[int]:
    """Return first derivatives with respect to leaves, then the lower triangle of second ones."""
    first = [graph.derivative(output, n) for n in leaves]
    second = [
        graph.derivative(first[a], leaves[b]) for a in range(len(leaves)) for b in range(a + 1)
    ]
    return first + second


# --- from derivatives by leaves to those by z -----------------------------------------------------------


@_compiled
def product(program, b):
    """Return the first entry of product b, their number, and the place of its list of columns."""
    place = program[DOTS_AT] + b * DOT_WIDTH
    return program[place], program[place + 1], program[place + 2]


@_in_any_order
def add_gradient(program, slopes, at, block, n, out):
    """Add derivatives of n rows with respect to leaves, ``slopes`` (L, n), to a gradient in z."""
    n_entries = program[N_ENTRIES]
    for a in range(n_entries):
        for j in range(n):
            out[at[a, j]] += slopes[a, j]
    for b in range(program[N_DOTS]):
        first, size, columns = product(program, b)
        for k in range(size):
            column = program[columns + k]
            s = 0.0
            for j in range(n):
                s += slopes[n_entries + b, j] * block[column, j]
            out[first + k] += s


@_compiled
def add_hessian(program, curves, at, block, n, work, same, other):
    """Add second derivatives with respect to leaves, ``curves`` (L (L + 1) / 2, n), to those in z.

    Those for one leaf go to ``same``, those for two leaves to ``other``, whose transpose has yet to be
    added. ``work`` is a buffer for n numbers.
    """
    t = 0
    for a in range(program[N_ENTRIES] + program[N_DOTS]):
        for b in range(a + 1):
            _add_pair(program, curves[t], at, block, n, a, b, work, same if a == b else other)
            t += 1


@_compiled
def add_transposed(same, other):
    """Add a matrix and its transpose to another."""
    size = same.shape[0]
    for a in range(size):
        for b in range(size):
            same[a, b] += other[a, b] + other[b, a]


@_in_any_order
def _add_pair(program, c, at, block, n, a, b, work, out):
    """Add second derivatives with respect to leaves a and b <= a to a Hessian in z."""
    n_entries = program[N_ENTRIES]
    if a < n_entries:
        for j in range(n):
            out[at[a, j], at[b, j]] += c[j]
        return
    first, size, columns = product(program, a - n_entries)
    for k in range(size):
        row, column = first + k, program[columns + k]
        for j in range(n):
            work[j] = c[j] * block[column, j]
        if b < n_entries:
            for j in range(n):
                out[row, at[b, j]] += work[j]
            continue
        first2, size2, columns2 = product(program, b - n_entries)
        # For a product with itself the lower triangle is enough.
        for i in range(k + 1 if a == b else size2):
            column = program[columns2 + i]
            s = 0.0
            for j in range(n):
                s += work[j] * block[column, j]
            out[row, first2 + i] += s
            if a == b and i < k:
                out[first2 + i, row] += s


# --- blocks of rows -------------------------------------------------------------------------------------


@_compiled
def gather(data, units, begin, n, block):
    """Copy some rows of the data to the columns of a block."""
    for j in range(n):
        i = units[begin + j]
        for c in range(block.shape[0]):
            block[c, j] = data[i, c]


@_compiled
def _block(program, units):
    """Allocate the largest block of columns."""
    return np.empty((program[N_COLUMNS], min(_BLOCK, max(1, units.size))))


@_compiled
def _places(program, block):
    """Allocate the positions in eta of the entries that each row of a block reads."""
    return np.empty((max(1, program[N_ENTRIES]), block.shape[1]), np.int64)


@_compiled
def _value_rows(program, z, shared, block, n, out):
    """Write log-likelihoods of the rows of a block to out[0]."""
    call(program[VALUE + ROWS], z, shared, block, block.shape[1], n, out, out.shape[1])


@_compiled
def _taylor_rows(program, z, zu, zv, zw, shared, block, n, out):
    """Write derivatives along zw plus half of the second ones along zu and zv to out[0]."""
    call(program[TAYLOR + ROWS], z, zu, zv, zw, shared, block, block.shape[1], n, out, out.shape[1])


@_compiled
def _derivative_rows(program, stage, z, shared, block, n, out, at):
    """Write log-likelihoods, derivatives by leaves, and positions in z of the entries."""
    call(program[stage + ROWS], z, shared, block, block.shape[1], n, out, out.shape[1], at)


# --- log-likelihoods and residuals ----------------------------------------------------------------------


@_compiled
def line(x, x_new, centre, mask):
    """Return expansion point and directions u and v, and whether any coordinate is expanded."""
    at, du, dv = x.copy(), np.zeros(x.size), np.zeros(x.size)
    expands = False
    for a in range(x.size):
        if mask[a] > 0.0:
            at[a] = centre[a]
            du[a] = x_new[a] - x[a]
            dv[a] = x_new[a] + x[a] - 2.0 * centre[a]
            expands = True
    return at, du, dv, expands


@_compiled
def _of_line(program, z, zu, zv, zw):
    """Return what Taylor polynomials read that is the same for all rows."""
    out = np.empty(max(1, program[TAYLOR + N_SHARED]))
    call(program[TAYLOR + SHARED], z, zu, zv, zw, out)
    return out


@_compiled
def values(z, units, data, program):
    """Return log-likelihoods (m,) of some rows."""
    m = units.size
    out = np.empty(m)
    shared = of_parameters(program, VALUE, z)
    block = _block(program, units)
    kept = room_of(program, VALUE, block.shape[1])
    for begin in range(0, m, _BLOCK):
        n = min(_BLOCK, m - begin)
        gather(data, units, begin, n, block)
        _value_rows(program, z, shared, block, n, kept)
        for j in range(n):
            out[begin + j] = kept[0, j]
    return out


@_compiled
def rewards(points, centre, units, mask, data, program):
    """Return residual changes from points[0] to points[1] in row 1 of (2, m); row 0 is zero."""
    at, du, dv, expands = line(points[0], points[1], centre, mask)
    return residual_changes(points[0], points[1], at, du, dv, du, expands, units, data, program)


@_compiled
def residual_changes(x, x_new, z, zu, zv, zw, expands, units, data, program):
    """Return :func:`rewards`, given the directions of the Taylor polynomial at z."""
    m = units.size
    out = np.empty((2, m))
    here, there = of_parameters(program, VALUE, x), of_parameters(program, VALUE, x_new)
    jet = _of_line(program, z, zu, zv, zw)
    block = _block(program, units)
    kept, terms = room_of(program, VALUE, block.shape[1]), room_of(program, TAYLOR, block.shape[1])
    for begin in range(0, m, _BLOCK):
        n = min(_BLOCK, m - begin)
        gather(data, units, begin, n, block)
        _value_rows(program, x_new, there, block, n, kept)
        for j in range(n):
            out[0, begin + j] = 0.0
            out[1, begin + j] = kept[0, j]
        _value_rows(program, x, here, block, n, kept)
        for j in range(n):
            out[1, begin + j] -= kept[0, j]
        if expands:
            _taylor_rows(program, z, zu, zv, zw, jet, block, n, terms)
            for j in range(n):
                out[1, begin + j] -= terms[0, j]
    return out


@_compiled
def state_rewards(points, centre, units, mask, data, program):
    """Return log-likelihoods (K, m) at K points minus Taylor polynomials around a centre."""
    # For each point: the point, its expansion point and the directions of the expansion.
    z = np.empty((points.shape[0], 5, centre.size))
    expands = False
    for k in range(points.shape[0]):
        at, _, _, expands = line(points[k], points[k], centre, mask)
        z[k, 0], z[k, 1] = points[k], at
        z[k, 2] = z[k, 3] = z[k, 4] = points[k] - at
    return residuals_at(z, expands, units, data, program)


@_compiled
def residuals_at(z, expands, units, data, program):
    """Return :func:`state_rewards`, given points, their expansion points and three directions (K, 5, E)."""
    m, n_points = units.size, z.shape[0]
    out = np.empty((n_points, m))
    block = _block(program, units)
    kept, terms = room_of(program, VALUE, block.shape[1]), room_of(program, TAYLOR, block.shape[1])
    there = np.empty((n_points, max(1, program[VALUE + N_SHARED])))
    middle = np.empty(there.shape)
    jets = np.empty((n_points, max(1, program[TAYLOR + N_SHARED])))
    for k in range(n_points):
        there[k] = of_parameters(program, VALUE, z[k, 0])
        middle[k] = of_parameters(program, VALUE, z[k, 1])
        jets[k] = _of_line(program, z[k, 1], z[k, 2], z[k, 3], z[k, 4])
    for begin in range(0, m, _BLOCK):
        n = min(_BLOCK, m - begin)
        gather(data, units, begin, n, block)
        for k in range(n_points):
            _value_rows(program, z[k, 0], there[k], block, n, kept)
            for j in range(n):
                out[k, begin + j] = kept[0, j]
            if expands:
                _value_rows(program, z[k, 1], middle[k], block, n, kept)
                _taylor_rows(program, z[k, 1], z[k, 2], z[k, 3], z[k, 4], jets[k], block, n, terms)
                for j in range(n):
                    out[k, begin + j] -= kept[0, j] + terms[0, j]
    return out


# --- derivatives ----------------------------------------------------------------------------------------


@_compiled
def gradient(z, units, data, program):
    """Return the summed log-likelihood of some rows and its gradient (E,)."""
    m = units.size
    total, out = 0.0, np.zeros(z.size)
    shared = of_parameters(program, SLOPES, z)
    block = _block(program, units)
    part, at = room_of(program, SLOPES, block.shape[1]), _places(program, block)
    for begin in range(0, m, _BLOCK):
        n = min(_BLOCK, m - begin)
        gather(data, units, begin, n, block)
        _derivative_rows(program, SLOPES, z, shared, block, n, part, at)
        for j in range(n):
            total += part[0, j]
        add_gradient(program, part[1:], at, block, n, out)
    return total, out


@_compiled
def hessian(z, units, data, program):
    """Return the Hessian (E, E) of the summed log-likelihood of some rows."""
    m, size = units.size, z.size
    n_leaves = program[N_ENTRIES] + program[N_DOTS]
    same, other = np.zeros((size, size)), np.zeros((size, size))
    shared = of_parameters(program, CURVES, z)
    block = _block(program, units)
    part, at = room_of(program, CURVES, block.shape[1]), _places(program, block)
    work = np.empty(block.shape[1])
    for begin in range(0, m, _BLOCK):
        n = min(_BLOCK, m - begin)
        gather(data, units, begin, n, block)
        _derivative_rows(program, CURVES, z, shared, block, n, part, at)
        add_hessian(program, part[1 + n_leaves :], at, block, n, work, same, other)
    add_transposed(same, other)
    return same


@_compiled
def totals(zs, columns, slopes, program):
    """Return summed log-likelihoods (P,) of all rows at P points; columns (C, N) are contiguous.

    Their gradients are added to ``slopes`` (P, E), unless that is empty.
    """
    out, stage = np.zeros(zs.shape[0]), SLOPES if slopes.size else VALUE
    n_rows = columns.shape[1]
    width = min(_BLOCK, max(1, n_rows))
    part = room_of(program, stage, width)
    at = np.empty((max(1, program[N_ENTRIES]), width), np.int64)
    for p in range(out.size):
        shared = of_parameters(program, stage, zs[p])
        for begin in range(0, n_rows, _BLOCK):
            n = min(_BLOCK, n_rows - begin)
            args = program[stage + ROWS], zs[p], shared, columns[0, begin:], n_rows, n, part, width
            if slopes.size:
                call(*args, at)
                add_gradient(program, part[1:], at, columns[:, begin:], n, slopes[p])
            else:
                call(*args)
            s = 0.0
            for j in range(n):
                s += part[0, j]
            out[p] += s
    return out


# --- points in the place of rows -------------------------------------------------------------------------


@_compiled
def at_points(program, xs, out):
    """Write outputs (K, P) at points (P, D)."""
    n_points, n_dim = xs.shape
    block, kept = np.empty((n_dim, _POINTS)), np.empty((out.shape[0], _POINTS))
    for begin in range(0, n_points, _POINTS):
        n = min(_POINTS, n_points - begin)
        for d in range(n_dim):
            for j in range(n):
                block[d, j] = xs[begin + j, d]
        call(program[0], block, _POINTS, n, kept, _POINTS)
        for k in range(out.shape[0]):
            for j in range(n):
                out[k, begin + j] = kept[k, j]
