"""Writing of a store by group: the rows of each group are contiguous.

The first pass counts the rows of each group. The second pass distributes rows to buckets on disk,
each of which is a run of groups. The third pass sorts each bucket in memory. Rows of a group keep
the order of the source.
"""

from __future__ import annotations

import zlib

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from amc_pymc.progress import ProgressReport, progress
from amc_pymc.row_store.chunks import column_label
from amc_pymc.row_store.drafts import Draft
from amc_pymc.row_store.header import n_stored
from amc_pymc.row_store.packing import Packing, packed_rows, placed_rows, rounded
from amc_pymc.row_store.settings import Rows
from amc_pymc.row_store.sources import RowSource
from amc_pymc.row_store.store import RowStore
from amc_pymc.row_store.writer import (
    SAMPLE,
    Writer,
    expected_header,
    kept_at,
    kept_store,
    read_at,
    write_at,
)

__all__ = ["Checksums", "GroupedPacking", "group_runs", "stored_groups"]

#: Rows per chunk in the first pass, and type of levels on disk.
_CHUNK, _LEVEL = 65_536, np.dtype(np.int32)


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


def stored_groups(
    rows: Rows, source: RowSource, packing: GroupedPacking, *, progressbar: bool = True
) -> RowStore:
    """Return the store of the rows of a source by group: the one in their folder, or a new one.

    Raises
    ------
    ValueError
        As for :func:`stored_rows`, or if groups are not integers from 0 to G - 1.
    OSError
        If there is not enough space on the disk.
    """
    expected, target = _expected(rows, source, packing), kept_at(rows)
    if target is not None and target.exists():
        return kept_store(target, expected)
    counts = _counts(source, packing, progressbar)
    first = np.concatenate([[0], np.cumsum(counts)])
    return _GroupWriter(rows, source, packing, expected, first).write(target, progressbar)


def _expected(rows: Rows, source: RowSource, packing: GroupedPacking) -> dict[str, Any]:
    """Return the fields of a header that identify source, model, groups and settings."""
    head = next(iter(source.chunks(SAMPLE)))
    levels = _levels(packing, source, head, 0)
    expected = expected_header(rows, source, packing)
    sample = [[*row, float(g)] for row, g in zip(expected["sample"], levels, strict=True)]
    return expected | {
        "levels": packing.n_levels,
        "index": list(packing.level_names),
        "beyond": packing.beyond,
        "first_checksum": "0" * 8,
        "sample": sample,
        "seed": 0,  # the order is not random
        "shuffle": False,
    }


def _levels(
    packing: GroupedPacking, source: RowSource, chunk: Mapping[str, np.ndarray], first: int
) -> np.ndarray:
    """Return the group of each row of a chunk; raise a ValueError if one is out of range."""
    own = {name: chunk[name] for name in packing.level_names}
    levels = packing.levels(placed_rows(packing, source.labels, own, first))
    bad = np.flatnonzero((levels < 0) | (levels >= packing.n_levels))
    if bad.size:
        names = packing.level_names
        where = " and ".join(column_label(source.labels[n], n, ()) for n in names)
        raise ValueError(
            f"rows: {where} must number groups from 0 to {packing.n_levels - 1}, got "
            f"{levels[bad[0]]} in row {first + bad[0]} ({bad.size - 1} more in this chunk)"
        )
    return levels


def _counts(source: RowSource, packing: GroupedPacking, progressbar: bool) -> np.ndarray:
    """Count the rows (G,) of each group."""
    counts, first = np.zeros(packing.n_levels, np.int64), 0
    with progress("Counting rows of groups", source.n_rows, enabled=progressbar) as bar:
        for chunk in source.chunks(_CHUNK, packing.level_names):
            levels = _levels(packing, source, chunk, first)
            counts += np.bincount(levels, minlength=packing.n_levels)
            first += levels.size
            bar.advance(levels.size)
    return counts


