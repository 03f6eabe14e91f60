"""Writing of a store, which holds a bounded number of rows in memory.

Rows are written in the order of the source or, if there are groups, by group and then in the order of the source.
Groups take three passes: one counts the rows of each, one puts rows into buckets of consecutive groups, and one
sorts each bucket in memory.
"""

from __future__ import annotations

import logging
import math
import os
import tempfile
import time

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from numpy.lib import format as npy

from amc_pymc.progress import ProgressReport, progress
from amc_pymc.rows.files import Draft
from amc_pymc.rows.sources import Rows, Source
from amc_pymc.rows.store import (
    IDENTITY,
    GroupedPacking,
    Packing,
    RowStore,
    chunk_rows,
    column_label,
    digest_of,
    open_store,
    packed_rows,
    placed_rows,
    publish,
)

_log = logging.getLogger("amc_pymc")
_DTYPE = np.dtype(np.float64)
#: Number of rows that identify a packing.
_SAMPLE = 16
#: Divisor of the memory for a bucket, which is held twice.
_BUCKETS = 4
#: Rows of a chunk of which few data are used.
_CHUNK = 65_536


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

    def fill(stored: np.ndarray, bar: ProgressReport) -> np.ndarray:
        place = 0
        for place, packed, _ in _packed(rows, source, packing):
            stop = place + len(packed)
            if stop > source.n_rows:
                raise _changed()
            stored[place:stop] = packed
            place = stop
            bar.advance(len(packed))
        if place != source.n_rows:
            raise _changed()
        return np.empty(0, np.int64)

    return _stored(rows, packing, _facts(rows, source, packing), fill, progressbar)


