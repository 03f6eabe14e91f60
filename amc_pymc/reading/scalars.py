"""Conversion of PyTensor graphs to scalar expressions, one element at a time, and the columns of data that they read.

An element of a tensor is requested by its index, and requests in turn the elements of the inputs
from which it is computed. No other elements are visited: one gathered from a vector of a million
entries costs as much as one from a vector of two. Indices may be numbers or integer expressions.
"""

from __future__ import annotations

import math

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain

import numpy as np

from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Constant, Variable
from pytensor.scalar.basic import Mul, ScalarOp
from pytensor.tensor import basic, subtensor
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, Shape, SpecifyShape
from pytensor.tensor.special import LogAddExp, LogSoftmax, LogSumExp, Softmax
from pytensor.xtensor.basic import TensorFromXTensor, XTensorFromTensor

from amc_pymc.engine import GROUP, LOCAL, ROW, Families, Graph
from amc_pymc.engine.functions import ARRAY
from amc_pymc.reading.graphs import FlatLayout

Index = tuple[int, ...]

#: Largest number of operations of an expression.
_MOST_NODES = 20_000

#: Largest axis that is enumerated where an index must be a number but depends on data.
_MOST_CASES = 64

#: Exclusive bound on the terms of an incomplete Gamma or Beta function that is a finite sum.
_MOST_TERMS = 20


class NotScalar(Exception):
    """Error for a graph that cannot be read element by element."""


class Unaddressable(NotScalar):
    """Error for an index that must be a number and is not."""


# --- columns of data, and parameters --------------------------------------------------------------------

#: Smallest number of one-hot columns that a code replaces.
_FEW_HOT = 3


