"""Conversion of PyTensor graphs to scalar expressions, one element at a time.

An element of a tensor is requested by its index, and requests in turn the elements of the inputs
from which it is computed. No other elements are visited: one gathered from a vector of a million
entries costs as much as one from a vector of two. Indices may be numbers or integer expressions.
"""

from __future__ import annotations

import itertools
import math

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, reduce, singledispatch
from typing import Any

import numpy as np

from pymc.logprob.utils import CheckParameterValue
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.scalar.basic import ScalarOp
from pytensor.tensor import basic, subtensor
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, Shape, SpecifyShape
from pytensor.tensor.special import LogAddExp, LogSoftmax, LogSumExp, Softmax
from pytensor.xtensor.basic import TensorFromXTensor, XTensorFromTensor

from amc_pymc.engine import Families, Graph
from amc_pymc.engine.functions import ARRAY
from amc_pymc.reading.graphs import inlined, rebuilt

Index = tuple[int, ...]

_MOST_NODES = 20_000

#: Largest axis that is enumerated where an index must be a number but depends on data.
_MOST_CASES = 64

#: Exclusive bound on the terms of an incomplete Gamma or Beta function that is a finite sum.
_MOST_TERMS = 20


class NotScalar(Exception):
    """Error for a graph that cannot be read element by element."""


class Unaddressable(NotScalar):
    """Error for an index that must be a number and is not."""


class ElementReader:
    """Reader of elements of tensors as expressions.

    Parameters
    ----------
    graph : Graph
        Graph to which expressions are added.
    leaves : mapping of variables to callables
        ``index -> node`` for the inputs of the tensor graph; an index is a tuple of nodes.
    columns : Columns
        Columns of data, to which elements of constant arrays are added that are indexed by data.
    families : Families, optional
        Families to which coefficients of long products are added if they are functions of parameters.
    loops : bool
        Whether long products of columns and parameters are loops, leaves "dot", and not sums.
    """

    def __init__(
        self,
        graph: Graph,
        leaves: Mapping[Variable, Callable[[Index], int]],
        columns: Any,
        families: Families | None = None,
        loops: bool = True,
    ):
        self.graph, self.make, self.const = graph, graph.make, graph.const
        self.leaves = dict(leaves)
        self.columns = columns
        self.families, self.loops = families, loops
        self.may_be_negative = cache(columns.may_be_negative)
        self._memo: dict[tuple[Variable, Index], int] = {}

    # --- elements -------------------------------------------------------------------------------

    def element(self, variable: Variable, index: Index = ()) -> int:
        """Return the expression of one element; raise NotScalar if an operation has none."""
        key = variable, index
        if key not in self._memo:
            if len(self.graph.nodes) > _MOST_NODES:
                raise NotScalar(f"it takes more than {_MOST_NODES} operations a row")
            try:
                self._memo[key] = self._element(variable, index)
            except RecursionError as error:
                raise NotScalar("its graph is too deep") from error
        return self._memo[key]

    def _element(self, variable: Variable, index: Index) -> int:
        node = variable.owner
        try:
            if variable in self.leaves:
                return self.leaves[variable](index)
            if isinstance(variable, Constant):
                return self._constant(np.asarray(variable.data), index)
            if node is None:
                raise NotScalar(f"it depends on {variable}")
            which = () if len(node.outputs) == 1 else (node.outputs.index(variable),)
            return _rule.dispatch(type(node.op))(self, node, index, *which)
        except Unaddressable:
            return self._each_case(variable, index)

    def _each_case(self, variable: Variable, index: Index) -> int:
        """Return a switch among the elements along an axis whose index depends on data."""
        shape = self.shape(variable)
        open_axes = [k for k, i in enumerate(index) if self.graph.number(i) is None]
        axis = min(open_axes, key=lambda k: shape[k], default=None)
        if axis is None or shape[axis] > _MOST_CASES:
            source = variable if variable.owner is None else type(variable.owner.op).__name__
            raise NotScalar(f"data choose an element of {source}")
        cases = [
            self.element(variable, _with_entry(index, axis, self.const(k)))
            for k in range(shape[axis])
        ]
        out = cases[-1]
        for k in reversed(range(shape[axis] - 1)):
            out = self.make("switch", self.make("eq", index[axis], self.const(k)), cases[k], out)
        return out

    def _constant(self, data: np.ndarray, index: Index) -> int:
        if data.size == 1:
            return self.const(data.item())
        numbers = [self.graph.number(i) for i in index]
        if None in numbers:
            return self.columns.derived(("table", id(data)), lambda: data, index)
        return self.const(data[tuple(numbers)].item())

    def number(self, node: int) -> int:
        """Return the value of an integer constant."""
        value = self.graph.number(node)
        if value is None:
            raise Unaddressable("a shape or a slice depends on data")
        return int(value)

    def whole(self, node: int) -> int | None:
        """Return the value of an expression that is always the same integer from 1 to 19, or None."""
        value = self.columns.alike(node)
        return int(value) if value in range(1, _MOST_TERMS) else None

    def shape(self, variable: Variable) -> tuple[int, ...]:
        """Return the static shape."""
        known = variable.type.shape
        if None in known:
            raise NotScalar(f"the shape of {variable} is not known")
        return known

    # --- shorthands -----------------------------------------------------------------------------

    def broadcast(self, variable: Variable, index: Index) -> int:
        """Return the element of an input of an elementwise operation."""
        zero = self.const(0)
        shape = variable.type.shape
        own = index[len(index) - len(shape) :]
        return self.element(variable, tuple(zero if n == 1 else i for n, i in zip(shape, own)))

    def fold(self, op: str, terms: Sequence[int]) -> int:
        """Add an operation of two arguments on several."""
        return reduce(partial(self.make, op), terms)

    def over(self, sizes: Sequence[int]):
        """Return all indices of a block."""
        ranges = [[self.const(k) for k in range(n)] for n in sizes]
        return itertools.product(*ranges)


