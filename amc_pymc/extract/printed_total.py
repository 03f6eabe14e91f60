"""A scalar graph of a flat vector as printed code, which compiles in a fraction of the time."""

from __future__ import annotations

import logging

import numpy as np
import pytensor.tensor as pt

from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import TensorType

from amc_pymc.expressions import Graph
from amc_pymc.expressions.kernels import HEADER, load_kernels
from amc_pymc.expressions.source import print_function
from amc_pymc.extract.graphs import lowered, rebuilt
from amc_pymc.extract.row_program import Columns, element_reader
from amc_pymc.extract.rows import data_frontier, evaluated
from amc_pymc.extract.scalars import Index, NotScalar, stabilised

__all__ = ["printed_total"]

_log = logging.getLogger("amc_pymc")
#: Operations up to which code without loops compiles faster than PyTensor's vector operations, and
#: entries of an array that may be among them.
_MOST_OPERATIONS, _MOST_ENTRIES = 800, 200


def printed_total(x: Variable, total: Variable):
    """Numba function ``x (D,) -> float`` of a scalar graph; None if it is large or not scalar.

    Parameters
    ----------
    x : vector variable
        Of static shape.
    total : scalar variable
        Data that it reads become constants.
    """
    try:
        graph = Graph()
        node = _expression(graph, x, total)
        size = len(graph.upstream([node]))
        if size > _MOST_OPERATIONS:
            raise NotScalar(f"it takes {size} operations")
    except (NotScalar, RecursionError) as error:
        _log.debug("Priors are compiled by PyTensor: %s", error)
        return None
    lines = print_function(graph, "total", ("eta",), [node], {})
    return load_kernels("\n".join([HEADER, *lines, _ENTRY])).value


_ENTRY = """
@njit(cache=True, error_model='numpy')
def value(eta):
    return total(eta)[0]
"""


def _expression(graph: Graph, x: Variable, total: Variable) -> int:
    """The node of a scalar graph."""
    (total,) = lowered([total])
    frontier = [
        v
        for v in data_frontier([total], [x])
        if not isinstance(v, Constant) and isinstance(v.type, TensorType)
    ]
    memo: dict[Variable, Variable] = {}
    for v, data in zip(frontier, evaluated(frontier, "prior")):
        memo[v] = pt.constant(np.asarray(data, dtype=v.type.dtype))
    new = x.type.clone()("x")
    (out,) = rebuilt([total], memo | {x: new})
    for v in ancestors([out]):
        if (
            isinstance(v.type, TensorType)
            and np.prod([n or 1 for n in v.type.shape]) > _MOST_ENTRIES
        ):
            raise NotScalar("it has a long array")

    def entry(index: Index) -> int:
        return graph.entry("eta", index[0])

    reader = element_reader(graph, {new: entry}, Columns(graph, "column"))
    return reader.element(stabilised(out), ())
