"""First-class functions for compiled loops: an address of code, and the arrays that are bound to it.

Cached machine code cannot contain the addresses of arrays. A function is therefore a piece of memory: the address of
its code, followed by the words of all arrays. The code takes the address of this memory before its arguments.
"""

from __future__ import annotations

import functools
import pickle

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from llvmlite import ir
from numba import typeof, types
from numba.core import cgutils, errors
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.imputils import lower_constant
from numba.core.registry import cpu_target
from numba.core.typing.templates import Signature
from numba.extending import intrinsic, lower_builtin, register_model, typeof_impl, unbox

from amc_pymc.engine.cache import read_cached, write_cached
from amc_pymc.engine.jit import compiling, njit, set_environments
from amc_pymc.engine.records import (
    AddressModel,
    array_at,
    unbox_address,
    width_of,
    word_at,
    words_of,
)

_WORDS = ir.IntType(64).as_pointer()


class FirstClassFunction:
    """A compiled function that compiled loops take as an argument and call by its address.

    Attributes
    ----------
    kernel : Numba function
        Compiled when the address is first needed.
    signature : numba signature
        Types of the other arguments and the result.
    arrays : sequence of arrays
        Last arguments of the kernel, bound by address and kept alive. Those from which code cannot read, because they
        are strided, unaligned or byte-swapped, are copied.
    kept : object
        Objects kept alive as long as the function.
    """

    def __init__(
        self, kernel: Any, signature: Any, arrays: Sequence[np.ndarray] = (), kept: Any = None
    ):
        self.kernel, self.signature, self.kept = kernel, signature, kept
        native = [np.asarray(a, a.dtype.newbyteorder("=")) for a in arrays]
        self.arrays = [a if a.flags.forc and a.flags.aligned else a.copy("C") for a in native]

    def __reduce__(self) -> Any:
        return type(self), (self.kernel, self.signature, self.arrays, self.kept)

    @functools.cached_property
    def _words(self) -> np.ndarray:
        kinds = tuple(
            types.Array(typeof(a).dtype, a.ndim, "C" if a.flags.c_contiguous else "F")
            for a in self.arrays
        )
        code = _code(self.kernel, self.signature, kinds)
        return np.array([code, *(w for a in self.arrays for w in words_of(a))], np.uint64)

    @functools.cached_property
    def address(self) -> int:
        """Address of the function's memory, which begins with the address of its code."""
        return int(self._words.ctypes.data)


