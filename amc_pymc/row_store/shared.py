"""Arrays in memory that processes share, and that the system takes back with the last of them.

Where the system has files in memory without names (``memfd_create`` and ``/proc``: Linux), other
processes open such a file through the process that made it. Nothing has to be removed, however a
run ends.
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
#: Bytes from which on an array is worth a file of its own.
_LEAST = 16 * 2**20


class SharedArray:
    """An array of floats in a file in memory.

    It can be pickled: whoever gets it maps the same memory, as long as the object lives from which
    the pickle was made. To write to :attr:`data` changes them in this process only.

    Parameters
    ----------
    shape : sequence of int
    handle : int
        Of an empty file that is open for reading and writing. It is closed with this object.

    Attributes
    ----------
    path : str
        Where other processes find the file.
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
        """Size of the array."""
        return 8 * int(np.prod(self.shape, dtype=int))

    def draft(self) -> np.ndarray:
        """The array, zero at first, to be filled before anybody reads :attr:`data`."""
        assert self._handle is not None, "only who made the array fills it"
        return self._mapped(self._handle, mmap.ACCESS_WRITE)

    @cached_property
    def data(self) -> np.ndarray:
        """The array; memory is copied page by page where somebody writes to it.

        Raises
        ------
        ValueError
            The object that the array was pickled from is gone.
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
    """An array of floats in memory that processes can share, if it is large and there is such.

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
    with contextlib.suppress(OSError):  # not allowed here
        return SharedArray(shape, os.memfd_create("amc_pymc-rows"))
    return None


def _inode(handle: int) -> tuple[int, int]:
    status = os.fstat(handle)
    return status.st_dev, status.st_ino
