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

from amc_pymc.reading.batched import Batched

__all__ = ["distance_function", "is_gaussian", "is_python", "statistic_function"]


def is_gaussian(given) -> bool:
    """Whether a Simulator's distance is the Gaussian one."""
    return given is pymc_simulator.gaussian


def is_python(statistic: Callable[[np.ndarray], np.ndarray]) -> bool:
    """Whether a function of :func:`statistic_function` calls the user's own on one simulation after the other."""
    return isinstance(statistic, _Statistic)


def statistic_function(given, data: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from simulations (n, *shape) to summary statistics (n, ...)."""
    fn = _wrapped(given)
    if given is pymc_simulator.identity:
        return _identity
    if given is pt.sort:
        return _sorted
    if given is pt.mean:
        return _means
    if fn is np.median:
        return _medians
    if fn is not None:
        return _Statistic(fn)
    x = pt.tensor(dtype=data.dtype, shape=data.shape)
    return _Graph([x], given(x))


def _identity(x: np.ndarray) -> np.ndarray:
    return x


def _sorted(x: np.ndarray) -> np.ndarray:
    return np.sort(x, axis=-1)


def _means(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1).mean(axis=1)


def _medians(x: np.ndarray) -> np.ndarray:
    return np.median(x.reshape(len(x), -1), axis=1)[:, None]


class _Statistic:
    """Summary statistic given as a Python function of one simulation."""

    def __init__(self, fn: Callable[..., Any]):
        self._fn = fn

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.stack([np.atleast_1d(np.asarray(self._fn(s), dtype=float)) for s in x])


class _Graph:
    """Summary statistic or distance given as a PyTensor graph."""

    def __init__(self, inputs: list, graph):
        self._graph = Batched(inputs, [graph])

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self._graph([x], len(x))[0]


def distance_function(
    given, epsilon: np.ndarray, of_data: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from statistics (n, ...) to their distances (n,) from those of the data."""
    if given is pymc_simulator.gaussian:
        return _Standardised(epsilon, of_data, 2)
    if given is pymc_simulator.laplace:
        return _Standardised(epsilon, of_data, 1)
    fn = _wrapped(given)
    if fn is not None:
        return _Kernel(fn, epsilon, of_data)
    s = pt.tensor(dtype=of_data.dtype, shape=of_data.shape)
    graph = given(pt.constant(epsilon), pt.constant(of_data), s)
    return _Graph([s], -pt.sum(graph))


class _Standardised:
    """Euclidean (power 2) or sum of absolute (power 1) differences, in units of epsilon."""

    def __init__(self, epsilon: np.ndarray, of_data: np.ndarray, power: int):
        self._epsilon, self._of_data, self._power = epsilon.astype(float), of_data, power
        self._ndim = max(epsilon.ndim, of_data.ndim)

    def __call__(self, statistics: np.ndarray) -> np.ndarray:
        n, *shape = statistics.shape
        aligned = statistics.reshape(n, *(1,) * (self._ndim - len(shape)), *shape)
        gap = np.abs((aligned - self._of_data) / self._epsilon).reshape(n, -1)
        if self._power == 1:
            return gap.sum(axis=1)
        return np.sqrt(np.einsum("ij,ij->i", gap, gap))


class _Kernel:
    """Distance given as a Python function of the statistics of one simulation."""

    def __init__(self, fn: Callable[..., Any], epsilon: np.ndarray, of_data: np.ndarray):
        self._fn, self._epsilon, self._of_data = fn, epsilon, of_data

    def __call__(self, statistics: np.ndarray) -> np.ndarray:
        return np.array([-np.sum(self._fn(self._epsilon, self._of_data, s)) for s in statistics])


def _wrapped(given) -> Callable[..., Any] | None:
    """Return the Python function that ``pm.Simulator`` wrapped in an Op, or None."""
    made_here = type(given).__module__ == pymc_simulator.__name__
    if not (isinstance(given, Op) and made_here):
        return None
    return inspect.getclosurevars(type(given).perform).nonlocals.get("fn")
