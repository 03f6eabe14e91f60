"""Sample of the rows before rounding, for measuring the effect of rounding."""

from __future__ import annotations

import base64

from collections.abc import Mapping
from typing import Any

import numpy as np

from amc_pymc.rng import as_generator

__all__ = ["UnroundedRows", "unrounded_rows"]

#: Maximum number of rows in the sample, and of bytes.
_MOST_ROWS, _MOST_BYTES = 4_096, 2**20


class UnroundedRows:
    """A uniform sample of the rows (N, C) of a store, collected in the order of the source.

    Parameters
    ----------
    n_rows, n_columns : int
    dtype : numpy.dtype
        Type of the store; the sample is empty if it is float64.
    seed : int
    """

    def __init__(self, n_rows: int, n_columns: int, dtype: np.dtype, seed: int):
        most = min(n_rows, _MOST_ROWS, max(2, _MOST_BYTES // (8 * n_columns)))
        number = 0 if dtype == np.float64 else most
        chosen = as_generator([seed, 2]).choice(n_rows, size=number, replace=False, shuffle=False)
        self._numbers = np.sort(chosen)
        self._rows = np.zeros((number, n_columns))

    def add(self, packed: np.ndarray, first: int) -> None:
        """Keep sampled rows among rows (m, C), of which the first has the number ``first``."""
        start = np.searchsorted(self._numbers, first)
        chosen = self.within(first, len(packed))
        self._rows[start : start + chosen.size] = packed[chosen]

    def within(self, first: int, number: int) -> np.ndarray:
        """Return the positions of sampled rows among ``number`` rows from row ``first`` on."""
        a, b = np.searchsorted(self._numbers, [first, first + number])
        return self._numbers[a:b] - first

    def take(self, rows: np.ndarray) -> None:
        """Replace the sample by rows (S, C) collected elsewhere, in order."""
        self._rows[:] = rows

    def encoded(self) -> str:
        """Return the sample as text of a length that does not depend on its values."""
        return base64.b64encode(self._rows.tobytes()).decode()


def unrounded_rows(header: Mapping[str, Any]) -> np.ndarray | None:
    """Return the sample (S, C) from the header of a store; None if it has none."""
    text = header.get("unrounded")
    if not text:
        return None
    return np.frombuffer(base64.b64decode(text)).reshape(-1, header["n_columns"])
