"""Transformations of PyTensor graphs, and a model's log densities and initial point."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from pymc.initial_point import make_initial_point_expression
from pymc.pytensorf import find_rng_nodes, replace_rng_nodes, reseed_rngs
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor import as_tensor, constant, zeros
from pytensor.tensor.math import variadic_add
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorConstant
from pytensor.xtensor.type import XTensorType

from amc_pymc.reading.interpreted import plain_function
from amc_pymc.reading.memo import remembered

__all__ = [
    "initial_point_of",
    "is_random",
    "log_densities",
    "log_density",
    "lowered",
    "opened",
    "rebuilt",
]

#: Seed of random initial values, independent of the user's seed.
_SEED = 20161


def initial_point_of(model) -> dict[str, np.ndarray]:
    """Return ``model.initial_point()``, interpreted: rewriting its graph takes longer than running it once.

    Random initial values, such as ``initval="prior"``, come from a fixed seed.
    """
    return {name: np.copy(value) for name, value in _initial_point(model).items()}


@remembered
def _initial_point(model) -> dict[str, np.ndarray]:
    values = replace_rng_nodes(
        make_initial_point_expression(
            free_rvs=model.free_RVs,
            rvs_to_transforms=model.rvs_to_transforms,
            initval_strategies=model.rvs_to_initial_values,
            return_transformed=True,
        )
    )
    reseed_rngs(find_rng_nodes(values), _SEED)
    found = plain_function([], values)()
    return {model.rvs_to_values[rv].name: x for rv, x in zip(model.free_RVs, found, strict=True)}


def is_random(graphs: Iterable, given: Iterable = ()) -> bool:
    """Whether graphs depend on a random generator, other than through the variables `given`.

    Generators are found even if their draws are hidden in an inner graph, as in pm.Minibatch.
    """
    return any(isinstance(v.type, RandomType) for v in ancestors(graphs, blockers=given))


def rebuilt(
    outputs: Sequence,
    replace: Mapping[Variable, Variable] | None = None,
    change: Callable | None = None,
) -> list:
    """Rebuild graphs with other inputs; their static shapes are inferred anew.

    Parameters
    ----------
    outputs : sequence of variables
    replace : mapping of variables to variables, optional
        Replacements; the graph upstream of a replaced variable is not visited.
    change : callable, optional
        ``change(node, inputs)`` returns new outputs for a node whose inputs have been replaced, or None
        to keep its operation.

    Returns
    -------
    list of variables

    Examples
    --------
    >>> import pytensor.tensor as pt
    >>> from amc_pymc.reading.graphs import rebuilt
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
    """Inline the inner graph of a node, rebuilt with other inputs."""
    return rebuilt(inline_ofg_node(node), dict(zip(node.inputs, inputs, strict=True)), change)


def lowered(graphs: list) -> list:
    """Return graphs without named dimensions, which cannot be vectorised over particles."""
    if not any(isinstance(v.type, XTensorType) for v in ancestors(graphs)):
        return graphs
    graphs = clone_replace([getattr(g, "values", g) for g in graphs])
    return list(rewrite_graph(graphs, include=("lower_xtensor",), clone=False))


# --- log densities --------------------------------------------------------------------------------


def log_densities(model, parts: Sequence[Variable]) -> list[Variable]:
    """Return ``model.logp(vars=parts, sum=False)``: one graph per random variable or potential.

    Rows without parameters are of double precision: PyTensor would compute those of ``pm.Bernoulli(p=0.5)`` in single
    precision, an error of 0.002 nat for 100,000 rows. PyMC derives the densities of all variables at every call. Inside
    :func:`~amc_pymc.reading.memo.remembering` they are cached, and must not be changed in place.

    Raises
    ------
    Exception
        The error of PyMC if one of ``parts`` has no density.

    Examples
    --------
    >>> import pymc as pm
    >>> from amc_pymc.reading.graphs import log_densities
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x")
    ...     y = pm.Normal("y", x, shape=3)
    >>> [term.type.ndim for term in log_densities(model, [y, x])]
    [1, 0]
    """
    parts = list(parts)
    try:
        terms = {} if len(set(parts)) < len(parts) else _terms(model)
    except Exception:  # another part may have no density
        terms = {}
    if all(part in terms for part in parts):
        return [terms[part] for part in parts]
    return _derived(model, parts)


@remembered
def _terms(model) -> dict[Variable, Variable]:
    # A Potential may be a random variable itself.
    parts = list(dict.fromkeys([*model.basic_RVs, *model.potentials]))
    return dict(zip(parts, _derived(model, parts), strict=True))


def _derived(model, parts: list[Variable]) -> list[Variable]:
    read = set(model.value_vars)
    graphs = model.logp(vars=parts, sum=False)
    return [
        _in_double(g) if g is not None and read.isdisjoint(ancestors([g])) else g for g in graphs
    ]


def _in_double(graph: Variable) -> Variable:
    """Return a graph with numbers of double precision."""
    numbers = [v for v in ancestors([graph]) if isinstance(v, TensorConstant) and v.data.size == 1]
    double = {v: constant(v.data.astype(float)) for v in numbers if v.dtype == "float32"}
    return rebuilt([graph], double)[0]


def log_density(model, parts: Sequence[Variable]) -> Variable:
    """Return ``model.logp(vars=parts)``: the sum of :func:`log_densities`, zero for no parts."""
    terms = [as_tensor(t, allow_xtensor_conversion=True) for t in log_densities(model, parts)]
    return variadic_add(*(t.sum() for t in terms)) if terms else zeros(())
