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

from numba import carray, cfunc, njit, objmode, types
from numba.core import cgutils
from numba.extending import intrinsic
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.math import tri_gamma

__all__ = [
    "callback_error",
    "callback_function",
    "compile_graph",
    "entry_point",
    "native_function",
]


@intrinsic
def _pointer(typingctx, address):
    signature = types.voidptr(address)

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return signature, codegen


def trigamma(x):
    r"""Second derivative of log Gamma as elementary operations, for x > 0.

    :math:`\psi_1(x) = \sum_{k<8} (x+k)^{-2} + \psi_1(x+8)` with the asymptotic series for the last
    term (Abramowitz & Stegun 6.4.6 and 6.4.12); relative error below 1e-13. PyTensor's own operator
    leaves Numba for SciPy, once per element.
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
    """PyTensor function in Numba mode that trusts its inputs."""
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


def entry_point(dispatcher, args: tuple) -> Callable:
    """Compiled entry of a Numba function for arguments of these types.

    It skips the dispatcher's look-up of types, which for nested tuples takes longer than a
    transition. Calling it with arguments of other types is undefined.
    """
    kinds = tuple(dispatcher.typeof_pyval(a) for a in args)
    dispatcher.compile(kinds)
    return dispatcher.overloads[kinds].entry_point


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

    @njit
    def ask(points, rows):  # Numba cannot compile objmode inside a cfunc itself
        with objmode(out="float64[:, ::1]"):
            out = _call(handle, points, rows)
        return out

    def native(points, centre, rows):
        return ask(points, rows)

    compiled = cfunc(signature)(native)
    compiled.handle = handle
    return compiled


def callback_error(native) -> BaseException | None:
    """Exception raised in a Python callback since the last call of this function, if any."""
    return _errors.pop(getattr(native, "handle", -1), None)
