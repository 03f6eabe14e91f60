"""Elements of elementwise operations, reductions, products and cumulative sums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytensor.graph.basic import Constant
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.special import LogSoftmax

from amc_pymc.engine import Graph
from amc_pymc.engine.families import DERIVED
from amc_pymc.reading.element_reader import ElementReader, Index, NotScalar

__all__ = [
    "cumulate",
    "dimshuffle",
    "dot_product",
    "elemwise",
    "log_add_exp",
    "log_sum_exp_of",
    "products",
    "reduce",
    "same_element",
    "scalar_node",
    "softmax",
]


#: Smallest number of terms of a dot product that becomes a loop.
_LONG = 4

_SAME = {
    "Sub": "sub", "TrueDiv": "div", "Neg": "neg", "Pow": "pow", "Exp": "exp", "Expm1": "expm1",
    "Log": "log", "Log1p": "log1p", "Sqrt": "sqrt", "Sigmoid": "sigmoid", "Softplus": "softplus",
    "Log1mexp": "log1mexp", "Sin": "sin", "Cos": "cos", "Tan": "tan", "Tanh": "tanh",
    "Sinh": "sinh", "Cosh": "cosh", "ArcTan": "arctan", "Erf": "erf", "Erfc": "erfc",
    "Erfcx": "erfcx", "GammaLn": "gammaln", "Psi": "digamma",
    "ArcSin": "arcsin", "ArcCos": "arccos", "ArcSinh": "arcsinh", "ArcCosh": "arccosh",
    "ArcTanh": "arctanh", "Gamma": "gamma", "I0e": "bessel_i0e", "I1e": "bessel_i1e", "Abs": "abs", "Sign": "sign", "Floor": "floor", "Ceil": "ceil", "IntDiv": "floordiv",
    "Mod": "mod", "Switch": "switch", "LT": "lt", "GT": "gt", "LE": "le", "GE": "ge", "EQ": "eq",
    "NEQ": "ne", "XOR": "xor", "IsNan": "isnan", "IsInf": "isinf", "Invert": "not",
}  # fmt: skip

_FOLDS = {
    "Add": "add",
    "Mul": "mul",
    "AND": "and",
    "OR": "or",
    "Maximum": "maximum",
    "ScalarMaximum": "maximum",
    "Minimum": "minimum",
    "ScalarMinimum": "minimum",
}

#: Values of reductions of no elements.
_EMPTY = {"Add": 0.0, "Mul": 1.0, "AND": True, "OR": False}

_TRUTH_ONLY = {"AND", "OR", "XOR", "Invert"}


def _scalar(r: ElementReader, op, args: Sequence[int], dtype: str) -> int:
    """Add a scalar operation on expressions."""
    name = type(op).__name__
    if name in _TRUTH_ONLY and any(r.graph.nodes[a].kind != "b" for a in args):
        raise NotScalar(f"{name} of numbers has no scalar form")
    if name in _SAME:
        return r.make(_SAME[name], *args)
    if name in _FOLDS:
        total = args[0]
        for a in args[1:]:
            total = r.make(_FOLDS[name], total, a)
        return total
    if name == "Sqr":
        return r.make("mul", args[0], args[0])
    if name == "Reciprocal":
        return r.make("div", r.const(1.0), args[0])
    if name == "Clip":
        return r.make("minimum", r.make("maximum", args[0], args[1]), args[2])
    if name == "Log2" or name == "Log10":
        scale = 1.0 / np.log(2.0 if name == "Log2" else 10.0)
        return r.make("mul", r.const(scale), r.make("log", args[0]))
    if name == "Exp2":
        return r.make("exp", r.make("mul", r.const(float(np.log(2.0))), args[0]))
    if name in ("I0", "I1"):
        scaled = r.make(f"bessel_{name.lower()}e", args[0])
        return r.make("mul", r.make("exp", r.make("abs", args[0])), scaled)
    if name in ("GammaInc", "GammaIncC"):
        return _incomplete_gamma(r, name, *args)
    if name == "BetaInc":
        return _incomplete_beta(r, *args)
    if name == "Trunc":
        down, up = r.make("floor", args[0]), r.make("ceil", args[0])
        return r.make("switch", r.make("lt", args[0], r.const(0.0)), up, down)
    if name == "LogAddExp":
        return _log_sum_exp(r, args)
    if name == "Second":
        return args[1]
    if name == "Identity":
        return args[0]
    if name == "Cast":
        return _cast(r, args[0], dtype)
    if name == "Composite":
        memo = dict(zip(op.fgraph.inputs, args))
        for node in op.fgraph.toposort():
            inner = [r._number(i.data) if isinstance(i, Constant) else memo[i] for i in node.inputs]
            memo[node.outputs[0]] = _scalar(r, node.op, inner, node.outputs[0].type.dtype)
        return memo[op.fgraph.outputs[0]]
    raise NotScalar(f"{name} has no scalar form")


def _incomplete_gamma(r: ElementReader, name: str, k: int, x: int) -> int:
    """Add an incomplete Gamma function that is a finite sum, which has all derivatives."""
    shape = r.whole(k)
    if shape == 1 and name == "GammaInc":
        return r.make("neg", r.make("expm1", r.make("neg", x)))
    if name == "GammaInc" or shape is None:
        raise NotScalar(f"{name} has no scalar form")
    term = total = r.const(1.0)
    for j in range(1, shape):
        term = r.make("div", r.make("mul", term, x), r.const(float(j)))
        total = r.make("add", total, term)
    return r.make("mul", r.make("exp", r.make("neg", x)), total)


def _incomplete_beta(r: ElementReader, a: int, b: int, x: int) -> int:
    """Add I_x(a, b) for an integer b: x^a times a polynomial of degree b - 1 in 1 - x."""
    shape = r.whole(b)
    if shape is None:
        raise NotScalar("BetaInc has no scalar form")
    rest = r.make("sub", r.const(1.0), x)
    term = total = r.const(1.0)
    for j in range(1, shape):
        rising = r.make("add", a, r.const(float(j - 1)))
        term = r.make("mul", term, r.make("div", r.make("mul", rising, rest), r.const(float(j))))
        total = r.make("add", total, term)
    return r.make("mul", r.make("exp", r.make("mul", a, r.make("log", x))), total)


def _cast(r: ElementReader, node: int, dtype: str) -> int:
    if dtype.startswith("float"):
        return r.make("float", node)
    if dtype == "bool":
        return node if r.graph.nodes[node].kind == "b" else r.make("ne", node, r.const(0))
    return r.make("int", node)


def elemwise(r: ElementReader, node, index: Index) -> int:
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


def scalar_node(r: ElementReader, node, index: Index) -> int:
    """Read an operation on scalars, as in the indices of slices."""
    args = [r.element(i) for i in node.inputs]
    return _scalar(r, node.op, args, node.outputs[0].type.dtype)


def dimshuffle(r: ElementReader, node, index: Index) -> int:
    """Read an element of a tensor with its axes in another order."""
    own = [r.const(0)] * node.inputs[0].type.ndim
    for k, axis in enumerate(node.op.new_order):
        if axis != "x":
            own[axis] = index[k]
    return r.element(node.inputs[0], tuple(own))


def same_element(r: ElementReader, node, index: Index) -> int:
    """Read the same element of the input."""
    return r.element(node.inputs[0], index)


def reduce(r: ElementReader, node, index: Index) -> int:
    """Read an element of a sum, product or another reduction."""
    (x,) = node.inputs
    axes = _axes(node.op.axis, x.type.ndim)
    shape = r.shape(x)
    kept = iter(index)
    own = [None if a in axes else next(kept) for a in range(x.type.ndim)]
    name = type(node.op.scalar_op).__name__
    if name == "Add":
        loop = _long_dot(r, x, own, axes, shape)
        if loop is not None:
            return loop
    terms = _block(r, x, own, axes)
    if name not in _FOLDS or not (terms or name in _EMPTY):
        raise NotScalar(f"a reduction by {name} of {len(terms)} elements has no scalar form")
    if not terms:
        return r.const(_EMPTY[name])
    total = terms[0]
    for t in terms[1:]:
        total = r.make(_FOLDS[name], total, t)
    return total


def _block(r: ElementReader, x, own: Sequence, axes: Sequence[int]) -> list[int]:
    """Return the elements of x at an index whose entries are None along some axes."""
    out = []
    for block in r.over([r.shape(x)[a] for a in axes]):
        at = iter(block)
        out.append(r.element(x, tuple(next(at) if i is None else i for i in own)))
    return out


def _long_dot(r: ElementReader, x, own, axes, shape) -> int | None:
    """Return a long sum of products of data and consecutive parameters as a loop, or None."""
    node = x.owner
    if len(axes) != 1 or shape[axes[0]] < _LONG or node is None:
        return None
    if not (isinstance(node.op, Elemwise) and type(node.op.scalar_op).__name__ == "Mul"):
        return None
    if len(node.inputs) != 2:
        return None
    (axis,) = axes
    at = [tuple(r.const(k) if i is None else i for i in own) for k in range(shape[axis])]
    left = [r.broadcast(node.inputs[0], i) for i in at]
    right = [r.broadcast(node.inputs[1], i) for i in at]
    return _loop(r, left, right)


def _loop(r: ElementReader, left: Sequence[int], right: Sequence[int]) -> int | None:
    """Return a dot product of columns with consecutive entries or derived coefficients, or None."""
    g = r.graph
    for data, entries in ((left, right), (right, left)):
        found = [_column(g, d) for d in data]
        if None in found:
            continue
        positions = []
        for e in entries:
            n = g.nodes[e]
            positions.append(g.number(n.args[0]) if n.op == "entry" else None)
        if None in positions or {g.nodes[e].value for e in entries} != {"eta"}:
            continue
        first = int(positions[0])
        if positions == list(range(first, first + len(positions))):
            return g.leaf("dot", ("eta", first, tuple(found)))
    return _derived_loop(r, left, right)


def _derived_loop(r: ElementReader, left: Sequence[int], right: Sequence[int]) -> int | None:
    """Return a dot product of columns with functions of parameters of the same form, or None."""
    g = r.graph
    if r.families is None:
        return None
    for data, coefficients in ((left, right), (right, left)):
        columns = [_column(g, d) for d in data]
        if None in columns or any(g.depends(c) for c in coefficients):
            continue
        first = r.families.add(coefficients)
        if first is not None:
            return g.leaf("dot", (DERIVED, first, tuple(columns)))
    return None


def _column(g: Graph, node: int) -> int | None:
    """Return the number of the column that an expression is, or None."""
    n = g.nodes[node]
    if n.op == "float":
        n = g.nodes[n.args[0]]
    return n.value if n.op == "column" else None


def products(r: ElementReader, left: Sequence[int], right: Sequence[int]) -> int:
    """Return a sum of products."""
    if len(left) >= _LONG:
        loop = _loop(r, left, right)
        if loop is not None:
            return loop
    return r.graph.sum([r.make("mul", a, b) for a, b in zip(left, right)])


def dot_product(r: ElementReader, node, index: Index) -> int:
    """Read an element of a product of matrices or vectors."""
    a, b = node.inputs
    inner = a.type.shape[-1]
    if inner is None:
        inner = r.shape(b)[0]
    rows, columns = index[: a.type.ndim - 1], index[a.type.ndim - 1 :]
    steps = [r.const(k) for k in range(inner)]
    left = [r.element(a, (*rows, k)) for k in steps]
    right = [r.element(b, (k, *columns)) for k in steps]
    return products(r, left, right)


def cumulate(r: ElementReader, node, index: Index) -> int:
    """Read an element of a cumulative sum or product."""
    (x,) = node.inputs
    if node.op.axis is None and x.type.ndim > 1:
        raise NotScalar("a cumulative sum over several axes has no scalar form")
    axis = (node.op.axis or 0) % x.type.ndim
    last = r.number(index[axis])
    op = {"add": "add", "mul": "mul"}[node.op.mode]
    total = r.element(x, (*index[:axis], r.const(0), *index[axis + 1 :]))
    for k in range(1, last + 1):
        total = r.make(op, total, r.element(x, (*index[:axis], r.const(k), *index[axis + 1 :])))
    return total


def _log_sum_exp(r: ElementReader, terms: Sequence[int]) -> int:
    shifts = {r.graph.nodes[t].args[1] for t in terms if r.graph.nodes[t].op == "sub"}
    if len(shifts) == 1 and all(r.graph.nodes[t].op == "sub" for t in terms):
        # The largest term was subtracted before.
        inside = _log_sum_exp(r, [r.graph.nodes[t].args[0] for t in terms])
        return r.make("sub", inside, *shifts)
    top = terms[0]
    for t in terms[1:]:
        top = r.make("maximum", top, t)
    # The result does not depend on the shift, which must be finite to avoid inf - inf.
    top = r.make("held", r.make("switch", r.make("isinf", top), r.const(0.0), top))
    total = r.graph.sum([r.make("exp", r.make("sub", t, top)) for t in terms])
    return r.make("add", r.make("log", total), top)


def log_add_exp(r: ElementReader, node, index: Index) -> int:
    """Read an element of the log of a sum of exponentials of inputs."""
    return _log_sum_exp(r, [r.broadcast(i, index) for i in node.inputs])


def softmax(r: ElementReader, node, index: Index) -> int:
    """Read an element of a softmax or its logarithm."""
    (x,) = node.inputs
    axes = _axes(node.op.axis, x.type.ndim)
    own = [None if a in axes else i for a, i in enumerate(index)]
    out = r.make("sub", r.element(x, index), _log_sum_exp(r, _block(r, x, own, axes)))
    return out if isinstance(node.op, LogSoftmax) else r.make("exp", out)


def _axes(axis, ndim: int) -> tuple[int, ...]:
    return tuple(range(ndim)) if axis is None else tuple(int(a) % ndim for a in np.atleast_1d(axis))


def log_sum_exp_of(r: ElementReader, node, index: Index) -> int:
    """Read an element of the log of a sum of exponentials along axes."""
    (x,) = node.inputs
    axes = _axes(node.op.axis, x.type.ndim)
    kept = iter(index)
    own = [None if a in axes else next(kept) for a in range(x.type.ndim)]
    return _log_sum_exp(r, _block(r, x, own, axes))
