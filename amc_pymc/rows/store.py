"""A store of packed rows, memory-mapped by every process that reads it.

``rows.npy`` holds three arrays in NumPy's format, one after the other: the rows (N, C); the first row of each group
and the end (G + 1,), empty without groups; and the time when it was made. ``rows.json`` beside it says what the rows
were made from, and has a checksum of each block of ``rows.npy``.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib

from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from numpy.lib import format as npy

from amc_pymc.rows.files import Draft, as_writable, release

__all__ = ["AROUND", "FILE_NAME", "RowStore", "begin", "digest_of", "end", "open_store", "publish"]

FILE_NAME = "rows.npy"
#: Version of the format.
_FORMAT = 3
#: Bytes of a block with a checksum, and number of blocks that are checked if a store seems unmodified.
_BLOCK, _CHECKED = 4 * 2**20, 16
#: Bytes that the system maps around a row that is read, and bytes that may stay mapped.
AROUND, _RESIDENT = 64 * 2**10, 256 * 2**20


class RowStore:
    """Packed rows (N, C) in a file, which every process maps and shares.

    The object can be pickled.

    Parameters
    ----------
    path : str or Path
    draft : Draft, optional
        The file, if it is removed with this object.
    """

    def __init__(self, path: str | os.PathLike[str], draft: Draft | None = None):
        self.path, self._draft, self._touched = str(path), draft, 0.0
        with open(path, "rb") as file:
            _, self._made = _tables_of(file)

    @cached_property
    def data(self) -> np.ndarray:
        """The rows (N, C), including copies of the last one; they must not be written to."""
        return as_writable(self._arrays[0])

    @property
    def first(self) -> np.ndarray:
        """First row of each group, and the end (G + 1,); empty if rows are not stored by group."""
        return self._arrays[1]

    @cached_property
    def _arrays(self) -> tuple[np.memmap, np.ndarray]:
        """Read-only memory map of the rows, and the first rows of groups."""
        try:
            with open(self.path, "rb") as file:
                first, made = _tables_of(file)
                if made != self._made:
                    raise ValueError("another file has taken its place")
                shape, dtype, offset = _rows_of(file)
                return np.memmap(file, dtype, "r", offset, shape), first
        except (EOFError, OSError, ValueError) as error:
            raise ValueError(
                f"The store of rows {self.path} cannot be opened: {error}. A store without a "
                "folder lasts as long as the step that made it: pass amc_pymc.Rows(folder=) to "
                "keep it, or make the step anew."
            ) from error

    def release(self) -> None:
        """Release the memory that pages of the file take in this process.

        They stay in the cache of the system as long as there is room.
        """
        self._touched = 0.0
        if "_arrays" in self.__dict__:
            release(self._arrays[0])

    def touch(self, n_rows: float) -> None:
        """Count rows read at random, and release their pages when too many are mapped."""
        self._touched += n_rows * AROUND
        if self._touched > _RESIDENT:
            self.release()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_made": self._made, "_draft": None, "_touched": 0.0}


# --- the file -------------------------------------------------------------------------------------


def begin(file: BinaryIO, shape: tuple[int, int], dtype: np.dtype) -> int:
    """Write the header of the rows to an empty file, and return the offset of the first row."""
    descr = npy.dtype_to_descr(dtype)
    npy.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.tell()


def end(file: BinaryIO, first: np.ndarray) -> None:
    """Write what follows the rows to a file that ends with them."""
    file.seek(0, os.SEEK_END)
    np.save(file, first)
    np.save(file, time.time_ns())


def _rows_of(file: BinaryIO) -> tuple[tuple[int, ...], np.dtype, int]:
    """Return the shape and type of the rows, and the offset of the first one."""
    file.seek(0)
    npy.read_magic(file)
    shape, _, dtype = npy.read_array_header_1_0(file)
    return shape, dtype, file.tell()


def _end_of_rows(file: BinaryIO) -> int:
    shape, dtype, offset = _rows_of(file)
    return offset + int(np.prod(shape)) * dtype.itemsize


def _tables_of(file: BinaryIO) -> tuple[np.ndarray, int]:
    """Return the first rows of groups, and the time when the store was made."""
    file.seek(_end_of_rows(file))
    return np.load(file), int(np.load(file))


def _checksum(file: BinaryIO, block: int) -> str:
    file.seek(block * _BLOCK)
    return f"{zlib.crc32(file.read(_BLOCK)):08x}"


# --- what it was made from ------------------------------------------------------------------------


def digest_of(value: Any) -> str:
    """Return a hash of a value that JSON can represent."""
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=16).hexdigest()


def publish(draft: Draft, target: Path, facts: dict[str, Any]) -> None:
    """Give a complete store its name, and write the facts that identify it beside it.

    Raises
    ------
    FileExistsError
        If another run has made a store in this place.
    """
    os.fsync(draft.file.fileno())
    status, described = os.fstat(draft.file.fileno()), Draft(target.parent)
    whole = facts | {
        "format": _FORMAT,
        "modified": status.st_mtime_ns,
        "bytes": status.st_size,
        "end_of_rows": _end_of_rows(draft.file),
        "checksums": [_checksum(draft.file, k) for k in range(-(-status.st_size // _BLOCK))],
    }
    try:
        described.file.write(json.dumps(whole).encode())
        draft.publish(target)
        target.with_suffix(".json").unlink(missing_ok=True)  # of a store that was deleted
        described.publish(target.with_suffix(".json"))
    finally:
        described.discard()


def open_store(path: Path, expected: dict[str, Any]) -> RowStore:
    """Open the store at a path, and check that it is intact and was made from ``expected`` facts.

    Raises
    ------
    ValueError
        If it is damaged or belongs to another source, model or settings.
    """
    try:
        with open(path, "rb") as file:
            facts = json.loads(path.with_suffix(".json").read_bytes())
            _check_bytes(file, facts)
            _check_facts(facts, expected)
            _check_groups(_tables_of(file)[0], facts)
        return RowStore(path)
    except FileNotFoundError:
        reason = "there is no rows.json beside it"
    except (EOFError, KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError):
        reason = "rows.json beside it is damaged"
    except ValueError as error:
        reason = str(error)
    raise ValueError(
        f"The store of rows {path} cannot be used: {reason}. Delete it, and it is made anew, or pass "
        "another folder."
    )


def _check_bytes(file: BinaryIO, facts: dict[str, Any]) -> None:
    """Raise an error for another format or size, or a wrong checksum.

    All blocks are checked if the file was modified, else some of the rows and all of the groups.
    """
    if facts["format"] != _FORMAT:
        raise ValueError(f"it has format {facts['format']}, this version reads format {_FORMAT}")
    status = os.fstat(file.fileno())
    if status.st_size != facts["bytes"]:
        raise ValueError(f"it has {status.st_size:,} bytes, not {facts['bytes']:,}")
    sums = facts["checksums"]
    number = len(sums) if status.st_mtime_ns != facts["modified"] else min(len(sums), _CHECKED)
    some = np.linspace(0, len(sums) - 1, number).astype(int).tolist()
    for block in sorted({*some, *range(facts["end_of_rows"] // _BLOCK, len(sums))}):
        if _checksum(file, block) != sums[block]:
            raise ValueError(f"its bytes from {block * _BLOCK:,} on are damaged")


def _check_facts(facts: dict[str, Any], expected: dict[str, Any]) -> None:
    """Raise an error if a store was made from something else."""
    for name, reason in _MUST_AGREE.items():
        found, wanted = facts[name], expected[name]
        if found != wanted:
            shown = "" if name in ("program", "source") else f" ({found}, not {wanted})"
            raise ValueError(reason + shown)
    if not np.allclose(facts["sample"], expected["sample"], rtol=1e-9, atol=1e-12, equal_nan=True):
        raise ValueError("rows of the source or what the model makes of them have changed")


def _check_groups(first: np.ndarray, facts: dict[str, Any]) -> None:
    """Raise an error if a table of groups is not one, whatever its checksum says."""
    n_rows, groups = facts["n_rows"], facts["groups"]
    if groups is not None and (
        first.size != groups[0] + 1 or first[0] or first[-1] != n_rows or np.any(np.diff(first) < 0)
    ):
        raise ValueError(f"its table of groups does not increase from 0 to its {n_rows:,} rows")


#: Facts that must agree for a store to be used again, and the message if they do not.
_MUST_AGREE = {
    "groups": "its rows lie in other groups, or in none",
    "program": "it was made for another model",
    "n_columns": "it was made for another model, whose rows read another number of columns",
    "source": "the source has changed since it was made, or it was made from another one",
    "n_rows": "the source had another number of rows when it was made",
    "dtype": "it holds numbers of another dtype",
}