def stored_groups(
    rows: Rows, source: Source, packing: GroupedPacking, *, progressbar: bool = True
) -> RowStore:
    """Return the store of the rows of a source by group: the one in their folder, or a new one.

    Raises
    ------
    ValueError
        As for :func:`stored_rows`, or if groups are not integers from 0 to G - 1.
    OSError
        If there is not enough space on the disk.
    """
    facts, width = _facts(rows, source, packing), packing.n_columns * _DTYPE.itemsize
    levels = _levels(packing, source, _head(source), 0)
    facts["sample"] = np.column_stack([facts["sample"], levels]).tolist()
    facts["groups"] = [packing.n_levels, *packing.level_names]

    def fill(stored: np.ndarray, bar: ProgressReport) -> np.ndarray:
        first = np.append(0, np.cumsum(_counts(source, packing, bar)))
        runs = group_runs(first, max(1, rows.memory // _BUCKETS // width))
        chunks = (
            (packed, _levels(packing, source, chunk, number))
            for number, packed, chunk in _packed(rows, source, packing)
        )
        scratch = Draft(_folder(rows))
        scratch.reserve(4 * source.n_rows)
        levels = np.memmap(scratch.file, np.int32, "r+", shape=(source.n_rows,))
        _deal(chunks, first[runs], runs, (stored, levels), bar)
        _sort(first, runs, stored, levels, bar)
        scratch.discard()
        stored[source.n_rows :] = stored[source.n_rows - 1]
        return first

    return _stored(rows, packing, facts, fill, progressbar)


def _facts(rows: Rows, source: Source, packing: Packing) -> dict[str, Any]:
    """Return the facts that identify source, model and settings."""
    return {
        "n_rows": source.n_rows,
        "n_columns": packing.n_columns,
        "groups": None,
        "program": packing.digest,
        "source": "" if rows.folder is None else digest_of(source.stamp()),
        "sample": packed_rows(packing, source.labels, _head(source), 0).tolist(),
    }


def _head(source: Source) -> dict[str, np.ndarray]:
    """Return the first rows of a source."""
    return {n: a[:_SAMPLE] for n, a in next(iter(source.chunks(_CHUNK))).items()}


def _folder(rows: Rows) -> Path:
    return Path(rows.folder or tempfile.gettempdir()).resolve()


def _stored(
    rows: Rows,
    packing: Any,
    facts: dict[str, Any],
    fill: Callable[[np.ndarray, ProgressReport], np.ndarray],
    progressbar: bool,
) -> RowStore:
    """Return the store of an earlier run, or a new one. ``fill`` writes its rows and returns the groups' first ones."""
    folder, target = _folder(rows), _folder(rows) / "rows.npy"
    if rows.folder is not None and target.exists():
        store = open_store(target, facts)
        _log.info("Rows are read from %s, made by an earlier run.", target)
        return store
    n, c, begun = facts["n_rows"], packing.n_columns, time.monotonic()
    shape, passes = ((n, c), 1) if facts["groups"] is None else ((n + packing.beyond, c), 3)
    draft = Draft(folder)
    try:
        header = {"descr": npy.dtype_to_descr(_DTYPE), "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(draft.file, header)
        offset = draft.file.tell()
        draft.reserve(offset + math.prod(shape) * _DTYPE.itemsize)
        stored = np.memmap(draft.file, _DTYPE, "r+", offset, shape)
        with progress("Writing rows to a store", passes * n, enabled=progressbar) as bar:
            first = fill(stored, bar)
        stored.flush()
        draft.file.seek(0, os.SEEK_END)
        draft.file.write(os.urandom(IDENTITY))
        if rows.folder is not None:
            publish(draft, target, facts, first)
    except BaseException:
        draft.discard()
        raise
    _log.info(
        "%s of %d columns, %s MiB, were written to %s in %.0f s with buffers of %s MiB; the store is %s.",
        f"{n:,} rows" + (f" in {first.size - 1:,} groups" if first.size else ""),
        c,
        f"{stored.nbytes / 2**20:,.0f}",
        folder if rows.folder is None else target,
        time.monotonic() - begun,
        f"{rows.memory / 2**20:,.0f}",
        "removed with the last step that reads it" if rows.folder is None else "kept",
    )
    if rows.folder is None:
        return RowStore(draft.path, first, draft)
    draft.discard()
    return RowStore(target, first)


def _packed(
    rows: Rows, source: Source, packing: Packing
) -> Iterator[tuple[int, np.ndarray, dict[str, np.ndarray]]]:
    """Yield the number of the first row of each chunk, its packed rows, and the chunk."""
    first = 0
    for chunk in source.chunks(chunk_rows(rows.memory, packing)):
        packed = packed_rows(packing, source.labels, chunk, first)
        yield first, packed, chunk
        first += len(packed)


def _changed() -> ValueError:
    return ValueError("rows: the source has changed while it was read")


# --- groups ---------------------------------------------------------------------------------------


def _levels(
    packing: GroupedPacking, source: Source, chunk: Mapping[str, np.ndarray], first: int
) -> np.ndarray:
    """Return the group of each row of a chunk; raise a ValueError if one is out of range."""
    own = {name: chunk[name] for name in packing.level_names}
    levels = packing.levels(placed_rows(packing, source.labels, own, first))
    bad = np.flatnonzero((levels < 0) | (levels >= packing.n_levels))
    if bad.size:
        labels = (column_label(source.labels[n], n, ()) for n in packing.level_names)
        raise ValueError(
            f"rows: {' and '.join(labels)} must number groups from 0 to {packing.n_levels - 1}, "
            f"got {levels[bad[0]]} in row {first + bad[0]}"
        )
    return levels


def _counts(source: Source, packing: GroupedPacking, bar: ProgressReport) -> np.ndarray:
    """Count the rows (G,) of each group."""
    counts, first = np.zeros(packing.n_levels, np.int64), 0
    bar.update(description="Counting rows of groups")
    for chunk in source.chunks(_CHUNK, packing.level_names):
        levels = _levels(packing, source, chunk, first)
        counts += np.bincount(levels, minlength=packing.n_levels)
        first += levels.size
        bar.advance(levels.size)
    return counts


def group_runs(first: np.ndarray, size: int) -> np.ndarray:
    """Return the first group of each run of at most ``size`` rows, or of one larger group, and the end.

    Examples
    --------
    >>> import numpy as np
    >>> group_runs(np.array([0, 3, 5, 5, 15, 16]), 6)
    array([0, 3, 4, 5])
    """
    out = [0]
    while out[-1] < first.size - 1:
        stop = int(np.searchsorted(first, first[out[-1]] + size, side="right")) - 1
        out.append(max(stop, out[-1] + 1))
    return np.array(out)


def _deal(
    chunks: Iterator[tuple[np.ndarray, np.ndarray]],
    bounds: np.ndarray,
    runs: np.ndarray,
    out: tuple[np.ndarray, np.ndarray],
    bar: ProgressReport,
) -> None:
    """Write rows and their levels to buckets, of which each holds a run of groups."""
    run_of = np.repeat(np.arange(runs.size - 1), np.diff(runs))
    places, ends = bounds[:-1].copy(), bounds[1:]
    bar.update(description="Writing rows to a store")
    for chunk in chunks:
        own = run_of[chunk[1]]
        order, counts = np.argsort(own, kind="stable"), np.bincount(own, minlength=places.size)
        if np.any(places + counts > ends):
            raise _changed()
        stops = np.cumsum(counts)
        for k in np.flatnonzero(counts):
            some = order[stops[k] - counts[k] : stops[k]]
            for array, values in zip(out, chunk):
                array[places[k] : places[k] + counts[k]] = values.take(some, axis=0)
        places += counts
        bar.advance(own.size)
    if not np.array_equal(places, ends):
        raise _changed()


def _sort(
    first: np.ndarray, runs: np.ndarray, stored: np.ndarray, levels: np.ndarray, bar: ProgressReport
) -> None:
    """Sort the rows of each bucket by group."""
    bar.update(description="Sorting the store")
    for start, stop in pairwise(runs):
        own = slice(first[start], first[stop])
        if stop - start > 1:  # a single group, maybe larger than a bucket, is in order
            order = np.argsort(levels[own], kind="stable")
            sizes = np.diff(first[start : stop + 1])
            if not np.array_equal(levels[own][order], np.repeat(np.arange(start, stop), sizes)):
                raise _changed()
            stored[own] = stored[own].take(order, axis=0)
        bar.advance(int(own.stop - own.start))
