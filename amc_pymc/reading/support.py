"""Values that a discrete variable can take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pymc.distributions import (
    Bernoulli,
    BetaBinomial,
    Binomial,
    Categorical,
    DiscreteUniform,
    Geometric,
    HyperGeometric,
    NegativeBinomial,
    Poisson,
)
from pymc.distributions.truncated import TruncatedRV
from pytensor.graph.traversal import ancestors

from amc_pymc.reading.graphs import initial_point_of
from amc_pymc.reading.interpreted import plain_function

__all__ = ["element_states"]

#: Distributions on 0, 1, 2, ... that are bounded once they are truncated from above.
_COUNTS = (Poisson.rv_type, NegativeBinomial.rv_type, Geometric.rv_type)


def element_states(
    model,
    value_var,
    states: Sequence[int] | None = None,
    *,
    max_states: int = 1000,
) -> list[np.ndarray]:
    """Return the states of every element of a discrete variable.

    Parameters
    ----------
    model : pm.Model
    value_var : variable
        Discrete value variable of the model.
    states : sequence of int, optional
        States of every element, if they cannot be derived from the distribution.
    max_states : int
        Largest number of states that is accepted.

    Returns
    -------
    list of (K,) int64 arrays, increasing
        One for each element, in C order.

    Raises
    ------
    ValueError
        If the support is unbounded, unknown, depends on other variables or is too large.

    Examples
    --------
    >>> import pymc as pm
    >>> from amc_pymc.reading.support import element_states
    >>> with pm.Model() as model:
    ...     k = pm.DiscreteUniform("k", lower=[0, 3], upper=[1, 5])
    >>> [s.tolist() for s in element_states(model, model.rvs_to_values[k])]
    [[0, 1], [3, 4, 5]]
    """
    name = value_var.name
    size = int(np.size(initial_point_of(model)[name]))
    if states is not None:
        given = np.unique(np.asarray(states))
        if given.ndim != 1 or given.size < 1 or given.dtype.kind not in "iub":
            raise ValueError(f"states[{name!r}] must be a sequence of integers, got {states!r}")
        _check_number(name, given.size, given.min(), given.max(), max_states)
        return [given.astype(np.int64)] * size
    low, high = _bounds(model, model.values_to_rvs[value_var])
    if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high))):
        raise ValueError(
            f"{name!r} has infinitely many states; RacingGibbs evaluates each of them. Truncate it "
            f"(pm.Truncated), pass states={{{name!r}: range(...)}} if the others are impossible, or "
            "leave it to pm.Metropolis."
        )
    shape = np.shape(initial_point_of(model)[name])
    low = np.broadcast_to(np.ceil(low), shape).ravel().astype(np.int64)
    high = np.broadcast_to(np.floor(high), shape).ravel().astype(np.int64)
    for a, b in zip(low, high):
        _check_number(name, b - a + 1, a, b, max_states)
    return [np.arange(a, b + 1) for a, b in zip(low, high)]


def _check_number(name, number, low, high, max_states) -> None:
    if number > max_states:
        raise ValueError(
            f"{name!r} has {number:,} states ({low} to {high}), more than max_states={max_states:,}; "
            "each of them is evaluated at every draw. Cut it into fewer states, raise max_states=, "
            "or leave it to pm.Metropolis."
        )
    if number < 1:
        raise ValueError(f"{name!r} has no state: its bounds are {low} and {high}")


def _bounds(model, rv) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and highest value of a random variable."""
    op = rv.owner.op
    if isinstance(op, TruncatedRV):
        low, high = (_known(model, rv, bound) for bound in rv.owner.inputs[-2:])
        least = 0.0 if isinstance(op.base_rv_op, _COUNTS) else -np.inf
        return np.maximum(low, least), high
    if not hasattr(op, "dist_params"):
        return np.full((), -np.inf), np.full((), np.inf)
    parameters = op.dist_params(rv.owner)
    if isinstance(op, Bernoulli.rv_type):
        return np.zeros(()), np.ones(())
    if isinstance(op, Categorical.rv_type):
        (p,) = parameters
        return np.zeros(()), _known(model, rv, p.shape[-1], shape_only=True) - 1
    if isinstance(op, DiscreteUniform.rv_type):
        low, high = parameters
        return _known(model, rv, low), _known(model, rv, high)
    if isinstance(op, Binomial.rv_type | BetaBinomial.rv_type):
        return np.zeros(()), _known(model, rv, parameters[0])
    if isinstance(op, HyperGeometric.rv_type):
        return np.zeros(()), _known(model, rv, sum(parameters[:2]))
    return np.full((), -np.inf), np.full((), np.inf)


def _known(model, rv, expression, shape_only: bool = False) -> np.ndarray:
    """Evaluate a bound, which must not depend on free variables."""
    free = set(model.free_RVs)
    used = [] if shape_only else [v.name for v in ancestors([expression]) if v in free]
    if used:
        raise ValueError(
            f"The bounds of {rv.name!r} depend on {', '.join(used)}. Pass "
            f"states={{{rv.name!r}: range(...)}} with all values it can ever take."
        )
    (expression,) = model.replace_rvs_by_values([expression])
    point = initial_point_of(model)
    inputs = [v for v in model.value_vars if v in set(ancestors([expression]))]
    fn = plain_function(inputs, expression)
    return np.asarray(fn(*(point[v.name] for v in inputs)), dtype=float)
