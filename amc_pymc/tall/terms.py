"""Families of terms or coefficients as compiled functions, with derivatives by the coordinates that they read.

A family is one expression with a table: element k of the family is its value with row k of the table. Each element
reads few coordinates of x (D,), its *leaves*. For every family one function writes, for all elements, the value, the
first derivatives by leaves, the lower triangle of the second and that of the third, and the positions of the leaves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amc_pymc.expressions import Family, Graph
from amc_pymc.expressions.leaves import leaves_of
from amc_pymc.expressions.machine import Printed, call
from amc_pymc.expressions.stages import N_KEPT, ROWS, of_parameters
from amc_pymc.jit import njit
from amc_pymc.row_kernels.derived import StagePrinter

__all__ = ["N_FAMILIES", "derivatives_of", "family_at", "printed_families"]

#: Place of the number of families in a program, and width of the description of each: first row of the table,
#: number of elements, number of leaves, and a stage.
N_FAMILIES, _WIDTH = 0, 7


def printed_families(graph: Graph, families: Sequence[Family]) -> Printed:
    """Generate the functions of some families.

    Parameters
    ----------
    graph : Graph
    families : sequence of Family
        Expressions of entries of "eta".
    """
    printer, described, first = StagePrinter(graph), list[int | str](), 0
    for k, family in enumerate(families):
        leaves, _ = leaves_of(graph, family.expression)
        outputs = [family.expression]
        ones = [graph.partial(family.expression, a) for a in leaves]
        twos = [[graph.partial(one, b) for b in leaves[: a + 1]] for a, one in enumerate(ones)]
        threes = [
            graph.partial(two, c)
            for row in twos
            for b, two in enumerate(row)
            for c in leaves[: b + 1]
        ]
        outputs += [*ones, *(two for row in twos for two in row), *threes]
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


@njit(cache=True, error_model="numpy")
def family_at(program, f):
    """Return the first row in the table, the number of elements and the number of leaves of a family."""
    place = 1 + f * _WIDTH
    return program[place], program[place + 1], program[place + 2]


@njit(cache=True, error_model="numpy")
def derivatives_of(x, program, table, f):
    """Return values and derivatives (K, n) of the elements of a family, and positions (L, n) of their leaves."""
    first, n, n_leaves = family_at(program, f)
    stage = 1 + f * _WIDTH + 3
    shared = of_parameters(program, stage, x)
    out = np.empty((program[stage + N_KEPT], n))
    at = np.empty((max(1, n_leaves), n), np.int64)
    call(program[stage + ROWS], x, shared, table[0, first:], table.shape[1], n, out, n, at)
    return out, at