def _with_entry(index: Index, axis: int, entry: int) -> Index:
    """Return an index with another entry along an axis."""
    return (*index[:axis], entry, *index[axis + 1 :])


def _no_rule(r: ElementReader, node, *_) -> int:
    raise NotScalar(f"{type(node.op).__name__} has no scalar form")


#: Functions that read an element of the result of an operation, by the type of the operation.
_rule: Any = singledispatch(_no_rule)


def stabilised(output: Variable) -> Variable:
    """Return the graph as PyTensor would compute it: inner graphs inlined, numerically stable."""
    (out,) = rebuilt([output], {}, inlined)
    graph = FunctionGraph(outputs=[out], clone=True, copy_inputs=False)
    _stabilising().rewrite(graph)
    return graph.outputs[0]


@cache
def _stabilising() -> GraphRewriter:
    return optdb.query(RewriteDatabaseQuery(include=("canonicalize", "stabilize")))


# --- elementwise operations, reductions, products ---------------------------------------------------

#: Smallest number of terms of a dot product that becomes a loop.
_LONG = 4

#: Operations of a graph that have another name than PyTensor's in lower case.
_RENAMED = {
    "TrueDiv": "div", "IntDiv": "floordiv", "NEQ": "ne", "Invert": "not", "Psi": "digamma"
}  # fmt: skip
#: Operations of two arguments of which PyTensor's have several.
_FOLDS = {"Add", "Mul", "AND", "OR", "Maximum", "Minimum"}

#: Values of reductions of no elements.
_EMPTY = {"Add": 0.0, "Mul": 1.0, "AND": True, "OR": False}

_TRUTH_ONLY = {"AND", "OR", "XOR", "Invert"}


def _name(scalar_op) -> str:
    return type(scalar_op).__name__.removeprefix("Scalar")


