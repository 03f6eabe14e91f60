"""Generation of LLVM code from expressions.

The dependencies of an expression determine where it is computed: parts that depend on parameters
alone once for all rows, parts without local effects once per row, and only the rest at every node
of a quadrature. Each function stores in an array what the next one needs.

All numbers are doubles, including integers; truth values are passed on as 0 and 1.

A program of functions of rows has *stages*, each of four places: the address of a function of parameters, the address
of a function of rows that reads its results, the number of results, and the number of output rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from llvmlite import ir
from numba.core import cgutils

from amc_pymc.engine.functions import CALLED
from amc_pymc.engine.graph import LOCAL, Graph
from amc_pymc.engine.jit import njit
from amc_pymc.engine.machine import call, function_name

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
        readers = [n for n in graph.upstream(outputs) if graph.depends(n)]
        handed = [(a, graph.depends(n) & LOCAL) for n in readers for a in graph.nodes[n].args]
        handed += [(n, LOCAL) for n in outputs]
        handed = [(n, local) for n, local in handed if graph.nodes[n].op != "const"]
        shared = {n for n, _ in handed if not graph.depends(n)}
        kept = {n for n, local in handed if local and not graph.depends(n) & LOCAL} - shared
        return cls(tuple(sorted(shared)), tuple(sorted(kept)))


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

    def __init__(self, graph: Graph):
        self.graph = graph
        self._module = ir.Module()

    @property
    def text(self) -> str:
        """Code of all functions so far."""
        lines = str(self._module).split("\n")
        return "\n".join(line for line in lines if line and not line.startswith(("target", ";")))

    def once(
        self, name: str, arrays: Names, outputs: Nodes, *, shared: Nodes = (), places: Nodes = ()
    ) -> None:
        """Print a function that writes expressions once.

        Parameters
        ----------
        name : str
        arrays : sequence of str
            All arguments, in order.
        outputs : sequence of int
            Nodes that are written to ``out``.
        shared : sequence of int
            Nodes that are read from the argument ``shared``.
        places : sequence of int
            Nodes that are written to ``at`` as integers.
        """
        f = _Function(self, name, arrays)
        f.read("shared", shared)
        for k, n in enumerate(outputs):
            f.store("out", f.number(n), ir.Constant(_WORD, k))
        for k, n in enumerate(places):
            f.store("at", f.integer(n), ir.Constant(_WORD, k))
        f.builder.ret_void()

    def each_row(
        self,
        name: str,
        arrays: Names,
        outputs: Nodes,
        *,
        shared: Nodes = (),
        kept: Nodes = (),
        places: Nodes = (),
    ) -> int:
        """Print a function that writes expressions of n rows to ``out`` (K, out_stride); return K.

        Products with consecutive entries are computed first, one column after the other, and
        written after the outputs. ``places`` are written to ``at`` (A, out_stride).
        """
        f = _Function(self, name, arrays)
        f.read("shared", shared)
        dots = [n for n in f.needed([*outputs, *places], kept) if self.graph.nodes[n].op == "dot"]
        rows: dict[int, int] = {}
        number = len(outputs)
        for n in dots:
            rows[n] = outputs.index(n) if n in outputs else number
            number += n not in outputs
            f.add_columns(self.graph.nodes[n].value, rows[n])
        with f.each_row("n"):
            f.read("kept", kept)
            for n in dots:
                f.known[n] = f.load_row("out", "out_stride", rows[n])
            for k, n in enumerate(outputs):
                if rows.get(n) != k:
                    f.store_row("out", k, f.number(n))
            for k, n in enumerate(places):
                f.store_row("at", k, f.integer(n))
        f.builder.ret_void()
        return number

    def sum_of_rows(
        self, name: str, arrays: Names, outputs: Nodes, *, shared: Nodes = (), kept: Nodes = ()
    ) -> None:
        """Print a function that adds sums of expressions over n rows to ``out``.

        Rows up to ``padded`` are computed, which allows vectorisation.
        """
        f = _Function(self, name, arrays)
        f.read("shared", shared)
        b, zero = f.builder, ir.Constant(_DOUBLE, 0.0)
        sums = [cgutils.alloca_once_value(b, zero) for _ in outputs]
        with f.each_row("padded"):
            f.read("kept", kept)
            inside = b.icmp_signed("<", f.row, f.argument["n"])
            for total, n in zip(sums, outputs):
                value = b.select(inside, f.number(n), zero)
                b.store(b.fadd(b.load(total), value, flags=_ANY_ORDER), total)
        for k, total in enumerate(sums):
            place = ir.Constant(_WORD, k)
            f.store("out", b.fadd(f.load("out", place), b.load(total), flags=_FUSED), place)
        b.ret_void()

    def stage(
        self, name: str, arrays: Names, outputs: Nodes, places: Nodes | None = None
    ) -> list[int | str]:
        """Print a stage of expressions of rows and, unless None, of positions in eta."""
        shared = Stages.of(self.graph, [*outputs, *(places or ())]).shared
        self.once(f"{name}_shared", (*arrays, "out"), shared)
        rows = [*arrays, "shared", "block", "stride", "n", "out", "out_stride"]
        rows += [] if places is None else ["at"]
        number = self.each_row(f"{name}_rows", rows, outputs, shared=shared, places=places or ())
        return [f"{name}_shared", f"{name}_rows", len(shared), number]


# --- calls of stages -------------------------------------------------------------------------------


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


class _Function:
    """A function under construction."""

    def __init__(self, printer: Printer, name: str, arguments: Names):
        self.graph, self._module = printer.graph, printer._module
        kinds = [
            _WORD if a in _INTEGERS else _POINTER.get(a, _DOUBLE.as_pointer()) for a in arguments
        ]
        self._function = ir.Function(
            self._module, ir.FunctionType(ir.VoidType(), kinds), function_name(name)
        )
        for argument, kind in zip(self._function.args, kinds):
            if kind is not _WORD:
                argument.add_attribute("noalias")
        self.argument = dict(zip(arguments, self._function.args))
        self.builder = ir.IRBuilder(self._function.append_basic_block())
        #: Number of the row within a loop over rows.
        self.row: Any = None
        self.known: dict[int, Any] = {}

    @contextmanager
    def each_row(self, number: str) -> Iterator[None]:
        """Execute code for each row; values known inside are forgotten afterwards."""
        known = dict(self.known)
        with cgutils.for_range(self.builder, self.argument[number]) as loop:
            self.row = loop.index
            yield
        self.known, self.row = known, None

    # --- memory -------------------------------------------------------------------------------------

    def load(self, array: str, place):
        return self.builder.load(self._at(array, place))

    def store(self, array: str, value, place) -> None:
        self.builder.store(value, self._at(array, place))

    def load_row(self, array: str, stride: str, k: int):
        """Load entry k of the current row."""
        return self.load(array, self._in_row(stride, k))

    def store_row(self, array: str, k: int, value) -> None:
        self.store(array, value, self._in_row("out_stride", k))

    def read(self, array: str, nodes: Nodes) -> None:
        """Load the nodes that an array holds, for the current row within a loop over rows."""
        for k, n in enumerate(nodes):
            place = ir.Constant(_WORD, k) if self.row is None else self._in_row("stride", k)
            self.known[n] = self._of_kind(n, self.load(array, place))

    def _at(self, array: str, place):
        return self.builder.gep(self.argument[array], [place])

    def _in_row(self, stride: str, k: int):
        begin = self.builder.mul(self.argument[stride], ir.Constant(_WORD, k), flags=("nsw",))
        return self.builder.add(begin, self.row, flags=("nsw",))

    def _of_kind(self, n: int, value):
        return self._truth(value) if self.graph.nodes[n].kind == "b" else value

    def add_columns(self, dot, k: int) -> None:
        """Write sums of columns times consecutive entries to row k of ``out``."""
        array, first, columns = dot
        with self.each_row("n"):
            self.store_row("out", k, ir.Constant(_DOUBLE, 0.0))
        done = 0
        if list(columns) == list(range(columns[0], columns[0] + len(columns))):
            rounds = len(columns) // _COLUMNS_AT_ONCE
            if rounds > 1:
                done = rounds * _COLUMNS_AT_ONCE
                with cgutils.for_range(self.builder, ir.Constant(_WORD, rounds)) as step:
                    start = self.builder.mul(step.index, ir.Constant(_WORD, _COLUMNS_AT_ONCE))
                    few = [self._plus(start, m) for m in range(_COLUMNS_AT_ONCE)]
                    places = [self._plus(f, first) for f in few]
                    self._add_few(array, places, [self._plus(f, columns[0]) for f in few], k)
        for start in range(done, len(columns), _COLUMNS_AT_ONCE):
            few = columns[start : start + _COLUMNS_AT_ONCE]
            places = [ir.Constant(_WORD, first + start + m) for m in range(len(few))]
            self._add_few(array, places, [ir.Constant(_WORD, c) for c in few], k)

    def _add_few(self, array: str, places: Sequence[Any], columns: Sequence[Any], k: int) -> None:
        """Add some columns times entries to row k of ``out``, in one pass over the rows."""
        b = self.builder
        factors = [self.load(array, place) for place in places]
        begins = [b.mul(self.argument["stride"], c, flags=("nsw",)) for c in columns]
        with self.each_row("n"):
            total = self.load_row("out", "out_stride", k)
            for factor, begin in zip(factors, begins):
                column = self.load("block", b.add(begin, self.row, flags=("nsw",)))
                total = b.fadd(total, b.fmul(column, factor, flags=_FUSED), flags=_FUSED)
            self.store_row("out", k, total)

    def _plus(self, value, number: int):
        return self.builder.add(value, ir.Constant(_WORD, number), flags=("nsw",))

    # --- expressions --------------------------------------------------------------------------------

    def number(self, n: int):
        """Return the value of a node as a double."""
        return self._double(self.value(n))

    def integer(self, n: int):
        """Return the value of a node as an integer."""
        constant = self.graph.number(n)
        if constant is not None:
            return ir.Constant(_WORD, int(constant))
        return self.builder.fptosi(self.number(n), _WORD)

    def value(self, n: int):
        """Return the value of a node: a double or a truth value."""
        for m in self.needed([n]):
            self.known[m] = self._computed(m)
        return self.known[n]

    def needed(self, nodes: Nodes, kept: Nodes = ()) -> list[int]:
        """Return the nodes to compute for others, arguments first, if ``kept`` will be known."""
        seen: set[int] = set()
        stack, known = list(nodes), set(kept)
        while stack:
            m = stack.pop()
            if m not in seen and m not in self.known and m not in known:
                seen.add(m)
                stack.extend(self.graph.nodes[m].args)
        return sorted(seen)

    def _computed(self, n: int):
        node = self.graph.nodes[n]
        if node.op == "const":
            value = self.graph.number(n)
            if isinstance(value, bool):
                return ir.Constant(_TRUTH, int(value))
            return ir.Constant(_DOUBLE, float(value))
        if node.op == "column":
            return self._of_kind(n, self.load_row("block", "stride", node.value))
        if node.op in ("group", "local"):
            array = "group" if node.op == "group" else "u"
            return self._of_kind(n, self.load(array, ir.Constant(_WORD, node.value)))
        if node.op == "entry":
            return self.load(node.value, self.integer(node.args[0]))
        if node.op == "pow":
            return self._power(*node.args)
        arguments = [self.known[a] for a in node.args]
        if node.op in _LOGICAL:
            return _LOGICAL[node.op](self.builder, *map(self._truth, arguments))
        if node.op == "switch":
            convert = self._truth if node.kind == "b" else self._double
            return self.builder.select(self._truth(arguments[0]), *map(convert, arguments[1:]))
        numbers = [self._double(a) for a in arguments]
        if node.op in OPERATIONS:
            return OPERATIONS[node.op](self.builder, *numbers)
        if node.op in _INTRINSICS:
            return self._call(f"llvm.{_INTRINSICS[node.op]}.f64", numbers)
        return self._call(function_name(node.op, called=True), numbers)

    def _call(self, name: str, numbers: Sequence[Any]):
        function = self._module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(_DOUBLE, [_DOUBLE] * len(numbers))
            function = ir.Function(self._module, kind, name)
        return self.builder.call(function, numbers)

    def _power(self, base: int, exponent: int):
        x, power = self.number(base), self.graph.number(exponent)
        if power is None or power != int(power) or not 0 < abs(power) <= _LARGEST_POWER:
            return self._call(function_name("pow", called=True), [x, self.number(exponent)])
        left, square, out = abs(int(power)), x, None
        while left:
            if left % 2:
                out = square if out is None else self.builder.fmul(out, square, flags=_FUSED)
            left //= 2
            if left:
                square = self.builder.fmul(square, square, flags=_FUSED)
        one = ir.Constant(_DOUBLE, 1.0)
        return self.builder.fdiv(one, out, flags=_FUSED) if power < 0 else out

    def _double(self, value):
        if value.type == _TRUTH:
            return self.builder.uitofp(value, _DOUBLE)
        return value

    def _truth(self, value):
        if value.type == _TRUTH:
            return value
        return self.builder.fcmp_unordered("!=", value, ir.Constant(_DOUBLE, 0.0))


# --- operations -------------------------------------------------------------------------------------


def _arithmetic(name: str) -> Callable:
    return lambda b, x, y: getattr(b, name)(x, y, flags=_FUSED)


def _comparison(sign: str) -> Callable:
    return lambda b, x, y: b.fcmp_ordered(sign, x, y)


def _of_two(sign: str) -> Callable:
    """Return the operation that selects the larger or smaller number; x if x is nan."""

    def operation(b, x, y):
        first = b.or_(b.fcmp_ordered(sign, x, y), b.fcmp_unordered("uno", x, x))
        return b.select(first, x, y)

    return operation


def _is_infinite(b, x):
    ends = (ir.Constant(_DOUBLE, float(end)) for end in ("inf", "-inf"))
    return b.or_(*(b.fcmp_ordered("==", x, end) for end in ends))


_SIGNS = {"lt": "<", "gt": ">", "le": "<=", "ge": ">=", "eq": "=="}
#: Operations on doubles that are LLVM instructions.
OPERATIONS: dict[str, Callable] = {
    **{op: _arithmetic(f"f{op}") for op in ("add", "sub", "mul", "div")},
    **{op: _comparison(sign) for op, sign in _SIGNS.items()},
    "ne": lambda b, x, y: b.fcmp_unordered("!=", x, y),
    "neg": lambda b, x: b.fneg(x),
    "held": lambda b, x: x,
    "float": lambda b, x: x,
    "maximum": _of_two(">"),
    "minimum": _of_two("<"),
    "isnan": lambda b, x: b.fcmp_unordered("uno", x, x),
    "isinf": _is_infinite,
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
PRINTED = {*OPERATIONS, *_INTRINSICS, *_LOGICAL, *CALLED, "switch"}