@dataclass(eq=False)
class Columns:
    """Columns of data of one kind of unit, in the order in which expressions first read them.

    Attributes
    ----------
    graph : Graph
    kind : {"column", "group"}
        Type of the leaves that represent them.
    complete : bool
        Whether the arrays hold all units; if not, what they have in common may not hold elsewhere.
    arrays : list of arrays
        The columns.
    """

    graph: Graph
    kind: str
    complete: bool = True
    arrays: list[np.ndarray] = field(default_factory=list)
    _sources: list[tuple[Callable[[], np.ndarray], Index, bool]] = field(default_factory=list)
    _known: dict = field(default_factory=dict)

    def node(
        self,
        key,
        values: Callable[[], np.ndarray],
        index: Index = (),
        axis: int | None = None,
    ) -> int:
        """Return the leaf of a column, which is computed when first requested.

        The column is an array, or its elements at indices that are expressions of other columns. With ``axis``, each
        unit reads its own part of an array, units first; the axis of units is at that place of the index.
        """
        if axis is not None:
            index = index[:axis] + index[axis + 1 :]
        key = key, *index
        if key not in self._known:
            source = values, index, axis is not None
            g, array = self.graph, self._computed(*source)
            if array.dtype.kind == "b" and self.complete and array.all() == array.any():
                self._known[key] = g.const(bool(array[0]))
                return self._known[key]
            self.arrays.append(array)
            self._sources.append(source)
            leaf = g.make(
                self.kind, value=len(self.arrays) - 1, kind="f" if array.dtype.kind == "f" else "i"
            )
            self._known[key] = g.make("ne", leaf, g.const(0)) if array.dtype.kind == "b" else leaf
        return self._known[key]

    def _computed(self, values: Callable[[], np.ndarray], index: Index, own: bool) -> np.ndarray:
        where, array = self.values(index), values()
        if where is None:
            raise Unaddressable("an array of data is indexed by parameters")
        # A column is a view of the data if its indices are constants.
        at = [np.asarray(w, np.int64) if np.ndim(w) else int(w) for w in where]
        if own:
            first = np.arange(len(array)) if any(map(np.ndim, at)) else slice(None)
            return np.asarray(array[first, *at])
        return np.asarray(array[tuple(at)])

    def compute(self) -> None:
        """Compute all columns anew, from other data."""
        for k, source in enumerate(self._sources):
            self.arrays[k] = self._computed(*source)

    def values(self, nodes: Sequence[int]) -> list[np.ndarray] | None:
        """Return the values of expressions of data in all units; None if they depend on more than data."""
        if any(self.graph.leaves(nodes, leaf) for leaf in ("entry", "local", "dot")):
            return None
        arrays = {"row" if self.kind == "column" else "group": self.arrays}
        return self.graph.evaluate(nodes, **arrays)

    def may_be_negative(self, index: int) -> bool:
        """Whether an index may be negative in some unit, or depends on more than data."""
        found = self.values([index]) if self.complete else None
        return found is None or bool(np.any(found[0] < 0))

    def alike(self, node: int) -> float | None:
        """Return the value of an expression of data if it is the same in all units, else None."""
        unknown = not self.complete and self.graph.leaves([node], self.kind)
        found = None if unknown else self.values([node])
        if found is None:
            return None
        first = np.ravel(found[0])[0]
        return float(first) if np.all(found[0] == first) else None

    def used(self, outputs: Sequence[int]) -> tuple[list[int], list[np.ndarray]]:
        """Return outputs with the columns that they read renumbered, and these columns.

        Products with one-hot columns become entries that a code selects. Columns of products come first, one after
        the other.
        """
        g, change = self.graph, {}
        for n in g.leaves(outputs, "dot") if self.complete else ():
            name, first, columns = g.nodes[n].value
            codes, ones = _one_hot([self.arrays[c] for c in columns])
            if codes:
                change[n] = self._coded(name, first, columns, codes, ones)
        outputs = g.replaced(outputs, change)
        dots, leaves = g.leaves(outputs, "dot"), g.leaves(outputs, self.kind)
        read = [
            *(c for n in dots for c in g.nodes[n].value[2]),
            *(g.nodes[n].value for n in leaves),
        ]
        place = {c: k for k, c in enumerate(dict.fromkeys(read))}
        change = {
            n: g.make(self.kind, value=place[g.nodes[n].value], kind=g.nodes[n].kind)
            for n in leaves
        }
        for n in dots:
            name, first, columns = g.nodes[n].value
            change[n] = g.make("dot", value=(name, first, tuple(place[c] for c in columns)))
        return g.replaced(outputs, change), [self.arrays[c] for c in place]

    def _coded(self, name: str, first: int, columns: Index, codes, ones: Sequence[int]) -> int:
        """Return the sum of the terms that are not one-hot and of the entries that a row's codes select."""
        g = self.graph
        total = g.const(0.0)
        for n, (_, code) in enumerate(codes):
            position = self.node(("code", n, first, columns), partial(np.asarray, code))
            at = g.make("add", g.const(first), g.make("maximum", position, g.const(0)))
            chosen = g.make("ge", position, g.const(0))
            entry = g.make("entry", at, value=name)
            total = g.make("add", total, g.make("switch", chosen, entry, g.const(0.0)))
        for k in ones:
            total = g.make("add", total, g.make("entry", g.const(first + k), value=name))
        rest = np.setdiff1d(np.arange(len(columns)), [*ones, *chain(*(m for m, _ in codes))])
        for run in np.split(rest, np.flatnonzero(np.diff(rest) != 1) + 1) if rest.size else ():
            k = int(run[0])
            if len(run) > 1:
                term = g.make("dot", value=(name, first + k, columns[k : k + len(run)]))
            else:
                entry = g.make("entry", g.const(first + k), value=name)
                term = g.make("mul", g.make("column", value=columns[k]), entry)
            total = g.make("add", total, term)
        return total


def _one_hot(columns: Sequence[np.ndarray]) -> tuple[list[tuple[list[int], np.ndarray]], list[int]]:
    """Find sets of columns of which at most one is 1 in a row, with their codes, and columns of ones.

    The code of a row is the position of the column that is 1, or -1.
    """
    sets: list[tuple[list[int], np.ndarray]] = []
    ones = []
    for k, column in enumerate(columns):
        is_one = column == 1.0
        if not np.all(is_one | (column == 0.0)):
            continue
        if is_one.all():
            ones.append(k)
            continue
        for members, code in sets:
            if not np.any(is_one & (code >= 0)):
                break
        else:
            members, code = [], np.full(len(column), -1)
            sets.append((members, code))
        members.append(k)
        code[is_one] = k
    return [found for found in sets if len(found[0]) >= _FEW_HOT], ones


