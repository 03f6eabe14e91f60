"""Generation of LLVM code from expressions, its compilation, and calls of it.

The dependencies of an expression determine where it is computed: parts that depend on parameters
alone once for all rows, parts without local effects once per row, and only the rest at every node
of a quadrature. Each function stores in an array what the next one needs.

All numbers are doubles, including integers; truth values are passed on as 0 and 1.

A program of functions of rows has *stages*, each of four places: the address of a function of parameters, the address
of a function of rows that reads its results, the number of results, and the number of output rows.

Printed functions take pointers and integers and return nothing. The scalar functions that they call
(:mod:`amc_pymc.engine.functions`) are compiled by Numba and inlined. Machine code is kept on disk.
"""

from __future__ import annotations

import ctypes
import functools
import re

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from amc_pymc.engine.functions import CALLED
from amc_pymc.engine.graph import LOCAL, Graph
from amc_pymc.engine.jit import cached_file, njit, read_cached, write_cached

#: Offsets of the places in a stage.
SHARED, ROWS, N_SHARED, N_KEPT = 0, 1, 2, 3

_DOUBLE, _WORD, _TRUTH = ir.DoubleType(), ir.IntType(64), ir.IntType(1)
_POINTER = {"at": _WORD.as_pointer()}
_INTEGERS = ("n", "padded", "stride", "out_stride")
#: Fast-math flags: products may be fused with sums; sums over rows may be reordered, which allows
#: vectorisation.
_FUSED, _ANY_ORDER = ("contract",), ("contract", "nsz", "reassoc")
#: Number of columns of a dot product that are added in one pass over the rows.
_COLUMNS_AT_ONCE = 8
#: Prefixes of the names of printed functions, and of scalar functions that they call.
_PREFIX, _CALLED_PREFIX = "amc.", "amc_pymc.number."
#: Number of integers that describe a product of columns with entries.
DOT_WIDTH = 3
#: Largest absolute exponent of powers that are computed as products.
_LARGEST_POWER = 32


type Names = Sequence[str]
type Nodes = Sequence[int]


@dataclass(frozen=True)
class Stages:
    """Intermediate results that are passed from stage to stage on the way to some outputs.

    Those in ``shared`` depend on parameters only, those in ``kept`` also on a unit's data, but not on
    local effects.
    """

    shared: tuple[int, ...]
    kept: tuple[int, ...]

    @classmethod
    def of(cls, graph: Graph, outputs: Nodes) -> Stages:
        """Find the stages of some outputs."""
        # Nodes that others read, and whether these depend on local effects; outputs are read last.
        readers = [n for n in graph.upstream(outputs) if graph.depends[n]]
        handed = [(a, graph.depends[n] & LOCAL) for n in readers for a in graph.nodes[n].args]
        handed += [(n, LOCAL) for n in outputs]
        handed = [(n, local) for n, local in handed if graph.nodes[n].op != "const"]
        shared = {n for n, _ in handed if not graph.depends[n]}
        kept = {n for n, local in handed if local and not graph.depends[n] & LOCAL} - shared
        return cls(tuple(sorted(shared)), tuple(sorted(kept)))


