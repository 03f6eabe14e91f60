"""Draws from a model's prior on the unconstrained scale, many at once.

Initial values are not used.
"""

from __future__ import annotations

import logging
import math

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import pytensor.tensor as pt

from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pymc.distributions.custom import CustomSymbolicDistRV
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.distributions.multivariate import ICARRV
from pymc.distributions.shape_utils import change_dist_size
from pymc.distributions.transforms import Ordered
from pymc.logprob.transforms import ChainedTransform
from pymc.pytensorf import collect_default_updates, reseed_rngs
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Constant
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scan.op import Scan
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType

from amc_pymc.reading.batched import Batched
from amc_pymc.reading.graphs import (
    WithoutCaches,
    interpreted_function,
    lowered,
    opened,
    rebuilt,
)
from amc_pymc.reading.layout import FlatLayout

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
    if not isinstance(node.op, OpFromGraph) or not _is_random(node) or _loops(node.op):
        return None
    return opened(node, inputs, _opened)


def _loops(op: OpFromGraph) -> bool:
    return any(isinstance(node.op, Scan) and _is_random(node) for node in op.fgraph.toposort())


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
