"""Packing of rows into columns, and a store of them, which is written with a bounded number of rows in memory."""

from __future__ import annotations

import logging
import math
import tempfile
import time

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from amc_pymc.progress import progress
from amc_pymc.rows.files import Draft, RowStore
from amc_pymc.rows.sources import Placeholder, Rows, Source

_log = logging.getLogger("amc_pymc")
_DTYPE = np.dtype(np.float64)
#: Maximum rows of a chunk, and divisor of the memory for it, because several copies are held.
_MOST, _SHARE = 65_536, 32


class Packing(Protocol):
    """Definition of the columns of a store.

    Attributes
    ----------
    placeholders : tuple of Placeholder
        Data from which the columns are computed.
    n_columns : int
    """

    placeholders: tuple[Placeholder, ...]
    n_columns: int

    def pack(self, chunk: dict[str, np.ndarray], first: int) -> np.ndarray:
        """Return the columns (m, C) of a chunk whose first row has the number ``first``."""


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
    row, *place = (int(i) for i in np.argwhere(bad)[0])
    value = chunk[row, *place]
    if labels:
        where = f"column {labels[place[0] if place else 0]!r} ({name!r})"
    else:
        where = f"{name!r}" + (f" at {place}" if place else "")
    raise ValueError(f"rows: {where} {reason}, got {value} in row {first + row}")


# --- the store ----------------------------------------------------------------------------------------


def stored_rows(
    rows: Rows,
    source: Source,
    packing: Packing,
    *,
    progressbar: bool = True,
) -> RowStore:
    """Return a new store of the rows of a source.

    Raises
    ------
    ValueError
        If rows are not finite or do not fit the type of their placeholder; the message names the first such row.
    OSError
        If there is not enough space on the disk.
    """
    folder = Path(rows.folder or tempfile.gettempdir()).resolve()
    shape, begun = (source.n_rows, packing.n_columns), time.monotonic()
    draft = Draft(folder)
    try:
        draft.write(shape, _DTYPE, lambda out: _fill(out, rows, source, packing, progressbar))
    except BaseException:
        draft.discard()
        raise
    _log.info(
        "%s rows of %d columns, %s MiB, were written to %s in %.0f s with buffers of %s MiB; the "
        "store is removed with the last step that reads it.",
        f"{shape[0]:,}",
        shape[1],
        f"{math.prod(shape) * _DTYPE.itemsize / 2**20:,.0f}",
        folder,
        time.monotonic() - begun,
        f"{rows.memory / 2**20:,.0f}",
    )
    return RowStore(draft)


def _fill(
    stored: np.ndarray, rows: Rows, source: Source, packing: Packing, progressbar: bool
) -> None:
    """Write the packed rows of a source to the store (N, C)."""
    first, placeholders = 0, packing.placeholders
    widths = (int(np.prod(p.shape, dtype=int)) for p in placeholders)
    wide = 8 * (packing.n_columns + sum(widths))  # bytes of a row
    size = int(np.clip(rows.memory // (_SHARE * wide), 16, _MOST))
    with progress("Writing rows to a store", source.n_rows, enabled=progressbar) as bar:
        for chunk in source.chunks(size):
            own = {
                p.name: _placed(chunk[p.name], p, source.labels[p.name], first)
                for p in placeholders
            }
            packed = packing.pack(own, first)
            if first + len(packed) > source.n_rows:
                raise _changed()
            stored[first : first + len(packed)] = packed
            first += len(packed)
            bar.advance(len(packed))
    if first != source.n_rows:
        raise _changed()


def _changed() -> ValueError:
    return ValueError("rows: the source has changed while it was read")