@dataclass(eq=False)
class ParameterLeaves:
    """Elements of variables, ``(name, index) -> node``: entries of the flat vector, or local effects.

    Attributes
    ----------
    graph : Graph
    layout : FlatLayout
        Layout of the flat vector.
    columns : Columns, optional
        Columns to which positions that depend on data are added. An expression then does not depend on where in
        the vector a variable begins.
    slots : dict
        Functions ``(graph, index) -> node`` of the variables with local effects.
    read : dict
        The node of each entry that was read, by the name of its variable and its index.
    """

    graph: Graph
    layout: FlatLayout
    columns: Columns | None = None
    slots: Mapping[str, Callable[[Graph, Index], int]] = field(default_factory=dict)
    read: dict[tuple[str, Index], int] = field(default_factory=dict)

    def __call__(self, name: str, index: Index) -> int:
        """Return the node of an element."""
        g, columns, layout = self.graph, self.columns, self.layout
        if name in self.slots:
            return self.slots[name](g, index)
        if any(g.depends[i] & LOCAL for i in index):
            raise Unaddressable(f"{name} is indexed by a local effect")
        position = flat_position(g, index, layout.shapes[layout.names.index(name)])
        position = g.make("add", g.const(layout.slices[name].start), position)
        units = {"column": ROW, "group": GROUP}
        if columns is not None and g.depends[position] == units[columns.kind]:
            with suppress(Unaddressable):  # positions that depend on parameters, too
                position = columns.node("position", partial(np.arange, layout.size), (position,))
        entry = g.make("entry", position, value="eta")
        if name not in layout.continuous:
            entry = g.make("int", entry)
        self.read[name, index] = entry
        return entry


def flat_position(graph: Graph, index: Index, shape: Sequence[int]) -> int:
    """Return the position of an element in the flattened array."""
    position = graph.const(0)
    for i, n in zip(index, shape):
        position = graph.make("add", graph.make("mul", position, graph.const(n)), i)
    return position


# --- elements -------------------------------------------------------------------------------------------


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
        columns: Columns,
        families: Families | None = None,
        loops: bool = True,
    ):
        self.graph = graph
        self.make, self.const, self.fold = graph.make, graph.const, graph.fold
        self.leaves = dict(leaves)
        self.columns = columns
        self.families, self.loops = families, loops
        self.may_be_negative = cache(columns.may_be_negative)
        self._memo: dict[tuple[Variable, Index], int] = {}

    def element(self, variable: Variable, index: Index = ()) -> int:
        """Return the expression of one element; raise NotScalar if an operation has none.

        An index of an array that the variable is broadcast to has more axes, or others where it has length 1.
        """
        shape = variable.type.shape
        own = index[len(index) - len(shape) :]
        index = tuple(self.const(0) if n == 1 else i for n, i in zip(shape, own))
        key = variable, index
        if key in self._memo:
            return self._memo[key]
        if len(self.graph.nodes) > _MOST_NODES:
            raise NotScalar(f"it takes more than {_MOST_NODES} operations a row")
        try:
            if variable in self.leaves:
                out = self.leaves[variable](index)
            elif isinstance(variable, Constant):
                data = np.asarray(variable.data)
                numbers = [self.graph.numbers[i] for i in index]
                if data.size == 1:
                    out = self.const(data.item())
                elif None in numbers:
                    out = self.columns.node(("table", id(data)), lambda: data, index)
                else:
                    out = self.const(data[tuple(numbers)].item())
            elif variable.owner is None:
                raise NotScalar(f"it depends on {variable}")
            else:
                out = _of_operation(self, variable, index)
        except Unaddressable:
            out = self._each_case(variable, index)
        except RecursionError as error:
            raise NotScalar("its graph is too deep") from error
        self._memo[key] = out
        return out

    def _each_case(self, variable: Variable, index: Index) -> int:
        """Return a switch among the elements along an axis whose index depends on data."""
        shape = self.shape(variable)
        open_axes = [k for k, i in enumerate(index) if self.graph.numbers[i] is None]
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

    def number(self, node: int) -> int:
        """Return the value of an integer constant."""
        value = self.graph.numbers[node]
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


