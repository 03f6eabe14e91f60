"""PyTensor graphs as functions that compiled loops can call.

A compiled PyTensor function is a Numba dispatcher. Handing dispatchers to kernels that are cached
on disk corrupts the cache; first-class functions (``numba.cfunc``) are safe. Data arrays enter by
address, so they are neither copied nor frozen into the machine code: whoever holds the native
function must keep the arrays alive.
"""

from __future__ import annotations

import itertools

from collections.abc import Callable, Sequence

import numpy as np
import pytensor

from numba import carray, cfunc, objmode, types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["callback_function", "callback_error", "compile_graph", "native_function"]


@intrinsic
def _pointer(typingctx, address):
    signature = types.voidptr(address)

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return signature, codegen


def compile_graph(inputs, output, **compile_kwargs):
    """PyTensor function in Numba mode that trusts its inputs."""
    return pytensor.function(
        inputs,
        output,
        mode="NUMBA",
        trust_input=True,
        on_unused_input="ignore",
        **compile_kwargs,
    )


def native_function(fn, signature, arrays: Sequence[np.ndarray] = ()):
    """First-class Numba function of a compiled PyTensor function's leading inputs.

    Parameters
    ----------
    fn : compiled PyTensor function
        From :func:`compile_graph`, with one output; its last inputs are the ``arrays``.
    signature : numba signature
        Of the leading inputs and the output.
    arrays : sequence of C-contiguous arrays
        Bound by address; keep them alive as long as the function is used.
    """
    n_leading = len(signature.args)
    leading = ", ".join(f"a{k}" for k in range(n_leading))
    shared = [np.asarray(s.get_value(borrow=True)) for s in fn.get_shared()]
    bound = [*arrays, *shared]
    names: dict[str, object] = {
        "jit": fn.vm.jit_fn,
        "carray": carray,
        "pointer": _pointer,
        "ascontiguousarray": np.ascontiguousarray,
    }
    lines = [f"def native({leading}):"]
    for k, array in enumerate(bound):
        names[f"address{k}"] = array.ctypes.data
        names[f"shape{k}"] = array.shape
        names[f"dtype{k}"] = array.dtype
        view = f"carray(pointer(address{k}), shape{k}, dtype=dtype{k})"
        lines.append(f"    d{k} = {view}{'' if array.ndim else '.reshape(())'}")
    data = ", ".join(f"d{k}" for k in range(len(bound)))
    lines.append(f"    out = jit({leading}{', ' + data if data else ''})[0]")
    scalar = not isinstance(signature.return_type, types.Array)
    lines.append("    return out.item()" if scalar else "    return ascontiguousarray(out)")
    exec("\n".join(lines), names)
    native = cfunc(signature)(names["native"])
    native.keep_alive = (fn, bound)
    return native


# --- Python callbacks ---------------------------------------------------------------------------

_callbacks: dict[int, Callable] = {}
_errors: dict[int, BaseException] = {}
_handles = itertools.count()


def _call(handle, points, rows):
    try:
        return np.ascontiguousarray(_callbacks[handle](points, rows), dtype=np.float64)
    except BaseException as error:
        _errors.setdefault(handle, error)
        return np.full((points.shape[0], rows.size), np.nan)


def callback_function(function: Callable, signature):
    """First-class Numba function that calls Python: ``function(points, rows) -> (K, m)``.

    An exception inside ``function`` becomes NaN values; :func:`callback_error` returns it.
    """
    handle = next(_handles)
    _callbacks[handle] = function

    def native(points, centre, rows):
        with objmode(out="float64[:, ::1]"):
            out = _call(handle, points, rows)
        return out

    compiled = cfunc(signature)(native)
    compiled.handle = handle
    return compiled


def callback_error(native) -> BaseException | None:
    """Exception raised in a Python callback since the last call of this function, if any."""
    return _errors.pop(getattr(native, "handle", -1), None)
