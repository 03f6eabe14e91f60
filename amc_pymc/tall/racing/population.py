"""Uniform draws without replacement from a finite population of rows.

A bitmap of N/8 bytes marks the rows that a race has read. Drawing by rejection takes three tries per
row on average even if 95 % of the rows are read; beyond that, and in the last round, a race reads the
remaining rows in order. The bitmap is restored after the race, so a race depends only on its random
generator, not on earlier races.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.engine.jit import njit
from amc_pymc.engine.records import record

__all__ = ["Population", "draw_rows", "forget_rows", "make_population", "sweep_rows"]


@record
class Population(NamedTuple):
    """N rows; those in ``exact`` are not raced but always evaluated.

    ``marked`` holds one bit per row; a set bit means that the row is read or exact.
    """

    n_rows: int
    n_raced: int
    marked: np.ndarray
    exact: np.ndarray


def make_population(n_rows: int, exact: ArrayLike = ()) -> Population:
    """Return a population of ``n_rows`` rows, of which those in ``exact`` are not raced.

    Examples
    --------
    >>> from amc_pymc.tall.racing import make_population
    >>> make_population(100, exact=[3, 5]).n_raced
    98
    """
    exact = np.unique(np.asarray(exact, dtype=np.int64))
    if n_rows < 1:
        raise ValueError(f"n_rows must be at least 1, got {n_rows}")
    if exact.size and (exact[0] < 0 or exact[-1] >= n_rows):
        raise ValueError(f"exact must lie in [0, {n_rows}), got {exact}")
    marked = np.zeros((n_rows + 63) // 64, dtype=np.uint64)
    np.bitwise_or.at(marked, exact >> 6, np.uint64(1) << (exact & 63).astype(np.uint64))
    return Population(int(n_rows), int(n_rows - exact.size), marked, exact)


@njit(cache=True)
def draw_rows(n_rows: int, marked: np.ndarray, out: np.ndarray, rng: np.random.Generator) -> None:
    """Fill ``out`` with distinct unread rows, each equally likely, and mark them as read.

    Requires at least ``out.size`` unread rows.
    """
    one = np.uint64(1)
    for k in range(out.size):
        while True:
            row = np.int64(rng.random() * n_rows)
            word = row >> 6
            bit = one << np.uint64(row & 63)
            if marked[word] & bit == 0:
                marked[word] |= bit
                out[k] = row
                break


@njit(cache=True)
def sweep_rows(n_rows: int, marked: np.ndarray, start: int, out: np.ndarray) -> tuple[int, int]:
    """Fill ``out`` with unread rows from ``start`` on, unmarked; return (number, next start)."""
    one = np.uint64(1)
    k = 0
    row = start
    while row < n_rows and k < out.size:
        if marked[row >> 6] & (one << np.uint64(row & 63)) == 0:
            out[k] = row
            k += 1
        row += 1
    return k, row


@njit(cache=True)
def forget_rows(population: Population, rows: np.ndarray) -> None:
    """Unmark the rows that a race has drawn."""
    marked = population.marked
    one = np.uint64(1)
    for row in rows:
        marked[row >> 6] &= ~(one << np.uint64(row & 63))


@njit(cache=True)
def forget_all(population: Population) -> None:
    """Unmark all rows except the exact ones."""
    marked = population.marked
    one = np.uint64(1)
    marked[:] = np.uint64(0)
    for row in population.exact:
        marked[row >> 6] |= one << np.uint64(row & 63)
