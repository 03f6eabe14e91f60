"""Numba functions whose cached machine code depends on all source files that it is compiled from.

Numba caches machine code beside the file that defines a function, and recompiles when that file has
changed. The machine code also contains the functions that are called, which may be in other files. Here
machine code is kept in one folder of the user, under a name that depends on all of them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import pickle
import re
import sys
import tempfile
import time
import warnings

from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any, overload

import llvmlite
import numba
import numpy as np

from numba.core import caching, serialize
from numba.core.compiler import CompileResult
from numba.core.dispatcher import Dispatcher
from numba.core.registry import cpu_target

from amc_pymc.engine.dispatch import Kernel

__all__ = [
    "cached_name",
    "fill",
    "kernel_folder",
    "njit",
    "prune",
    "read_cached",
    "source_digest",
    "source_files",
    "stamp_of",
    "write_cached",
]

_log = logging.getLogger("amc_pymc")
_HERE = Path(__file__).parents[1]
_NAMES = _HERE / "__init__.py"
#: What was changed later may differ from what this process has imported.
_BEGIN = time.time()
#: Beyond so many bytes, files of the cache are removed.
_LARGEST = 2**30
_IMPORTS = re.compile(
    r"(?:^|;)[ \t]*(?:from[ \t]*(\.*)([\w.]*)[ \t]+import[ \t]*(\([^)]*\)|[^\n;]*)|import[ \t]+([^\n;]+))",
    re.MULTILINE,
)


@overload
def njit[F: Callable[..., Any]](function: F, /) -> F: ...
@overload
def njit[F: Callable[..., Any]](**settings: Any) -> Callable[[F], F]: ...
def njit(*args: Any, **settings: Any) -> Any:
    """Compile a function by :func:`numba.njit`, with ``cache=True`` safe against stale code.

    Machine code is read from disk only if the file of the function and all files that this file imports,
    directly or indirectly, are unchanged. These are files of its package, of this package and, unless it is
    installed, of the folder beside it.

    Examples
    --------
    >>> from amc_pymc.engine.jit import njit
    >>> @njit(error_model="numpy")
    ... def reciprocal(x):
    ...     return 1.0 / x
    >>> reciprocal(4.0)
    0.25
    """
    cached = settings.pop("cache", False)
    settings.setdefault("error_model", "numpy")

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = Kernel(function, {"nopython": True, "boundscheck": None, **settings})
        if cached:
            dispatcher._cache = _Cache(function, dispatcher.settings)
        return dispatcher

    return decorate(args[0]) if args else decorate


class _Cache(caching.NullCache):
    """Machine code of a function on disk; a file for each type of its arguments."""

    def __init__(self, function: Callable[..., Any], settings: str):
        self._function, self._settings = function, settings

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        name = cached_name(self._function, (self._settings, sig))
        data = read_cached(name) if name else None
        if data is not None:
            try:
                kept, state = pickle.loads(data)
                if kept == sig:
                    return CompileResult._rebuild(target_context, *state)
            except Exception as error:  # whatever it raises, the code is recompiled
                _log.debug("Machine code %s cannot be used: %r", name, error)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        name = cached_name(self._function, (self._settings, sig))
        lifted = any(not loop.can_cache for loop in data.lifted)
        if name and not lifted and not data.library.has_dynamic_globals:
            write_cached(name, bytes(serialize.dumps((sig, data._reduce()))))


def cached_name(function: Callable[..., Any], settings: Any) -> str | None:
    """Return the name of a file; None if the function or a type is not the same in each process."""
    kinds, code = repr(settings), _code_key(function)
    if code is None or " at 0x" in kinds:
        return None
    codegen = cpu_target.target_context.codegen()
    key = repr((surroundings(codegen), kinds)).encode() + code
    return f"{hashlib.sha256(key).hexdigest()[:40]}.kernel"


def surroundings(codegen: Any) -> tuple[Any, ...]:
    """Return what all machine code depends on besides its own source: versions and the processor."""
    versions = (sys.version_info[:2], np.__version__, numba.__version__, llvmlite.__version__)
    return versions, codegen.magic_tuple()


def _code_key(function: Callable[..., Any]) -> bytes | None:
    """Return a hash of a function, the files it depends on and what it closes over.

    It is the same in each process, and None if that cannot be known.
    """
    digest, code = stamp_of(function), function.__code__
    if digest is None:
        return None
    place = (function.__module__, function.__qualname__, code.co_firstlineno, code.co_names)
    constants = [repr(c) for c in code.co_consts if not isinstance(c, CodeType)]
    key = hashlib.sha256(digest + repr((place, constants)).encode() + code.co_code)
    for cell in function.__closure__ or ():
        value = cell.cell_contents
        # Numba's own bytes of a compiled function contain a name that is drawn at random in each process.
        known = isinstance(value, Dispatcher)
        part = _code_key(value.py_func) if known else bytes(serialize.dumps(value))
        if part is None:
            return None
        key.update(part)
    return key.digest()


# --- source files -----------------------------------------------------------------------------------


def stamp_of(function: Callable[..., Any]) -> bytes | None:
    """Return a hash of all source that a function depends on.

    None if it has no file, such as in a notebook, or if a file was changed after it was imported.
    """
    file = Path(function.__code__.co_filename)
    if not file.exists():
        return None
    return source_digest(file)


@functools.cache
def source_digest(path: Path) -> bytes | None:
    """Return a hash of a file and of :func:`source_files`; None if one was changed since the process began."""
    digest = hashlib.sha256()
    for file in source_files(path):
        digest.update(str(file.relative_to(_root(file.parent).parent)).encode() + b"\0")
        digest.update(hashlib.sha256(_read(file)).digest())
        if file.stat().st_mtime > _BEGIN:
            return None
    return digest.digest()


@functools.cache
def _root(folder: Path) -> Path:
    """Return the topmost folder with an ``__init__.py``, the package; the folder itself if it has none."""
    above = folder.parent
    return _root(above) if (above / "__init__.py").exists() else folder


def source_files(path: Path) -> list[Path]:
    """Return a file and all files that it imports from its package, from this one or from beside it.

    The names of this package itself are left out. They are imported when they are used, which no kernel does.
    """
    seen: set[Path] = set()
    waiting = [path]
    while waiting:
        file = waiting.pop()
        if file not in seen:
            seen.add(file)
            waiting.extend(f for f in _imported(file) if f != _NAMES)
    return sorted(seen)


@functools.cache
def _read(path: Path) -> bytes:
    return path.read_bytes()


@functools.cache
def _imported(path: Path) -> tuple[Path, ...]:
    """Return files that a file imports, also by ``from package import module`` and relative to it."""
    text = re.sub(r"#[^\n]*|\\\r?\n", "", _read(path).decode(errors="replace"))
    found: list[Path] = []
    for dots, origin, names, whole in _IMPORTS.findall(text):
        for module in re.findall(r"[\w.]+", whole) if whole else [origin]:
            bases = [path.parents[len(dots) - 1]] if dots else _bases(path, module.split(".")[0])
            for place in (base.joinpath(*module.split(".")) for base in bases):
                found += [place, *(place / name for name in re.findall(r"\w+", names))]
    files = (file for place in found for file in (place / "__init__.py", place.with_suffix(".py")))
    return tuple(file for file in files if file.is_file())


def _bases(path: Path, package: str) -> list[Path]:
    """Return the folders in which a package is looked for that a file imports."""
    if package == _HERE.name:
        return [_HERE.parent]
    root = _root(path.parent)
    installed = {"site-packages", "dist-packages"} & {*path.parts}
    return [] if installed and package != root.name else [root.parent, root]


# --- on disk ----------------------------------------------------------------------------------------


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


@njit(cache=True)
def fill(out: np.ndarray, values: np.ndarray) -> None:
    """Copy values (n,) to an array; Numba's own assignment to slices takes longer to compile."""
    for k in range(values.size):
        out[k] = values[k]
