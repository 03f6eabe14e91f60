"""Rows of a source as packed columns, in the type of a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from amc_pymc.row_store.chunks import Placeholder, as_placeholder

__all__ = ["Packing", "chunk_rows", "packed_rows", "placed_rows", "rounded"]

#: Rows of a chunk at most, and its share of the memory: it is held in several forms.
_MOST, _SHARE = 65_536, 32


class Packing(Protocol):
    """What the columns of a store are made of.

    Attributes
    ----------
    placeholders : tuple of Placeholder
        Data that columns are made of.
    n_columns : int
    whole : (C,) bool array
        Columns that hold whole numbers, which must not be rounded.
    digest : str
        Of the functions that read the columns.
    printed : object
        These functions, as workers get them.
    """

    placeholders: tuple[Placeholder, ...]
    n_columns: int
    whole: np.ndarray
    digest: str
    printed: Any

    def pack(self, chunk: dict[str, np.ndarray], first: int) -> np.ndarray:
        """Columns (m, C) of a chunk whose first row has the number ``first``."""


def chunk_rows(memory: int, packing: Packing) -> int:
    """Rows that are packed at once, with so many bytes of memory."""
    wide = 8 * packing.n_columns + sum(
        8 * int(np.prod(p.shape, dtype=int)) for p in packing.placeholders
    )
    return int(np.clip(memory // (_SHARE * wide), 16, _MOST))


def placed_rows(
    packing: Packing, labels: Mapping[str, Sequence[str]], chunk: dict[str, np.ndarray], first: int
) -> dict[str, np.ndarray]:
    """The data of a chunk, all or some, as the placeholders have them."""
    return {
        p.name: as_placeholder(chunk[p.name], p, labels[p.name], first)
        for p in packing.placeholders
        if p.name in chunk
    }


def packed_rows(
    packing: Packing, labels: Mapping[str, Sequence[str]], chunk: dict[str, np.ndarray], first: int
) -> np.ndarray:
    """Columns (m, C) of a chunk as the source has it; ``labels`` name columns in messages."""
    return packing.pack(placed_rows(packing, labels, chunk, first), first)


def rounded(packing: Packing, dtype: np.dtype, packed: np.ndarray, first: int) -> np.ndarray:
    """Packed rows in the type of a store.

    Raises
    ------
    ValueError
        The type cannot hold a number.
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
