"""PyTensor graphs as functions that compiled loops can call.

A compiled PyTensor function is a Numba dispatcher. Passing dispatchers to kernels cached on disk
corrupts the cache; first-class functions are safe. Data arrays are passed by
address: they are neither copied nor compiled into the machine code, and must be kept alive as long
as the native function is used.
"""

from __future__ import annotations

import ctypes
import math

from collections.abc import Callable, Sequence

import numpy as np
import pytensor

from numba import carray, types
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.math import tri_gamma

from amc_pymc.engine.first_class import (
    FirstClassFunction,
    bindable,
    bound_function,
    first_class,
    pointer,
)
from amc_pymc.engine.jit import njit
from amc_pymc.engine.machine import call

__all__ = [
    "callback_error",
    "callback_function",
    "compile_graph",
    "native_function",
    "native_states",
]


def trigamma(x):
    r"""Return the second derivative of log Gamma in elementary operations, for x > 0.

    :math:`\psi_1(x) = \sum_{k<8} (x+k)^{-2} + \psi_1(x+8)` with the asymptotic series for the last
    term (Abramowitz & Stegun 6.4.6 and 6.4.12); relative error below 1e-13. PyTensor's own operator
    calls SciPy from Numba, once per element.
    """
    steps = sum((x + k) ** -2 for k in range(8))
    z = (x + 8.0) ** -2
    series = z * (1 / 6 + z * (-1 / 30 + z * (1 / 42 + z * (-1 / 30 + z * (5 / 66)))))
    return steps + (1.0 + series) / (x + 8.0) + 0.5 * z


def _in_elementary_operations(outputs: list) -> list:
    replace = {
        v: trigamma(v.owner.inputs[0])
        for v in ancestors(outputs)
        if v.owner and getattr(v.owner.op, "scalar_op", None) == tri_gamma
    }
    return graph_replace(outputs, replace, strict=False) if replace else outputs


def compile_graph(inputs, output, **compile_kwargs):
    """Compile a PyTensor function in Numba mode that trusts its inputs."""
    outputs = output if isinstance(output, list) else [output]
    outputs = _in_elementary_operations(outputs)
    return pytensor.function(
        inputs,
        outputs if isinstance(output, list) else outputs[0],
        mode="NUMBA",
        trust_input=True,
        on_unused_input="ignore",
        **compile_kwargs,
    )


def native_function(fn, signature, arrays: Sequence[np.ndarray] = ()):
    """Return a first-class Numba function of a compiled PyTensor function's leading inputs.

    Parameters
    ----------
    fn : compiled PyTensor function
        From :func:`compile_graph`, with one output; its last inputs are the ``arrays``.
    signature : numba signature
        Types of the leading inputs and the output.
    arrays : sequence of arrays
        Bound by address if they are in C order, else copied.
    """
    leading = ", ".join(f"a{k}" for k in range(len(signature.args)))
    names, data, bound = _bind(fn, arrays)
    scalar = not isinstance(signature.return_type, types.Array)
    body = [
        f"out = jit({', '.join([leading, *data])})[0]",
        "return out.item()" if scalar else "return ascontiguousarray(out)",
    ]
    return _define(leading, data, body, names, signature, (fn, bound))


def native_states(fn, signature, arrays: Sequence[np.ndarray]):
    """Turn a function of one point into first-class ``(points (K, D), centre, rows (m,)) -> (K, m)``.

    Rows are gathered once for all points.

    Parameters
    ----------
    fn : compiled PyTensor function
        Function of a point (D,), a centre, row numbers (m,) and the rows gathered from each of
        ``arrays``; returns (m,).
    signature, arrays
        As for :func:`native_function`.
    """
    names, data, bound = _bind(fn, arrays)
    gathered = [f"g{k}" for k in range(len(arrays))]
    body = [f"{g} = {d}[rows]" for g, d in zip(gathered, data)]
    call = ", ".join(["points[k]", "centre", "rows", *gathered, *data[len(arrays) :]])
    body += [
        "out = empty((points.shape[0], rows.size))",
        "for k in range(points.shape[0]):",
        f"    out[k] = jit({call})[0]",
        "return out",
    ]
    return _define("points, centre, rows", data, body, names, signature, (fn, bound))


def _bind(fn, arrays):
    """Return names for generated code to view arrays and the function's shared values by address."""
    shared = [np.asarray(s.get_value(borrow=True)) for s in fn.get_shared()]
    bound = [np.asarray(bindable(a), order="C") for a in (*arrays, *shared)]
    names: dict[str, object] = {
        "jit": fn.vm.jit_fn,
        "ascontiguousarray": np.ascontiguousarray,
        "empty": np.empty,
        **_addresses(bound),
    }
    return names, [f"d{k}" for k in range(len(bound))], bound


def _addresses(arrays) -> dict[str, object]:
    """Return the names by which generated code finds arrays."""
    names: dict[str, object] = {"carray": carray, "pointer": pointer}
    for k, array in enumerate(arrays):
        names[f"address{k}"] = array.ctypes.data
        names[f"shape{k}"] = array.shape
        names[f"dtype{k}"] = array.dtype
    return names


def _define(arguments, data, body, names, signature, keep_alive):
    lines = [f"def native({arguments}):"]
    for k, name in enumerate(data):
        view = f"carray(pointer(address{k}), shape{k}, dtype=dtype{k})"
        scalar = "" if names[f"shape{k}"] else ".reshape(())"
        lines.append(f"    {name} = {view}{scalar}")
    exec("\n".join([*lines, *(f"    {line}" for line in body)]), names)
    return first_class(signature, kept=keep_alive)(names["native"])


# --- Python callbacks ---------------------------------------------------------------------------


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
def ask_callback(points, centre, rows, place):
    """Call the Python function at address place[0] for values (K, m) at points (K, D)."""
    out = np.empty((points.shape[0], rows.size))
    call(place[0], points, rows, out, points.shape[0], points.shape[1], rows.size)
    return out


def callback_function(function: Callable, signature) -> FirstClassFunction:
    """Return a first-class function that calls the Python ``function(points, rows) -> (K, m)``.

    An exception inside ``function`` becomes NaN values; :func:`callback_error` returns it.
    """
    callback = _Callback(function)
    place = np.array([callback.address], np.int64)
    return bound_function(ask_callback, signature, [place], callback)


def callback_error(native) -> BaseException | None:
    """Return the exception raised in a Python callback since the last call of this function."""
    callback = getattr(native, "kept", None)
    if not isinstance(callback, _Callback):
        return None
    error, callback.error = callback.error, None
    return error
