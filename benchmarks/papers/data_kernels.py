"""Compiled loops for control variates in data space.

Row n holds W numbers, of which the first Dy, y_n, vary within a bin. Its control variate at the
reference y^_b of its bin is

    h_n(x) = l(x; y^_b) + g_b(x).d_n + (P_b d_n)' H_b(x) (P_b d_n) / 2,     d_n = y_n - y^_b,

where g_b and H_b are derivatives in the data. These loops are the same for all models. Functions are
generated for each model (:func:`printed_data_control`): the log-likelihood of a block of W columns, and
the three terms of h for a block of 3 W columns: references, and first- and second-order displacements.
"""

from __future__ import annotations

import numpy as np

from amc_pymc.engine import Graph
from amc_pymc.engine.jit import njit
from amc_pymc.engine.machine import Printed, call
from amc_pymc.engine.printer import N_SHARED, ROWS, Printer, of_parameters, room_of
from amc_pymc.engine.row_kernels.loops import check_size, gather

#: Positions of stages in the program: log-likelihoods, and the terms of the control variate.
_VALUE, _TERMS = 0, 4
#: Maximum number of rows of a block.
_BLOCK = 256

_compiled = njit(cache=True, error_model="numpy")


def printed_data_control(graph: Graph, row: int, width: int, dim: int) -> Printed:
    """Generate the functions of rows and of their control variates.

    Parameters
    ----------
    graph : Graph
    row : int
        Log-likelihood of a row.
    width, dim : int
        Numbers of columns that it reads (W) and that it is differentiated by (Dy).

    Raises
    ------
    TooLarge
        If the expressions have too many operations.
    """
    g = graph
    slope = displaced(g, row, dim, width)
    curvature = displaced(g, displaced(g, row, dim, 2 * width), dim, 2 * width)
    terms = [row, slope, g.make("mul", g.const(0.5), curvature)]
    check_size(len(g.upstream(terms)))
    p = Printer(g)
    stages = [*p.stage("value", ("eta",), [row]), *p.stage("terms", ("eta",), terms)]
    return Printed(p.text, tuple(stages))


def displaced(graph: Graph, node: int, dim: int, offset: int) -> int:
    """Return the derivative of a node along a displacement of the row's data.

    Columns c < ``dim`` move by the column c + ``offset``, others do not move. Products with
    parameters move by products of the columns c + ``offset``, which must be zero for c >= ``dim``.
    """

    def tangent(n: int) -> int | None:
        found = graph.nodes[n]
        if found.op == "column":
            return graph.leaf("column", found.value + offset) if found.value < dim else None
        if found.op == "dot":
            name, first, columns = found.value
            if min(columns) >= dim:
                return None
            return graph.leaf("dot", (name, first, tuple(c + offset for c in columns)))
        return None

    return graph.forward(node, tangent)


@_compiled
def total(x, virtual, count, program):
    """Return the sum of the control variates of the raced rows.

    Columns of ``virtual`` (3 W, V) hold the B bins' references and summed displacements, then a
    reference and displacement per bin and direction. ``count`` (B,) are the rows per bin.
    """
    n = virtual.shape[1]
    shared = of_parameters(program, _TERMS, x)
    out = room_of(program, _TERMS, n)
    call(program[_TERMS + ROWS], x, shared, virtual, n, n, out, n)
    h = 0.0
    for b in range(count.size):
        h += count[b] * out[0, b] + out[1, b]
    for v in range(count.size, n):
        h += out[2, v]
    return h


@_compiled
def _gather_bins(label, units, begin, n, reference, block):
    """Copy the references of their bins (bin 0 for outliers); return whether any row has a bin."""
    raced = False
    for j in range(n):
        b = label[units[begin + j]]
        raced = raced or b >= 0
        for c in range(reference.shape[1]):
            block[c, j] = reference[max(b, 0), c]
    return raced


@_compiled
def _displace(own, dim, n, block):
    """Write displacements of the first ``dim`` columns from the references after these in a block, twice."""
    width = own.shape[0]
    for c in range(width):
        for j in range(n):
            d = own[c, j] - block[c, j] if c < dim else 0.0
            block[width + c, j] = d
            block[2 * width + c, j] = d


@_compiled
def state_rewards(points, centre, units, data, label, reference, size_of_y, program):
    """Return log-likelihoods (K, m) at K points minus control variates; ``centre`` is not used.

    ``data`` (N, W) are rows, ``label`` (N,) their bins, -1 for outliers, which have no control
    variate, ``reference`` (B, W) the bins' references, and ``size_of_y`` (1,) the number Dy of entries of y.
    """
    m, n_points, width = units.size, points.shape[0], data.shape[1]
    out = np.empty((n_points, m))
    size = min(_BLOCK, max(1, m))
    own, block = np.empty((width, size)), np.empty((3 * width, size))
    values, terms = room_of(program, _VALUE, size), room_of(program, _TERMS, size)
    there = np.empty((n_points, max(1, program[_VALUE + N_SHARED])))
    jets = np.empty((n_points, max(1, program[_TERMS + N_SHARED])))
    for k in range(n_points):
        there[k] = of_parameters(program, _VALUE, points[k])
        jets[k] = of_parameters(program, _TERMS, points[k])
    for begin in range(0, m, _BLOCK):
        n = min(_BLOCK, m - begin)
        gather(data, units, begin, n, own)
        raced = _gather_bins(label, units, begin, n, reference, block)
        if raced:
            _displace(own, size_of_y[0], n, block)
        for k in range(n_points):
            call(program[_VALUE + ROWS], points[k], there[k], own, size, n, values, size)
            for j in range(n):
                out[k, begin + j] = values[0, j]
            if not raced:
                continue
            call(program[_TERMS + ROWS], points[k], jets[k], block, size, n, terms, size)
            for j in range(n):
                if label[units[begin + j]] >= 0:
                    out[k, begin + j] -= terms[0, j] + terms[1, j] + terms[2, j]
    return out


@_compiled
def rewards(points, centre, units, data, label, reference, size_of_y, program):
    """Return :func:`state_rewards` minus the values at points[0]; row 0 is zero."""
    out = state_rewards(points, centre, units, data, label, reference, size_of_y, program)
    for k in range(out.shape[0] - 1, -1, -1):
        for j in range(out.shape[1]):
            out[k, j] -= out[0, j]
    return out
