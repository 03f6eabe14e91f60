"""Writing of a store in one pass over a source of rows."""

from __future__ import annotations

import logging
import tempfile
import time
import zlib

from collections.abc import Buffer, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from amc_pymc.progress import ProgressReport, progress
from amc_pymc.rng import as_generator
from amc_pymc.row_store.arrays import recut
from amc_pymc.row_store.drafts import Draft, check_space
from amc_pymc.row_store.header import FORMAT, digest_of, encoded, n_stored, room_for, size_of
from amc_pymc.row_store.packing import Packing, chunk_rows, packed_rows, rounded
from amc_pymc.row_store.partitions import Partitions
from amc_pymc.row_store.rounding import UnroundedRows
from amc_pymc.row_store.settings import Rows
from amc_pymc.row_store.shuffle import MOST_ROWS, Dealer, bucket_bounds
from amc_pymc.row_store.sources import RowSource
from amc_pymc.row_store.store import FILE_NAME, RowStore, open_store

__all__ = [
    "SAMPLE",
    "Writer",
    "expected_header",
    "kept_at",
    "kept_store",
    "read_at",
    "stored_rows",
    "write_at",
]

_log = logging.getLogger("amc_pymc")
#: Bytes of a block with a checksum, and number of rows that identify a packing.
_BLOCK_BYTES, SAMPLE = 4 * 2**20, 16
#: Divisor of the memory for a bucket, which is held twice.
_BUCKETS = 4


def stored_rows(
    rows: Rows,
    source: RowSource,
    packing: Packing,
    *,
    partitions: Partitions | None = None,
    progressbar: bool = True,
) -> RowStore:
    """Return the store of the rows of a source: the one in their folder, or a new one.

    ``partitions`` are the same rows, already packed by workers.

    Raises
    ------
    ValueError
        If rows are not finite, or the store in the folder is damaged or belongs to another source,
        model or settings.
    OSError
        If there is not enough space on the disk.
    """
    if source.n_rows > MOST_ROWS:
        raise ValueError(f"rows: there can be {MOST_ROWS:,} rows at most, got {source.n_rows:,}")
    expected, target = expected_header(rows, source, packing), kept_at(rows)
    if target is not None and target.exists():
        return kept_store(target, expected)
    return Writer(rows, source, packing, expected, partitions).write(target, progressbar)


def kept_at(rows: Rows) -> Path | None:
    """Return the path of a store that is kept, else None."""
    return None if rows.folder is None else Path(rows.folder).resolve() / FILE_NAME


def kept_store(target: Path, expected: dict[str, Any]) -> RowStore:
    """Open the store of an earlier run; raise a ValueError if it is not the expected one."""
    store = open_store(target, expected)
    _log.info("Rows are read from %s, made by an earlier run.", target)
    return store


def expected_header(rows: Rows, source: RowSource, packing: Packing) -> dict[str, Any]:
    """Return the fields of a header that identify the source, the model and the settings."""
    head = packed_rows(packing, source.labels, next(iter(source.chunks(SAMPLE))), 0)
    return {
        "format": FORMAT,
        "n_rows": source.n_rows,
        "n_columns": packing.n_columns,
        "dtype": rows.dtype,
        "seed": rows.seed,
        "shuffle": rows.shuffle,
        "program": packing.digest,
        "source": "" if rows.folder is None else digest_of(source.stamp()),
        "sample": [[float(v) for v in row] for row in head],
    }


