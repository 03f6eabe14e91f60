"""Chunks of rows as the placeholders of a model take them, or an error that names the row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["Placeholder", "as_placeholder", "column_label"]


class Placeholder(NamedTuple):
    """What a model expects of the rows of a ``pm.Data``: (N, *shape) of a type."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype


def column_label(labels: Sequence[str], name: str, place: tuple[int, ...]) -> str:
    """How a message names a column of some rows."""
    if labels:
        return f"column {labels[place[0] if place else 0]!r} ({name!r})"
    return f"{name!r}" + (f" at {list(place)}" if place else "")


def as_placeholder(
    chunk: np.ndarray, wanted: Placeholder, labels: Sequence[str], first: int
) -> np.ndarray:
    """A chunk (m, ...) in the type that a placeholder has.

    ``first`` is the number of its first row in the source.

    Raises
    ------
    ValueError
        Rows that are not finite, or not whole numbers where the placeholder's are.
    """
    if chunk.dtype.kind == "f":
        _refuse(~np.isfinite(chunk), chunk, wanted.name, labels, first, "must be finite")
    if chunk.dtype == wanted.dtype:
        return np.require(chunk, requirements=["C", "A"])  # what has travelled may be unaligned
    with np.errstate(all="ignore"):
        out = np.ascontiguousarray(chunk, dtype=wanted.dtype)
    if wanted.dtype.kind != "f":
        reason = f"must fit the placeholder, which holds {wanted.dtype}"
        _refuse(out != chunk, chunk, wanted.name, labels, first, reason)
    elif chunk.dtype.kind == "f":
        _refuse(~np.isfinite(out), chunk, wanted.name, labels, first, f"must fit {wanted.dtype}")
    return out


def _refuse(bad: np.ndarray, chunk, name: str, labels, first: int, reason: str) -> None:
    """An error about the first bad entry, if there is one."""
    if not bad.any():
        return
    place = tuple(int(i) for i in np.argwhere(bad)[0])
    where = column_label(labels, name, place[1:])
    more = int(bad.sum()) - 1
    also = f" ({more} more in this chunk)" if more else ""
    raise ValueError(f"rows: {where} {reason}, got {chunk[place]} in row {first + place[0]}{also}")