def _with_entry(index: Index, axis: int, entry: int) -> Index:
    """Return an index with another entry along an axis."""
    return (*index[:axis], entry, *index[axis + 1 :])


def _of_operation(r: ElementReader, variable: Variable, index: Index) -> int:
    """Read an element of the result of an operation."""
    node, op, inputs = variable.owner, variable.owner.op, variable.owner.inputs
    match op:
        case Elemwise() | ScalarOp():
            return _elementwise(r, node, index)
        case DimShuffle():
            at, ndim = dict(zip(op.new_order, index)), inputs[0].type.ndim
            return r.element(inputs[0], tuple(at.get(axis, r.const(0)) for axis in range(ndim)))
        case CAReduce() | Softmax() | LogSoftmax() | LogSumExp():
            return _along_axes(r, node, index)
        case LogAddExp():
            return _log_sum_exp(r, [r.element(i, index) for i in inputs])
        case Dot():
            return _dot_product(r, node, index)
        case Blockwise() if type(op.core_op).__name__ in _OF_MATRICES:
            return _OF_MATRICES[type(op.core_op).__name__](r, node, index)
        case subtensor.Subtensor() | subtensor.AdvancedSubtensor():
            return _subtensor(r, node, index)
        case subtensor.IncSubtensor() | subtensor.AdvancedIncSubtensor():
            return _set_subtensor(r, node, index)
        case Reshape():
            return _reshape(r, node, index)
        case basic.Join():
            return _join(r, node, index)
        case basic.Split():
            return _split(r, node, index, node.outputs.index(variable))
        case CumOp():
            return _cumulate(r, node, index)
        case basic.ExtractDiag():
            return _diagonal(r, node, index)
        case CheckParameterValue():  # -inf where a condition on its parameters fails
            out, *conditions = r.element(inputs[0], index), *map(r.element, inputs[1:])
            return r.make("switch", r.fold("and", [r.const(True), *conditions]), out, -np.inf)
        case basic.ARange():
            start, _, step = map(r.element, inputs)
            return r.make("add", start, r.make("mul", step, index[0]))
        case basic.MakeVector():
            return r.element(inputs[r.number(index[0])])
        case Shape():
            return r.const(r.shape(inputs[0])[r.number(index[0])])
        case TensorFromXTensor() | XTensorFromTensor() | SpecifyShape() | basic.Alloc():
            return r.element(inputs[0], index)
        case basic.ScalarFromTensor() | basic.TensorFromScalar():
            return r.element(inputs[0], index)
    name = type(op.core_op if isinstance(op, Blockwise) else op).__name__
    raise NotScalar(f"{name} has no scalar form")


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

#: Operations on truth values, which PyTensor also applies to the bits of integers.
_TRUTH_ONLY = {"AND", "OR", "XOR", "Invert"}


def _elementwise(r: ElementReader, node, index: Index) -> int:
    """Read an element of an elementwise operation, or the result of one on scalars, as in the indices of slices."""
    op = node.op.scalar_op if isinstance(node.op, Elemwise) else node.op
    name, dtype = type(op).__name__.removeprefix("Scalar"), node.outputs[0].type.dtype
    if name == "Switch":  # the branch that is not taken may be invalid
        known = r.graph.numbers[r.element(node.inputs[0], index)]
        if known is not None:
            return r.element(node.inputs[1 if known else 2], index)
    if name == "Second":
        return r.element(node.inputs[1], index)
    args = [r.element(i, index) for i in node.inputs]
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
    "Identity": lambda r, x: x,
}


