"""The terms of a model's log density without the raced rows, as families of scalar expressions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from pytensor.graph.basic import Variable
from pytensor.scalar.basic import Add
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise

from amc_pymc.engine import Family, Graph
from amc_pymc.reading.graphs import lowered, rebuilt
from amc_pymc.reading.layout import FlatLayout
from amc_pymc.reading.row_program import Columns, element_reader, parameter_leaf
from amc_pymc.reading.rows import constant_data
from amc_pymc.reading.scalars import NotScalar, stabilised

__all__ = ["prior_terms"]


def prior_terms(
    parts: Sequence[Variable], value_vars: Sequence[Variable], layout: FlatLayout
) -> tuple[Graph, list[Family]]:
    """Return families of terms whose sum is that of some log densities at x (D,).

    Parameters
    ----------
    parts : sequence of tensor variables
        Log densities in terms of ``value_vars``.
    value_vars : sequence of variables
    layout : FlatLayout
        Positions of the value variables in x; all of them are in it.

    Returns
    -------
    graph : Graph
    families : list of Family
        Expressions of entries of "eta", x, and columns of the tables.

    Raises
    ------
    NotScalar
    """
    graph = Graph()
    shapes = dict(zip(layout.names, layout.shapes))
    families = []
    for part in lowered(list(parts)):
        memo = constant_data(part, list(value_vars), "prior")
        inputs = {}
        for v in value_vars:
            new = v.type.clone(shape=shapes[v.name])(v.name)
            memo[v], inputs[new] = new, v.name
        (out,) = rebuilt([part], memo)
        for piece in _pieces(out):
            families.append(_family(graph, stabilised(piece), inputs, layout))
    return graph, families


def _pieces(total: Variable) -> list[Variable]:
    """Split a sum into tensors whose elements add up to it."""
    node = total.owner
    if node is not None:
        op = node.op
        if isinstance(op, CAReduce) and isinstance(op.scalar_op, Add) and total.type.ndim == 0:
            return _pieces(node.inputs[0])
        if isinstance(op, DimShuffle) and all(
            k == "x" for k in op.new_order if k not in op.shuffle
        ):
            return _pieces(node.inputs[0]) if not op.drop else [total]
        if isinstance(op, Elemwise) and isinstance(op.scalar_op, Add):
            shapes = {i.type.shape for i in node.inputs}
            if shapes == {total.type.shape}:
                return [piece for i in node.inputs for piece in _pieces(i)]
    return [total]


def _family(graph: Graph, tensor: Variable, inputs, layout: FlatLayout) -> Family:
    """Return the elements of a tensor as one expression with a table."""
    shape = tensor.type.shape
    if None in shape:
        raise NotScalar("the shape of a log density is not known")
    columns = Columns(graph, "column")
    numbers = np.indices(shape).reshape(len(shape), -1) if shape else np.zeros((0, 1), int)
    own = parameter_leaf(graph, layout, columns=[columns])
    leaves = {v: partial(own, name) for v, name in inputs.items()}
    index = tuple(
        graph.const(0) if n == 1 else columns.node(("index", k), partial(np.asarray, numbers[k]))
        for k, n in enumerate(shape)
    )
    expression = element_reader(graph, leaves, columns).element(tensor, index)
    (expression,), used = columns.used([expression])
    size = int(np.prod(shape))
    table = np.zeros((size, len(used)))
    for k, column in enumerate(used):
        table[:, k] = column.values
    return Family(expression, table, 0)
