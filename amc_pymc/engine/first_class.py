"""First-class functions for compiled loops: kernels with their arrays bound, and calls by address.

Cached machine code cannot contain the address of an array. The code of a kernel therefore takes the
address of a record as its first argument, which holds the addresses and shapes of all arrays. A stub of a
few instructions, which compiles quickly, passes the address of its own record.
"""

from __future__ import annotations

import hashlib
import sys
import threading
import weakref

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.compiler_lock import global_compiler_lock
from numba.core.imputils import lower_constant
from numba.core.registry import cpu_target
from numba.experimental.function_type import FunctionModel
from numba.extending import NativeValue, intrinsic, register_model, typeof_impl, unbox

from amc_pymc.engine.jit import compiled_callback, source_digest, stamp_of

__all__ = [
    "FirstClassFunction",
    "FirstClassType",
    "bindable",
    "bound_function",
    "caller",
    "first_class",
    "pointer",
    "printed_module",
    "word",
]

_SOURCE = '''"""A kernel with its arrays bound."""

# {digest}

import sys

import numpy as np

from numba import carray, farray  # noqa: F401

from amc_pymc.engine.first_class import pointer, word

kernel = sys.modules["{module}"].{name}


def native({leading}):
    return kernel({arguments})
'''


@intrinsic
def pointer(typingctx: Any, address: Any) -> tuple[Any, Callable[..., Any]]:
    """Convert an integer to a pointer."""
    signature = types.voidptr(address)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return signature, codegen


