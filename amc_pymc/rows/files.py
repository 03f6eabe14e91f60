"""Files that vanish with their process, arrays in shared memory, and pages of mapped files.

Where the system has unnamed files (Linux), the kernel removes them with the last process that has them open, and
other processes open them through the process that made them.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import tempfile
import weakref

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

__all__ = [
    "Draft",
    "SharedArray",
    "as_writable",
    "check_space",
    "mark_of",
    "opened",
    "release",
    "shared_array",
]

_FILES = Path("/proc/self/fd")
#: Bytes of disk space that are left free.
_SPARE = 64 * 2**20
#: Least size in bytes of an array in shared memory.
_LEAST = 16 * 2**20


def check_space(folder: Path, needed: int) -> None:
    """Raise an OSError if a folder has no room for a file of ``needed`` bytes."""
    free = shutil.disk_usage(folder).free
    if free < needed + _SPARE:
        raise OSError(
            f"rows: the store takes {needed / 2**20:,.0f} MiB, and {str(folder)!r} has "
            f"{free / 2**20:,.0f} MiB left. Pass amc_pymc.Rows(folder=) on another disk, or "
            "dtype='float32' for half the size."
        )


def mark_of(handle: int) -> tuple[int, ...]:
    """Return numbers that tell an open file from others: inode, size and time of modification."""
    status = os.fstat(handle)
    return status.st_ino, status.st_size, status.st_mtime_ns


def opened(path: str, mark: tuple[int, ...]) -> BinaryIO:
    """Open a file for reading; raise an OSError if it is not the one with the mark, or its beginning."""
    file = open(path, "rb")
    if mark_of(file.fileno())[: len(mark)] != mark:
        file.close()
        raise FileNotFoundError("another file has taken its place")
    return file


class Draft:
    """A file open for reading and writing, which is removed with this object unless it is published.

    Attributes
    ----------
    file : binary file
    path : str
        Path of the file for other processes, as long as this object exists.
    nameless : bool
        Whether the system removes the file even if this process is killed.
    """

    def __init__(self, folder: Path):
        self.file, name = _opened_draft(folder)
        self.nameless = name is None
        self.path = name or f"/proc/{os.getpid()}/fd/{self.file.fileno()}"
        self._end = weakref.finalize(self, _discard, self.file, name, os.getpid())

    def publish(self, target: Path) -> None:
        """Give the complete file its name atomically; raise a FileExistsError if the name is taken."""
        os.fsync(self.file.fileno())
        if target.exists():
            raise FileExistsError(f"rows: another run has made {target} meanwhile; start again")
        if not self.nameless:
            self.file.close()
            os.replace(self.path, target)
            return
        folder = os.open(target.parent, os.O_RDONLY)
        try:  # os.link follows the symbolic link only if a folder is given
            source = str(_FILES / str(self.file.fileno()))
            os.link(source, target, src_dir_fd=folder, follow_symlinks=True)
        finally:
            os.close(folder)

    def discard(self) -> None:
        """Close the file and remove it, unless it was published."""
        self._end()


def _opened_draft(folder: Path) -> tuple[BinaryIO, str | None]:
    """Open a new file; return it and its name, None if it is unnamed."""
    if hasattr(os, "O_TMPFILE") and _FILES.is_dir():
        with contextlib.suppress(OSError):  # not on every file system
            handle = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
            return open(handle, "w+b", buffering=0), None
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


def as_writable(array: np.ndarray) -> np.ndarray:
    """Return an array of the same memory not marked as read-only; it must not be written to.

    Compiled kernels need separate machine code for arrays that are marked as read-only.
    """
    return array if array.flags.writeable else np.asarray(_Writable(array))


class _Writable:
    """An array of the same memory that is not marked as read-only."""

    def __init__(self, array: np.ndarray):
        self._array = array  # keeps the memory alive
        data = array.__array_interface__["data"][0], False
        self.__array_interface__ = array.__array_interface__ | {"data": data}


class SharedArray:
    """An array of floats in a file in memory.

    The object can be pickled. Other processes map the same memory, as long as the original object
    exists. Writing to :attr:`data` changes the array in this process only.

    Parameters
    ----------
    shape : sequence of int
    handle : int
        Handle of an empty file, open for reading and writing. It is closed with this object.

    Attributes
    ----------
    path : str
        Path of the file for other processes.
    """

    def __init__(self, shape: Sequence[int], handle: int):
        self.shape = tuple(int(n) for n in shape)
        self._handle: int | None = handle
        self._end = weakref.finalize(self, os.close, handle)
        self.path = f"/proc/{os.getpid()}/fd/{handle}"
        os.ftruncate(handle, self.n_bytes)
        self._mark = mark_of(handle)[:2]

    @property
    def n_bytes(self) -> int:
        """Size of the array in bytes."""
        return 8 * int(np.prod(self.shape, dtype=int))

    def draft(self) -> np.ndarray:
        """Return the array, initially zero, to be filled before :attr:`data` is read."""
        assert self._handle is not None, "only who made the array fills it"
        return self._mapped(self._handle, mmap.ACCESS_WRITE)

    @cached_property
    def data(self) -> np.ndarray:
        """The array; pages are copied when they are written to.

        Raises
        ------
        ValueError
            If the object that was pickled no longer exists.
        """
        if self._handle is not None:
            return self._mapped(self._handle, mmap.ACCESS_COPY)
        try:
            with opened(self.path, self._mark) as file:
                return self._mapped(file.fileno(), mmap.ACCESS_COPY)
        except OSError as error:
            raise ValueError(
                f"Rows in the memory of another process cannot be opened: {error}. A step of more "
                "than 16 MiB of rows can be pickled for processes of the same machine only, and as "
                "long as it lives where it was made. Make it anew."
            ) from error

    def _mapped(self, handle: int, access: int) -> np.ndarray:
        mapped = mmap.mmap(handle, self.n_bytes, access=access)
        return np.frombuffer(mapped, np.float64).reshape(self.shape)

    def __getstate__(self) -> dict[str, Any]:
        return {"shape": self.shape, "path": self.path, "_mark": self._mark, "_handle": None}


def shared_array(shape: Sequence[int]) -> SharedArray | None:
    """Create an array of floats in shared memory; None if it is small or this is not supported.

    Examples
    --------
    >>> from amc_pymc.rows import shared_array
    >>> shared_array((1000, 2)) is None
    True
    """
    large = 8 * int(np.prod(shape, dtype=int)) >= _LEAST
    if large and hasattr(os, "memfd_create") and _FILES.is_dir():
        with contextlib.suppress(OSError):  # not permitted
            return SharedArray(shape, os.memfd_create("amc_pymc-rows"))
    return None