def _scalar(r: ElementReader, op, args: Sequence[int], dtype: str) -> int:
    """Add a scalar operation on expressions."""
    name = _name(op)
    if name in _TRUTH_ONLY and any(r.graph.nodes[a].kind != "b" for a in args):
        raise NotScalar(f"{name} of numbers has no scalar form")
    if name in _FOLDS:
        return r.fold(name.lower(), args)
    if name in _FORMS:
        return _FORMS[name](r, *args)
    if name == "Cast" and dtype == "bool":
        return args[0] if r.graph.nodes[args[0]].kind == "b" else r.make("ne", args[0], r.const(0))
    if name == "Cast":
        return r.make("float" if dtype.startswith("float") else "int", args[0])
    own = _RENAMED.get(name, name.lower())
    if own not in ARRAY or own == "trigamma":  # the second derivative of which is no operation
        raise NotScalar(f"{name} has no scalar form")
    return r.make(own, *args)


def _incomplete_gamma(name: str, r: ElementReader, k: int, x: int) -> int:
    """Add an incomplete Gamma function that is a finite sum, which has all derivatives."""
    shape = r.whole(k)
    if shape == 1 and name == "GammaInc":
        return r.make("neg", r.make("expm1", r.make("neg", x)))
    if name == "GammaInc" or shape is None:
        raise NotScalar(f"{name} has no scalar form")
    term = total = r.const(1.0)
    for j in range(1, shape):
        term = r.make("div", r.make("mul", term, x), float(j))
        total = r.make("add", total, term)
    return r.make("mul", r.make("exp", r.make("neg", x)), total)


def _incomplete_beta(r: ElementReader, a: int, b: int, x: int) -> int:
    """Add I_x(a, b) for an integer b: x^a times a polynomial of degree b - 1 in 1 - x."""
    shape = r.whole(b)
    if shape is None:
        raise NotScalar("BetaInc has no scalar form")
    rest = r.make("sub", 1.0, x)
    term = total = r.const(1.0)
    for j in range(1, shape):
        rising = r.make("add", a, float(j - 1))
        term = r.make("mul", term, r.make("div", r.make("mul", rising, rest), float(j)))
        total = r.make("add", total, term)
    return r.make("mul", r.make("exp", r.make("mul", a, r.make("log", x))), total)


#: Operations that are several ones of a graph.
_FORMS: dict[str, Callable[..., int]] = {
    "Sqr": lambda r, x: r.make("mul", x, x),
    "Reciprocal": lambda r, x: r.make("div", 1.0, x),
    "Clip": lambda r, x, low, high: r.make("minimum", r.make("maximum", x, low), high),
    "Log2": lambda r, x: r.make("mul", 1.0 / np.log(2.0), r.make("log", x)),
    "Log10": lambda r, x: r.make("mul", 1.0 / np.log(10.0), r.make("log", x)),
    "GammaInc": partial(_incomplete_gamma, "GammaInc"),
    "GammaIncC": partial(_incomplete_gamma, "GammaIncC"),
    "BetaInc": _incomplete_beta,
    "LogAddExp": lambda r, *terms: _log_sum_exp(r, terms),
    "Second": lambda r, x, value: value,
    "Identity": lambda r, x: x,
}


@_rule.register(Elemwise)
def _elemwise(r: ElementReader, node, index: Index) -> int:
    """Read an element of an elementwise operation."""
    op = node.op.scalar_op
    if type(op).__name__ == "Switch":  # the branch that is not taken may be invalid
        condition = r.broadcast(node.inputs[0], index)
        known = r.graph.number(condition)
        if known is not None:
            return r.broadcast(node.inputs[1 if known else 2], index)
    if type(op).__name__ == "Second":
        return r.broadcast(node.inputs[1], index)
    args = [r.broadcast(i, index) for i in node.inputs]
    return _scalar(r, op, args, node.outputs[0].type.dtype)


@_rule.register(DimShuffle)
def _dimshuffle(r: ElementReader, node, index: Index) -> int:
    """Read an element of a tensor with its axes in another order."""
    (x,), at = node.inputs, dict(zip(node.op.new_order, index))
    return r.element(x, tuple(at.get(axis, r.const(0)) for axis in range(x.type.ndim)))


