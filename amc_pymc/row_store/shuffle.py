"""Rows in random order on disk, by two passes that hold a bounded number of rows in memory.

The file is cut into buckets of fixed sizes. The first pass sends each row to a bucket, as if cards
were dealt to players who take fixed numbers of them: how many rows of a chunk go to each is
multivariate hypergeometric, which ones a permutation. The second pass shuffles each bucket in
memory. Every order is equally likely, and the file needs no space besides its own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["MOST_ROWS", "Dealer", "bucket_bounds"]

#: Beyond this many rows NumPy has no hypergeometric numbers.
MOST_ROWS = 10**9 - 1


def bucket_bounds(n_rows: int, size: int) -> np.ndarray:
    """First row of each bucket of ``size`` rows, the last one shorter, and the end (K + 1,)."""
    return np.append(np.arange(0, n_rows, size), n_rows)


class Dealer:
    """Deals rows to buckets.

    Parameters
    ----------
    bounds : (K + 1,) int array
        First rows of buckets, and the end.
    rng : numpy.random.Generator or None
        None fills buckets in order.
    """

    def __init__(self, bounds: np.ndarray, rng: np.random.Generator | None):
        self._next = bounds[:-1].astype(np.int64)
        self._left = np.diff(bounds).astype(np.int64)
        self._rng = rng

    def deal(self, rows: np.ndarray, put: Callable[[int, np.ndarray], None]) -> None:
        """Call ``put(place, some rows)`` for each bucket that gets rows of a chunk (m, C)."""
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