@dataclass(eq=False)
class Printer:
    """Printer of functions that compute expressions of a graph.

    Parameters
    ----------
    graph : Graph

    Notes
    -----
    Arguments are the integers ``n``, ``padded``, ``stride`` and ``out_stride``, and pointers: ``eta``
    and other arrays of parameters, by name; ``shared`` and ``kept``, results of earlier stages;
    ``block`` (C, stride), data of rows, one column after the other; ``group``, data of a group; ``u``,
    local effects; ``out`` and ``at``, outputs as doubles and integers.
    """

    graph: Graph
    module: ir.Module = field(default_factory=ir.Module, init=False)

    def printed(
        self,
        layout: Sequence[int | str],
        dots: Nodes = (),
        table: tuple[tuple[float, ...], ...] = ((0.0,),),
    ) -> Printed:
        """Return the code of all functions so far; the same object as for an equal model, if that was printed last.

        Parameters
        ----------
        layout : sequence of int or str
            Numbers, and names of functions in place of their addresses.
        dots : sequence of int
            Products, whose description follows: first entries, numbers of entries and places of the lists of columns,
            then these lists.
        table : tuple of tuple of float
            Constants of the model.
        """
        lines = str(self.module).split("\n")
        text = [line for line in lines if line and not line.startswith(("target", ";"))]
        described: list[int] = []
        columns: list[int] = []
        for _, first, read in (self.graph.nodes[n].value for n in dots):
            begin = len(layout) + len(dots) * DOT_WIDTH + len(columns)
            described += [int(first), len(read), begin]
            columns += map(int, read)
        return _last_printed("\n".join(text), (*layout, *described, *columns), table)

    def function(
        self,
        name: str,
        arrays: Names,
        outputs: Nodes,
        *,
        shared: Nodes = (),
        kept: Nodes = (),
        places: Nodes = (),
    ) -> int:
        """Print a function that writes expressions, of ``n`` rows if this is an argument; return the number of results.

        Parameters
        ----------
        name : str
        arrays : sequence of str
            All arguments, in order.
        outputs : sequence of int
            Nodes that are written to ``out`` (K,), or (K, out_stride) for rows. Products of columns with consecutive
            entries are computed first, one column after the other, and written after the outputs.
        shared, kept : sequence of int
            Nodes that are read from the arguments of these names.
        places : sequence of int
            Nodes that are written to ``at`` as integers, in the same way.
        """
        f = _Function(self, name, arrays, shared)
        stride = "out_stride" if "n" in arrays else ""
        needed = self.graph.upstream([*outputs, *places], {*f.known, *kept})
        dots = [n for n in needed if self.graph.nodes[n].op == "dot"]
        rows: dict[int, int] = {}
        number = len(outputs)
        for n in dots:
            rows[n] = outputs.index(n) if n in outputs else number
            number += n not in outputs
            f.add_columns(*self.graph.nodes[n].value, rows[n])
        with f.each_row("n", kept) if stride else nullcontext():
            for n in dots:
                f.known[n] = f.builder.load(f.at("out", rows[n], stride))
            for k, n in enumerate(outputs):
                if rows.get(n) != k:
                    f.builder.store(f.value(n), f.at("out", k, stride))
            for k, n in enumerate(places):
                f.builder.store(f.value(n, "i"), f.at("at", k, stride))
        f.builder.ret_void()
        return number

    def sum_of_rows(
        self, name: str, arrays: Names, outputs: Nodes, *, shared: Nodes = (), kept: Nodes = ()
    ) -> None:
        """Print a function that adds sums of expressions over n rows to ``out``.

        Rows up to ``padded`` are computed, which allows vectorisation.
        """
        f = _Function(self, name, arrays, shared)
        b, zero = f.builder, ir.Constant(_DOUBLE, 0.0)
        sums = [cgutils.alloca_once_value(b, zero) for _ in outputs]
        with f.each_row("padded", kept):
            inside = b.icmp_signed("<", f.row, f.argument["n"])
            for total, n in zip(sums, outputs):
                value = b.select(inside, f.value(n), zero)
                b.store(b.fadd(b.load(total), value, flags=_ANY_ORDER), total)
        for k, total in enumerate(sums):
            before = b.load(f.at("out", k))
            b.store(b.fadd(before, b.load(total), flags=_FUSED), f.at("out", k))
        b.ret_void()

    def stage(
        self, name: str, arrays: Names, outputs: Nodes, places: Nodes | None = None
    ) -> list[int | str]:
        """Print a stage of expressions of rows and, unless None, of positions in eta."""
        shared = Stages.of(self.graph, [*outputs, *(places or ())]).shared
        self.function(f"{name}_shared", (*arrays, "out"), shared)
        rows = [*arrays, "shared", "block", "stride", "n", "out", "out_stride"]
        rows += [] if places is None else ["at"]
        number = self.function(f"{name}_rows", rows, outputs, shared=shared, places=places or ())
        return [f"{name}_shared", f"{name}_rows", len(shared), number]


