"""First-class functions for compiled loops: kernels with their arrays bound, and calls by address.

Cached machine code cannot contain the address of an array. The code of a kernel therefore takes the
address of a record as its first argument, which holds the addresses and shapes of all arrays. A stub of a
few instructions, which compiles quickly, passes the address of its own record.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
import threading
import weakref

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from llvmlite import ir
from numba import cfunc, types
from numba.core import cgutils
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from amc_pymc.jit import kernel_folder, source_digest

__all__ = [
    "BoundFunction",
    "address_of",
    "bound_function",
    "caller",
    "pointer",
    "printed_module",
    "word",
]

_SOURCE = '''"""A kernel with its arrays bound."""

# {digest}

import sys

import numpy as np

from numba import carray, farray  # noqa: F401

from amc_pymc.first_class import pointer, word

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
        Takes an address (int64) from :func:`address_of` and a tuple of arguments.

    Examples
    --------
    >>> import numpy as np
    >>> from numba import cfunc, njit, types
    >>> from amc_pymc.first_class import address_of, caller
    >>> signature = types.float64(types.float64)
    >>> call = caller(signature)
    >>> @cfunc(signature)
    ... def half(x):
    ...     return 0.5 * x
    >>> @njit
    ... def both(addresses, x):
    ...     return call(addresses[0], (x,)) + call(addresses[1], (x,))
    >>> float(both(np.array([address_of(half)] * 2), 3.0))
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


class BoundFunction(types.WrapperAddressProtocol):
    """A first-class function that Numba accepts like a ``numba.cfunc``.

    Attributes
    ----------
    kept : object
        Objects kept alive as long as the function.
    """

    def __init__(self, signature: Any, address: int, kept: Any):
        self._signature, self._address, self.kept = signature, address, kept

    def __wrapper_address__(self) -> int:
        return self._address

    def signature(self) -> Any:
        """Return the types of the arguments and the result."""
        return self._signature


def address_of(function: Any) -> int:
    """Return the address of the code of a ``numba.cfunc`` or a :class:`BoundFunction`."""
    if isinstance(function, BoundFunction):
        return function.__wrapper_address__()
    address: int = function.address
    return address


class _Stub:
    """A record of addresses and shapes, and a function that passes its address to a kernel."""

    def __init__(self, code: Any, width: int):
        self.record = np.zeros(max(1, width), np.int64)
        self.address = _compiled(code, self.record.ctypes.data)


#: Code and unused stubs by module. Code is never freed, because compiled loops refer to it.
_codes: dict[str, tuple[Any, list[_Stub]]] = {}


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
    arrays : sequence of contiguous arrays
        In C or Fortran order. They are bound by address and kept alive by the function.
    kept : object, optional
        Further object that the function keeps alive.

    Returns
    -------
    BoundFunction
    """
    module = printed_module(_printed(kernel, len(signature.args), arrays))
    with _one_at_a_time:
        if module.__name__ not in _codes:
            whole = signature.return_type(types.int64, *signature.args)
            _codes[module.__name__] = cfunc(whole, cache=True)(module.native), []
        code, free = _codes[module.__name__]
        record = [v for a in arrays for v in (a.ctypes.data, *a.shape)]
        stub = free.pop() if free else _Stub(code, len(record))
        stub.record[: len(record)] = record
    native = BoundFunction(signature, stub.address, (kernel, arrays, kept))
    weakref.finalize(native, free.append, stub)
    return native


@global_compiler_lock  # type: ignore[untyped-decorator]  # Numba has no annotations
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


def _printed(kernel: Any, n_leading: int, arrays: Sequence[np.ndarray]) -> str:
    """Return the source of a module that binds arrays of these types and dimensions."""
    leading, views, k = [f"a{j}" for j in range(n_leading)], [], 0
    for array in arrays:
        place = [f"word(place, {k + j})" for j in range(1 + array.ndim)]
        shape = "".join(f"{v}, " for v in place[1:])
        view = "carray" if array.flags.c_contiguous else "farray"
        views.append(f"{view}(pointer({place[0]}), ({shape}), np.{array.dtype.name})")
        k += 1 + array.ndim
    return _SOURCE.format(
        digest=_digest(kernel),
        module=kernel.py_func.__module__,
        name=kernel.py_func.__name__,
        leading=", ".join(["place", *leading]),
        arguments=", ".join([*leading, *views]),
    )


def _digest(kernel: Callable[..., Any]) -> str:
    """Return a hash of all sources of the package from which the machine code is compiled."""
    source = sys.modules[kernel.py_func.__module__].__file__ or ""  # type: ignore[attr-defined]
    files = [Path(source), Path(__file__)]
    return hashlib.blake2b(b"".join(map(source_digest, files)), digest_size=12).hexdigest()


#: Lock that keeps threads from finding an incomplete module.
_one_at_a_time = threading.RLock()


def printed_module(source: str) -> ModuleType:
    """Return the module of a source text, imported from a file beside which Numba can cache."""
    name = f"amc_pymc_bound_{hashlib.blake2b(source.encode(), digest_size=12).hexdigest()}"
    with _one_at_a_time:
        if name in sys.modules:
            return sys.modules[name]
        path = _written(kernel_folder(), name, source)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module


def _written(folder: Path, name: str, source: str) -> Path:
    """Write the file of a module, to a temporary folder if the cache is not writable; return its path."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.py"
        if not path.exists() or path.read_text() != source:
            handle, temporary = tempfile.mkstemp(dir=folder, suffix=".py")
            with os.fdopen(handle, "w") as file:
                file.write(source)
            Path(temporary).replace(path)  # atomic, even if other processes write it
        return path
    except OSError:
        path = Path(tempfile.mkdtemp(prefix="amc_pymc_")) / f"{name}.py"
        path.write_text(source)
        return path