@_rule.register(CAReduce)
def _reduce(r: ElementReader, node, index: Index) -> int:
    """Read an element of a sum, product or another reduction."""
    (x,) = node.inputs
    own = _open_index(node, index)
    name = _name(node.op.scalar_op)
    if name == "Add" and own.count(None) == 1 and _is_product(x.owner):
        numbers = map(r.const, range(r.shape(x)[own.index(None)]))
        at = [tuple(k if i is None else i for i in own) for k in numbers]
        return _sum_of_products(r, *([r.broadcast(f, i) for i in at] for f in x.owner.inputs))
    terms = _block(r, x, own)
    if name not in _FOLDS or not (terms or name in _EMPTY):
        raise NotScalar(f"a reduction by {name} of {len(terms)} elements has no scalar form")
    return r.fold(name.lower(), terms) if terms else r.const(_EMPTY[name])


def _block(r: ElementReader, x, own: Sequence[int | None]) -> list[int]:
    """Return the elements of x at an index whose entries are None along some axes."""
    out = []
    for block in r.over([n for i, n in zip(own, r.shape(x)) if i is None]):
        at = iter(block)
        out.append(r.element(x, tuple(next(at) if i is None else i for i in own)))
    return out


def _axes(node) -> set[int]:
    """Return the axes of its input along which a node computes."""
    axis, ndim = node.op.axis, node.inputs[0].type.ndim
    return {int(a) % ndim for a in np.atleast_1d(range(ndim) if axis is None else axis)}


def _open_index(node, index: Index) -> list[int | None]:
    """Return an index of the input of a reduction, with None along the axes over which it is reduced."""
    axes, kept = _axes(node), iter(index)
    return [None if a in axes else next(kept) for a in range(node.inputs[0].type.ndim)]


def _is_product(node) -> bool:
    """Whether a node is a product of two tensors."""
    elementwise = node is not None and isinstance(node.op, Elemwise)
    return elementwise and _name(node.op.scalar_op) == "Mul" and len(node.inputs) == 2


def _sum_of_products(r: ElementReader, left: Sequence[int], right: Sequence[int]) -> int:
    """Return a sum of products, a loop if it is a long one of data and consecutive parameters."""
    loop = _loop(r, left, right) if len(left) >= _LONG else None
    products = (r.make("mul", x, y) for x, y in zip(left, right))
    return r.graph.sum(list(products)) if loop is None else loop


def _loop(r: ElementReader, left: Sequence[int], right: Sequence[int]) -> int | None:
    """Return a dot product of columns with consecutive entries, or functions of parameters of the same form, or None."""
    g = r.graph
    for data, factors in ((left, right), (right, left)):
        columns = [_column(g, d) for d in data]
        if None in columns:
            continue
        first = _first_of_consecutive(g, factors) if r.loops else None
        if first is None and r.families is not None and not any(map(g.depends, factors)):
            first = r.families.add(factors)
        if first is not None:
            return g.leaf("dot", ("eta", first, tuple(columns)))
    return None


def _first_of_consecutive(g: Graph, factors: Sequence[int]) -> int | None:
    """Return the position of the first of consecutive entries, or None."""
    if any(g.nodes[f].op != "entry" or g.nodes[f].value != "eta" for f in factors):
        return None
    positions = [g.number(g.nodes[f].args[0]) for f in factors]
    if None in positions or np.any(np.diff(positions) != 1):
        return None
    return int(positions[0])


def _column(g: Graph, node: int) -> int | None:
    """Return the number of the column that an expression is, or None."""
    n = g.nodes[node]
    if n.op == "float":
        n = g.nodes[n.args[0]]
    return n.value if n.op == "column" else None


@_rule.register(Dot)
def _dot_product(r: ElementReader, node, index: Index) -> int:
    """Read an element of a product of matrices or vectors."""
    a, b = node.inputs
    batch = index[: max(0, b.type.ndim - 2)]
    rows, columns = index[: a.type.ndim - 1], index[a.type.ndim - 1 :]
    inner = a.type.shape[-1] or r.shape(b)[len(batch)]
    steps = [r.const(k) for k in range(inner)]
    left = [r.broadcast(a, (*rows, k)) for k in steps]
    right = [r.broadcast(b, (*batch, k, *columns)) for k in steps]
    return _sum_of_products(r, left, right)


