"""Shuffling of rows on disk, in two passes that hold a bounded number of rows in memory.

The file is divided into buckets of fixed sizes. The first pass assigns each row to a random bucket:
the numbers of rows of a chunk in the buckets are multivariate hypergeometric, and a permutation
selects the rows. The second pass shuffles each bucket in memory. Every order is equally likely, and
no further disk space is needed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["MOST_ROWS", "Dealer", "bucket_bounds"]

#: Largest number of rows for which NumPy draws hypergeometric numbers.
MOST_ROWS = 10**9 - 1


def bucket_bounds(n_rows: int, size: int) -> np.ndarray:
    """Return the first row of each bucket of at most ``size`` rows, and the end (K + 1,)."""
    return np.append(np.arange(0, n_rows, size), n_rows)


class Dealer:
    """Random assignment of rows to buckets.

    Parameters
    ----------
    bounds : (K + 1,) int array
        First row of each bucket, and the end.
    rng : numpy.random.Generator or None
        None fills buckets in order.
    """

    def __init__(self, bounds: np.ndarray, rng: np.random.Generator | None):
        self._next = bounds[:-1].astype(np.int64)
        self._left = np.diff(bounds).astype(np.int64)
        self._rng = rng

    def deal(self, rows: np.ndarray, put: Callable[[int, np.ndarray], None]) -> None:
        """Call ``put(place, rows)`` for each bucket that gets some rows of a chunk (m, C)."""
        if self._rng is None:
            put(int(self._next[0]), rows)
            self._next[0] += len(rows)
            return
        if self._left.size > 1:
            counts = self._rng.multivariate_hypergeometric(self._left, len(rows))
            rows = rows.take(self._rng.permutation(len(rows)), axis=0)
        else:
            counts = np.array([len(rows)])
        stops = np.cumsum(counts)
        for k in np.flatnonzero(counts):
            put(int(self._next[k]), rows[stops[k] - counts[k] : stops[k]])
        self._next += counts
        self._left -= counts