def _along_axes(r: ElementReader, node, index: Index) -> int:
    """Read an element of a reduction, as a sum or product, or of a softmax along axes."""
    (x,), op = node.inputs, node.op
    ndim = x.type.ndim
    axes = {int(a) % ndim for a in np.atleast_1d(range(ndim) if op.axis is None else op.axis)}
    fixed = iter(i for a, i in enumerate(index) if len(index) < ndim or a not in axes)
    own = [None if a in axes else next(fixed) for a in range(ndim)]
    block = [n for i, n in zip(own, r.shape(x)) if i is None]
    at = []
    for numbers in np.ndindex(*block):
        entry = map(r.const, numbers)
        at.append(tuple(next(entry) if i is None else i for i in own))
    name = type(op.scalar_op).__name__.removeprefix("Scalar") if isinstance(op, CAReduce) else ""
    if name == "Add" and len(axes) == 1 and isinstance(getattr(x.owner, "op", None), Elemwise):
        factors = x.owner.inputs
        if isinstance(x.owner.op.scalar_op, Mul) and len(factors) == 2:
            return _sum_of_products(r, *([r.element(f, i) for i in at] for f in factors))
    terms = [r.element(x, i) for i in at]
    if not name:
        log = _log_sum_exp(r, terms)
        if isinstance(op, LogSumExp):
            return log
        out = r.make("sub", r.element(x, index), log)
        return out if isinstance(op, LogSoftmax) else r.make("exp", out)
    if name not in _FOLDS or not (terms or name in _EMPTY):
        raise NotScalar(f"a reduction by {name} of {len(terms)} elements has no scalar form")
    return r.fold(name.lower(), terms) if terms else r.const(_EMPTY[name])


def _sum_of_products(r: ElementReader, left: Sequence[int], right: Sequence[int]) -> int:
    """Return a sum of products.

    A long one of columns and consecutive entries, or functions of parameters of the same form, is a loop.
    """
    g = r.graph
    for data, factors in ((left, right), (right, left)) if len(left) >= _LONG else ():
        columns = [g.nodes[d] for d in data]
        columns = [g.nodes[c.args[0]] if c.op == "float" else c for c in columns]
        if any(c.op != "column" for c in columns):
            continue
        first, entries = None, [g.nodes[f] for f in factors]
        if r.loops and all((e.op, e.value) == ("entry", "eta") for e in entries):
            places = [g.numbers[e.args[0]] for e in entries]
            if None not in places and np.all(np.diff(places) == 1):
                first = int(places[0])
        if first is None and r.families is not None and not any(g.depends[f] for f in factors):
            first = r.families.add(factors)
        if first is not None:
            return g.make("dot", value=("eta", first, tuple(c.value for c in columns)))
    return g.fold("add", [r.make("mul", x, y) for x, y in zip(left, right)])


def _dot_product(r: ElementReader, node, index: Index) -> int:
    """Read an element of a product of matrices or vectors."""
    a, b = node.inputs
    batch = index[: max(0, b.type.ndim - 2)]
    rows, columns = index[: a.type.ndim - 1], index[a.type.ndim - 1 :]
    inner = a.type.shape[-1] or r.shape(b)[len(batch)]
    steps = [r.const(k) for k in range(inner)]
    left = [r.element(a, (*rows, k)) for k in steps]
    right = [r.element(b, (*batch, k, *columns)) for k in steps]
    return _sum_of_products(r, left, right)


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
    total = r.fold("add", [r.make("exp", r.make("sub", t, top)) for t in terms])
    return r.make("add", r.make("log", total), top)


# --- indexing, shapes --------------------------------------------------------------------------------


def _slice(r: ElementReader, at: slice) -> slice:
    """Return a slice of constants with their numbers."""
    ends = at.start, at.stop, at.step
    return slice(*(p if isinstance(p, int | None) else r.number(r.element(p)) for p in ends))


def _inside(r: ElementReader, i: int, length: int) -> int:
    """Return an index from the start for one that may count from the end."""
    number = r.graph.numbers[i]
    if number is not None:
        return r.const(int(number) + length if number < 0 else int(number))
    if not r.may_be_negative(i):
        return i
    return r.make("switch", r.make("lt", i, r.const(0)), r.make("add", i, r.const(length)), i)


