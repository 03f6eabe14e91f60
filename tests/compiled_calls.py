"""Thousands of calls of compiled functions: Numba looks up the types of nested tuples for longer than many of them run."""

from __future__ import annotations

import functools

from collections.abc import Callable
from typing import Any

import numpy as np

from amc_pymc.engine.jit import FirstClassFunction, first_class


def called_often(dispatcher) -> Callable:
    """The same function, which looks up its machine code by a key that is quicker to make than Numba's types."""
    entry = entry_points(dispatcher)
    return lambda *args: entry(*args)(*args)


def entry_points(dispatcher) -> Callable:
    """Function that returns the machine code for arguments, to be called with arguments of these types."""
    found: dict[tuple, Callable] = {}

    def entry(*args):
        key = tuple(map(_kind, args))
        if key not in found:
            found[key] = entry_point(dispatcher, args)
        return found[key]

    return entry


def entry_point(dispatcher, args: tuple) -> Callable:
    """Machine code of a compiled function for arguments of these types."""
    kinds = tuple(dispatcher.typeof_pyval(a) for a in args)
    dispatcher.compile(kinds)
    return dispatcher.overloads[kinds].entry_point


def _kind(value: Any) -> Any:
    """What Numba's type of a value depends on."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.ndim, value.flags.c_contiguous, value.flags.writeable
    if isinstance(value, tuple):
        return type(value), *map(_kind, value)
    if isinstance(value, bool | int | float | np.generic | np.random.Generator):
        return type(value)
    if isinstance(value, FirstClassFunction):
        return value.signature
    return value  # functions are types of their own


def compiled_on_first_use(signature) -> Callable:
    """Decorator for first-class functions in a module that workers import without running its tests: ``f()`` is the function."""

    def decorate(function: Callable) -> Callable:
        return functools.cache(lambda: first_class(signature)(function))

    return decorate
