"""Files that get a name when they are complete; a killed run leaves none behind.

If the system has unnamed files (``O_TMPFILE`` and ``/proc/self/fd``: Linux, but not on every file
system), the kernel removes a draft with the process that writes it. Otherwise, a draft is named after
the process ID and removed when the process ends normally, or else by the next run in the folder.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import tempfile
import weakref
import zlib

from pathlib import Path
from typing import BinaryIO

__all__ = ["Draft", "check_space", "sweep"]

_FILES = Path("/proc/self/fd")
#: Bytes of disk space that are left free.
_SPARE = 64 * 2**20


def check_space(folder: Path, needed: int) -> None:
    """Raise an OSError if a folder has no room for a file of ``needed`` bytes."""
    free = shutil.disk_usage(folder).free
    if free < needed + _SPARE:
        raise OSError(
            f"rows: the store takes {needed / 2**20:,.0f} MiB, and {str(folder)!r} has "
            f"{free / 2**20:,.0f} MiB left. Pass amc_pymc.Rows(folder=) on another disk, or "
            "dtype='float32' for half the size."
        )


class Draft:
    """A file open for reading and writing that is named by :meth:`publish`.

    Attributes
    ----------
    file : binary file
    path : str
        Path of the file for other processes, as long as this object exists.
    nameless : bool
        Whether the system removes the file when this process ends.
    """

    def __init__(self, folder: Path):
        sweep(folder)
        self.file, name = _opened(folder)
        self.nameless = name is None
        self.path = f"/proc/{os.getpid()}/fd/{self.file.fileno()}" if name is None else name
        self._end = weakref.finalize(self, _discard, self.file, name, os.getpid())

    def publish(self, target: Path) -> None:
        """Give the complete file its name atomically.

        Raises
        ------
        FileExistsError
            If another run has created the file.
        """
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


def _opened(folder: Path) -> tuple[BinaryIO, str | None]:
    """Open a new file; return it and its name, None if it is unnamed."""
    if hasattr(os, "O_TMPFILE") and _FILES.is_dir():
        with contextlib.suppress(OSError):
            handle = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
            return open(handle, "w+b", buffering=0), None
    handle, name = tempfile.mkstemp(prefix=f"{_mark()}{os.getpid()}-", suffix=".part", dir=folder)
    return open(handle, "w+b", buffering=0), name


def _discard(file: BinaryIO, name: str | None, process: int) -> None:
    file.close()
    if name is not None and os.getpid() == process:  # not in a forked child
        with contextlib.suppress(OSError):  # some systems do not remove mapped files
            Path(name).unlink()


def _mark() -> str:
    """Return the prefix of the names of drafts on this machine."""
    return f".amc_pymc-rows-{zlib.crc32(platform.node().encode()):08x}-"


def sweep(folder: Path) -> None:
    """Remove drafts in a folder whose processes have ended."""
    pattern = re.compile(re.escape(_mark()) + r"(\d+)-\w+\.part")
    for path in folder.glob(f"{_mark()}*.part"):
        found = pattern.fullmatch(path.name)
        if found and not _alive(int(found[1])):
            with contextlib.suppress(OSError):  # of another user
                path.unlink()


def _alive(process: int) -> bool:
    if os.name != "posix":  # os.kill would end the process
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
