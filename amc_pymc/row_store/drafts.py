"""Files that have no name until they are complete, so that a killed run leaves nothing behind.

Where the system has files without names (``O_TMPFILE`` and ``/proc/self/fd``: Linux, but not on
every file system), the kernel removes a draft with the process that writes it. Elsewhere a draft has
a name with the number of its process; it is removed when the process ends by itself, and else by
the next run that looks into its folder.
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
#: Space that is left free on a disk.
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
    """A file in a folder, open for reading and writing, that :meth:`publish` gives its name.

    Attributes
    ----------
    file : binary file
    path : str
        Where other processes find it as long as this object lives.
    nameless : bool
        Whether the system removes it with this process.
    """

    def __init__(self, folder: Path):
        sweep(folder)
        self.file, name = _opened(folder)
        self.nameless = name is None
        self.path = f"/proc/{os.getpid()}/fd/{self.file.fileno()}" if name is None else name
        self._end = weakref.finalize(self, _discard, self.file, name, os.getpid())

    def publish(self, target: Path) -> None:
        """Give the complete file its name, at once.

        Raises
        ------
        FileExistsError
            Another run has been faster.
        """
        os.fsync(self.file.fileno())
        if target.exists():
            raise FileExistsError(f"rows: another run has made {target} meanwhile; start again")
        if not self.nameless:
            self.file.close()
            os.replace(self.path, target)
            return
        folder = os.open(target.parent, os.O_RDONLY)
        try:  # with a folder, the link is followed to the file
            source = str(_FILES / str(self.file.fileno()))
            os.link(source, target, src_dir_fd=folder, follow_symlinks=True)
        finally:
            os.close(folder)

    def discard(self) -> None:
        """Close the file and remove it, unless it was published."""
        self._end()


def _opened(folder: Path) -> tuple[BinaryIO, str | None]:
    """A new file, and its name if it must have one."""
    if hasattr(os, "O_TMPFILE") and _FILES.is_dir():
        with contextlib.suppress(OSError):
            handle = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
            return open(handle, "w+b", buffering=0), None
    handle, name = tempfile.mkstemp(prefix=f"{_mark()}{os.getpid()}-", suffix=".part", dir=folder)
    return open(handle, "w+b", buffering=0), name


def _discard(file: BinaryIO, name: str | None, process: int) -> None:
    file.close()
    if name is not None and os.getpid() == process:  # not in a forked child
        with contextlib.suppress(OSError):  # some systems keep what is mapped into memory
            Path(name).unlink()


def _mark() -> str:
    """How names of drafts begin on this machine."""
    return f".amc_pymc-rows-{zlib.crc32(platform.node().encode()):08x}-"


def sweep(folder: Path) -> None:
    """Remove drafts in a folder whose processes are gone."""
    pattern = re.compile(re.escape(_mark()) + r"(\d+)-\w+\.part")
    for path in folder.glob(f"{_mark()}*.part"):
        found = pattern.fullmatch(path.name)
        if found and not _alive(int(found[1])):
            with contextlib.suppress(OSError):  # another user's
                path.unlink()


def _alive(process: int) -> bool:
    if os.name != "posix":  # to ask is to kill
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
