"""What is computed once: results about a model while a step is created, and cached properties."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytensor

__all__ = ["remembered", "remembering", "state_without_caches"]

_known: ContextVar[dict[Hashable, Any] | None] = ContextVar("known", default=None)


@contextmanager
def remembering() -> Iterator[None]:
    """Cache results of :func:`remembered` functions until the end of the block.

    The models must not change inside it. A nested block shares the cache of the outer one. Inside the
    block PyTensor does not compile C code, which takes seconds for constants that are folded once, and
    does not record the source line of each variable.

    Examples
    --------
    >>> from amc_pymc.reading.memo import remembered, remembering
    >>> @remembered
    ... def square(x):
    ...     print("computed")
    ...     return x * x
    >>> with remembering():
    ...     square(3), square(3)
    computed
    (9, 9)
    """
    if _known.get() is not None:
        yield
        return
    _find_compiledir()
    token = _known.set({})
    try:
        with pytensor.config.change_flags(cxx="", traceback__limit=0):
            yield
    finally:
        _known.reset(token)


@functools.cache
def _find_compiledir() -> None:
    """Give PyTensor a temporary folder until the process ends if it cannot make its own, as in a read-only home.

    PyTensor raises an error otherwise, whatever is compiled.
    """
    try:
        _ = pytensor.config.compiledir
    except (OSError, ValueError):
        folder = tempfile.mkdtemp(prefix="amc_pymc-pytensor-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        # A folder that was read cannot be set.
        pytensor.config._config_var_dict["base_compiledir"].val = Path(folder)
        _ = pytensor.config.compiledir


def remembered(function: Callable) -> Callable:
    """Cache results by positional arguments, which must be hashable, inside :func:`remembering`.

    Results are shared and must not be changed.
    """

    @functools.wraps(function)
    def found(*args):
        known = _known.get()
        if known is None:
            return function(*args)
        key = function, args
        if key not in known:
            known[key] = function(*args)
        return known[key]

    return found


def state_without_caches(owner: Any) -> dict[str, Any]:
    """Return the attributes of an object, for pickling, without its cached properties."""
    kind = type(owner)
    return {
        name: value
        for name, value in vars(owner).items()
        if not isinstance(getattr(kind, name, None), functools.cached_property)
    }
