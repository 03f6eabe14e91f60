"""Log prior and log likelihood of a model as graphs, and reasons why evidence is not defined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc.distributions.censored import CensoredRV
from pymc.distributions.distribution import DiracDeltaRV, PartialObservedRV
from pymc.distributions.multivariate import CARRV
from pymc.distributions.simulator import SimulatorRV
from pymc.logprob.utils import CheckParameterValue
from pymc.util import get_transformed_name
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scan.op import Scan
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.variable import TensorConstant

from amc_pymc.reading.graphs import is_random, log_densities, rebuilt
from amc_pymc.reading.layout import FlatLayout
from amc_pymc.reading.particles.prior import IMPROPER

#: Distributions with point masses, which have no density.
_LUMPED = (CensoredRV, DiracDeltaRV)


def model_logp(model: Any, variables: Sequence[Variable]) -> Any:
    """Return the summed log density of some random variables and Potentials, Jacobians included."""
    total = pt.zeros((), "float64")
    for variable, part in zip(variables, log_densities(model, variables), strict=True):
        if is_random([part]):
            raise ValueError(
                f"the density of {variable.name!r} is random: it draws numbers, or rows by pm.Minibatch. "
                "Pass all rows, and name all random variables."
            )
        total += part.sum()
    random = [v for v in variables if v in model.rvs_to_values]
    return total + sum(_left_out(rv, model.rvs_to_values[rv]) for rv in random)


def _left_out(rv, value):
    """Return the terms that PyMC omits from a log density because they do not depend on parameters."""
    if not isinstance(rv.owner.op, CARRV):
        return 0.0
    _, neighbours, *_ = rv.owner.op.dist_params(rv.owner)
    counts = neighbours.sum(axis=neighbours.type.ndim - 2)
    return (pt.zeros_like(value) + 0.5 * pt.log(counts / (2.0 * np.pi))).sum()


def check_evidence_defined(model) -> None:
    """Refuse models whose evidence is undefined or differs from that of the model as written."""
    if not model.observed_RVs and not model.potentials:
        raise ValueError(
            "model has no likelihood: give a variable observed=, or add a pm.Potential, which counts as "
            "likelihood."
        )
    for rv in model.basic_RVs:
        if isinstance(rv.owner.op, SimulatorRV):
            raise ValueError(
                f"{rv.name!r} is a pm.Simulator, which has no likelihood; pm.sample_smc approximates its "
                "evidence."
            )
    for rv in model.observed_RVs:
        observed = model.rvs_to_values[rv]
        if isinstance(rv.owner.op, MinibatchRandomVariable) or is_random([observed]):
            raise ValueError(
                f"{rv.name!r} has total_size or pm.Minibatch data: its likelihood is scaled from a few "
                "rows. Give it all rows and no total_size."
            )
    for rv in model.free_RVs:
        _refuse_prior(rv, [other for other in model.basic_RVs if other is not rv])


def _refuse_prior(rv, others: list) -> None:
    for op in _ops(toposort([rv], blockers=others)):
        kind = type(op).__name__.removesuffix("RV")
        if isinstance(op, IMPROPER):
            raise ValueError(
                f"{rv.name!r} has an improper prior ({kind}): the evidence is not defined. Give it a "
                "proper distribution."
            )
        if isinstance(op, _LUMPED) and rv.dtype.startswith("float"):
            raise ValueError(
                f"{rv.name!r} has a prior with single values of positive probability ({kind}), which has "
                "no density. Introduce a discrete variable for them."
            )
    if isinstance(rv.owner.op, PartialObservedRV) and rv.owner.op.ndim_supp:
        raise ValueError(
            f"{rv.name!r} are missing values of a multivariate variable, whose density PyMC does not tell "
            "from that of the others. Leave rows with missing values out."
        )


def _ops(nodes):
    """Yield the operators of some nodes and of their inner graphs."""
    for node in nodes:
        yield getattr(node.op, "core_op", node.op)
        if isinstance(node.op, OpFromGraph):
            yield from _ops(node.op.fgraph.toposort())


def layout_of(model) -> FlatLayout:
    """Return names, shapes and dtypes of the value variables, without using initial values."""
    known, shapes = model.eval_rv_shapes(), []
    for rv in model.free_RVs:
        transform = model.rvs_to_transforms[rv]
        # A pm.Potential may have renamed a variable, but not its value.
        name = rv.name if transform is None else get_transformed_name(rv.name, transform)
        shapes.append(tuple(map(int, known[name])))
    values = model.value_vars
    return FlatLayout(tuple(v.name for v in values), tuple(shapes), tuple(v.dtype for v in values))


# --- checks of a model -----------------------------------------------------------------------------


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
    >>> from amc_pymc.reading.particles.model_terms import without_checks
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
        possible = pt.all([pt.all(c) for c in conditions])
        return [pt.switch(possible, value, impossible if op.can_be_replaced_by_ninf else np.nan)]
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


def _has_checks(op) -> bool:
    return any(
        isinstance(n.op, CheckParameterValue)
        or any(_is_single(i) for i in n.inputs)
        or (isinstance(n.op, OpFromGraph | Scan) and _has_checks(n.op))
        for n in op.fgraph.toposort()
    )
