"""Observed variables of a model, and the data that their log-likelihoods depend on."""

from __future__ import annotations

import hashlib
import pickle

import numpy as np
import pytensor.tensor as pt

from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.sparse.type import SparseTensorType
from pytensor.tensor.basic import ScalarFromTensor
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import TensorType

from amc_pymc.reading.graphs import is_random, log_densities, lowered
from amc_pymc.reading.interpreted import plain_function
from amc_pymc.signals import raise_if_signalled

__all__ = [
    "NotRowFactorised",
    "choose_observed",
    "constant_data",
    "data_frontier",
    "data_stamps",
    "elementwise_logp",
    "evaluated",
    "refuse_unsliceable",
    "refused",
    "row_count",
]


class NotRowFactorised(ValueError):
    """Error for observed rows that cannot be evaluated one by one."""


def refused(name: str, reason: str) -> NotRowFactorised:
    """Return the error for rows of an observed variable, with a reason."""
    return NotRowFactorised(
        f"The rows of observed variable {name!r} cannot be evaluated on their own: {reason}. "
        "If they are conditionally independent, pass row_logp=, a function (point, rows) -> "
        "log-likelihood of each of these rows; if they are not, subsampling does not apply."
    )


def choose_observed(model, observed_vars=None) -> list[Variable]:
    """Return the observed variables named by the user, or those with the most rows."""
    if not model.observed_RVs:
        advice = (
            ". A pm.Potential has no rows: write weights as a parameter of an observed variable, as in "
            "pm.CustomDist('y', mu, w, logp=lambda value, mu, w: w * pm.logp(pm.Normal.dist(mu, 1), "
            "value), observed=y)"
        )
        raise NotRowFactorised(
            "The model has no observed variable: there are no rows to subsample"
            f"{advice if model.potentials else ''}"
        )
    if observed_vars is None:
        lengths = [_length(model, rv) for rv in model.observed_RVs]
        return [rv for rv, n in zip(model.observed_RVs, lengths) if n == max(lengths)]
    if isinstance(observed_vars, str | Variable):
        observed_vars = [observed_vars]
    known = {rv.name: rv for rv in model.observed_RVs}
    chosen = []
    for var in observed_vars:
        name = getattr(var, "name", var)
        if name not in known:
            raise ValueError(
                f"observed_vars names {name!r}, which is not an observed variable of the model; "
                f"these are: {', '.join(known)}"
            )
        if known[name] not in chosen:
            chosen.append(known[name])
    if not chosen:
        raise ValueError("observed_vars is empty; leave it None for the variables with most rows")
    return chosen


def _length(model, rv) -> int:
    value = model.rvs_to_values[rv]
    shape = getattr(_constant_value(value), "shape", ())
    return shape[0] if shape else 0


def _constant_value(value: Variable):
    if isinstance(value, Constant):
        return value.data
    if isinstance(value, SharedVariable):
        return value.get_value(borrow=True)
    return _evaluate_one(value)


def _evaluate_one(value: Variable):
    return plain_function([], value)()


def row_count(model, observed) -> int:
    """Return the common number of rows of some observed variables."""
    lengths = {rv.name: _length(model, rv) for rv in observed}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"observed_vars must have the same number of rows, got {lengths}")
    n_rows = next(iter(lengths.values()))
    if n_rows < 1:
        raise refused(observed[0].name, "its observation is a scalar or empty")
    return n_rows


def refuse_unsliceable(model, rv) -> None:
    """Raise an error for an observed variable whose rows are not data."""
    from pymc.distributions.distribution import PartialObservedRV
    from pymc.variational.minibatch_rv import MinibatchRandomVariable

    op = rv.owner.op if rv.owner else None
    if isinstance(op, MinibatchRandomVariable):
        raise refused(rv.name, "it has total_size=; give the full data, the step subsamples them")
    whole = rv.name.removesuffix("_observed")
    if isinstance(op, PartialObservedRV) or f"{whole}_unobserved" in model.named_vars:
        raise refused(rv.name, "its data have missing values; drop or impute these rows")
    if is_random([model.rvs_to_values[rv]]):
        raise refused(rv.name, "its data are random (pm.Minibatch); give the full data")


def elementwise_logp(model, rv, n_rows: int):
    """Return the elementwise log density of an observed variable, with rows along axis 0."""
    try:
        (logp,) = log_densities(model, [rv])
    except Exception as error:
        raise_if_signalled(error)
        raise refused(rv.name, f"it has no elementwise logp ({error})") from error
    (logp,) = lowered([logp])
    if logp.type.ndim == 0:
        raise refused(rv.name, "its logp is a scalar, the rows depend on each other")
    if logp.type.shape[0] not in (None, n_rows):
        raise refused(rv.name, f"its logp has {logp.type.shape[0]} entries for {n_rows} rows")
    return logp


def data_frontier(logps, value_vars):
    """Return inputs of the parameter-dependent part of the graph that depend on data only."""
    dependent: set[Variable] = set(value_vars)
    nodes = list(toposort(logps))
    for node in nodes:
        if any(i in dependent for i in node.inputs):
            dependent.update(node.outputs)
    frontier: dict[Variable, None] = {}
    for node in nodes:
        if any(o in dependent for o in node.outputs):
            frontier.update({_tensor_below(i): None for i in node.inputs if i not in dependent})
    # A logp that depends on no parameter is part of the frontier itself.
    frontier.update({logp: None for logp in logps if logp not in dependent})
    return list(frontier)


def _tensor_below(v: Variable) -> Variable:
    """Return the tensor that a scalar, such as the condition of a check, is made from."""
    if v.owner is not None and isinstance(v.owner.op, ScalarFromTensor):
        return v.owner.inputs[0]
    return v


def constant_data(graph, inputs, name: str) -> dict[Variable, Variable]:
    """Return constants that replace whatever a graph reads besides its inputs."""
    frontier = [
        v
        for v in data_frontier([graph], inputs)
        if not isinstance(v, Constant) and isinstance(v.type, TensorType)
    ]
    values = evaluated(frontier, name)
    return {v: pt.constant(np.asarray(a, dtype=v.type.dtype)) for v, a in zip(frontier, values)}


def evaluated(frontier, name: str) -> list[np.ndarray]:
    """Return the values of the frontier, borrowed where they are stored already."""
    lazy = [v for v in frontier if not isinstance(v, Constant | SharedVariable)]
    if is_random(lazy):
        raise refused(name, "its data pass through a random variable (pm.Minibatch)")
    if any(isinstance(v.type, SparseTensorType) for v in frontier):
        raise refused(
            name, "it reads a sparse matrix; make it dense (X.toarray()) if memory allows"
        )
    computed = {}
    if lazy:
        computed = dict(zip(lazy, plain_function([], lazy)()))
    out = []
    for v in frontier:
        out.append(computed[v] if v in computed else _constant_value(v))
    return out


def data_stamps(model) -> dict[SharedVariable, bytes]:
    """Return a hash of each shared variable that the model's density reads, pm.Data or any other."""
    stamps = {}
    for v in ancestors([*model.basic_RVs, *model.rvs_to_values.values(), *model.potentials]):
        if isinstance(v, SharedVariable) and not isinstance(v.type, RandomType):
            value = v.get_value(borrow=True)
            dense = isinstance(value, np.ndarray)
            told = f"{value.shape}{value.dtype}" if dense else type(value).__name__
            digest = hashlib.blake2b(told.encode(), digest_size=16)
            digest.update(np.ascontiguousarray(value) if dense else pickle.dumps(value))
            stamps[v] = digest.digest()
    return stamps
