"""Compilation of printed LLVM code, with a cache on disk.

Printed functions take pointers and integers and return nothing. The scalar functions that they call
(:mod:`amc_pymc.expressions.functions`) are compiled by Numba and inlined.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import pickle
import re
import tempfile

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
import numpy as np

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from amc_pymc.expressions.functions import CALLED
from amc_pymc.jit import kernel_folder, source_digest

__all__ = ["Printed", "call", "function_name"]

_log = logging.getLogger("amc_pymc")
#: Prefix of the names of printed functions, which is replaced by a hash in the process.
_PREFIX = "amc."
#: Prefix of the names of scalar functions.
_CALLED_PREFIX = "amc_pymc.number."

#: Libraries by the hash of their code; never dropped, because addresses in them are in use.
_libraries: dict[str, Any] = {}


def function_name(name: str, called: bool = False) -> str:
    """Return the LLVM name of a printed function, or of a scalar function that it calls."""
    return (_CALLED_PREFIX if called else _PREFIX) + name


@dataclass(frozen=True)
class Printed:
    """Printed functions of a model, with the constants that loops need to call them.

    Attributes
    ----------
    text : str
        LLVM code of the functions.
    layout : tuple of int or str
        Numbers, and names of functions in place of their addresses.
    table : tuple of tuple of float
        Constants of the model outside the code, which does not depend on them.

    Examples
    --------
    >>> from amc_pymc.expressions.machine import Printed
    >>> code = 'define void @"amc.nothing"() { ret void }'
    >>> program, table = Printed(code, (3, "nothing")).arrays
    >>> int(program[0]), bool(program[1]), table.shape
    (3, True, (1, 1))
    """

    text: str
    layout: tuple[int | str, ...]
    table: tuple[tuple[float, ...], ...] = ((0.0,),)

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Layout (L,) with the addresses in this process, and the table."""
        return _arrays(self)

    def encode(self) -> bytes:
        """Return bytes that identify the functions, layout and table."""
        return repr((self.text, self.layout, self.table)).encode()


@functools.lru_cache(maxsize=512)
def _arrays(printed: Printed) -> tuple[np.ndarray, np.ndarray]:
    names = [v for v in printed.layout if isinstance(v, str)]
    found = dict(zip(names, _addresses(printed.text, names)))
    program = np.array([found[v] if isinstance(v, str) else v for v in printed.layout], np.int64)
    return program, np.array(printed.table)


@global_compiler_lock
def _addresses(text: str, names: Sequence[str]) -> list[int]:
    """Return the addresses of printed functions."""
    digest = hashlib.blake2b(text.encode() + _surroundings(), digest_size=12).hexdigest()
    if digest not in _libraries:
        _libraries[digest] = _from_disk(digest) or _compiled(digest, text)
    library = _libraries[digest]
    return [library.get_pointer_to_function(f"{digest}.{name}") for name in names]


@functools.cache
def _surroundings() -> bytes:
    """Return all that machine code depends on besides its own source, as bytes."""
    codegen = _codegen()
    versions = (numba.__version__, llvmlite.__version__, codegen.magic_tuple())
    return repr(versions).encode() + source_digest(Path(__file__))


def _codegen():
    return cpu_target.target_context.codegen()


def _compiled(digest: str, text: str):
    library = _codegen().create_library(digest)
    library.enable_object_caching()
    called = sorted(set(re.findall(rf'@"{re.escape(_CALLED_PREFIX)}(\w+)"', text)))
    for name in called:
        library.add_linking_library(_number_function(name))
    module = llvm.parse_assembly(text.replace(f'@"{_PREFIX}', f'@"{digest}.'))
    module.verify()
    library.add_llvm_module(module)
    library.finalize()
    _to_disk(digest, library)
    return library


@functools.cache
def _number_function(name: str):
    """Return a library with a scalar function, ``double (double, ...)``, to be linked into others."""
    function: Any = CALLED[name]
    arguments = (types.float64,) * function.py_func.__code__.co_argcount
    function.compile(arguments)
    compiled = function.overloads[arguments]
    context = cpu_target.target_context
    library = _codegen().create_library(function_name(name, called=True))
    module = library.create_ir_module(library.name)
    double = ir.DoubleType()
    wrapper = ir.Function(
        module, ir.FunctionType(double, [double] * len(arguments)), function_name(name, called=True)
    )
    wrapper.attributes.add("alwaysinline")
    builder = ir.IRBuilder(wrapper.append_basic_block())
    native = context.declare_function(module, compiled.fndesc)
    _, out = context.call_conv.call_function(
        builder, native, types.float64, arguments, wrapper.args
    )
    builder.ret(out)
    library.add_ir_module(module)
    library.add_linking_library(compiled.library)
    return library


# --- on disk ----------------------------------------------------------------------------------------


def _from_disk(digest: str):
    """Load a library from disk; None if this fails."""
    try:
        state = pickle.loads((kernel_folder() / f"{digest}.machine").read_bytes())
        return _codegen().unserialize_library(state)
    except FileNotFoundError:
        return None
    except Exception as error:  # whatever a broken file raises, the code is recompiled
        _log.debug("Machine code %s cannot be used: %r", digest, error)
        return None


def _to_disk(digest: str, library) -> None:
    """Save a library; without a writable folder it is recompiled in each process."""
    folder = kernel_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "wb") as file:
            pickle.dump(library.serialize_using_object_code(), file)
        Path(temporary).replace(folder / f"{digest}.machine")  # atomic
    except OSError:
        return


# --- from loops ---------------------------------------------------------------------------------------


@intrinsic
def call(typingctx, *arguments):
    """Call the printed function at an address, the first argument, with arrays and integers.

    Arrays are passed as pointers to their first entries.
    """
    if isinstance(arguments[0], types.BaseTuple):  # already typed
        (arguments,) = arguments
    kinds = tuple(arguments)
    if not all(isinstance(t, types.Array | types.Integer) for t in kinds):
        return None

    def codegen(context, builder, signature, args):
        given = cgutils.unpack_tuple(builder, args[0])
        values = [
            _pointer(context, builder, t, v)
            if isinstance(t, types.Array)
            else context.cast(builder, v, t, types.int64)
            for t, v in zip(kinds, given)
        ]
        function = ir.FunctionType(ir.VoidType(), [v.type for v in values[1:]])
        builder.call(builder.inttoptr(values[0], function.as_pointer()), values[1:])
        return context.get_dummy_value()

    return types.none(types.StarArgTuple.from_types(kinds)), codegen


def _pointer(context, builder, kind, array):
    """Return a pointer to the first entry of an array."""
    data = context.make_array(kind)(context, builder, value=array).data
    return builder.bitcast(data, ir.IntType(8).as_pointer())
