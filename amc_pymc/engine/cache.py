"""Machine code in a folder of the user, under names that depend on all source that it may come from."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import tempfile
import time
import warnings

from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import llvmlite
import numba
import numpy as np

from numba.core.registry import cpu_target

_HERE = Path(__file__).parents[1]
#: Folders of this package without compiled functions; a change there does not touch machine code.
WITHOUT_KERNELS = set("bandits evidence likelihood_free reading results rows runs steps".split())
#: What was changed later may differ from what this process has imported.
_BEGIN = time.time()
#: Beyond so many bytes, files of the cache are removed.
_LARGEST = 2**30


# --- names ------------------------------------------------------------------------------------------


def cached_name(function: Callable[..., Any], settings: Any) -> str | None:
    """Return the name under which code of a function is kept.

    It depends on the function, on ``settings``, on the source files of this package that may have compiled functions and
    of the function's own package, or beside its file, on versions and on the processor. None if it is not the same in
    each process, as that of a function with a closure.
    """
    code, kinds = function.__code__, repr(settings)
    file = Path(code.co_filename)
    if function.__closure__ or " at 0x" in kinds or not file.exists():
        return None
    place = (function.__module__, function.__qualname__, code.co_firstlineno, code.co_names)
    root = file  # or the topmost package that it is in
    while (root.parent / "__init__.py").exists():
        root = root.parent
    constants = [repr(c) for c in code.co_consts if not isinstance(c, CodeType)]
    return name_of((kinds, place, constants, code.co_code), "kernel", root)


def name_of(key: Any, kind: str, *roots: Path) -> str | None:
    """Return a name that depends on a key, on this package and other source, on versions and on the processor."""
    stamps = [_digest(root) for root in (_HERE, *roots)]
    versions = (sys.version_info[:2], np.__version__, numba.__version__, llvmlite.__version__)
    processor = cpu_target.target_context.codegen().magic_tuple()
    whole = repr((key, stamps, versions, processor)).encode()
    return None if None in stamps else f"{hashlib.sha256(whole).hexdigest()[:40]}.{kind}"


@functools.cache
def _digest(root: Path) -> str | None:
    """Return a digest of the source files in a package or beside a file; None if one was changed in this process."""
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py") if root.is_dir() else root.parent.glob("*.py")):
        if root == _HERE and file.relative_to(root).parts[0] in WITHOUT_KERNELS:
            continue
        if file.stat().st_mtime > _BEGIN:
            return None
        digest.update(str(file.relative_to(root.parent)).encode() + b"\0")
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


# --- files ------------------------------------------------------------------------------------------


def kernel_folder() -> Path | None:
    """Return the folder of cached machine code, in ``AMC_PYMC_CACHE`` or the user's cache folder.

    Code in it is executed. None, with one warning, if other users can write to it; also if it cannot be made.
    """
    root = os.environ.get("AMC_PYMC_CACHE") or os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(root) if root else Path.home() / ".cache") / "amc_pymc"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except (OSError, RuntimeError):  # not writable, or there is no home
        return None
    if os.name == "posix" and (found.st_uid != os.geteuid() or found.st_mode & 0o022):
        _distrust(folder)
        return None
    return folder


@functools.cache
def _distrust(folder: Path) -> None:
    warnings.warn(
        f"The kernel cache {folder} belongs to another user, or others can write to it. It is not used, and "
        "each process compiles its kernels. Make it your own with mode 700, or set AMC_PYMC_CACHE.",
        stacklevel=2,
    )


def read_cached(name: str) -> bytes | None:
    """Return what :func:`write_cached` wrote; None if there is nothing, or if a bit of it has changed."""
    folder = kernel_folder()
    try:
        found = None if folder is None else (folder / name).read_bytes()
    except OSError:
        found = None
    if folder is None or found is None or hashlib.sha256(found[32:]).digest() != found[:32]:
        return None
    with contextlib.suppress(OSError):
        os.utime(folder / name)  # for `prune`
    return found[32:]


def write_cached(name: str, data: bytes) -> None:
    """Write a file with a checksum; without a writable folder or with a full disk, do nothing."""
    folder = kernel_folder()
    if folder is None:
        return
    _prune_once(folder)
    with contextlib.suppress(OSError):
        handle, temporary = tempfile.mkstemp(dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(data).digest() + data)
            os.replace(temporary, folder / name)  # atomic
        except BaseException:
            os.unlink(temporary)
            raise


def prune(folder: Path, largest: int = _LARGEST) -> None:
    """Remove the files that were not used for longest, beyond ``largest`` bytes in all."""
    size = 0
    with contextlib.suppress(OSError):  # another process may have removed one
        for path in sorted(folder.iterdir(), key=lambda p: p.stat().st_mtime, reverse=True):
            size += path.stat().st_size
            if size > largest:
                path.unlink()


_prune_once = functools.cache(prune)