@_rule.register(CumOp)
def _cumulate(r: ElementReader, node, index: Index) -> int:
    """Read an element of a cumulative sum or product."""
    (x,) = node.inputs
    if node.op.axis is None and x.type.ndim > 1:
        raise NotScalar("a cumulative sum over several axes has no scalar form")
    axis = (node.op.axis or 0) % x.type.ndim
    numbers = [r.const(k) for k in range(r.number(index[axis]) + 1)]
    return r.fold(node.op.mode, [r.element(x, _with_entry(index, axis, k)) for k in numbers])


def _log_sum_exp(r: ElementReader, terms: Sequence[int]) -> int:
    shifts = {r.graph.nodes[t].args[1] for t in terms if r.graph.nodes[t].op == "sub"}
    if len(shifts) == 1 and all(r.graph.nodes[t].op == "sub" for t in terms):
        # The largest term was subtracted before.
        inside = _log_sum_exp(r, [r.graph.nodes[t].args[0] for t in terms])
        return r.make("sub", inside, *shifts)
    top = r.fold("maximum", terms)
    # The result does not depend on the shift, which must be finite to avoid inf - inf.
    top = r.make("held", r.make("switch", r.make("isinf", top), 0.0, top))
    total = r.graph.sum([r.make("exp", r.make("sub", t, top)) for t in terms])
    return r.make("add", r.make("log", total), top)


@_rule.register(Softmax | LogSoftmax)
def _softmax(r: ElementReader, node, index: Index) -> int:
    """Read an element of a softmax or its logarithm."""
    (x,) = node.inputs
    axes = _axes(node)
    own = [None if a in axes else i for a, i in enumerate(index)]
    out = r.make("sub", r.element(x, index), _log_sum_exp(r, _block(r, x, own)))
    return out if isinstance(node.op, LogSoftmax) else r.make("exp", out)


@_rule.register(LogSumExp)
def _log_sum_exp_of(r: ElementReader, node, index: Index) -> int:
    """Read an element of the log of a sum of exponentials along axes."""
    return _log_sum_exp(r, _block(r, node.inputs[0], _open_index(node, index)))


# --- indexing, shapes --------------------------------------------------------------------------------


def _slice(r: ElementReader, at: slice) -> slice:
    """Return a slice of constants with their numbers."""
    ends = at.start, at.stop, at.step
    return slice(*(p if isinstance(p, int | None) else r.number(r.element(p)) for p in ends))


def _inside(r: ElementReader, i: int, length: int) -> int:
    """Return an index from the start for one that may count from the end."""
    number = r.graph.number(i)
    if number is not None:
        return r.const(int(number) + length if number < 0 else int(number))
    if not r.may_be_negative(i):
        return i
    return r.make("switch", r.make("lt", i, r.const(0)), r.make("add", i, r.const(length)), i)


def _parts(node, x: Variable, rest: Sequence[Variable]) -> list:
    """Return what a node selects along each axis of x: a slice, a number or an array."""
    parts = list(subtensor.indices_from_subtensor(rest, node.op.idx_list))
    return parts + [slice(None)] * (x.type.ndim - len(parts))


@_rule.register(subtensor.Subtensor | subtensor.AdvancedSubtensor)
def _subtensor(r: ElementReader, node, index: Index) -> int:
    """Read an element of ``x[i, j, :]`` by NumPy's rules."""
    x, *rest = node.inputs
    parts = _parts(node, x, rest)
    arrays = [k for k, p in enumerate(parts) if not isinstance(p, slice)]
    if any(parts[k].type.dtype == "bool" for k in arrays):
        raise NotScalar("a mask has no scalar form")
    ndim = max((parts[k].type.ndim for k in arrays), default=0)
    together = arrays == list(range(arrays[0], arrays[-1] + 1)) if arrays else False
    first = arrays[0] if together else 0
    at = index[first : first + ndim]
    kept = iter((*index[:first], *index[first + ndim :]))
    own = []
    for axis, part in enumerate(parts):
        length = r.shape(x)[axis]
        if isinstance(part, slice):
            chosen = range(length)[_slice(r, part)]
            steps = r.make("mul", next(kept), r.const(chosen.step))
            own.append(r.make("add", steps, r.const(chosen.start)))
        else:
            own.append(_inside(r, r.broadcast(part, at), length))
    return r.element(x, tuple(own))


