"""Writing of a store, which holds a bounded number of rows in memory."""

from __future__ import annotations

import logging
import math
import tempfile
import time

from pathlib import Path

import numpy as np

from amc_pymc.progress import progress
from amc_pymc.rows.files import Draft, RowStore
from amc_pymc.rows.sources import Rows, Source
from amc_pymc.rows.store import (
    Packing,
    chunk_rows,
    open_store,
    packed_rows,
    publish,
)

_log = logging.getLogger("amc_pymc")
_DTYPE = np.dtype(np.float64)
#: Number of rows that identify a packing.
_SAMPLE = 16


def stored_rows(
    rows: Rows,
    source: Source,
    packing: Packing,
    *,
    progressbar: bool = True,
) -> RowStore:
    """Return the store of the rows of a source: the one in their folder, or a new one.

    Raises
    ------
    ValueError
        If rows are not finite, or the store in the folder is damaged or belongs to another source,
        model or settings.
    OSError
        If there is not enough space on the disk.
    """
    folder = Path(rows.folder or tempfile.gettempdir()).resolve()
    target, stamp = folder / "rows.npy", source.stamp()
    facts = {
        "n_rows": source.n_rows,
        "n_columns": packing.n_columns,
        "program": packing.digest,
        "source": stamp,
        "sample": packed_rows(packing, source.labels, next(source.chunks(_SAMPLE)), 0).tolist(),
    }
    if rows.folder is not None and target.exists():
        store = open_store(target, facts)
        if stamp is not None:
            _log.info("Rows are read from %s, made by an earlier run.", target)
            return store
        target.unlink()  # rows may differ that are not among the sample
    shape, begun = (source.n_rows, packing.n_columns), time.monotonic()
    draft = Draft(folder)
    try:
        draft.write(shape, _DTYPE, lambda out: _fill(out, rows, source, packing, progressbar))
        if rows.folder is not None:
            publish(draft, target, facts)
    except BaseException:
        draft.discard()
        raise
    _log.info(
        "%s rows of %d columns, %s MiB, were written to %s in %.0f s with buffers of %s MiB; the store is %s.",
        f"{shape[0]:,}",
        shape[1],
        f"{math.prod(shape) * _DTYPE.itemsize / 2**20:,.0f}",
        folder if rows.folder is None else target,
        time.monotonic() - begun,
        f"{rows.memory / 2**20:,.0f}",
        "removed with the last step that reads it" if rows.folder is None else "kept",
    )
    if rows.folder is None:
        return RowStore(draft.path, draft)
    draft.discard()
    return RowStore(target)


def _fill(
    stored: np.ndarray, rows: Rows, source: Source, packing: Packing, progressbar: bool
) -> None:
    """Write the packed rows of a source to the store (N, C)."""
    first = 0
    with progress("Writing rows to a store", source.n_rows, enabled=progressbar) as bar:
        for chunk in source.chunks(chunk_rows(rows.memory, packing)):
            packed = packed_rows(packing, source.labels, chunk, first)
            if first + len(packed) > source.n_rows:
                raise _changed()
            stored[first : first + len(packed)] = packed
            first += len(packed)
            bar.advance(len(packed))
    if first != source.n_rows:
        raise _changed()


def _changed() -> ValueError:
    return ValueError("rows: the source has changed while it was read")
