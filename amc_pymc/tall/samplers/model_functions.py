"""First-class functions over a product space, which dispatch each point to its model.

The first entry of a point is the number of its model, followed by the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numba import types

from amc_pymc.engine.first_class import bound_function, caller
from amc_pymc.engine.jit import njit
from amc_pymc.tall.racing import REWARDS
from amc_pymc.tall.samplers.compiled import GRADIENT, LOGP

__all__ = ["PARAMETERS", "VALUES", "parameters_of_models", "rewards_of_models", "values_of_models"]

#: Signatures of functions of points (K, 1 + D): one value per point (K,), and what rows read (K, 1 + E).
VALUES = types.float64[::1](types.float64[:, ::1])
PARAMETERS = types.float64[:, ::1](types.float64[:, ::1])

_value, _vector, _rewards = caller(LOGP), caller(GRADIENT), caller(REWARDS)


def values_of_models(
    functions: Sequence[Any], sizes: Sequence[int]
) -> Callable[[np.ndarray], np.ndarray]:
    """Return a first-class function from points (K, 1 + D) to the models' values (K,).

    Parameters
    ----------
    functions : sequence of first-class functions
        One per model, ``theta (D_k,) -> float``.
    sizes : sequence of int
        Number of parameters D_k of each model.
    """
    return bound_function(ask_values, VALUES, _places(functions, sizes), functions)


def parameters_of_models(
    functions: Sequence[Any], sizes: Sequence[int], lengths: Sequence[int]
) -> Callable[[np.ndarray], np.ndarray]:
    """Return a first-class function from points (K, 1 + D) to what rows read (K, 1 + E).

    ``functions`` map the D_k = ``sizes[k]`` parameters of each model to E_k = ``lengths[k]`` numbers.
    """
    arrays = [*_places(functions, sizes), np.array(lengths, np.int64)]
    return bound_function(ask_parameters, PARAMETERS, arrays, functions)


def rewards_of_models(
    functions: Sequence[Any], sizes: Sequence[int], centres: np.ndarray
) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """Return a first-class function from points (K, 1 + D), any centre, rows (m,) to rewards (K, m).

    Parameters
    ----------
    functions : sequence of first-class functions
        One per model, ``(points, centre, rows) -> (K, m)``.
    sizes : sequence of int
        Number of parameters D_k of each model.
    centres : array (sum D_k,)
        Concatenated expansion points of the models.
    """
    arrays = [*_places(functions, sizes), np.ascontiguousarray(centres, float)]
    return bound_function(ask_rewards, REWARDS, arrays, functions)


def _places(functions: Sequence[Any], sizes: Sequence[int]) -> list[np.ndarray]:
    """Return addresses of the functions (M,) and offsets of the models' parameters (M + 1,)."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    return [np.array([f.address for f in functions], np.int64), ends.astype(np.int64)]


@njit(cache=True)
def ask_values(points: np.ndarray, places: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return values (K,) at points (K, 1 + D)."""
    out = np.empty(points.shape[0])
    for a in range(points.shape[0]):
        k = np.int64(points[a, 0])
        out[a] = _value(places[k], (points[a, 1 : 1 + ends[k + 1] - ends[k]].copy(),))
    return out


@njit(cache=True)
def ask_parameters(
    points: np.ndarray, places: np.ndarray, ends: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    """Return what rows read (K, 1 + E) at points (K, 1 + D)."""
    out = np.zeros((points.shape[0], 1 + lengths.max()))
    for a in range(points.shape[0]):
        k = np.int64(points[a, 0])
        out[a, 0] = k
        theta = points[a, 1 : 1 + ends[k + 1] - ends[k]].copy()
        out[a, 1 : 1 + lengths[k]] = _vector(places[k], (theta,))
    return out


@njit(cache=True)
def ask_rewards(
    points: np.ndarray,
    unused: np.ndarray,
    rows: np.ndarray,
    places: np.ndarray,
    ends: np.ndarray,
    centres: np.ndarray,
) -> np.ndarray:
    """Return rewards (K, m) of rows at points (K, 1 + D)."""
    out = np.empty((points.shape[0], rows.size))
    for a in range(points.shape[0]):
        k = np.int64(points[a, 0])
        theta = points[a : a + 1, 1 : 1 + ends[k + 1] - ends[k]].copy()
        centre = centres[ends[k] : ends[k + 1]].copy()
        out[a] = _rewards(places[k], (theta, centre, rows))[0]
    return out