@_rule.register(subtensor.IncSubtensor | subtensor.AdvancedIncSubtensor)
def _set_subtensor(r: ElementReader, node, index: Index) -> int:
    """Read an element of an array of which a part was set or incremented."""
    x, y, *rest = node.inputs
    shape = r.shape(x)
    chosen = tuple(_known(r, p) for p in _parts(node, x, rest))
    places = np.arange(math.prod(shape)).reshape(shape)[chosen]
    own = np.ravel_multi_index([r.number(i) for i in index], shape)
    found = [r.broadcast(y, tuple(map(r.const, at))) for at in np.argwhere(places == own).tolist()]
    if found and node.op.set_instead_of_inc:
        return found[-1]
    return r.fold("add", [r.element(x, index), *found])


def _known(r: ElementReader, part) -> slice | np.ndarray:
    """Return what is selected along an axis, which must not depend on data."""
    if isinstance(part, slice):
        return _slice(r, part)
    shape = r.shape(part)
    numbers = [r.number(r.element(part, at)) for at in r.over(shape)]
    return np.array(numbers, part.type.dtype).reshape(shape)


def flat_position(graph: Graph, index: Index, shape: Sequence[int]) -> int:
    """Return the position of an element in the flattened array."""
    position = graph.const(0)
    for i, n in zip(index, shape):
        position = graph.make("add", graph.make("mul", position, graph.const(n)), i)
    return position


@_rule.register(Reshape)
def _reshape(r: ElementReader, node, index: Index) -> int:
    """Read an element of a reshaped tensor."""
    (x, _), (out,) = node.inputs, node.outputs
    old, new = r.shape(x), r.shape(out)
    if [n for n in old if n != 1] == [n for n in new if n != 1]:
        wide = (i for i, n in zip(index, new) if n != 1)
        return r.element(x, tuple(r.const(0) if n == 1 else next(wide) for n in old))
    flat, own = flat_position(r.graph, index, new), []
    for n in reversed(old):
        own.append(r.make("mod", flat, r.const(n)) if n > 1 else r.const(0))
        flat = r.make("floordiv", flat, r.const(n)) if n > 1 else flat
    return r.element(x, tuple(reversed(own)))


@_rule.register(basic.Join)
def _join(r: ElementReader, node, index: Index) -> int:
    """Read an element of joined tensors."""
    axis = node.op.axis % len(index)
    sizes = [r.shape(p)[axis] for p in node.inputs]
    ends = np.cumsum(sizes)
    number = r.graph.number(index[axis])
    if number is not None:
        k = int(np.searchsorted(ends, number, side="right"))
        own = r.const(int(number - ends[k] + sizes[k]))
        return r.element(node.inputs[k], _with_entry(index, axis, own))
    out = None
    for part, size, end in reversed(list(zip(node.inputs, sizes, ends))):
        if size == 0:
            continue
        own = r.make("sub", index[axis], r.const(int(end - size)))
        own = r.make("minimum", r.make("maximum", own, r.const(0)), r.const(size - 1))
        here = r.element(part, _with_entry(index, axis, own))
        before = r.make("lt", index[axis], r.const(int(end)))
        out = here if out is None else r.make("switch", before, here, out)
    if out is None:
        raise NotScalar("an empty array is indexed")
    return out


@_rule.register(basic.Split)
def _split(r: ElementReader, node, index: Index, which: int) -> int:
    """Read an element of one part of a split tensor."""
    axis = node.op.axis
    start = sum(r.number(r.element(node.inputs[1], (r.const(k),))) for k in range(which))
    own = r.make("add", index[axis], r.const(start))
    return r.element(node.inputs[0], _with_entry(index, axis, own))


@_rule.register(basic.ARange)
def _arange(r: ElementReader, node, index: Index) -> int:
    """Read an element of a range."""
    start, _, step = (r.element(i) for i in node.inputs)
    return r.make("add", start, r.make("mul", step, index[0]))


