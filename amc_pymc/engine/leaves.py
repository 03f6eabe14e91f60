"""Conversion of derivatives of rows with respect to leaves into derivatives with respect to eta.

*Leaves* of a row are entries of eta and dot products of columns of data with consecutive entries. The
program of a model begins with their description: the numbers of entries, products and columns, and the
place where products are described, each by its first entry, its number of entries and the place of its
list of columns.
"""

from __future__ import annotations

from collections.abc import Sequence

from amc_pymc.engine.graph import Graph
from amc_pymc.engine.jit import njit

#: Places of the description in the program.
N_ENTRIES, N_DOTS, N_COLUMNS, DOTS_AT = 0, 1, 2, 3
#: Number of integers that describe a product.
_WIDTH = 3

_compiled = njit(cache=True)
#: For sums over rows, which may be reordered to allow vectorisation.
_in_any_order = njit(cache=True, fastmath={"contract", "nsz", "reassoc"})


def leaves_of(graph: Graph, output: int) -> tuple[list[int], list[int]]:
    """Return the entries of eta that an expression reads, and its products with consecutive entries."""
    entries = [n for n in graph.leaves([output], "entry") if graph.nodes[n].value == "eta"]
    return entries, graph.leaves([output], "dot")


def derivatives_by(graph: Graph, output: int, leaves: Sequence[int]) -> list[int]:
    """Return first derivatives with respect to leaves, then the lower triangle of second ones."""
    first = [graph.partial(output, n) for n in leaves]
    second = [graph.partial(first[a], leaves[b]) for a in range(len(leaves)) for b in range(a + 1)]
    return first + second


def described_dots(graph: Graph, dots: Sequence[int], begin: int) -> list[int]:
    """Return the description of products, which starts at the place ``begin``."""
    found = [graph.nodes[n].value for n in dots]
    out: list[int] = []
    columns: list[int] = []
    for _, first, read in found:
        out += [first, len(read), begin + len(found) * _WIDTH + len(columns)]
        columns += list(read)
    return [int(v) for v in out + columns]


@_compiled
def product(program, b):
    """Return the first entry of product b, their number, and the place of its list of columns."""
    place = program[DOTS_AT] + b * _WIDTH
    return program[place], program[place + 1], program[place + 2]


@_in_any_order
def add_gradient(program, slopes, at, block, n, out):
    """Add derivatives of n rows with respect to leaves, ``slopes`` (L, n), to a gradient in eta."""
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
    """Add second derivatives with respect to leaves, ``curves`` (L (L + 1) / 2, n), to those in eta.

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
    """Add second derivatives with respect to leaves a and b <= a to a Hessian in eta."""
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
