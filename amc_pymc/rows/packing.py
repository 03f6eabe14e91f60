"""Packing of the rows of a source into columns, in the type of a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

__all__ = [
    "GroupedPacking",
    "Packing",
    "Placeholder",
    "chunk_rows",
    "column_label",
    "packed_rows",
    "placed_rows",
    "rounded",
]

#: Maximum rows of a chunk, and divisor of the memory for it, because several copies are held.
_MOST, _SHARE = 65_536, 32
#: Largest rounding error, as a share of the range of a column in a chunk.
_LOST = 1e-3


class Placeholder(NamedTuple):
    """Shape and type that a model expects of the rows (N, *shape) of a ``pm.Data``."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype


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


class GroupedPacking(Packing, Protocol):
    """Definition of the columns of a store by group.

    Attributes
    ----------
    level_names : tuple of str
        Data that determine the group of a row.
    n_levels : int
        Number of groups G.
    beyond : int
        Number of copies of the last row that follow it.
    """

    level_names: tuple[str, ...]
    n_levels: int
    beyond: int

    def levels(self, chunk: Mapping[str, np.ndarray], /) -> np.ndarray:
        """Return the group (m,) of each row of a chunk with at least the data ``level_names``."""


def chunk_rows(memory: int, packing: Packing) -> int:
    """Return the number of rows packed at once with ``memory`` bytes."""
    shapes = [p.shape for p in packing.placeholders]
    wide = 8 * packing.n_columns + sum(8 * int(np.prod(s, dtype=int)) for s in shapes)
    return int(np.clip(memory // (_SHARE * wide), 16, _MOST))


def placed_rows(
    packing: Packing, labels: Mapping[str, Sequence[str]], chunk: Mapping[str, Any], first: int
) -> dict[str, np.ndarray]:
    """Convert the data of a chunk, all or some, to the types of the placeholders.

    ``first`` is the number of its first row in the source, ``labels`` name columns of tables.

    Raises
    ------
    ValueError
        If rows are not finite or do not fit the type; the message names the first such row.
    """
    own = (p for p in packing.placeholders if p.name in chunk)
    return {p.name: _placed(chunk[p.name], p, labels[p.name], first) for p in own}


def packed_rows(
    packing: Packing, labels: Mapping[str, Sequence[str]], chunk: Mapping[str, Any], first: int
) -> np.ndarray:
    """Return the columns (m, C) of a chunk of the source; raises as :func:`placed_rows`."""
    return packing.pack(placed_rows(packing, labels, chunk, first), first)


def column_label(labels: Sequence[str], name: str, place: tuple[int, ...]) -> str:
    """Return the name of a column for error messages."""
    if labels:
        return f"column {labels[place[0] if place else 0]!r} ({name!r})"
    return f"{name!r}" + (f" at {list(place)}" if place else "")


def _placed(
    chunk: np.ndarray, wanted: Placeholder, labels: Sequence[str], first: int
) -> np.ndarray:
    """Convert a chunk (m, ...) to the type of a placeholder."""
    where = chunk, wanted.name, labels, first
    if chunk.dtype.kind == "f":
        _refuse(~np.isfinite(chunk), *where, "must be finite")
    if chunk.dtype == wanted.dtype:
        return np.require(chunk, requirements=["C", "A"])  # arrays from workers may be unaligned
    with np.errstate(all="ignore"):
        out = np.ascontiguousarray(chunk, dtype=wanted.dtype)
    if wanted.dtype.kind != "f":
        _refuse(out != chunk, *where, f"must fit the placeholder, which holds {wanted.dtype}")
    elif chunk.dtype.kind == "f":
        _refuse(~np.isfinite(out), *where, f"must fit {wanted.dtype}")
    return out


def _refuse(
    bad: np.ndarray, chunk: np.ndarray, name: str, labels: Sequence[str], first: int, reason: str
) -> None:
    """Raise an error that names the first bad entry, if there is one."""
    if not bad.any():
        return
    place = tuple(int(i) for i in np.argwhere(bad)[0])
    where = column_label(labels, name, place[1:])
    raise ValueError(f"rows: {where} {reason}, got {chunk[place]} in row {first + place[0]}")


def rounded(packing: Packing, dtype: np.dtype, packed: np.ndarray, first: int) -> np.ndarray:
    """Convert packed rows to the type of a store.

    Raises
    ------
    ValueError
        If the type cannot hold a number, or rounding takes a visible part of what differs between rows.
    """
    if dtype == packed.dtype:
        return packed
    with np.errstate(all="ignore"):
        out = packed.astype(dtype)
        error, spread = np.abs(out - packed), np.ptp(packed, axis=0)
    lost = (packing.whole & (error > 0.0)) | ((error > _LOST * spread) & (spread > 0.0))
    lost |= np.isinf(out) & np.isfinite(packed)
    if lost.any():
        row, column = np.argwhere(lost)[0]
        raise ValueError(
            f"rows: dtype='float32' cannot hold {packed[row, column]} in row {first + row}; use "
            "'float64', or subtract what all rows have in common"
        )
    return out