def first_class(signature: Any, *, cache: bool = False) -> Callable[[Any], Any]:
    """Compile a function as a :class:`FirstClassFunction`; decorator.

    Parameters
    ----------
    signature : numba signature
        Types of the arguments and the result.
    cache : bool
        Whether to keep the machine code on disk.

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
    return lambda function: FirstClassFunction(njit(cache=cache)(function), signature)


#: Code by kernel, signature and types of bound arrays. It is never freed, because compiled loops refer to it.
_codes: dict[tuple[Any, ...], tuple[Any, int]] = {}


@global_compiler_lock
def _code(kernel: Any, signature: Any, kinds: tuple[Any, ...]) -> int:
    """Return the address of code for bound arrays of some types."""
    key = kernel, signature, kinds
    if key not in _codes:
        stored = kernel.cached_name(signature, kinds)
        name = f"amc_pymc.first_class.{stored or len(_codes)}"
        state = read_cached(stored) if stored else None
        if state is not None:
            codegen = cpu_target.target_context.codegen()
            library = codegen.unserialize_library(pickle.loads(state))
        else:
            with compiling(kernel, signature.args):
                library = _compiled(kernel, signature, kinds, name)
            if stored and not library.has_dynamic_globals:
                write_cached(stored, pickle.dumps(library.serialize_using_object_code()))
        _codes[key] = library, library.get_pointer_to_function(name)
    return _codes[key][1]


def _compiled(kernel: Any, signature: Any, kinds: tuple[Any, ...], name: str) -> Any:
    """Compile the kernel, and a function that reads the bound arrays and calls it."""
    context, part = cpu_target.target_context, kernel.part((*signature.args, *kinds))
    library = JITCodeLibrary(context.codegen(), name)
    library.enable_object_caching()
    module = library.create_ir_module(name)
    function = ir.Function(module, _function_type(context, signature), name)
    builder = ir.IRBuilder(function.append_basic_block())
    words, *given = function.args
    place = 1
    for kind in kinds:
        given.append(array_at(context, builder, kind, words, place))
        place += width_of(kind)
    result, convention = part.signature.return_type, context.call_conv
    native = context.declare_function(module, part.fndesc)
    status, out = convention.call_function(builder, native, result, part.signature.args, given)
    with cgutils.if_unlikely(builder, status.is_error):
        python = context.get_python_api(builder)
        lock = python.gil_ensure()
        convention.raise_error(builder, python, status)
        python.err_write_unraisable(python.get_null_object())
        python.gil_release(lock)
    builder.ret(context.cast(builder, out, result, signature.return_type))
    library.add_ir_module(module)
    library.add_linking_library(part.library)
    library.finalize()
    set_environments(library)
    return library


def _function_type(context: Any, signature: Any) -> ir.FunctionType:
    values = [context.get_value_type(t) for t in signature.args]
    return ir.FunctionType(context.get_value_type(signature.return_type), [_WORDS, *values])


# --- from compiled code -----------------------------------------------------------------------------


def _call(context: Any, builder: Any, signature: Any, words: Any, given: Sequence[Any]) -> Any:
    kind = _function_type(context, signature).as_pointer()
    return builder.call(builder.inttoptr(word_at(builder, words, 0), kind), [words, *given])


def caller(signature: Any) -> Callable[..., Any]:
    """Return ``call(address, arguments)`` for calling first-class functions by addresses that arrays hold.

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

    @intrinsic
    def call(typingctx: Any, address: Any, arguments: Any) -> tuple[Any, Callable[..., Any]]:
        def codegen(context: Any, builder: Any, _: Any, values: Any) -> Any:
            given = cgutils.unpack_tuple(builder, values[1])
            return _call(context, builder, signature, builder.inttoptr(values[0], _WORDS), given)

        return signature.return_type(types.int64, types.Tuple(signature.args)), codegen

    return call


class _FirstClassType(types.Callable):
    """Numba's type of a :class:`FirstClassFunction`, determined by its signature."""

    def __init__(self, signature: Any):
        self.signature = signature
        super().__init__(f"FirstClass({signature})")

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        expected = self.signature.args
        if kws or len(args) != len(expected):
            raise errors.TypingError(f"{self} takes {len(expected)} positional arguments")
        for given, kind in zip(args, expected):
            if context.can_convert(given, kind) is None:
                raise errors.TypingError(f"{self} does not take {given}")
        return Signature(self.signature.return_type, expected, recvr=self)

    def get_call_signatures(self) -> Any:
        return [self.signature], False

    def get_impl_key(self, sig: Any) -> Any:
        return _FirstClassType


register_model(_FirstClassType)(AddressModel)
unbox(_FirstClassType)(unbox_address)


@typeof_impl.register(FirstClassFunction)
def _typeof(function: FirstClassFunction, context: Any) -> _FirstClassType:
    return _FirstClassType(function.signature)


@lower_builtin(_FirstClassType, _FirstClassType, types.VarArg(types.Any))
def _lower_call(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return _call(context, builder, signature.args[0].signature, args[0], args[1:])


@lower_constant(_FirstClassType)
def _lower_constant(context: Any, builder: Any, kind: Any, function: FirstClassFunction) -> Any:
    """Functions that others close over."""
    address = context.add_dynamic_addr(builder, function.address, info=str(kind))
    return builder.bitcast(address, _WORDS)