def _parts(node, x: Variable, rest: Sequence[Variable]) -> list:
    """Return what a node selects along each axis of x: a slice, a number or an array."""
    parts = list(subtensor.indices_from_subtensor(rest, node.op.idx_list))
    return parts + [slice(None)] * (x.type.ndim - len(parts))


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
            own.append(_inside(r, r.element(part, at), length))
    return r.element(x, tuple(own))


def _set_subtensor(r: ElementReader, node, index: Index) -> int:
    """Read an element of an array of which a part was set or incremented."""
    x, y, *rest = node.inputs
    shape = r.shape(x)
    chosen = tuple(_known(r, p) for p in _parts(node, x, rest))
    places = np.arange(math.prod(shape)).reshape(shape)[chosen]
    own = np.ravel_multi_index([r.number(i) for i in index], shape)
    found = [r.element(y, tuple(map(r.const, at))) for at in np.argwhere(places == own).tolist()]
    if found and node.op.set_instead_of_inc:
        return found[-1]
    return r.fold("add", [r.element(x, index), *found])


def _known(r: ElementReader, part) -> slice | np.ndarray:
    """Return what is selected along an axis, which must not depend on data."""
    if isinstance(part, slice):
        return _slice(r, part)
    shape = r.shape(part)
    numbers = [r.number(r.element(part, tuple(map(r.const, at)))) for at in np.ndindex(*shape)]
    return np.array(numbers, part.type.dtype).reshape(shape)


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


def _join(r: ElementReader, node, index: Index) -> int:
    """Read an element of joined tensors."""
    axis = node.op.axis % len(index)
    sizes = [r.shape(p)[axis] for p in node.inputs]
    ends = np.cumsum(sizes)
    number = r.graph.numbers[index[axis]]
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


def _split(r: ElementReader, node, index: Index, which: int) -> int:
    """Read an element of one part of a split tensor."""
    axis = node.op.axis
    start = sum(r.number(r.element(node.inputs[1], (r.const(k),))) for k in range(which))
    own = r.make("add", index[axis], r.const(start))
    return r.element(node.inputs[0], _with_entry(index, axis, own))


def _diagonal(r: ElementReader, node, index: Index) -> int:
    """Read an element of a diagonal."""
    op, (x,), own = node.op, node.inputs, list(index[:-1])
    if op.offset != 0:
        raise NotScalar("a diagonal off the main one has no scalar form")
    for axis in sorted((op.axis1 % x.type.ndim, op.axis2 % x.type.ndim)):
        own.insert(axis, index[-1])
    return r.element(x, tuple(own))


# --- matrices -----------------------------------------------------------------------------------


def _matrix(r: ElementReader, variable, batch: Index) -> Callable[[int, int], int]:
    """Return the function that reads entries of a matrix in a batch."""
    return lambda i, j: r.element(variable, (*batch, r.const(i), r.const(j)))


def _cholesky(r: ElementReader, node, index: Index) -> int:
    """Apply the Cholesky-Banachiewicz algorithm, one entry at a time."""
    if not node.op.core_op.lower:
        raise NotScalar("an upper Cholesky factor has no scalar form")
    i, j = r.number(index[-2]), r.number(index[-1])
    if j > i:
        return r.const(0.0)
    a, factor = (_matrix(r, m, index[:-2]) for m in (node.inputs[0], node.outputs[0]))
    known = r.fold("add", [r.make("mul", factor(i, k), factor(j, k)) for k in range(j)])
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
    taken = r.fold("add", [r.make("mul", matrix(i, k), solution(k)) for k in known])
    left = r.make("sub", r.element(b, (*batch, r.const(i), *tail)), taken)
    return left if op.unit_diagonal else r.make("div", left, matrix(i, i))


#: Functions that read an element of a product or a decomposition of each matrix in a batch.
_OF_MATRICES: dict[str, Callable[..., int]] = {
    "Cholesky": _cholesky, "SolveTriangular": _solve_triangular, "Dot": _dot_product
}  # fmt: skip