class Writer:
    """Writer of a store in two passes: one over the source, one over the file."""

    #: Bytes of files that are removed when the store is complete.
    scratch_bytes = 0
    #: Whether a sample of the rows before rounding is kept.
    keeps_unrounded = True

    def __init__(
        self,
        rows: Rows,
        source: RowSource,
        packing: Packing,
        expected: dict[str, Any],
        partitions: Partitions | None = None,
    ):
        self._rows, self._source, self._packing = rows, source, packing
        self._partitions = partitions
        self._dtype = np.dtype(rows.dtype)
        self._width = packing.n_columns * self._dtype.itemsize
        self._chunk = chunk_rows(rows.memory, packing)
        block = max(1, min(_BLOCK_BYTES, rows.memory // _BUCKETS) // self._width)
        n, c = source.n_rows, packing.n_columns
        rounded_from = self._dtype if self.keeps_unrounded else np.dtype(np.float64)
        self._unrounded = UnroundedRows(n, c, rounded_from, rows.seed)
        self._header = expected | {"block_rows": block, "unrounded": self._unrounded.encoded()}
        n_blocks = -(-n_stored(self._header) // block)
        self._header["offset"] = room_for(self._header, n_blocks)
        self._bucket = max(1, rows.memory // _BUCKETS // (self._width * block)) * block
        self._bounds = bucket_bounds(source.n_rows, self._bucket)
        self._n_bytes = size_of(self._header)

    def write(self, target: Path | None, progressbar: bool) -> RowStore:
        """Write the store, under its name if it is kept, and return it."""
        folder = Path(tempfile.gettempdir()) if target is None else target.parent
        check_space(folder, self._n_bytes + self.scratch_bytes)
        begin = time.monotonic()
        draft = Draft(folder)
        try:
            n = self._source.n_rows
            with progress("Writing rows to a store", 2 * n, enabled=progressbar) as bar:
                checksums = self._fill(draft.file, folder, bar)
            header = self._header | {"checksums": checksums, "made": time.time_ns()}
            header["unrounded"] = self._unrounded.encoded()
            write_at(draft.file, 0, encoded(header))
            if target is not None:
                draft.publish(target)
        except BaseException:
            draft.discard()
            raise
        self._say(target, draft, time.monotonic() - begin)
        if target is None:
            return RowStore(draft.path, header, draft)
        draft.discard()
        return RowStore(str(target), header)

    def _fill(self, file: BinaryIO, folder: Path, bar: ProgressReport) -> list[str]:
        """Write the rows to a file, and return the checksums of all blocks."""
        self._deal(file, bar)
        bar.update(description="Shuffling the store")
        return self._finish(file, bar)

    def _place(self, row: int) -> int:
        """Return the offset of a row in the file."""
        place: int = self._header["offset"] + row * self._width
        return place

    def _deal(self, file: BinaryIO, bar: ProgressReport) -> None:
        """Pack the source chunk by chunk, and distribute rows to buckets."""
        rng = as_generator([self._rows.seed, 0]) if self._rows.shuffle else None
        bounds = self._bounds if rng is not None else self._bounds[[0, -1]]
        dealer, first = Dealer(bounds, rng), 0

        def put(place: int, rows: np.ndarray) -> None:
            write_at(file, self._place(place), np.ascontiguousarray(rows).data.cast("B"))

        for packed in self._chunks():
            dealer.deal(packed, put)
            first += len(packed)
            bar.advance(len(packed))
        if first != self._source.n_rows:
            raise ValueError(f"rows: the source gave {first} rows, not {self._source.n_rows}")

    def _chunks(self) -> Iterator[np.ndarray]:
        """Yield packed rows in order, in chunks that do not depend on those of the source."""
        if self._partitions is None:
            yield from recut(self._packed_here(), self._chunk)
            return
        yield from recut(self._partitions.fetched(), self._chunk)
        self._unrounded.take(self._partitions.unrounded())

    def _packed_here(self) -> Iterator[np.ndarray]:
        first = 0
        for chunk in self._source.chunks(self._chunk):
            packed = packed_rows(self._packing, self._source.labels, chunk, first)
            self._unrounded.add(packed, first)
            yield rounded(self._packing, self._dtype, packed, first)
            first += len(packed)

    def _finish(self, file: BinaryIO, bar: ProgressReport) -> list[str]:
        """Shuffle each bucket, and return the checksums of all blocks."""
        shape, checksums = (-1, self._packing.n_columns), []
        step = self._header["block_rows"] * self._width
        for k, (first, stop) in enumerate(zip(self._bounds[:-1], self._bounds[1:])):
            offset = self._place(int(first))
            raw = read_at(file, offset, int(stop - first) * self._width)
            if self._rows.shuffle:
                rows = raw.view(self._dtype).reshape(shape)
                order = as_generator([self._rows.seed, 1, k]).permutation(len(rows))
                raw = rows.take(order, axis=0).reshape(-1).view(np.uint8)
                write_at(file, offset, raw.data)
            parts = (raw[a : a + step] for a in range(0, raw.size, step))
            checksums += [f"{zlib.crc32(part):08x}" for part in parts]
            bar.advance(int(stop - first))
        return checksums

    def _what(self) -> str:
        return f"{self._source.n_rows:,} rows"

    def _say(self, target: Path | None, draft: Draft, seconds: float) -> None:
        place = target or (
            f"a file without a name in {tempfile.gettempdir()}" if draft.nameless else draft.path
        )
        life = "removed with the last step that reads it" if target is None else "kept"
        _log.info(
            "%s of %d columns, %s MiB, were written to %s in %.0f s with buffers of %s MiB; "
            "the store is %s.",
            self._what(),
            self._packing.n_columns,
            f"{self._n_bytes / 2**20:,.0f}",
            place,
            seconds,
            f"{self._rows.memory / 2**20:,.0f}",
            life,
        )


def write_at(file: BinaryIO, offset: int, data: Buffer) -> None:
    """Write bytes at an offset in a file."""
    view = memoryview(data)
    file.seek(offset)
    while view:
        view = view[file.write(view) :]


def read_at(file: BinaryIO, offset: int, n_bytes: int) -> np.ndarray:
    """Read bytes from an offset in a file."""
    out = np.empty(n_bytes, np.uint8)
    file.seek(offset)
    view = memoryview(out)
    while view:
        number = file.readinto(view)  # type: ignore[attr-defined]
        if not number:
            raise OSError("rows: the store has been cut short while it was written")
        view = view[number:]
    return out
