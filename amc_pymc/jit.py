"""Numba functions whose cached machine code depends on all source files that it is compiled from.

Numba caches machine code beside the file that defines a function, and recompiles when that file has
changed. The machine code also contains the functions that are called, which may be in other files.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import re

from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any, overload

import numba

from numba.core import caching, serialize
from numba.core.dispatcher import Dispatcher

__all__ = ["kernel_folder", "njit", "source_digest", "source_files"]

_HERE = Path(__file__).parent
_NAMES = _HERE / "__init__.py"


@overload
def njit[F: Callable[..., Any]](function: F, /) -> F: ...
@overload
def njit[F: Callable[..., Any]](**settings: Any) -> Callable[[F], F]: ...
def njit(*args: Any, **settings: Any) -> Any:
    """Compile a function by :func:`numba.njit`, with ``cache=True`` safe against stale code.

    Machine code is read from disk only if the file of the function and all files of its package
    that this file imports, directly or indirectly, are unchanged.

    Examples
    --------
    >>> from amc_pymc.jit import njit
    >>> @njit(error_model="numpy")
    ... def reciprocal(x):
    ...     return 1.0 / x
    >>> reciprocal(4.0)
    0.25
    """

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(**settings)(function)
        if settings.get("cache"):
            dispatcher._cache = _Cache(function)
        return dispatcher

    return decorate(args[0]) if args else decorate


def kernel_folder() -> Path:
    """Return the folder of cached machine code, in ``AMC_PYMC_CACHE`` or the user's cache folder."""
    root = os.environ.get("AMC_PYMC_CACHE") or os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "amc_pymc"


@functools.cache
def source_digest(path: Path) -> bytes:
    """Return a hash of a file of a package and of all files that it imports from there or from this package.

    Parameters
    ----------
    path : Path
        File of a module. The root of its package is the topmost folder with an ``__init__.py``.
    """
    root = path.parent
    while (root.parent / "__init__.py").exists():
        root = root.parent
    digest = hashlib.sha256()
    for file in source_files(path, root):
        digest.update(
            str(file.relative_to((root if root in file.parents else _HERE).parent)).encode()
        )
        digest.update(_read(file))
    return digest.digest()


def source_files(path: Path, root: Path) -> list[Path]:
    """Return a file of the package in the folder ``root`` and all files that it imports from it or from this package.

    The names of this package itself are left out. They are imported when they are used, which no kernel does.
    """
    seen: set[Path] = set()
    waiting = [path]
    while waiting:
        file = waiting.pop()
        if file not in seen:
            seen.add(file)
            waiting.extend(f for r in {root, _HERE} for f in _imported(file, r) if f != _NAMES)
    return sorted(seen)


@functools.cache
def _read(path: Path) -> bytes:
    return path.read_bytes()


@functools.cache
def _imported(path: Path, root: Path) -> tuple[Path, ...]:
    """Return files of the package ``root`` that a file imports, also by ``from package import module``."""
    package = re.escape(root.name)
    pattern = rf"^\s*(?:from\s+({package}[\w.]*)\s+import\s+(\([^)]*\)|[^\n#]*)|import\s+({package}[\w.]*))"
    found = []
    for origin, names, whole in re.findall(pattern, _read(path).decode(), re.MULTILINE):
        module = origin or whole
        found += [module, *(f"{module}.{name}" for name in re.findall(r"\w+", names))]
    places = (root.parent.joinpath(*module.split(".")) for module in found)
    files = (file for place in places for file in (place / "__init__.py", place.with_suffix(".py")))
    return tuple(file for file in files if file.exists())


class _Stamped:
    """A cache locator whose stamp covers all source files."""

    _py_file: str

    def get_source_stamp(self) -> bytes:
        return source_digest(Path(self._py_file))


class _UserProvided(_Stamped, caching.UserProvidedCacheLocator):
    pass


class _InTree(_Stamped, caching.InTreeCacheLocator):
    pass


class _UserWide(_Stamped, caching.UserWideCacheLocator):
    pass


class _CacheImpl(caching.CompileResultCacheImpl):
    _locator_classes = [_UserProvided, _InTree, _UserWide, caching.ZipCacheLocator]


class _Index(caching.IndexDataCacheFile):
    """An index that counts as empty if it refers to classes or modules that an older version had."""

    def _load_index(self) -> dict[Any, Any]:
        try:
            found: dict[Any, Any] = super()._load_index()
            return found
        except (ImportError, AttributeError, EOFError, pickle.UnpicklingError):
            return {}


def _code_key(function: Callable[..., Any]) -> bytes:
    """Return a hash of the code of a function and of what it closes over."""
    code = function.__code__
    digest = hashlib.sha256(code.co_code)
    for cell in function.__closure__ or ():
        digest.update(_value_key(cell.cell_contents))
    return digest.digest()


def _value_key(value: Any) -> bytes:
    """Return bytes that stand for a value that a function closes over, the same in each process.

    Numba's own contain a name for each compiled function that is drawn at random in each process.
    """
    file = Path(value.py_func.__code__.co_filename) if isinstance(value, Dispatcher) else None
    if file is None or not file.exists():  # a notebook, for instance
        return bytes(serialize.dumps(value))
    function = value.py_func
    code = function.__code__
    place = (function.__module__, function.__qualname__, code.co_firstlineno, code.co_names)
    constants = [repr(c) for c in code.co_consts if not isinstance(c, CodeType)]
    return source_digest(file) + repr((place, constants)).encode() + _code_key(function)


class _Cache(caching.FunctionCache):
    _impl_class = _CacheImpl

    def __init__(self, py_func: Callable[..., Any]):
        super().__init__(py_func)
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = _Index(self._cache_path, self._impl.filename_base, stamp)

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        """Return the key of machine code for some types of arguments."""
        return sig, codegen.magic_tuple(), _code_key(self._py_func)
