"""Python functions that compiled loops call."""

from __future__ import annotations

import ctypes
import math

from collections.abc import Callable

import numpy as np

from amc_pymc.engine.first_class import FirstClassFunction, bound_function
from amc_pymc.engine.jit import njit
from amc_pymc.engine.machine import call
from amc_pymc.tall.racing import REWARDS
from amc_pymc.tall.samplers.compiled import LOGP


class _Callback:
    """A Python function at an address, with its first exception not yet reported."""

    _KIND = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, *3 * [ctypes.c_int64]
    )

    def __init__(self, function: Callable):
        self.function = function
        self.error: BaseException | None = None
        self.native = self._KIND(self._call)
        self.address = ctypes.cast(self.native, ctypes.c_void_p).value

    def _call(self, points, rows, out, k, d, m) -> None:
        found = _view(ctypes.c_double, out, (k, m))
        try:
            given = _view(ctypes.c_double, points, (k, d)).copy()
            found[:] = self.function(given, _view(ctypes.c_int64, rows, (m,)).copy())
        except BaseException as error:  # also interrupts, which ctypes would print and ignore
            self.error = self.error or error
            found[:] = np.nan


def _view(kind, address: int | None, shape: tuple[int, ...]) -> np.ndarray:
    """Return the array at an address, which may be None if the array is empty."""
    size = math.prod(shape)
    if not size:
        return np.empty(shape, kind)
    return np.ctypeslib.as_array((kind * size).from_address(address)).reshape(shape)


@njit(cache=True)
def _ask(points, centre, rows, place):
    """Call the Python function at address place[0] for values (K, m) at points (K, D)."""
    out = np.empty((points.shape[0], rows.size))
    call(place[0], points, rows, out, points.shape[0], points.shape[1], rows.size)
    return out


@njit(cache=True)
def _ask_at(x, place):
    """Call the Python function at address place[0] for one value at x (D,)."""
    out, rows = np.empty(1), np.zeros(1, np.int64)
    call(place[0], x, rows, out, 1, x.size, 1)
    return out[0]


def callback_function(function: Callable) -> FirstClassFunction:
    """Return a first-class function that calls the Python ``function(points, rows) -> (K, m)``.

    An exception inside ``function`` becomes NaN values; :func:`callback_error` returns it.
    """
    return _bound(_ask, function, REWARDS)


def log_density_of(function: Callable) -> FirstClassFunction:
    """Return a first-class function that calls the Python ``function(x) -> float``."""
    return _bound(_ask_at, lambda points, rows: function(points[0]), LOGP)


def _bound(kernel, function: Callable, signature) -> FirstClassFunction:
    callback = _Callback(function)
    return bound_function(kernel, signature, [np.array([callback.address], np.int64)], callback)


def callback_error(native) -> BaseException | None:
    """Return the exception raised in a Python callback since the last call of this function."""
    callback = getattr(native, "kept", None)
    if not isinstance(callback, _Callback):
        return None
    error, callback.error = callback.error, None
    return error
