"""Conversion of chunks of rows to the types of the placeholders of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["Placeholder", "as_placeholder", "column_label"]


class Placeholder(NamedTuple):
    """Shape and type that a model expects of the rows (N, *shape) of a ``pm.Data``."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype


def column_label(labels: Sequence[str], name: str, place: tuple[int, ...]) -> str:
    """Return the name of a column for error messages."""
    if labels:
        return f"column {labels[place[0] if place else 0]!r} ({name!r})"
    return f"{name!r}" + (f" at {list(place)}" if place else "")


def as_placeholder(
    chunk: np.ndarray, wanted: Placeholder, labels: Sequence[str], first: int
) -> np.ndarray:
    """Convert a chunk (m, ...) to the type of a placeholder.

    ``first`` is the number of its first row in the source.

    Raises
    ------
    ValueError
        If rows are not finite or do not fit the type; the message names the first such row.
    """
    if chunk.dtype.kind == "f":
        _refuse(~np.isfinite(chunk), chunk, wanted.name, labels, first, "must be finite")
    if chunk.dtype == wanted.dtype:
        return np.require(chunk, requirements=["C", "A"])  # arrays from workers may be unaligned
    with np.errstate(all="ignore"):
        out = np.ascontiguousarray(chunk, dtype=wanted.dtype)
    if wanted.dtype.kind != "f":
        reason = f"must fit the placeholder, which holds {wanted.dtype}"
        _refuse(out != chunk, chunk, wanted.name, labels, first, reason)
    elif chunk.dtype.kind == "f":
        _refuse(~np.isfinite(out), chunk, wanted.name, labels, first, f"must fit {wanted.dtype}")
    return out


def _refuse(
    bad: np.ndarray,
    chunk: np.ndarray,
    name: str,
    labels: Sequence[str],
    first: int,
    reason: str,
) -> None:
    """Raise an error that names the first bad entry, if there is one."""
    if not bad.any():
        return
    place = tuple(int(i) for i in np.argwhere(bad)[0])
    where = column_label(labels, name, place[1:])
    more = int(bad.sum()) - 1
    also = f" ({more} more in this chunk)" if more else ""
    raise ValueError(f"rows: {where} {reason}, got {chunk[place]} in row {first + place[0]}{also}")
