"""Python functions that compiled loops call."""

from __future__ import annotations

import ctypes

from collections.abc import Callable

import numpy as np

from amc_pymc.engine.first_class import FirstClassFunction, bound_function
from amc_pymc.engine.jit import njit
from amc_pymc.engine.machine import call
from amc_pymc.tall.samplers.compiled import LOGP

#: Type of native functions of an array, a place for the result, and the size of the array.
_NATIVE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


@njit(cache=True)
def _ask(x, place):
    """Call the Python function at address place[0] at x (D,)."""
    out = np.empty(1)
    call(place[0], x, out, x.size)
    return out[0]


def log_density_of(function: Callable) -> FirstClassFunction:
    """Return a first-class function that calls the Python ``function(x) -> float``.

    An exception inside ``function`` becomes NaN.
    """

    def called(x, out, size) -> None:
        found = ctypes.c_double.from_address(out)
        try:
            found.value = function(np.array((ctypes.c_double * size).from_address(x)))
        except BaseException:  # also interrupts, which ctypes would print and ignore
            found.value = np.nan

    native = _NATIVE(called)
    address = ctypes.cast(native, ctypes.c_void_p).value
    return bound_function(_ask, LOGP, [np.array([address], np.int64)], native)