class _Function:
    """A function under construction, which knows the values of ``shared`` nodes."""

    def __init__(self, printer: Printer, name: str, arguments: Names, shared: Nodes):
        self.graph, self._module = printer.graph, printer.module
        kinds = [
            _WORD if a in _INTEGERS else _POINTER.get(a, _DOUBLE.as_pointer()) for a in arguments
        ]
        kind = ir.FunctionType(ir.VoidType(), kinds)
        function = ir.Function(self._module, kind, _PREFIX + name)
        for argument, kind in zip(function.args, kinds):
            if kind is not _WORD:
                argument.add_attribute("noalias")
        self.argument = dict(zip(arguments, function.args))
        self.builder = ir.IRBuilder(function.append_basic_block())
        #: Number of the row within a loop over rows.
        self.row: Any = None
        self.known: dict[int, Any] = {}
        for k, n in enumerate(shared):
            self.known[n] = self.builder.load(self.at("shared", k))

    @contextmanager
    def each_row(self, number: str, kept: Nodes = ()) -> Iterator[None]:
        """Execute code for each row, which knows ``kept`` nodes; values known inside are forgotten afterwards."""
        known = dict(self.known)
        with cgutils.for_range(self.builder, self.argument[number]) as loop:
            self.row = loop.index
            for k, n in enumerate(kept):
                self.known[n] = self.builder.load(self.at("kept", k, "stride"))
            yield
        self.known, self.row = known, None

    def at(self, array: str, place: Any, stride: str = ""):
        """Return the address of an entry of an array, or of the current row's entry in a row of a matrix."""
        b = self.builder
        if isinstance(place, int):
            place = ir.Constant(_WORD, place)
        if stride:
            begin = b.mul(self.argument[stride], place, flags=("nsw",))
            place = b.add(begin, self.row, flags=("nsw",))
        return b.gep(self.argument[array], [place])

    def add_columns(self, array: str, first: int, columns: Nodes, k: int) -> None:
        """Write sums of columns times consecutive entries to row k of ``out``."""
        b, size = self.builder, _COLUMNS_AT_ONCE
        with self.each_row("n"):
            b.store(ir.Constant(_DOUBLE, 0.0), self.at("out", k, "out_stride"))
        # Passes over the rows: first column, and how often the same is done with the next ones.
        passes = [(start, 1) for start in range(0, len(columns), size)]
        whole = len(columns) // size
        if whole > 1 and list(columns) == list(range(columns[0], columns[0] + len(columns))):
            passes = [(0, whole), *passes[whole:]]
        for start, times in passes:
            with cgutils.for_range(b, ir.Constant(_WORD, times)) as loop:
                moved = b.mul(loop.index, ir.Constant(_WORD, size), flags=("nsw",))
                factors, begins = [], []
                for m, column in enumerate(columns[start : start + size], first + start):
                    place = b.add(moved, ir.Constant(_WORD, m), flags=("nsw",))
                    factors.append(b.load(self.at(array, place)))
                    place = b.add(moved, ir.Constant(_WORD, column), flags=("nsw",))
                    begins.append(b.mul(self.argument["stride"], place, flags=("nsw",)))
                with self.each_row("n"):
                    total = b.load(self.at("out", k, "out_stride"))
                    for factor, begin in zip(factors, begins):
                        at = self.at("block", b.add(begin, self.row, flags=("nsw",)))
                        product = b.fmul(b.load(at), factor, flags=_FUSED)
                        total = b.fadd(total, product, flags=_FUSED)
                    b.store(total, self.at("out", k, "out_stride"))

    # --- expressions --------------------------------------------------------------------------------

    def value(self, n: int, kind: str = "f"):
        """Return the value of a node as a double "f", an integer "i" or a truth value "b"."""
        for m in self.graph.upstream([n], self.known):
            self.known[m] = self._computed(m)
        b, value = self.builder, self.known[n]
        if kind == "b":
            zero = ir.Constant(_DOUBLE, 0.0)
            return value if value.type == _TRUTH else b.fcmp_unordered("!=", value, zero)
        if value.type == _TRUTH:
            value = b.uitofp(value, _DOUBLE)
        if kind == "i" and isinstance(value, ir.Constant):
            return ir.Constant(_WORD, int(value.constant))
        return b.fptosi(value, _WORD) if kind == "i" else value

    def _computed(self, n: int):
        """Return the value of a node, a double or a truth value, of which the arguments are known."""
        b, number = self.builder, self.graph.numbers[n]
        op, args, content, kind = self.graph.nodes[n]
        if isinstance(number, bool):
            return ir.Constant(_TRUTH, int(number))
        if number is not None:
            return ir.Constant(_DOUBLE, float(number))
        if op == "column":
            return b.load(self.at("block", content, "stride"))
        if op in ("group", "local"):
            return b.load(self.at("group" if op == "group" else "u", content))
        if op == "entry":
            return b.load(self.at(content, self.value(args[0], "i")))
        if op in _LOGICAL:
            return _LOGICAL[op](b, *(self.value(a, "b") for a in args))
        if op == "switch":
            pair = (self.value(a, "b" if kind == "b" else "f") for a in args[1:])
            return b.select(self.value(args[0], "b"), *pair)
        numbers = [self.value(a) for a in args]
        if op in _ARITHMETIC:
            return getattr(b, _ARITHMETIC[op])(*numbers, flags=_FUSED)
        if op in _SIGNS:
            return b.fcmp_ordered(_SIGNS[op], *numbers)
        if op in _CHOICES:
            x, y = numbers
            larger, unknown = b.fcmp_ordered(_CHOICES[op], x, y), b.fcmp_unordered("uno", x, x)
            return b.select(b.or_(larger, unknown), x, y)
        if op in _OTHERS:
            return _OTHERS[op](b, *numbers)
        power = self.graph.numbers[args[1]] if op == "pow" else None
        if power is not None and power == int(power) and 0 < abs(power) <= _LARGEST_POWER:
            return self._power(numbers[0], int(power))
        name = f"llvm.{_INTRINSICS[op]}.f64" if op in _INTRINSICS else _CALLED_PREFIX + op
        function = self._module.globals.get(name)
        if function is None:
            form = ir.FunctionType(_DOUBLE, [_DOUBLE] * len(numbers))
            function = ir.Function(self._module, form, name)
        return b.call(function, numbers)

    def _power(self, x, power: int):
        """Return an integer power as products."""
        left, square, out = abs(power), x, None
        while left:
            if left % 2:
                out = square if out is None else self.builder.fmul(out, square, flags=_FUSED)
            left //= 2
            if left:
                square = self.builder.fmul(square, square, flags=_FUSED)
        one = ir.Constant(_DOUBLE, 1.0)
        return self.builder.fdiv(one, out, flags=_FUSED) if power < 0 else out


