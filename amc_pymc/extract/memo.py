"""Cache of results about a model while a step is created."""

from __future__ import annotations

import functools

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytensor

__all__ = ["remembered", "remembering"]

_known: ContextVar[dict[Hashable, Any] | None] = ContextVar("known", default=None)


@contextmanager
def remembering() -> Iterator[None]:
    """Cache results of :func:`remembered` functions until the end of the block.

    The models must not change inside it. A nested block shares the cache of the outer one. Inside the
    block PyTensor does not compile C code, which takes seconds for constants that are folded once, and
    does not record the source line of each variable.

    Examples
    --------
    >>> from amc_pymc.extract.memo import remembered, remembering
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
    token = _known.set({})
    try:
        with pytensor.config.change_flags(cxx="", traceback__limit=0):
            yield
    finally:
        _known.reset(token)


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
