"""A model's prior: many draws on the unconstrained scale, its log density as a graph, and reasons why evidence is not defined.

Initial values are not used.
"""

from __future__ import annotations

import logging
import math

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc.distributions.censored import CensoredRV
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pymc.distributions.custom import CustomSymbolicDistRV
from pymc.distributions.distribution import DiracDeltaRV, PartialObservedRV, SymbolicRandomVariable
from pymc.distributions.multivariate import CARRV, ICARRV
from pymc.distributions.shape_utils import change_dist_size
from pymc.distributions.simulator import SimulatorRV
from pymc.distributions.transforms import Ordered
from pymc.logprob.transforms import ChainedTransform
from pymc.logprob.utils import CheckParameterValue
from pymc.pytensorf import collect_default_updates, reseed_rngs
from pymc.util import get_transformed_name
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scan.op import Scan
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorConstant

from amc_pymc.reading.graphs import (
    Batched,
    FlatLayout,
    WithoutCaches,
    interpreted_function,
    is_random,
    log_densities,
    lowered,
    rebuilt,
)

# --- to the unconstrained scale --------------------------------------------------------------------


def unconstrain(model, layout: FlatLayout, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the flat unconstrained vectors of draws of a model's free variables.

    Parameters
    ----------
    model : pm.Model
    layout : FlatLayout
        Layout of all free variables or some.
    values : mapping of str to array (P, ...)
        One array for each of these free random variables, by its name.

    Returns
    -------
    array (P, D)

    Raises
    ------
    ValueError
        If a variable is missing or has the wrong shape.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> from amc_pymc.reading.particles.densities import extract_particles
    >>> from amc_pymc.reading.particles.prior import unconstrain
    >>> with pm.Model() as model:
    ...     sigma = pm.HalfNormal("sigma", 1.0)
    ...     y = pm.Normal("y", 0.0, sigma, observed=[3.0])
    >>> densities = extract_particles(model)
    >>> unconstrain(model, densities.layout, {"sigma": np.array([1.0, np.e])})
    array([[0.],
           [1.]])
    """
    free = [rv for rv in model.free_RVs if model.rvs_to_values[rv].name in layout.names]
    missing = [rv.name for rv in free if rv.name not in values]
    if missing:
        raise ValueError(f"draws of {', '.join(missing)} are missing.")
    inputs = [rv.type(name=rv.name) for rv in free]
    outputs = []
    for rv in free:
        transform = model.rvs_to_transforms[rv]
        outputs.append(rv if transform is None else transform.forward(rv, *rv.owner.inputs))
    outputs = clone_replace(outputs, dict(zip(free, inputs, strict=True)), rebuild_strict=False)
    arrays = [np.asarray(values[rv.name]) for rv in free]
    n = len(arrays[0])
    for rv, array in zip(free, arrays, strict=True):
        if array.ndim != rv.type.ndim + 1 or len(array) != n:
            raise ValueError(
                f"draws of {rv.name!r} must have shape ({n}, ...) with {rv.type.ndim} more dimensions, got "
                f"{array.shape}."
            )
    parts = Batched(inputs, outputs)(arrays, n)
    return np.concatenate([np.asarray(v, float).reshape(n, -1) for v in parts], axis=1)


# --- draws from the prior --------------------------------------------------------------------------


_log = logging.getLogger("amc_pymc")
#: Priors that do not integrate to one.
IMPROPER = (FlatRV, HalfFlatRV, ICARRV)


class PriorDraws(WithoutCaches):
    """Draws of some value variables from their prior.

    Parameters
    ----------
    model : pm.Model
    layout : FlatLayout
        Layout of the value variables.
    free_RVs : sequence of variables, optional
        Their random variables, by default all, in the same order.

    Attributes
    ----------
    names : list of str
        Names of the random variables.
    log_constant : float
        Term that normalises the log density of the values.
    """

    def __init__(self, model, layout: FlatLayout, free_RVs=None):
        free = model.free_RVs if free_RVs is None else list(free_RVs)
        self.layout, self.names, self.log_constant = layout, [rv.name for rv in free], 0.0
        values = []
        for rv, shape in zip(free, layout.shapes, strict=True):
            value, transform = rv, model.rvs_to_transforms[rv]
            steps = transform_steps(transform)
            if any(isinstance(t, Ordered) for t in steps):
                value = _sorted(rv, all(getattr(t, "ascending", True) for t in steps))
                self.log_constant += math.prod(shape[:-1]) * math.lgamma(shape[-1] + 1)
            if transform is not None:
                value = transform.forward(value, *rv.owner.inputs)
            values.append(value)
        data = {rv: model.rvs_to_values[rv] for rv in model.observed_RVs}
        graphs = lowered(rebuilt([*free, *values], data))
        self._free, self._values = graphs[: len(free)], graphs[len(free) :]
        self._singly = False

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw n points (n, D); nan where a transform cannot represent a value."""
        seed = rng.integers(2**32, size=4).tolist()
        with np.errstate(all="ignore"):
            if not self._singly:
                try:
                    fn, rngs = self._many
                    reseed_rngs(rngs, seed)
                    return self._flat(fn(n), n)
                except Exception as error:
                    self._singly = True
                    _log.debug("Prior draws are made one at a time: %r", error)
            try:
                fn, rngs = self._one
                reseed_rngs(rngs, seed)
                return np.concatenate(
                    [np.empty((0, self.layout.size)), *(self._flat(fn(), 1) for _ in range(n))]
                )
            except Exception as error:
                names = ", ".join(map(repr, self.names))
                raise ValueError(f"the prior of {names} cannot be drawn: {error}") from error

    def _flat(self, arrays, n: int) -> np.ndarray:
        columns = [
            np.broadcast_to(np.asarray(a, float), (n, *shape)).reshape(n, size)
            for a, shape, size in zip(arrays, self.layout.shapes, self.layout.sizes, strict=True)
        ]
        return np.concatenate(columns, axis=1)

    @cached_property
    def _one(self):
        return _compiled([], self._values)

    @cached_property
    def _many(self):
        n = pt.lscalar("n")
        return _compiled([n], _drawn_often(self._values, self._free, n))


def _compiled(inputs, outputs):
    updates = collect_default_updates(outputs=outputs, inputs=inputs)
    fn = interpreted_function(inputs, outputs, updates=updates)
    return fn, [v for v in fn.get_shared() if isinstance(v.type, RandomType)]


def _drawn_often(outputs: list, free: list, n) -> list:
    """Return the graphs with every random variable drawn n times, along a new first axis.

    Inner graphs with random variables (components of mixtures, steps of random walks) are inlined first,
    because expanding an inner graph as a whole may give all draws the same noise.
    """
    graphs = rebuilt([*free, *outputs], change=_opened)
    named, outputs = set(graphs[: len(free)]), graphs[len(free) :]
    drawn: dict = {}
    for node in toposort(outputs):
        if isinstance(node.op, RandomVariable):
            drawn[node.outputs[1]] = _drawn(node, n, drawn)
        elif _is_random(node):
            *_, rv = node.outputs
            if not _knows_sizes(node.op) or named & set(ancestors([rv])) - {rv}:
                raise NotImplementedError(f"random numbers are drawn in a loop inside of {node.op}")
            drawn[rv] = change_dist_size(rv, (n,), expand=True)
    return vectorize_graph(outputs, drawn)


def _drawn(node, n, drawn: dict):
    """Return a random variable drawn n times, given n draws of its ancestors."""
    op, (_, size, *parameters) = node.op, node.inputs
    shape = tuple(op._infer_shape(size, parameters))
    batch = [pt.cast(length, "int64") for length in shape[: len(shape) - op.ndim_supp]]
    aligned = [
        pt.shape_padleft(p, len(batch) + core - p.type.ndim)
        for p, core in zip(parameters, op.ndims_params, strict=True)
    ]
    many = vectorize_graph(aligned, drawn) if drawn else aligned
    rng = pt.random.shared_rng(seed=0)
    return op.make_node(rng, pt.stack([n, *batch]), *many).outputs[1]


def _is_random(node) -> bool:
    return any(isinstance(i.type, RandomType) for i in node.inputs)


def _opened(node, inputs):
    """Inline the inner graph of a node that draws random numbers, unless it does so in a loop."""
    if not (isinstance(node.op, OpFromGraph) and _is_random(node)):
        return None
    loops = any(isinstance(n.op, Scan) and _is_random(n) for n in node.op.fgraph.toposort())
    known = dict(zip(node.inputs, inputs, strict=True))
    return None if loops else rebuilt(inline_ofg_node(node), known, _opened)


def _knows_sizes(op) -> bool:
    """Whether PyMC itself defines how the variable is drawn at any size."""
    own = type(op).__module__.startswith("pymc.distributions")
    return (
        own and isinstance(op, SymbolicRandomVariable) and not isinstance(op, CustomSymbolicDistRV)
    )


def transform_steps(transform) -> list:
    """Return a list of the transforms in a chain, or of the one transform."""
    if isinstance(transform, ChainedTransform):
        return [step for t in transform.transform_list for step in transform_steps(t)]
    return [transform]


def _sorted(rv, ascending: bool):
    """Return the order statistics of a variable, which an ordering transform represents.

    The transform excludes all other orders. Its density lacks the factor k! that compensates for this
    if the k elements are independent and identically distributed; otherwise the factor is unknown.
    """
    op = rv.owner.op
    alike = isinstance(op, RandomVariable) and op.ndim_supp == 0
    if not (alike and all(_constant_along_last_axis(p) for p in op.dist_params(rv.owner))):
        raise ValueError(
            f"{rv.name!r} is ordered by its transform, which cuts its prior off by an unknown factor, for "
            "its elements are not identically distributed. Give them one distribution, or build ordered "
            "values from positive differences (pt.cumsum)."
        )
    return pt.sort(rv, axis=-1) if ascending else pt.sort(rv, axis=-1)[..., ::-1]


def _constant_along_last_axis(parameter) -> bool:
    if parameter.type.ndim == 0 or parameter.type.broadcastable[-1]:
        return True
    return isinstance(parameter, Constant) and bool(
        (parameter.data == parameter.data[..., :1]).all()
    )


# --- log densities -----------------------------------------------------------------------------------


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
    >>> from amc_pymc.reading.particles.prior import without_checks
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
