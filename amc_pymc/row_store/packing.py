"""Packing of the rows of a source into columns, in the type of a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from amc_pymc.row_store.chunks import Placeholder, as_placeholder

__all__ = ["Packing", "chunk_rows", "packed_rows", "placed_rows", "rounded"]

#: Maximum rows of a chunk, and divisor of the memory for it, because several copies are held.
_MOST, _SHARE = 65_536, 32


class Packing(Protocol):
    """Definition of the columns of a store.

    Attributes
    ----------
    placeholders : tuple of Placeholder
        Data from which the columns are computed.
    n_columns : int
    whole : (C,) bool array
        Columns that hold whole numbers, which must not be rounded.
    digest : str
        Hash of the functions that read the columns.
    printed : object
        These functions, in the form sent to workers.
    """

    placeholders: tuple[Placeholder, ...]
    n_columns: int
    whole: np.ndarray
    digest: str
    printed: Any

    def pack(self, chunk: dict[str, np.ndarray], first: int) -> np.ndarray:
        """Return the columns (m, C) of a chunk whose first row has the number ``first``."""


def chunk_rows(memory: int, packing: Packing) -> int:
    """Return the number of rows packed at once with ``memory`` bytes."""
    wide = 8 * packing.n_columns + sum(
        8 * int(np.prod(p.shape, dtype=int)) for p in packing.placeholders
    )
    return int(np.clip(memory // (_SHARE * wide), 16, _MOST))


def placed_rows(
    packing: Packing, labels: Mapping[str, Sequence[str]], chunk: dict[str, np.ndarray], first: int
) -> dict[str, np.ndarray]:
    """Convert the data of a chunk, all or some, to the types of the placeholders."""
    return {
        p.name: as_placeholder(chunk[p.name], p, labels[p.name], first)
        for p in packing.placeholders
        if p.name in chunk
    }


def packed_rows(
    packing: Packing, labels: Mapping[str, Sequence[str]], chunk: dict[str, np.ndarray], first: int
) -> np.ndarray:
    """Return the columns (m, C) of a chunk of the source; ``labels`` name columns in messages."""
    return packing.pack(placed_rows(packing, labels, chunk, first), first)


def rounded(packing: Packing, dtype: np.dtype, packed: np.ndarray, first: int) -> np.ndarray:
    """Convert packed rows to the type of a store.

    Raises
    ------
    ValueError
        If the type cannot hold a number.
    """
    if dtype == packed.dtype:
        return packed
    with np.errstate(over="ignore"):
        out = packed.astype(dtype)
    changed = (out != packed) & (packing.whole | ~np.isfinite(out)) & np.isfinite(packed)
    if changed.any():
        row, column = np.argwhere(changed)[0]
        raise ValueError(
            f"rows: dtype='float32' cannot hold {packed[row, column]} in row {first + row}; "
            "use 'float64'"
        )
    return out
