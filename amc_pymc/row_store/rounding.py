"""Some rows as they were before they were rounded, to measure what rounding does."""

from __future__ import annotations

import base64

from collections.abc import Mapping
from typing import Any

import numpy as np

from amc_pymc.rng import as_generator

__all__ = ["UnroundedRows", "unrounded_rows"]

#: Rows that are kept at most, and bytes that they may take.
_MOST_ROWS, _MOST_BYTES = 4_096, 2**20


class UnroundedRows:
    """A uniform sample of the rows (N, C) of a store, collected while they come in order.

    Parameters
    ----------
    n_rows, n_columns : int
    dtype : numpy.dtype
        Of the store; nothing is kept if it is float64.
    seed : int
    """

    def __init__(self, n_rows: int, n_columns: int, dtype: np.dtype, seed: int):
        most = min(n_rows, _MOST_ROWS, max(2, _MOST_BYTES // (8 * n_columns)))
        number = 0 if dtype == np.float64 else most
        chosen = as_generator([seed, 2]).choice(n_rows, size=number, replace=False, shuffle=False)
        self._numbers = np.sort(chosen)
        self._rows = np.zeros((number, n_columns))

    def add(self, packed: np.ndarray, first: int) -> None:
        """Keep those among rows (m, C) that are in the sample; the first one has this number."""
        start = np.searchsorted(self._numbers, first)
        chosen = self.within(first, len(packed))
        self._rows[start : start + chosen.size] = packed[chosen]

    def within(self, first: int, number: int) -> np.ndarray:
        """Which of so many rows, the first of which has this number, are in the sample."""
        a, b = np.searchsorted(self._numbers, [first, first + number])
        return self._numbers[a:b] - first

    def take(self, rows: np.ndarray) -> None:
        """Keep rows (S, C) that have been drawn elsewhere: the whole sample, in order."""
        self._rows[:] = rows

    def encoded(self) -> str:
        """The sample as text, whose length does not depend on what is in it."""
        return base64.b64encode(self._rows.tobytes()).decode()


def unrounded_rows(header: Mapping[str, Any]) -> np.ndarray | None:
    """The sample (S, C) from the header of a store; None if it has none."""
    text = header.get("unrounded")
    if not text:
        return None
    return np.frombuffer(base64.b64decode(text)).reshape(-1, header["n_columns"])