@_rule.register(basic.ExtractDiag)
def _diagonal(r: ElementReader, node, index: Index) -> int:
    """Read an element of a diagonal."""
    op, (x,), own = node.op, node.inputs, list(index[:-1])
    if op.offset != 0:
        raise NotScalar("a diagonal off the main one has no scalar form")
    for axis in sorted((op.axis1 % x.type.ndim, op.axis2 % x.type.ndim)):
        own.insert(axis, index[-1])
    return r.element(x, tuple(own))


# --- matrices -----------------------------------------------------------------------------------


@_rule.register(Blockwise)
def _blockwise(r: ElementReader, node, index: Index) -> int:
    name = type(node.op.core_op).__name__
    rule = {"Cholesky": _cholesky, "SolveTriangular": _solve_triangular, "Dot": _dot_product}
    if name not in rule:
        raise NotScalar(f"{name} has no scalar form")
    return rule[name](r, node, index)


def _matrix(r: ElementReader, variable, batch: Index) -> Callable[[int, int], int]:
    """Return the function that reads entries of a matrix in a batch."""
    return lambda i, j: r.broadcast(variable, (*batch, r.const(i), r.const(j)))


def _cholesky(r: ElementReader, node, index: Index) -> int:
    """Apply the Cholesky-Banachiewicz algorithm, one entry at a time."""
    if not node.op.core_op.lower:
        raise NotScalar("an upper Cholesky factor has no scalar form")
    i, j = r.number(index[-2]), r.number(index[-1])
    if j > i:
        return r.const(0.0)
    a, factor = (_matrix(r, m, index[:-2]) for m in (node.inputs[0], node.outputs[0]))
    known = r.graph.sum([r.make("mul", factor(i, k), factor(j, k)) for k in range(j)])
    left = r.make("sub", a(i, j), known)
    return r.make("sqrt", left) if i == j else r.make("div", left, factor(j, j))


def _solve_triangular(r: ElementReader, node, index: Index) -> int:
    """Solve by substitution, one entry at a time."""
    op = node.op.core_op
    a, b = node.inputs
    size = r.shape(a)[-1]
    wide = op.b_ndim == 2
    batch = index[:-2] if wide else index[:-1]
    i = r.number(index[-2] if wide else index[-1])
    matrix = _matrix(r, a, batch)
    tail = (index[-1],) if wide else ()

    def solution(k):
        return r.element(node.outputs[0], (*batch, r.const(k), *tail))

    known = range(i) if op.lower else range(i + 1, size)
    taken = r.graph.sum([r.make("mul", matrix(i, k), solution(k)) for k in known])
    left = r.make("sub", r.broadcast(b, (*batch, r.const(i), *tail)), taken)
    return left if op.unit_diagonal else r.make("div", left, matrix(i, i))


@_rule.register(CheckParameterValue)
def _check(r: ElementReader, node, index: Index) -> int:
    """Read a value that is -inf where a condition on its parameters fails."""
    out, *conditions = r.element(node.inputs[0], index), *map(r.element, node.inputs[1:])
    return r.make("switch", r.fold("and", [r.const(True), *conditions]), out, -np.inf)


# --- rules of one expression ----------------------------------------------------------------------


def _same_element(r: ElementReader, node, index: Index) -> int:
    return r.element(node.inputs[0], index)


def _of_scalars(r: ElementReader, node, index: Index) -> int:
    """Read an operation on scalars, as in the indices of slices."""
    return _scalar(r, node.op, list(map(r.element, node.inputs)), node.outputs[0].type.dtype)


for kind, rule in {
    TensorFromXTensor | XTensorFromTensor | SpecifyShape: _same_element,
    basic.ScalarFromTensor | basic.TensorFromScalar: _same_element,
    ScalarOp: _of_scalars,
    LogAddExp: lambda r, node, index: _log_sum_exp(r, [r.broadcast(i, index) for i in node.inputs]),
    basic.Alloc: lambda r, node, index: r.broadcast(node.inputs[0], index),
    basic.MakeVector: lambda r, node, index: r.element(node.inputs[r.number(index[0])]),
    Shape: lambda r, node, index: r.const(r.shape(node.inputs[0])[r.number(index[0])]),
}.items():
    _rule.register(kind, rule)
