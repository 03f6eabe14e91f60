"""Summary statistics and distances of ``pm.Simulator``, for many simulations at once.

Those built into PyMC use NumPy. Python functions are called on one simulation at a time, and PyTensor graphs are
compiled.
"""

from __future__ import annotations

import inspect

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc.distributions import simulator as pymc_simulator
from pytensor.graph.op import Op

from amc_pymc.likelihood_free.problem import lengths
from amc_pymc.reading.graphs import Batched


def statistic_function(given, data: np.ndarray) -> tuple[Callable[[np.ndarray], np.ndarray], bool]:
    """Return a function from simulations (n, *shape) to summary statistics (n, ...).

    It is returned together with whether it calls the user's own Python function on one simulation after the other.
    """
    for known, statistic in _STATISTICS:
        if given is known:
            return statistic, False
    fn = _wrapped(given)
    if fn is np.median:
        return lambda x: np.median(x.reshape(len(x), -1), axis=1)[:, None], False
    if fn is not None:
        return lambda x: np.stack([np.atleast_1d(np.asarray(fn(s), dtype=float)) for s in x]), True
    x = pt.tensor(dtype=data.dtype, shape=data.shape)
    graph = Batched([x], [given(x)])
    return lambda x: graph([x], len(x))[0], False


_STATISTICS: tuple[tuple[Any, Callable[[np.ndarray], np.ndarray]], ...] = (
    (pymc_simulator.identity, lambda x: x),
    (pt.sort, lambda x: np.sort(x, axis=-1)),
    (pt.mean, lambda x: x.reshape(len(x), -1).mean(axis=1)),
)


def distance_function(
    given, epsilon: np.ndarray, of_data: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from statistics (n, ...) to their distances (n,) from those of the data."""
    ndim = max(epsilon.ndim, of_data.ndim)

    def gaps(statistics: np.ndarray) -> np.ndarray:
        n, *shape = statistics.shape
        aligned = statistics.reshape(n, *(1,) * (ndim - len(shape)), *shape)
        return np.abs((aligned - of_data) / epsilon.astype(float)).reshape(n, -1)

    if given is pymc_simulator.gaussian:
        return lambda statistics: lengths(gaps(statistics))
    if given is pymc_simulator.laplace:
        return lambda statistics: gaps(statistics).sum(axis=1)
    fn = _wrapped(given)
    if fn is not None:
        return lambda statistics: np.array([-np.sum(fn(epsilon, of_data, s)) for s in statistics])
    s = pt.tensor(dtype=of_data.dtype, shape=of_data.shape)
    graph = Batched([s], [-pt.sum(given(pt.constant(epsilon), pt.constant(of_data), s))])
    return lambda statistics: graph([statistics], len(statistics))[0]


def _wrapped(given) -> Callable[..., Any] | None:
    """Return the Python function that ``pm.Simulator`` wrapped in an Op, or None."""
    made_here = type(given).__module__ == pymc_simulator.__name__
    if not (isinstance(given, Op) and made_here):
        return None
    return inspect.getclosurevars(type(given).perform).nonlocals.get("fn")
