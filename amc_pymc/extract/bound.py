"""Kernels with their arrays bound, as first-class functions that are kept on disk.

Machine code that is kept cannot hold the address of an array. It holds the name of a table instead,
which each process fills: one line of it for each live function of a kernel, with the address and
the shape of every array.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
import threading
import weakref

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import llvmlite.binding as llvm
import numpy as np

from llvmlite import ir
from numba import cfunc, types
from numba.core import cgutils
from numba.core.errors import RequireLiteralValue
from numba.extending import intrinsic

from amc_pymc.expressions.machine import kernel_folder
from amc_pymc.jit import source_digest

__all__ = ["bound_function", "entry", "pointer", "printed_module"]

#: Lines of a table: functions of a kernel that can be alive at the same time.
_LINES = 4096

_SOURCE = '''"""A kernel with its arrays bound."""

# {digest}

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
        Of a module of the package.
    signature : numba signature
        Of the leading arguments and the result.
    arrays : sequence of contiguous arrays
        In the order of C or Fortran. Bound by address; the function keeps them alive.

    Raises
    ------
    RuntimeError
        If more functions of a kernel than fit into a table are alive.
    """
    module = printed_module(_printed(kernel, len(signature.args), arrays))
    width = sum(1 + array.ndim for array in arrays)
    if module.__name__ not in _tables:
        _tables[module.__name__] = _Table(module.__name__, max(1, width))
    table = _tables[module.__name__]
    if not table.free:
        raise RuntimeError(f"more than {_LINES} models are in use at the same time; delete some")
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
        digest=_digest(kernel),
        module=kernel.py_func.__module__,
        name=kernel.py_func.__name__,
        leading=", ".join(leading),
        arguments=", ".join([*leading, *views]),
    )


def _digest(kernel) -> str:
    """Hash of everything in the package that goes into the machine code."""
    files = [Path(sys.modules[kernel.py_func.__module__].__file__ or ""), Path(__file__)]
    return hashlib.blake2b(b"".join(map(source_digest, files)), digest_size=12).hexdigest()


#: Threads would find a module that is not yet complete.
_one_at_a_time = threading.RLock()


def printed_module(source: str) -> ModuleType:
    """The module of some source, from memory or from a file that machine code can be kept beside."""
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
    """The file of a module; in a folder for this process alone where the cache cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.py"
        if not path.exists() or path.read_text() != source:
            handle, temporary = tempfile.mkstemp(dir=folder, suffix=".py")
            with os.fdopen(handle, "w") as file:
                file.write(source)
            Path(temporary).replace(path)  # whole or not at all, whoever else writes it
        return path
    except OSError:
        path = Path(tempfile.mkdtemp(prefix="amc_pymc_")) / f"{name}.py"
        path.write_text(source)
        return path
