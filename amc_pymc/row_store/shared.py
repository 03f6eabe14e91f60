"""Arrays in shared memory, which the system frees when the last process ends.

If the system has unnamed files in memory (``memfd_create`` and ``/proc``: Linux), other processes
open such a file through the process that created it. No clean-up is needed, however a run ends.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["SharedArray", "shared_array"]

_FILES = Path("/proc/self/fd")
#: Least size of an array that is stored in a file, in bytes.
_LEAST = 16 * 2**20


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
        self._inode = _inode(handle)

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
        return np.frombuffer(mapped, np.float64).reshape(self.shape)

    def __getstate__(self) -> dict[str, Any]:
        return {"shape": self.shape, "path": self.path, "_inode": self._inode, "_handle": None}


def shared_array(shape: Sequence[int]) -> SharedArray | None:
    """Create an array of floats in shared memory; None if it is small or this is not supported.

    Examples
    --------
    >>> from amc_pymc.row_store.shared import shared_array
    >>> shared_array((1000, 2)) is None
    True
    """
    if 8 * int(np.prod(shape, dtype=int)) < _LEAST:
        return None
    if not (hasattr(os, "memfd_create") and _FILES.is_dir()):
        return None
    with contextlib.suppress(OSError):  # not permitted
        return SharedArray(shape, os.memfd_create("amc_pymc-rows"))
    return None


def _inode(handle: int) -> tuple[int, int]:
    status = os.fstat(handle)
    return status.st_dev, status.st_ino
