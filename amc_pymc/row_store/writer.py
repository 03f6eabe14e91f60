"""One pass over a source of rows that writes their store."""

from __future__ import annotations

import logging
import tempfile
import time
import zlib

from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from amc_pymc.progress import ProgressReport, progress
from amc_pymc.rng import as_generator
from amc_pymc.row_store.chunks import Placeholder, as_placeholder
from amc_pymc.row_store.drafts import Draft, check_space
from amc_pymc.row_store.header import FORMAT, digest_of, encoded, n_stored, room_for, size_of
from amc_pymc.row_store.rounding import UnroundedRows
from amc_pymc.row_store.settings import Rows
from amc_pymc.row_store.shuffle import MOST_ROWS, Dealer, bucket_bounds
from amc_pymc.row_store.sources import RowSource
from amc_pymc.row_store.store import FILE_NAME, RowStore, open_store

__all__ = [
    "SAMPLE",
    "Packing",
    "Writer",
    "expected_header",
    "kept_at",
    "kept_store",
    "packed_rows",
    "placed_rows",
    "read_at",
    "stored_rows",
    "write_at",
]

_log = logging.getLogger("amc_pymc")
#: Rows of a chunk at most, bytes of a block that has a checksum, rows that tell a packing.
_MOST, _BLOCK_BYTES, SAMPLE = 65_536, 4 * 2**20, 16
#: Shares of the memory: a bucket is held twice, a chunk in several forms.
_BUCKETS, _CHUNKS = 4, 32


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
    """

    placeholders: tuple[Placeholder, ...]
    n_columns: int
    whole: np.ndarray
    digest: str

    def pack(self, chunk: dict[str, np.ndarray], first: int) -> np.ndarray:
        """Columns (m, C) of a chunk whose first row has the number ``first``."""


def stored_rows(
    rows: Rows, source: RowSource, packing: Packing, *, progressbar: bool = True
) -> RowStore:
    """The store of the rows of a source: the one in their folder, or a new one.

    Raises
    ------
    ValueError
        Rows are not finite, or there is a store in the folder that is damaged or of another
        source, model or settings.
    OSError
        There is not enough space on the disk.
    """
    if source.n_rows > MOST_ROWS:
        raise ValueError(f"rows: there can be {MOST_ROWS:,} rows at most, got {source.n_rows:,}")
    expected, target = expected_header(rows, source, packing), kept_at(rows)
    if target is not None and target.exists():
        return kept_store(target, expected)
    return Writer(rows, source, packing, expected).write(target, progressbar)


def kept_at(rows: Rows) -> Path | None:
    """The file of a store that is to be kept."""
    return None if rows.folder is None else Path(rows.folder).resolve() / FILE_NAME


def kept_store(target: Path, expected: dict[str, Any]) -> RowStore:
    """The store that an earlier run has made; a ValueError if it is not the one expected."""
    store = open_store(target, expected)
    _log.info("Rows are read from %s, made by an earlier run.", target)
    return store


def expected_header(rows: Rows, source: RowSource, packing: Packing) -> dict[str, Any]:
    """What a header says of the source, the model and the settings."""
    head = packed_rows(packing, source, next(iter(source.chunks(SAMPLE))), 0)
    return {
        "format": FORMAT,
        "n_rows": source.n_rows,
        "n_columns": packing.n_columns,
        "dtype": rows.dtype,
        "seed": rows.seed,
        "shuffle": rows.shuffle,
        "program": packing.digest,
        "source": digest_of(source.stamp()),
        "sample": [[float(v) for v in row] for row in head],
    }


def placed_rows(packing: Packing, source: RowSource, chunk, first: int) -> dict[str, np.ndarray]:
    """The data of a chunk, all or some, as the placeholders have them."""
    return {
        p.name: as_placeholder(chunk[p.name], p, source.labels[p.name], first)
        for p in packing.placeholders
        if p.name in chunk
    }


def packed_rows(packing: Packing, source: RowSource, chunk, first: int) -> np.ndarray:
    """Columns of a chunk whose first row has this number in the source."""
    return packing.pack(placed_rows(packing, source, chunk, first), first)


class Writer:
    """The two passes: one over the source, one over the file."""

    #: Bytes of files that are gone when the store is complete.
    scratch_bytes = 0
    #: Whether some rows are kept as they were before they were rounded.
    keeps_unrounded = True

    def __init__(self, rows: Rows, source: RowSource, packing: Packing, expected: dict):
        self._rows, self._source, self._packing = rows, source, packing
        self._dtype = np.dtype(rows.dtype)
        self._width = packing.n_columns * self._dtype.itemsize
        wide = 8 * packing.n_columns + sum(
            8 * int(np.prod(p.shape, dtype=int)) for p in packing.placeholders
        )
        self._chunk = int(np.clip(rows.memory // (_CHUNKS * wide), 16, _MOST))
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
        """The store, under its name if it is to be kept."""
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
        """Write the rows to a file; checksums of all blocks."""
        self._deal(file, bar)
        bar.update(description="Shuffling the store")
        return self._finish(file, bar)

    def _place(self, row: int) -> int:
        """Where a row begins in the file."""
        return self._header["offset"] + row * self._width

    def _deal(self, file: BinaryIO, bar: ProgressReport) -> None:
        """Pack the source chunk by chunk, and send rows to buckets."""
        rng = as_generator([self._rows.seed, 0]) if self._rows.shuffle else None
        bounds = self._bounds if rng is not None else self._bounds[[0, -1]]
        dealer, first = Dealer(bounds, rng), 0

        def put(place: int, rows: np.ndarray) -> None:
            write_at(file, self._place(place), np.ascontiguousarray(rows).data.cast("B"))

        for chunk in self._source.chunks(self._chunk):
            packed = packed_rows(self._packing, self._source, chunk, first)
            self._unrounded.add(packed, first)
            dealer.deal(self._rounded(packed, first), put)
            first += len(packed)
            bar.advance(len(packed))
        if first != self._source.n_rows:
            raise ValueError(f"rows: the source gave {first} rows, not {self._source.n_rows}")

    def _rounded(self, packed: np.ndarray, first: int) -> np.ndarray:
        """Rows in the type of the store."""
        if self._dtype == packed.dtype:
            return packed
        with np.errstate(over="ignore"):
            out = packed.astype(self._dtype)
        changed = (out != packed) & (self._packing.whole | ~np.isfinite(out)) & np.isfinite(packed)
        if changed.any():
            row, column = np.argwhere(changed)[0]
            raise ValueError(
                f"rows: dtype='float32' cannot hold {packed[row, column]} in row {first + row}; "
                "use 'float64'"
            )
        return out

    def _finish(self, file: BinaryIO, bar: ProgressReport) -> list[str]:
        """Shuffle each bucket; checksums of all blocks."""
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


def write_at(file: BinaryIO, offset: int, data) -> None:
    """Write bytes to a place in a file."""
    view = memoryview(data)
    file.seek(offset)
    while view:
        view = view[file.write(view) :]


def read_at(file: BinaryIO, offset: int, n_bytes: int) -> np.ndarray:
    """Read bytes from a place in a file."""
    out = np.empty(n_bytes, np.uint8)
    file.seek(offset)
    view = memoryview(out)
    while view:
        number = file.readinto(view)  # type: ignore[attr-defined]
        if not number:
            raise OSError("rows: the store has been cut short while it was written")
        view = view[number:]
    return out