@intrinsic
def word(typingctx: Any, place: Any, k: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the k-th int64 from an address on."""
    signature = types.int64(types.int64, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        words = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load(builder.gep(words, [args[1]]))

    return signature, codegen


def caller(signature: Any) -> Callable[..., Any]:
    """Return ``call(address, arguments)`` for calling first-class functions from compiled code.

    Parameters
    ----------
    signature : numba signature

    Returns
    -------
    intrinsic
        Takes an address (int64) of a :class:`FirstClassFunction` and a tuple of arguments.

    Examples
    --------
    >>> import numpy as np
    >>> from numba import njit, types
    >>> from amc_pymc.engine.first_class import caller, first_class
    >>> signature = types.float64(types.float64)
    >>> call = caller(signature)
    >>> @first_class(signature)
    ... def half(x):
    ...     return 0.5 * x
    >>> @njit
    ... def both(addresses, x):
    ...     return call(addresses[0], (x,)) + call(addresses[1], (x,))
    >>> float(both(np.array([half.address] * 2), 3.0))
    3.0
    """
    kinds = types.Tuple(signature.args)

    @intrinsic
    def call(typingctx: Any, address: Any, arguments: Any) -> tuple[Any, Callable[..., Any]]:
        def codegen(context: Any, builder: Any, _: Any, values: Any) -> Any:
            function = _function_type(context, signature.return_type, signature.args)
            given = cgutils.unpack_tuple(builder, values[1])
            return builder.call(builder.inttoptr(values[0], function.as_pointer()), given)

        return signature.return_type(types.int64, kinds), codegen

    return call


def _function_type(context: Any, result: Any, arguments: Sequence[Any]) -> ir.FunctionType:
    """Return the LLVM type of a first-class function."""
    return ir.FunctionType(
        context.get_value_type(result), [context.get_value_type(t) for t in arguments]
    )


class FirstClassFunction:
    """A compiled function that compiled loops take as an argument.

    It is called like a ``numba.cfunc``. To pass one of those, Numba calls Python functions that look for
    its address, which takes 3.5 microseconds for each argument.

    Attributes
    ----------
    signature : numba signature
        Types of the arguments and the result.
    address : int
        Address of the code, in the calling convention of C.
    kept : object
        Objects kept alive as long as the function.
    """

    def __init__(self, signature: Any, address: int, kept: Any):
        self.signature, self.address, self.kept = signature, address, kept


class FirstClassType(types.FunctionType):
    """Numba's type of a :class:`FirstClassFunction`, determined by its signature."""


register_model(FirstClassType)(FunctionModel)


@typeof_impl.register(FirstClassFunction)
def _typeof(function: FirstClassFunction, context: Any) -> FirstClassType:
    return FirstClassType(function.signature)


def _value(context: Any, builder: Any, kind: FirstClassType, code: Any, function: Any) -> Any:
    """Return the LLVM value of a function, from the address of its code and of the Python object."""
    value = cgutils.create_struct_proxy(kind)(context, builder)
    value.c_addr, value.py_addr = code, function  # the third address stays null
    return value._getvalue()


@unbox(FirstClassType)
def _unbox(kind: FirstClassType, function: Any, c: Any) -> NativeValue:
    address = c.pyapi.object_getattr_string(function, "address")
    code = c.pyapi.long_as_voidptr(address)
    c.pyapi.decref(address)
    place = c.builder.bitcast(function, c.context.get_value_type(types.voidptr))
    return NativeValue(_value(c.context, c.builder, kind, code, place))


@lower_constant(FirstClassType)
def _lower_constant(context: Any, builder: Any, kind: FirstClassType, function: Any) -> Any:
    """Functions that others close over."""
    code = context.add_dynamic_addr(builder, function.address, info=str(kind))
    place = context.add_dynamic_addr(builder, id(function), info=type(function).__name__)
    return _value(context, builder, kind, code, place)


def first_class(signature: Any, *, cache: bool = False, kept: Any = None) -> Callable[[Any], Any]:
    """Compile a function as a :class:`FirstClassFunction`; decorator.

    Parameters
    ----------
    signature : numba signature
        Types of the arguments and the result.
    cache : bool
        Whether to keep the machine code on disk.
    kept : object, optional
        Further object that the function keeps alive, such as arrays whose addresses it contains.

    Examples
    --------
    >>> from numba import njit, types
    >>> from amc_pymc.engine.first_class import first_class
    >>> @first_class(types.float64(types.float64))
    ... def half(x):
    ...     return 0.5 * x
    >>> @njit
    ... def twice(function, x):
    ...     return function(function(x))
    >>> twice(half, 8.0)
    2.0
    """

    def compiled(function: Any) -> Any:
        code = compiled_callback(function, signature, cache)
        return FirstClassFunction(signature, code.address, (code, kept))

    return compiled


class _Stub:
    """A record of addresses and shapes, and a function that passes its address to a kernel."""

    def __init__(self, code: Any, width: int):
        self.record = np.zeros(max(1, width), np.int64)
        self.address = _compiled(code, self.record.ctypes.data)


#: Code and unused stubs by source and signature. Code is never freed, because compiled loops refer to it.
_codes: dict[tuple[str, Any], tuple[Any, list[_Stub]]] = {}


def bindable(array: np.ndarray) -> np.ndarray:
    """Return an array that code can read from its address on, a copy if it is strided, unaligned or byte-swapped."""
    array = np.asarray(array, array.dtype.newbyteorder("="))
    return array if array.flags.forc and array.flags.aligned else array.copy("C")


def bound_function(
    kernel: Any, signature: Any, arrays: Sequence[np.ndarray], kept: Any = None
) -> Any:
    """Bind ``arrays`` to the last arguments of a kernel; return a first-class function of the others.

    Parameters
    ----------
    kernel : Numba function
        Defined in a module of the package.
    signature : numba signature
        Types of the leading arguments and the result.
    arrays : sequence of arrays
        Bound by address and kept alive by the function; :func:`bindable` copies those that are not contiguous.
    kept : object, optional
        Further object that the function keeps alive.

    Returns
    -------
    FirstClassFunction
    """
    arrays = [bindable(a) for a in arrays]
    stamps = stamp_of(kernel.py_func), source_digest(Path(__file__))
    known = None not in stamps
    digest = hashlib.blake2b(repr(stamps if known else id(kernel)).encode(), digest_size=12)
    source = _printed(kernel, digest.hexdigest(), len(signature.args), arrays)
    whole = signature.return_type(types.int64, *signature.args)
    with _one_at_a_time:
        if (source, whole) not in _codes:
            native = printed_module(source).native
            _codes[source, whole] = compiled_callback(native, whole, known), []
        code, free = _codes[source, whole]
        record = [v for a in arrays for v in (a.ctypes.data, *a.shape)]
        stub = free.pop() if free else _Stub(code, len(record))
        stub.record[: len(record)] = record
    native = FirstClassFunction(signature, stub.address, (kernel, arrays, kept))
    weakref.finalize(native, free.append, stub)
    return native


@global_compiler_lock
def _compiled(code: Any, place: int) -> int:
    """Compile a function that calls the code with ``place`` before its arguments; return its address."""
    context = cpu_target.target_context
    result, (first, *others) = code._sig.return_type, code._sig.args
    name = f"amc_pymc_stub_{place}"
    library = context.codegen().create_library(name)
    module = library.create_ir_module(name)
    stub = ir.Function(module, _function_type(context, result, others), name)
    builder = ir.IRBuilder(stub.append_basic_block())
    whole = _function_type(context, result, (first, *others)).as_pointer()
    word_type = ir.IntType(64)
    called = builder.inttoptr(ir.Constant(word_type, code.address), whole)
    builder.ret(builder.call(called, [ir.Constant(word_type, place), *stub.args], tail=True))
    library.add_ir_module(module)
    library.finalize()
    address: int = library.get_pointer_to_function(name)
    return address


def _printed(kernel: Any, digest: str, n_leading: int, arrays: Sequence[np.ndarray]) -> str:
    """Return the source of a module that binds arrays of these types and dimensions."""
    leading, views, k = [f"a{j}" for j in range(n_leading)], [], 0
    for array in arrays:
        place = [f"word(place, {k + j})" for j in range(1 + array.ndim)]
        shape = "".join(f"{v}, " for v in place[1:])
        view = "carray" if array.flags.c_contiguous else "farray"
        views.append(f"{view}(pointer({place[0]}), ({shape}), np.{array.dtype.name})")
        k += 1 + array.ndim
    return _SOURCE.format(
        digest=digest,
        module=kernel.py_func.__module__,
        name=kernel.py_func.__name__,
        leading=", ".join(["place", *leading]),
        arguments=", ".join([*leading, *views]),
    )


#: Lock that keeps threads from finding an incomplete module.
_one_at_a_time = threading.RLock()


def printed_module(source: str) -> ModuleType:
    """Return the module of a source text, whose kernels can be cached."""
    name = f"amc_pymc_bound_{hashlib.blake2b(source.encode(), digest_size=12).hexdigest()}"
    with _one_at_a_time:
        if name not in sys.modules:
            module = ModuleType(name)
            module.__dict__["SOURCE_STAMP"] = source.encode()
            exec(compile(source, f"<{name}>", "exec"), module.__dict__)
            sys.modules[name] = module
        return sys.modules[name]
