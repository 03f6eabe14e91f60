"""A store of packed rows, memory-mapped by every process that reads it."""

from __future__ import annotations

import os
import zlib

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from amc_pymc.row_store.drafts import Draft
from amc_pymc.row_store.header import (
    difference,
    end_of_rows,
    n_stored,
    read_first,
    read_header,
    size_of,
)
from amc_pymc.row_store.pages import release
from amc_pymc.row_store.rounding import unrounded_rows

__all__ = ["AROUND", "FILE_NAME", "RowStore", "as_writable", "bad_block", "open_store"]

FILE_NAME = "rows.bin"
#: Number of blocks that are checked when a store that seems unmodified is opened.
_CHECKED = 16
#: Seconds by which the modification time of an unmodified store may exceed its creation time.
_LATER = 5.0
#: Bytes that the system maps around a row that is read, and bytes that may stay mapped.
AROUND, _RESIDENT = 64 * 2**10, 256 * 2**20


class RowStore:
    """Packed rows (N, C) in a file.

    The object can be pickled. All processes map the same file and share one copy.

    Parameters
    ----------
    path : str
    header : dict
        Header of the file.
    draft : Draft, optional
        The file, if it is removed with this object.
    """

    def __init__(self, path: str, header: dict[str, Any], draft: Draft | None = None):
        self.path, self._header, self._draft = path, header, draft
        self._touched = 0.0

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, including copies of the last one, and of columns."""
        return n_stored(self._header), self._header["n_columns"]

    @property
    def n_bytes(self) -> int:
        """Size of the rows in bytes."""
        dtype: np.dtype = np.dtype(self._header["dtype"])
        return int(np.prod(self.shape)) * dtype.itemsize

    @property
    def unrounded(self) -> np.ndarray | None:
        """Sample (S, C) of the rows before rounding; None if there is none."""
        return unrounded_rows(self._header)

    @cached_property
    def data(self) -> np.ndarray:
        """The rows (N, C), which must not be written to.

        They are not marked as read-only, because compiled kernels would need separate machine code
        for read-only arrays.
        """
        return as_writable(self._map)

    @cached_property
    def _map(self) -> np.memmap:
        """Read-only memory map of the rows."""
        try:
            with open(self.path, "rb") as file:
                same = read_header(file)["made"] == self._header["made"]
                if not same:
                    raise ValueError("another file has taken its place")
                return np.memmap(
                    file,
                    dtype=self._header["dtype"],
                    mode="r",
                    offset=self._header["offset"],
                    shape=self.shape,
                )
        except (OSError, ValueError) as error:
            raise self._unusable(error) from error

    @cached_property
    def first(self) -> np.ndarray:
        """First row of each group, and the end (G + 1,), if rows are stored by group."""
        try:
            with open(self.path, "rb") as file:
                return read_first(file, self._header)
        except (OSError, ValueError) as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> ValueError:
        return ValueError(
            f"The store of rows {self.path} cannot be opened: {error}. A store without a "
            "folder lasts as long as the step that made it: pass amc_pymc.Rows(folder=) to "
            "keep it, or make the step anew."
        )

    def release(self) -> None:
        """Release the memory that pages of the file take in this process.

        They stay in the cache of the system as long as there is room.
        """
        self._touched = 0
        if "_map" in self.__dict__:
            release(self._map)

    def touch(self, n_rows: float) -> None:
        """Count rows read at random, and release their pages when too many are mapped."""
        self._touched += n_rows * AROUND
        if self._touched > _RESIDENT:
            self.release()

    def __getstate__(self) -> dict[str, Any]:
        header = {k: v for k, v in self._header.items() if k not in ("unrounded", "checksums")}
        return {"path": self.path, "_header": header, "_draft": None, "_touched": 0.0}


def as_writable(array: np.ndarray) -> np.ndarray:
    """Return an array of the same memory not marked as read-only; it must not be written to."""
    return array if array.flags.writeable else np.asarray(_Writable(array))


class _Writable:
    """An array of the same memory that is not marked as read-only."""

    def __init__(self, array: np.ndarray):
        self._array = array  # keeps the memory alive
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def open_store(path: Path, expected: dict[str, Any]) -> RowStore:
    """Open the store at a path, and check that it is intact and the expected one.

    Raises
    ------
    ValueError
        If it is damaged or belongs to another source, model or settings.
    """
    try:
        with open(path, "rb") as file:
            header = read_header(file)
            _check_size(file, header)
            reason = difference(header, expected)
            if reason:
                raise ValueError(reason)
            touched = os.fstat(file.fileno()).st_mtime > header["made"] / 1e9 + _LATER
            if header.get("levels") is not None:
                read_first(file, header)
            block = bad_block(file, header, everything=touched)
            if block is not None:
                raise ValueError(f"its rows from {block * header['block_rows']:,} on are damaged")
    except ValueError as error:
        raise ValueError(
            f"The store of rows {path} cannot be used: {error}. Delete it, and it is made anew, or "
            "pass another folder."
        ) from None
    return RowStore(str(path), header)


def _check_size(file: BinaryIO, header: dict[str, Any]) -> None:
    size = os.fstat(file.fileno()).st_size
    whole = size_of(header)
    if size != whole:
        raise ValueError(f"it has {size:,} bytes, not the {whole:,} it should have")


def bad_block(file: BinaryIO, header: dict[str, Any], *, everything: bool) -> int | None:
    """Return a block with a wrong checksum, among some or all blocks, or None."""
    known, end = header["checksums"], end_of_rows(header)
    width = header["block_rows"] * header["n_columns"] * np.dtype(header["dtype"]).itemsize
    for block in _chosen(len(known), everything):
        start = header["offset"] + block * width
        file.seek(start)
        if f"{zlib.crc32(file.read(min(width, end - start))):08x}" != known[block]:
            return block
    return None


def _chosen(n_blocks: int, everything: bool) -> Iterator[int]:
    number = n_blocks if everything else min(n_blocks, _CHECKED)
    yield from np.unique(np.linspace(0, n_blocks - 1, number).astype(int)).tolist()
