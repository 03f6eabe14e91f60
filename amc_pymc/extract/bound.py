"""Kernels with their arrays bound, as first-class functions that are kept on disk.

Machine code that is kept cannot hold the address of an array. It holds the name of a table instead,
which each process fills: one line of it for each live function of a kernel, with the address and
the shape of every array.
"""

from __future__ import annotations

import weakref

from collections.abc import Sequence
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np

from llvmlite import ir
from numba import cfunc, types
from numba.core import cgutils
from numba.core.errors import RequireLiteralValue
from numba.extending import intrinsic

from amc_pymc.expressions.kernels import load_kernels

__all__ = ["bound_function", "entry", "pointer"]

#: Lines of a table: functions of a kernel that can be alive at the same time.
_LINES = 256

_SOURCE = '''"""A kernel with its arrays bound."""

import sys

import numpy as np

from numba import carray, farray  # noqa: F401

from amc_pymc.extract.bound import entry, pointer

kernel = sys.modules["{module}"].{name}
TABLE = __name__


def bind(line):
    def native({leading}):
        return kernel({arguments})

    return native
'''


@intrinsic
def pointer(typingctx, address):
    """An integer as a pointer."""
    signature = types.voidptr(address)

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return signature, codegen


@intrinsic
def entry(typingctx, table, k):
    """Entry k (int64) of the table that has a name in this process."""
    if not isinstance(table, types.StringLiteral):
        raise RequireLiteralValue("the name of a table must be a constant")
    name = table.literal_value
    signature = types.int64(table, types.int64)

    def codegen(context, builder, signature, args):
        word = ir.IntType(64)
        found = builder.module.globals.get(name)
        if found is None:
            found = ir.GlobalVariable(builder.module, word, name)
            found.linkage = "external"
        return builder.load(builder.gep(found, [args[1]]))

    return signature, codegen


class _Table:
    """Addresses and shapes for the functions of one kernel."""

    def __init__(self, name: str, width: int):
        self.entries, self.free = np.zeros((_LINES, width), np.int64), list(range(_LINES))[::-1]
        llvm.add_symbol(name, self.entries.ctypes.data)


#: By module; never dropped, since machine code refers to them.
_tables: dict[str, _Table] = {}


def bound_function(kernel, signature, arrays: Sequence[np.ndarray]):
    """First-class function of a kernel's leading arguments, the last ones being ``arrays``.

    Parameters
    ----------
    kernel : Numba function
        Of a module that :func:`~amc_pymc.expressions.kernels.load_kernels` has loaded.
    signature : numba signature
        Of the leading arguments and the result.
    arrays : sequence of contiguous arrays
        In the order of C or Fortran. Bound by address; the function keeps them alive.

    Raises
    ------
    RuntimeError
        If more functions of a kernel than fit into a table are alive.
    """
    module = load_kernels(_printed(kernel, len(signature.args), arrays), Path(__file__))
    width = sum(1 + array.ndim for array in arrays)
    if module.__name__ not in _tables:
        _tables[module.__name__] = _Table(module.__name__, max(1, width))
    table = _tables[module.__name__]
    if not table.free:
        raise RuntimeError(f"more than {_LINES} models of the same form are in use; delete some")
    line = table.free.pop()
    table.entries[line, :width] = [v for a in arrays for v in (a.ctypes.data, *a.shape)]
    native = cfunc(signature, cache=True)(module.bind(line))
    native.keep_alive = kernel, arrays
    weakref.finalize(native, table.free.append, line)
    return native


def _printed(kernel, n_leading: int, arrays: Sequence[np.ndarray]) -> str:
    """Source of a module that binds arrays of these kinds."""
    leading, views, k = [f"a{j}" for j in range(n_leading)], [], 0
    width = sum(1 + array.ndim for array in arrays)
    for array in arrays:
        place = [f"entry(TABLE, line * {width} + {k + j})" for j in range(1 + array.ndim)]
        shape = "".join(f"{v}, " for v in place[1:])
        view = "carray" if array.flags.c_contiguous else "farray"
        views.append(f"{view}(pointer({place[0]}), ({shape}), np.{array.dtype.name})")
        k += 1 + array.ndim
    return _SOURCE.format(
        module=kernel.py_func.__module__,
        name=kernel.py_func.__name__,
        leading=", ".join(leading),
        arguments=", ".join([*leading, *views]),
    )
