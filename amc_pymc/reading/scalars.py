"""Conversion of PyTensor graphs to scalar expressions, one element at a time.

An element of a tensor is requested by its index, and requests in turn the elements of the inputs
from which it is computed. No other elements are visited: one gathered from a vector of a million
entries costs as much as one from a vector of two. Indices may be numbers or integer expressions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.scalar.basic import ScalarOp
from pytensor.tensor.basic import (
    Alloc,
    AllocEmpty,
    ARange,
    ExtractDiag,
    Join,
    MakeVector,
    ScalarFromTensor,
    Split,
    TensorFromScalar,
)
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.special import LogAddExp, LogSoftmax, LogSumExp, Softmax
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)
from pytensor.xtensor.basic import TensorFromXTensor, XTensorFromTensor

from amc_pymc.reading.element_math import (
    cumulate,
    dimshuffle,
    dot_product,
    elemwise,
    log_add_exp,
    log_sum_exp_of,
    products,
    reduce,
    same_element,
    scalar_node,
    softmax,
)
from amc_pymc.reading.element_places import (
    advanced_subtensor,
    alloc,
    alloc_empty,
    arange,
    diagonal,
    join,
    make_vector,
    reshape,
    set_advanced,
    set_subtensor,
    shape_entry,
    shape_vector,
    split,
    subtensor,
)
from amc_pymc.reading.element_reader import ElementReader, Index, NotScalar, Unaddressable
from amc_pymc.reading.graphs import opened, rebuilt

__all__ = ["Index", "NotScalar", "Reader", "Unaddressable", "stabilised"]


def stabilised(output: Variable) -> Variable:
    """Return the graph as PyTensor would compute it: inner graphs inlined, numerically stable."""
    (out,) = rebuilt([output], {}, _open_inner)
    graph = FunctionGraph(outputs=[out], clone=True, copy_inputs=False)
    _stabilising().rewrite(graph)
    return graph.outputs[0]


@cache
def _stabilising() -> GraphRewriter:
    return optdb.query(RewriteDatabaseQuery(include=("canonicalize", "stabilize")))


def _open_inner(node, inputs):
    return opened(node, inputs, _open_inner) if isinstance(node.op, OpFromGraph) else None


# --- matrices -----------------------------------------------------------------------------------


def _blockwise(r: ElementReader, node, index: Index) -> int:
    name = type(node.op.core_op).__name__
    rule = {"Cholesky": _cholesky, "SolveTriangular": _solve_triangular, "Dot": _batched_dot}
    if name not in rule:
        raise NotScalar(f"{name} has no scalar form")
    return rule[name](r, node, index)


def _matrix(r: ElementReader, variable, batch: Index) -> Callable[[int, int], int]:
    """Return the function that reads entries of a matrix in a batch."""
    own = _batch(r, variable, batch, 2)
    return lambda i, j: r.element(variable, (*own, r.const(i), r.const(j)))


def _cholesky(r: ElementReader, node, index: Index) -> int:
    """Apply the Cholesky-Banachiewicz algorithm, one entry at a time."""
    i, j = r.number(index[-2]), r.number(index[-1])
    if not node.op.core_op.lower:
        i, j = j, i
    if j > i:
        return r.const(0.0)
    a = _matrix(r, node.inputs[0], index[:-2])
    out = node.outputs[0]

    def entry(row, column):
        at = (row, column) if node.op.core_op.lower else (column, row)
        return r.element(out, (*index[:-2], r.const(at[0]), r.const(at[1])))

    known = r.graph.sum([r.make("mul", entry(i, k), entry(j, k)) for k in range(j)])
    left = r.make("sub", a(i, j), known)
    return r.make("sqrt", left) if i == j else r.make("div", left, entry(j, j))


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

    own = _batch(r, b, batch, 2 if wide else 1)
    known = range(i) if op.lower else range(i + 1, size)
    taken = r.graph.sum([r.make("mul", matrix(i, k), solution(k)) for k in known])
    left = r.make("sub", r.element(b, (*own, r.const(i), *tail)), taken)
    return left if op.unit_diagonal else r.make("div", left, matrix(i, i))


def _batched_dot(r: ElementReader, node, index: Index) -> int:
    left, right = node.inputs
    inner = left.type.shape[-1]
    inner = r.shape(right)[-2] if inner is None else inner
    rows = _entries_of(r, left, index[:-2], index[-2], inner, last=True)
    columns = _entries_of(r, right, index[:-2], index[-1], inner, last=False)
    return products(r, rows, columns)


def _entries_of(r: ElementReader, variable, batch, fixed, inner, *, last) -> list[int]:
    """Return a row (``last``) or a column of a matrix in a batch."""
    own = _batch(r, variable, batch, 2)
    fixed = r.const(0) if variable.type.shape[-2 if last else -1] == 1 else fixed
    steps = [r.const(k) for k in range(inner)]
    return [r.element(variable, (*own, *((fixed, k) if last else (k, fixed)))) for k in steps]


def _batch(r: ElementReader, variable, batch: Index, core: int) -> Index:
    """Return the part of a batch index that applies to an input with ``core`` core dimensions."""
    shape = variable.type.shape[: variable.type.ndim - core]
    own = batch[len(batch) - len(shape) :] if shape else ()
    return tuple(r.const(0) if n == 1 else i for n, i in zip(shape, own))


def _check(r: ElementReader, node, index: Index) -> int:
    """Read a value that is -inf where a condition on its parameters fails."""
    value, *conditions = node.inputs
    out = r.element(value, index)
    holds = r.const(True)
    for c in conditions:
        holds = r.make("and", holds, r.element(c))
    return r.make("switch", holds, out, r.const(-np.inf))


def _rules() -> dict[type, Callable]:
    from pymc.logprob.utils import CheckParameterValue

    return {
        LogAddExp: log_add_exp,
        CheckParameterValue: _check,
        TensorFromXTensor: same_element,
        XTensorFromTensor: same_element,
        Elemwise: elemwise,
        ScalarOp: scalar_node,
        DimShuffle: dimshuffle,
        CAReduce: reduce,
        Dot: dot_product,
        CumOp: cumulate,
        Softmax: softmax,
        LogSoftmax: softmax,
        LogSumExp: log_sum_exp_of,
        Subtensor: subtensor,
        AdvancedSubtensor: advanced_subtensor,
        IncSubtensor: set_subtensor,
        AdvancedIncSubtensor: set_advanced,
        Reshape: reshape,
        Join: join,
        Split: split,
        MakeVector: make_vector,
        Alloc: alloc,
        AllocEmpty: alloc_empty,
        Shape: shape_vector,
        Shape_i: shape_entry,
        SpecifyShape: same_element,
        ARange: arange,
        ExtractDiag: diagonal,
        ScalarFromTensor: same_element,
        TensorFromScalar: same_element,
        Blockwise: _blockwise,
    }


class Reader(ElementReader):
    """Reader that knows PyTensor's operations."""

    rules = _rules()
