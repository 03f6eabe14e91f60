"""Files that vanish with their process, arrays in shared memory, and pages of mapped files.

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


class Draft:
    """A file open for reading and writing, which is removed with this object unless it is published.

    Attributes
    ----------
    file : binary file
    path : str
        Path of the file for other processes, as long as this object exists.
    """

    def __init__(self, folder: Path):
        self.file, name = _opened_draft(folder)
        self._nameless = name is None
        self.path = name or f"/proc/{os.getpid()}/fd/{self.file.fileno()}"
        self._end = weakref.finalize(self, _discard, self.file, name, os.getpid())

    def reserve(self, n_bytes: int) -> None:
        """Reserve space on the disk; raise an OSError if there is not enough."""
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.file.fileno(), 0, n_bytes)
        except OSError as error:
            raise OSError(
                f"rows: there is no room for {n_bytes / 2**20:,.0f} MiB: {error}. Pass "
                "amc_pymc.Rows(folder=) on another disk."
            ) from error

    def publish(self, target: Path) -> None:
        """Give the complete file its name atomically; raise a FileExistsError if the name is taken."""
        handle = self.file.fileno()
        os.fsync(handle)
        if self._nameless:
            # Without a folder, which an absolute path ignores, os.link does not follow symbolic links.
            os.link(self.path, target, src_dir_fd=handle)
        elif target.exists():
            raise FileExistsError(f"File exists: {target}")
        else:
            os.replace(self.path, target)

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


class InMemory:
    """An array, which processes share if it is large.

    The object can be pickled. A small array is part of the pickle. Of a large one other processes map the same memory,
    as long as the original object exists. Writing to :attr:`data` changes the array in this process only.

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
    >>> array.shared, array.data.sum()
    (False, np.float64(2.0))
    """

    def __init__(
        self, shape: Sequence[int], fill: Callable[[np.ndarray], Any], dtype: Any = np.float64
    ):
        self.shape, self.dtype = tuple(int(n) for n in shape), np.dtype(dtype)
        self._handle = _memory_file() if self.n_bytes >= max(1, _LEAST) else None
        #: Path of the file for other processes.
        self.path: str | None = None
        if self._handle is None:
            self.data = np.zeros(self.shape, self.dtype)
            fill(self.data)
            return
        weakref.finalize(self, os.close, self._handle)
        self.path, self._inode = f"/proc/{os.getpid()}/fd/{self._handle}", _inode(self._handle)
        os.ftruncate(self._handle, self.n_bytes)
        fill(self._mapped(self._handle, mmap.ACCESS_WRITE))

    @property
    def shared(self) -> bool:
        """Whether processes share the array."""
        return self.path is not None

    @property
    def n_bytes(self) -> int:
        """Size of the array in bytes."""
        return int(self.dtype.itemsize) * math.prod(self.shape)

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
        assert self.path is not None
        try:
            with open(self.path, "rb") as file:
                if _inode(file.fileno()) != self._inode:
                    raise FileNotFoundError("another file has taken its place")
                return self._mapped(file.fileno(), mmap.ACCESS_COPY)
        except OSError as error:
            raise ValueError(
                f"Rows in the memory of another process cannot be opened: {error}. A step of more "
                "than 16 MiB of rows can be pickled for processes of the same machine only, and as "
                "long as it lives where it was made. Make it anew."
            ) from error

    def _mapped(self, handle: int, access: int) -> np.ndarray:
        mapped = mmap.mmap(handle, self.n_bytes, access=access)
        return np.frombuffer(mapped, self.dtype).reshape(self.shape)

    def release(self) -> None:
        """Do nothing: the data stay in memory."""

    def touch(self, n_rows: float) -> None:
        """Do nothing: the data stay in memory."""

    def __getstate__(self) -> dict[str, Any]:
        if self.path is None:
            return self.__dict__
        kept = {k: self.__dict__[k] for k in ("shape", "dtype", "path", "_inode")}
        return kept | {"_handle": None}


def _memory_file() -> int | None:
    """Open a file in memory; None if the system has none."""
    if hasattr(os, "memfd_create") and _FILES.is_dir():
        with contextlib.suppress(OSError):  # not permitted
            return os.memfd_create("amc_pymc-rows")
    return None


def _inode(handle: int) -> tuple[int, int]:
    status = os.fstat(handle)
    return status.st_dev, status.st_ino
