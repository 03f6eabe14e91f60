"""Compilation of printed LLVM code, with a cache on disk.

Printed functions take pointers and integers and return nothing. The scalar functions that they call
(:mod:`amc_pymc.engine.functions`) are compiled by Numba and inlined.
"""

from __future__ import annotations

import ctypes
import functools
import re

from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from amc_pymc.engine.cache import name_of, read_cached, write_cached
from amc_pymc.engine.functions import CALLED

#: Prefix of the names of printed functions.
_PREFIX = "amc."
#: Prefix of the names of scalar functions.
_CALLED_PREFIX = "amc_pymc.number."


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
    >>> from amc_pymc.engine.machine import Printed
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
        """Layout (L,) with the addresses in this process, and the table.

        The layout and its views keep the machine code alive. A copy of them does not.
        """
        library = _library(self.text)
        values = [library.address(v) if isinstance(v, str) else v for v in self.layout]
        program: Any = (ctypes.c_int64 * len(values))(*values)
        program.library = library
        return np.frombuffer(program, np.int64), np.array(self.table)


class _Library:
    """Printed functions in memory, which is freed with the object.

    Numba's own engine never frees code.
    """

    def __init__(self, code: bytes):
        target = llvm.Target.from_default_triple().create_target_machine(jit=True)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
        self._engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Return the address of a function."""
        found: int = self._engine.get_function_address(function_name(name))
        return found


@functools.lru_cache(maxsize=32)
@global_compiler_lock
def _library(text: str) -> _Library:
    """Return printed functions; those used last are kept for models that are prepared again."""
    name = name_of(text, "machine")
    code = read_cached(name) if name else None
    if code is None:
        code = _compiled(text)
        if name:
            write_cached(name, code)
    return _Library(code)


def _compiled(text: str) -> bytes:
    """Return the object code of printed functions, optimised as Numba does.

    LLVM frees what it keeps for a module with its context, which Numba's modules share.
    """
    codegen, context = cpu_target.target_context.codegen(), llvm.create_context()
    library = codegen.create_library("printed")
    module = library._final_module = llvm.parse_assembly(text, context)
    module.triple = codegen._tm.triple
    library._optimize_functions(module)
    for name in sorted(set(re.findall(rf'@"{re.escape(_CALLED_PREFIX)}(\w+)"', text))):
        module.link_in(llvm.parse_bitcode(_number_function(name), context))
    library._optimize_final_module()
    module.verify()
    return codegen._tm.emit_object(module)


@functools.cache
def _number_function(name: str):
    """Return the bitcode of a scalar function, ``double (double, ...)``, to be linked into others."""
    function: Any = CALLED[name]
    arguments = (types.float64,) * function.py_func.__code__.co_argcount
    compiled, context = function.part(arguments), cpu_target.target_context
    library = context.codegen().create_library(function_name(name, called=True))
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
    library.finalize()
    return library._get_module_for_linking().as_bitcode()


# --- from loops ---------------------------------------------------------------------------------------


@intrinsic
def call(typingctx, *arguments):
    """Call the printed function at an address, the first argument, with arrays and integers.

    Arrays are passed as pointers to their first entries. Their last axis must be contiguous.
    """
    if isinstance(arguments[0], types.BaseTuple):  # already typed
        (arguments,) = arguments
    kinds = tuple(arguments)

    def codegen(context, builder, signature, args):
        given = cgutils.unpack_tuple(builder, args[0])
        values = []
        for kind, value in zip(kinds, given):
            if isinstance(kind, types.Array):
                first = context.make_array(kind)(context, builder, value=value).data
                values.append(builder.bitcast(first, ir.IntType(8).as_pointer()))
            else:
                values.append(context.cast(builder, value, kind, types.int64))
        function = ir.FunctionType(ir.VoidType(), [v.type for v in values[1:]])
        builder.call(builder.inttoptr(values[0], function.as_pointer()), values[1:])
        return context.get_dummy_value()

    return types.none(types.StarArgTuple.from_types(kinds)), codegen
