"""Changes of PyTensor graphs, and what a model begins with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pytensor

from pytensor.compile.rewriting import inline_ofg_node
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.random.type import RandomType
from pytensor.xtensor.type import XTensorType

from amc_pymc.extract.interpreted import unrewritten_mode
from amc_pymc.extract.memo import remembered

__all__ = ["initial_point_of", "is_random", "lowered", "opened", "rebuilt"]


def initial_point_of(model) -> dict[str, np.ndarray]:
    """``model.initial_point()`` without a C compiler, which takes seconds for one call."""
    return {name: np.copy(value) for name, value in _initial_point(model).items()}


@remembered
def _initial_point(model) -> dict[str, np.ndarray]:
    with pytensor.config.change_flags(cxx="", mode=unrewritten_mode()):
        return model.initial_point()


def is_random(graphs: Iterable, given: Iterable = ()) -> bool:
    """Whether a generator is upstream; pm.Minibatch hides its draws in an inner graph.

    Nothing is looked at beyond the variables `given`.
    """
    return any(isinstance(v.type, RandomType) for v in ancestors(graphs, blockers=given))


def rebuilt(
    outputs: Sequence,
    replace: Mapping[Variable, Variable] | None = None,
    change: Callable | None = None,
) -> list:
    """Graphs with other inputs, in which nodes are made anew and so are static shapes.

    Parameters
    ----------
    outputs : sequence of variables
    replace : mapping of variables to variables, optional
        Nothing upstream of them is looked at.
    change : callable, optional
        ``change(node, inputs)`` returns other outputs of a node whose inputs are replaced already, or
        None for one that stays as it is but for its inputs.

    Returns
    -------
    list of variables

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from amc_pymc.extract.graphs import rebuilt
    >>> x, y = pt.vector("x"), pt.vector("y", shape=(3,))
    >>> (graph,) = rebuilt([pt.exp(x)], {x: y})
    >>> graph.type.shape, float(graph.eval({y: [0.0, 0.0, 0.0]}).sum())
    ((3,), 3.0)
    """
    memo = dict(replace or {})
    for node in toposort(outputs, blockers=list(memo)):
        if all(o in memo for o in node.outputs):
            continue
        inputs = [memo.get(i, i) for i in node.inputs]
        new = None if change is None else change(node, inputs)
        if new is None:
            if all(a is b for a, b in zip(inputs, node.inputs, strict=True)):
                continue
            new = node.op.make_node(*inputs).outputs
        for old, out in zip(node.outputs, new, strict=True):
            memo.setdefault(old, out)
    return [memo.get(o, o) for o in outputs]


def opened(node, inputs: Sequence, change: Callable | None = None) -> list:
    """What an inner graph makes of inputs, rebuilt without the node that it is inside of."""
    return rebuilt(inline_ofg_node(node), dict(zip(node.inputs, inputs, strict=True)), change)


def lowered(graphs: list) -> list:
    """Copies of graphs without named dimensions, which cannot be vectorised over particles."""
    if not any(isinstance(v.type, XTensorType) for v in ancestors(graphs)):
        return graphs
    graphs = clone_replace([getattr(g, "values", g) for g in graphs])
    return list(rewrite_graph(graphs, include=("lower_xtensor",), clone=False))