class _GroupWriter(Writer):
    """Writer of a store by group, given the number of rows of each group."""

    keeps_unrounded = False

    def __init__(
        self,
        rows: Rows,
        source: RowSource,
        packing: GroupedPacking,
        expected: dict[str, Any],
        first: np.ndarray,
    ):
        super().__init__(rows, source, packing, expected)
        self._groups, self._first = packing, first
        self._runs = group_runs(first, self._bucket)
        self.scratch_bytes = source.n_rows * _LEVEL.itemsize

    def _what(self) -> str:
        return f"{self._source.n_rows:,} rows in {self._groups.n_levels:,} groups"

    def _fill(self, file: BinaryIO, folder: Path, bar: ProgressReport) -> list[str]:
        levels = Draft(folder)
        try:
            self._deal_to_runs(file, levels.file, bar)
            bar.update(description="Sorting the store")
            checksums = Checksums(self._header["block_rows"] * self._width)
            for piece in self._sorted(file, levels.file, bar):
                checksums.add(piece)
        finally:
            levels.discard()
        self._finish_groups(file, checksums)
        return checksums.end()

    def _deal_to_runs(self, file: BinaryIO, level_file: BinaryIO, bar: ProgressReport) -> None:
        """Pack the source chunk by chunk, and distribute rows and their levels to buckets."""
        run_of = np.repeat(np.arange(self._runs.size - 1), np.diff(self._runs))
        place, ends = self._first[self._runs[:-1]].copy(), self._first[self._runs[1:]]
        first = 0
        for chunk in self._source.chunks(self._chunk):
            levels = _levels(self._groups, self._source, chunk, first)
            packed = packed_rows(self._packing, self._source.labels, chunk, first)
            packed = rounded(self._packing, self._dtype, packed, first)
            runs = run_of[levels]
            order, counts = np.argsort(runs, kind="stable"), np.bincount(runs, minlength=place.size)
            if np.any(place + counts > ends):
                raise _changed()
            stops = np.cumsum(counts)
            for k in np.flatnonzero(counts):
                own = order[stops[k] - counts[k] : stops[k]]
                write_at(file, self._place(int(place[k])), packed[own].data.cast("B"))
                own_levels = levels[own].astype(_LEVEL)
                write_at(level_file, int(place[k]) * _LEVEL.itemsize, own_levels.data.cast("B"))
            place += counts
            first += len(packed)
            bar.advance(len(packed))
        if first != self._source.n_rows:
            raise ValueError(f"rows: the source gave {first} rows, not {self._source.n_rows}")

    def _sorted(
        self, file: BinaryIO, level_file: BinaryIO, bar: ProgressReport
    ) -> Iterator[np.ndarray]:
        """Sort each bucket, and yield the bytes of all rows in order."""
        for start, stop in zip(self._runs[:-1], self._runs[1:]):
            begin, end = int(self._first[start]), int(self._first[stop])
            if stop - start == 1:  # one group, maybe larger than a bucket, is in order
                for row in range(begin, end, self._bucket):
                    number = min(self._bucket, end - row)
                    yield read_at(file, self._place(row), number * self._width)
            elif end > begin:
                sizes = np.diff(self._first[start : stop + 1])
                own = np.repeat(np.arange(start, stop, dtype=_LEVEL), sizes)
                yield self._sorted_bucket(file, level_file, begin, own)
            bar.advance(end - begin)

    def _sorted_bucket(
        self, file: BinaryIO, level_file: BinaryIO, begin: int, expected: np.ndarray
    ) -> np.ndarray:
        """Sort rows from ``begin`` on by level; ``expected`` are the sorted levels."""
        size = _LEVEL.itemsize
        levels = read_at(level_file, begin * size, expected.nbytes).view(_LEVEL)
        raw = read_at(file, self._place(begin), expected.size * self._width)
        rows = raw.view(self._dtype).reshape(expected.size, -1)
        order = np.argsort(levels, kind="stable")
        if not np.array_equal(levels[order], expected):
            raise _changed()
        raw = rows.take(order, axis=0).reshape(-1).view(np.uint8)
        write_at(file, self._place(begin), raw.data)
        return raw

    def _finish_groups(self, file: BinaryIO, checksums: Checksums) -> None:
        """Write copies of the last row, and the first row of each group."""
        n_rows = self._source.n_rows
        last = read_at(file, self._place(n_rows - 1), self._width)
        beyond = np.tile(last, n_stored(self._header) - n_rows)
        write_at(file, self._place(n_rows), beyond.data)
        checksums.add(beyond)
        first = self._first.astype("<i8").tobytes()
        write_at(file, self._place(n_stored(self._header)), first)
        self._header["first_checksum"] = f"{zlib.crc32(first):08x}"


def _changed() -> ValueError:
    return ValueError("rows: the source has changed while it was read")


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


class Checksums:
    """Checksums of the blocks of a stream of bytes."""

    def __init__(self, block: int):
        self._block, self._filled, self._sum = block, 0, 0
        self._all: list[str] = []

    def add(self, piece: np.ndarray) -> None:
        """Add the next bytes."""
        start = 0
        while start < piece.size:
            part = piece[start : start + self._block - self._filled]
            self._sum = zlib.crc32(part, self._sum)
            self._filled += part.size
            start += part.size
            if self._filled == self._block:
                self._close()

    def _close(self) -> None:
        self._all.append(f"{self._sum:08x}")
        self._filled = self._sum = 0

    def end(self) -> list[str]:
        """Return the checksum of each block; the last one may be shorter."""
        if self._filled:
            self._close()
        return self._all
