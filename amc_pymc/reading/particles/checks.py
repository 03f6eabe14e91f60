"""Removal of parameter checks from graphs that are evaluated at many points at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pytensor.tensor as pt

from pymc.logprob.utils import CheckParameterValue
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import abs as absolute
from pytensor.scalar.basic import exp, ge, le, log, sqr, sub, switch
from pytensor.scalar.math import sigmoid, softplus
from pytensor.scan.op import Scan
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.variable import TensorConstant

from amc_pymc.reading.graphs import rebuilt

__all__ = ["without_checks"]

#: Ranges of functions, rounding included.
_RANGES = {
    **dict.fromkeys((exp, softplus, sqr, absolute), (0.0, np.inf)),
    sigmoid: (0.0, 1.0),
}


def without_checks(
    graphs: Sequence,
    replace: Mapping[Variable, Variable] | None = None,
    *,
    impossible: float = -np.inf,
) -> list:
    """Return graphs in which impossible parameters give a number instead of an error for all points.

    Single-precision constants are converted to double precision: PyTensor would take their logarithms in
    single precision, an error of 0.003 nat for 100,000 observations. Sums over no axis are removed because
    they cannot be vectorised.

    Parameters
    ----------
    graphs : sequence of variables
    replace : mapping of variables to variables, optional
        Replacements; the graph upstream of a replaced variable is not visited.
    impossible : float, default -inf
        Value of a log density with impossible parameters; other graphs become nan.

    Returns
    -------
    list of variables

    Examples
    --------
    >>> import pymc as pm
    >>> import pytensor.tensor as pt
    >>> from amc_pymc.reading.particles.checks import without_checks
    >>> sigma = pt.scalar("sigma")
    >>> (log_density,) = without_checks([pm.logp(pm.Normal.dist(0.0, sigma), 0.0)])
    >>> float(log_density.eval({sigma: -1.0}))
    -inf
    """
    known = dict(replace or {})
    found = ancestors(graphs, blockers=list(known))
    single = {v: v.astype("float64") for v in found if _is_single(v)}
    return rebuilt(graphs, single | known, partial(_unchecked, impossible))


def _is_single(v) -> bool:
    return isinstance(v, TensorConstant) and v.dtype == "float32"


def _unchecked(impossible: float, node, inputs):
    """Return the outputs that replace those of a node, or None to keep the node."""
    op = node.op
    if isinstance(op, CheckParameterValue):
        value, *conditions = inputs
        possible = pt.all([pt.all(c) for c in rebuilt(conditions, change=_certain)])
        return [pt.switch(possible, value, impossible if op.can_be_replaced_by_ninf else np.nan)]
    if _scalar_op(node) is switch:
        return _log_logistic(*inputs)
    if isinstance(op, CAReduce) and not inputs[0].type.ndim:
        return [inputs[0].astype(node.outputs[0].type.dtype)]
    if not (isinstance(op, OpFromGraph | Scan) and _has_checks(op)):
        return None
    if isinstance(op, OpFromGraph):
        known = dict(zip(node.inputs, inputs, strict=True))
        return without_checks(inline_ofg_node(node), known, impossible=impossible)
    loop = op.fgraph.unfreeze()
    outputs = without_checks(loop.outputs, impossible=impossible)
    loop = FunctionGraph(loop.inputs, outputs, clone=True)
    return op.clone_with_inner_graph(loop).make_node(*inputs).outputs


def _scalar_op(node):
    return getattr(getattr(node, "op", None), "scalar_op", None)


def _certain(node, inputs):
    """Replace a condition that holds by construction with True, which saves a test of every row."""
    op = _scalar_op(node)
    if op not in (ge, le):
        return None
    low, high = _RANGES.get(_scalar_op(inputs[0].owner), (-np.inf, np.inf))
    bound = _number(inputs[1])
    if (op is ge and low >= bound) or (op is le and high <= bound):
        return [pt.constant(np.ones((1,) * node.outputs[0].type.ndim, bool))]
    return None


def _log_logistic(condition, yes, no):
    """Return the log probability of an event or its complement with one softplus, or None."""
    if _scalar_op(yes.owner) is not log or _scalar_op(no.owner) is not log:
        return None
    p, rest = yes.owner.inputs[0], no.owner.inputs[0]
    if _scalar_op(p.owner) is not sigmoid or _scalar_op(rest.owner) is not sub:
        return None
    one, same = rest.owner.inputs
    if same is not p or _number(one) != 1.0:
        return None
    (x,) = p.owner.inputs
    return [-pt.softplus(pt.switch(condition, -x, x))]


def _number(variable) -> float:
    """Return the value of a constant of any shape; nan if it is not constant or has several values."""
    value = get_underlying_scalar_constant_value(variable, raise_not_constant=False)
    return np.nan if isinstance(value, Variable) else float(value)


def _has_checks(op) -> bool:
    return any(
        isinstance(n.op, CheckParameterValue)
        or any(_is_single(i) for i in n.inputs)
        or (isinstance(n.op, OpFromGraph | Scan) and _has_checks(n.op))
        for n in op.fgraph.toposort()
    )
