"""What is found out about a model is found out once while a step is made."""

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
    """Results of :func:`remembered` functions are kept until the end of the block.

    The models must not change inside it. A block within another one keeps what that knows. PyTensor
    starts no C compiler meanwhile, which takes seconds for constants that are folded once, and notes
    no line of source for each of its variables.

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
    """Keep results by positional arguments, which must be hashable, inside :func:`remembering`.

    Results are shared: whoever gets one must not change it.
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