# --- operations -------------------------------------------------------------------------------------

#: Operations on doubles that are LLVM instructions: arithmetic, comparisons, choices of one of two numbers by a
#: comparison, or of the first if it is nan, and others.
_ARITHMETIC = {op: f"f{op}" for op in ("add", "sub", "mul", "div")}
_SIGNS = {"lt": "<", "gt": ">", "le": "<=", "ge": ">=", "eq": "=="}
_CHOICES = {"maximum": ">", "minimum": "<"}
_OTHERS: dict[str, Callable] = {
    "ne": lambda b, x, y: b.fcmp_unordered("!=", x, y),
    "neg": lambda b, x: b.fneg(x),
    "held": lambda b, x: x,
    "float": lambda b, x: x,
    "isnan": lambda b, x: b.fcmp_unordered("uno", x, x),
    "isinf": lambda b, x: b.or_(
        *(b.fcmp_ordered("==", x, ir.Constant(_DOUBLE, float(end))) for end in ("inf", "-inf"))
    ),
}
#: Names of LLVM's intrinsic functions of a double.
_INTRINSICS = {"sqrt": "sqrt", "abs": "fabs", "floor": "floor", "ceil": "ceil", "int": "trunc"}
#: Operations on truth values.
_LOGICAL: dict[str, Callable] = {
    "and": lambda b, x, y: b.and_(x, y),
    "or": lambda b, x, y: b.or_(x, y),
    "xor": lambda b, x, y: b.xor(x, y),
    "not": lambda b, x: b.not_(x),
}
#: All operations that can be printed.
PRINTED = {
    *("switch", *_ARITHMETIC, *_SIGNS, *_CHOICES, *_OTHERS),
    *(*_INTRINSICS, *_LOGICAL, *CALLED),
}


# --- machine code -----------------------------------------------------------------------------------


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
    >>> from amc_pymc.engine.printer import Printed
    >>> code = 'define void @"amc.nothing"() { ret void }'
    >>> program, table = Printed(code, (3, "nothing")).arrays
    >>> int(program[0]), bool(program[1]), table.shape
    (3, True, (1, 1))
    """

    text: str
    layout: tuple[int | str, ...]
    table: tuple[tuple[float, ...], ...] = ((0.0,),)

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name != "arrays"}

    @functools.cached_property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Layout (L,) with the addresses in this process, and the table.

        The layout and its views keep the machine code alive. A copy of them does not. Numba's own engine never frees
        code.
        """
        with global_compiler_lock:
            file = cached_file(self.text)
            code = read_cached(file)
            if code is None:
                code = _compiled(self.text)
                write_cached(file, code)
            target = llvm.Target.from_default_triple().create_target_machine(jit=True)
            library = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
            library.add_object_file(llvm.object_file.ObjectFileRef.from_data(code))
            library.finalize_object()
        values = [
            library.get_function_address(_PREFIX + v) if isinstance(v, str) else v
            for v in self.layout
        ]
        program: Any = (ctypes.c_int64 * len(values))(*values)
        program.library = library
        return np.frombuffer(program, np.int64), np.array(self.table)


#: For models that are prepared again.
_last_printed = functools.lru_cache(maxsize=32)(Printed)


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
    library = context.codegen().create_library(_CALLED_PREFIX + name)
    module = library.create_ir_module(library.name)
    double = ir.DoubleType()
    form = ir.FunctionType(double, [double] * len(arguments))
    wrapper = ir.Function(module, form, library.name)
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


@njit(cache=True)
def of_parameters(program, stage, eta):
    """Compute the results of a stage that depend on parameters only."""
    out = np.empty(max(1, program[stage + N_SHARED]))
    call(program[stage + SHARED], eta, out)
    return out


@njit(cache=True)
def room_of(program, stage, width):
    """Allocate the output of a stage for ``width`` rows."""
    return np.empty((max(1, program[stage + N_KEPT]), width))
