"""First-class functions of a product space, which ask the model that each point belongs to.

The first entry of a point is the number of its model, the next ones are its parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amc_pymc.first_class import BoundFunction, address_of, bound_function, caller
from amc_pymc.jit import njit
from amc_pymc.racing import REWARDS
from amc_pymc.samplers.compiled import LOGP
from amc_pymc.samplers.index_kernel import VALUES

__all__ = ["rewards_of_models", "values_of_models"]

_value, _rewards = caller(LOGP), caller(REWARDS)


def values_of_models(functions: Sequence, sizes: Sequence[int]) -> BoundFunction:
    """First-class function of points (K, 1 + D), the models' values (K,) there.

    Parameters
    ----------
    functions : sequence of first-class functions
        One per model, ``theta (D_k,) -> float``.
    sizes : sequence of int
        Parameters D_k of each model.
    """
    return bound_function(ask_values, VALUES, _places(functions, sizes), functions)


def rewards_of_models(
    functions: Sequence, sizes: Sequence[int], centres: np.ndarray
) -> BoundFunction:
    """First-class function of points (K, 1 + D), any centre and rows (m,), the models' rewards (K, m).

    Parameters
    ----------
    functions : sequence of first-class functions
        One per model, ``(points, centre, rows) -> (K, m)``.
    sizes : sequence of int
        Parameters D_k of each model.
    centres : array (sum D_k,)
        Where each model is expanded, one after the other.
    """
    arrays = [*_places(functions, sizes), np.ascontiguousarray(centres, float)]
    return bound_function(ask_rewards, REWARDS, arrays, functions)


def _places(functions: Sequence, sizes: Sequence[int]) -> list[np.ndarray]:
    """Addresses of the functions (M,), and where the parameters of each begin and end (M + 1,)."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    return [np.array([address_of(f) for f in functions], np.int64), ends.astype(np.int64)]


@njit(cache=True)
def ask_values(points, places, ends):
    """Values (K,) at points (K, 1 + D)."""
    out = np.empty(points.shape[0])
    for a in range(points.shape[0]):
        k = np.int64(points[a, 0])
        out[a] = _value(places[k], (points[a, 1 : 1 + ends[k + 1] - ends[k]].copy(),))
    return out


@njit(cache=True)
def ask_rewards(points, unused, rows, places, ends, centres):
    """Rewards (K, m) of rows at points (K, 1 + D)."""
    out = np.empty((points.shape[0], rows.size))
    for a in range(points.shape[0]):
        k = np.int64(points[a, 0])
        theta = points[a : a + 1, 1 : 1 + ends[k + 1] - ends[k]].copy()
        centre = centres[ends[k] : ends[k + 1]].copy()
        out[a] = _rewards(places[k], (theta, centre, rows))[0]
    return out
