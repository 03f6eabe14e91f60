"""Files that vanish with their process, arrays in them that processes share, and pages of mapped files.

Where the system has unnamed files (Linux), the kernel removes them with the last process that has them open, and
other processes open them through the process that made them.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import tempfile
import weakref

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

_FILES = Path("/proc/self/fd")
#: Least size in bytes of an array in shared memory.
_LEAST = 16 * 2**20
#: Number of random bytes at the end of a file, which tell files apart.
_IDENTITY = 16
#: Bytes that the system maps around a row that is read, and bytes that may stay mapped.
_AROUND, _RESIDENT = 64 * 2**10, 256 * 2**20


class Draft:
    """An array in a file, which is removed with this object.

    Parameters
    ----------
    folder : Path or None
        None makes a file in memory; an OSError says that the system has none.

    Attributes
    ----------
    file : binary file
    path : str
        Path of the file for other processes, as long as this object exists.
    shape, dtype : tuple of int, numpy.dtype
        Those of the array that was written.
    """

    def __init__(self, folder: Path | None):
        self._folder = folder
        self.file, name = _opened(folder)
        self.path = name or f"/proc/{os.getpid()}/fd/{self.file.fileno()}"
        self._end = weakref.finalize(self, _discard, self.file, name, os.getpid())

    def write(
        self, shape: tuple[int, ...], dtype: np.dtype, fill: Callable[[np.ndarray], Any]
    ) -> None:
        """Write an array, which ``fill`` is given as zeros.

        Raises
        ------
        OSError
            If there is not enough space on the disk.
        """
        self.shape, self.dtype = shape, dtype
        if self._folder is not None and hasattr(os, "posix_fallocate"):
            n_bytes = math.prod(shape) * dtype.itemsize
            try:
                os.posix_fallocate(self.file.fileno(), 0, n_bytes)
            except OSError as error:
                raise OSError(
                    f"rows: there is no room for {n_bytes / 2**20:,.0f} MiB: {error}. Pass "
                    "amc_pymc.Rows(folder=) on another disk."
                ) from error
        mapped = np.memmap(self.file, dtype, "r+", shape=shape)
        fill(np.asarray(mapped))
        mapped.flush()
        self.file.seek(0, os.SEEK_END)
        self.file.write(os.urandom(_IDENTITY))

    def discard(self) -> None:
        """Close the file and remove it."""
        self._end()


def _opened(folder: Path | None) -> tuple[BinaryIO, str | None]:
    """Open a new file; return it and its name, None if it is unnamed."""
    if _FILES.is_dir():
        with contextlib.suppress(OSError, AttributeError):  # not on every system, or not permitted
            if folder is None:
                handle = os.memfd_create("amc_pymc-rows")
            else:
                handle = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
            return open(handle, "w+b", buffering=0), None
    if folder is None:
        raise OSError("there are no files in memory")
    handle, name = tempfile.mkstemp(prefix=".amc_pymc-rows-", suffix=".part", dir=folder)
    return open(handle, "w+b", buffering=0), name


def _discard(file: BinaryIO, name: str | None, process: int) -> None:
    file.close()
    if name is not None and os.getpid() == process:  # not in a forked child
        with contextlib.suppress(OSError):  # some systems do not remove mapped files
            Path(name).unlink()


def release(array: np.ndarray) -> None:
    """Release the pages of an array that is memory-mapped read-only; they are read again when needed.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.rows.files import release
    >>> release(np.ones(3))
    """
    mapped, advice = getattr(array, "_mmap", None), getattr(mmap, "MADV_DONTNEED", None)
    if mapped is not None and advice is not None and getattr(array, "mode", None) == "r":
        mapped.madvise(advice)


class _Writable:
    """An array of the same memory that is not marked as read-only.

    Compiled kernels need separate machine code for arrays that are marked as read-only.
    """

    def __init__(self, array: np.ndarray):
        self._array = array  # keeps the memory alive
        data = array.__array_interface__["data"][0], False
        self.__array_interface__ = array.__array_interface__ | {"data": data}


class RowStore:
    """Packed rows (N, C), or another array, in a file that every process maps and shares.

    The object can be pickled.

    Parameters
    ----------
    draft : Draft
        The file, which exists as long as this object or a process has it open.
    """

    def __init__(self, draft: Draft):
        self.path, self._draft, self._touched = draft.path, draft, 0.0
        self._kept = draft.dtype, draft.shape, _identity(draft.path)

    @cached_property
    def data(self) -> np.ndarray:
        """The array, which must not be written to.

        Raises
        ------
        ValueError
            If the file no longer exists.
        """
        return np.asarray(_Writable(self._mapped))

    @cached_property
    def _mapped(self) -> np.ndarray:
        dtype, shape, identity = self._kept
        try:
            if _identity(self.path) != identity:
                raise ValueError("another file has taken its place")
            return np.memmap(self.path, dtype, "r", shape=shape)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"The rows in {self.path} cannot be opened: {error}. They can be read on the same machine "
                "only, and as long as the step that made them exists: make it anew."
            ) from error

    def release(self) -> None:
        """Release the memory that pages of the file take in this process.

        They stay in the cache of the system as long as there is room.
        """
        self._touched = 0.0
        if "_mapped" in self.__dict__:
            release(self._mapped)

    def touch(self, n_rows: float) -> None:
        """Count rows read at random, and release their pages when too many are mapped."""
        self._touched += n_rows * _AROUND
        if self._touched > _RESIDENT:
            self.release()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_kept": self._kept, "_draft": None, "_touched": 0.0}


def _identity(path: str) -> bytes:
    """Return the random bytes with which a file ends."""
    with open(path, "rb") as file:
        file.seek(-_IDENTITY, os.SEEK_END)
        return file.read()


class InMemory(RowStore):
    """An array, which processes share if it is large.

    A small array is part of the pickle. Of a large one other processes map the same memory, as long as the original
    object exists.

    Parameters
    ----------
    shape : sequence of int
    fill : callable
        Writes to the array, which is zero.
    dtype : dtype, default float

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.rows import InMemory
    >>> array = InMemory((2, 2), lambda out: np.fill_diagonal(out, 1.0))
    >>> array.path, array.data.sum()
    ('', np.float64(2.0))
    """

    def __init__(
        self, shape: Sequence[int], fill: Callable[[np.ndarray], Any], dtype: Any = np.float64
    ):
        shape, dtype, draft = tuple(map(int, shape)), np.dtype(dtype), None
        if math.prod(shape) * dtype.itemsize >= max(1, _LEAST):
            with contextlib.suppress(OSError):
                draft = Draft(None)
        if draft is None:
            self.path, self.data = "", np.zeros(shape, dtype)
            fill(self.data)
        else:
            draft.write(shape, dtype, fill)
            super().__init__(draft)

    def release(self) -> None:
        """Do nothing: the data stay in memory."""

    def touch(self, n_rows: float) -> None:
        """Do nothing: the data stay in memory."""

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() if self.path else self.__dict__
