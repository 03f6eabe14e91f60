"""Loops over the nodes of binary trees of boxes, in which children come after their parents."""

from __future__ import annotations

import numpy as np

from amc_pymc.engine.jit import njit


@njit(cache=True)
def descend(
    u: np.ndarray, feature: np.ndarray, threshold: np.ndarray, left: np.ndarray, right: np.ndarray
) -> np.ndarray:
    """Return the leaves (n,) of points (n, D)."""
    out = np.zeros(len(u), np.int64)
    for i in range(len(u)):
        node = 0
        while feature[node] >= 0:
            node = left[node] if u[i, feature[node]] < threshold[node] else right[node]
        out[i] = node
    return out


@njit(cache=True)
def add_up(totals: np.ndarray, parent: np.ndarray) -> None:
    """Add the totals of children to those of parents, which come before them."""
    for node in range(len(totals) - 1, 0, -1):
        totals[parent[node]] += totals[node]


@njit(cache=True)
def bounds(
    feature: np.ndarray, threshold: np.ndarray, left: np.ndarray, right: np.ndarray, n_dim: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return lower and upper corners (M, D) of all nodes."""
    lower, upper = np.zeros((len(feature), n_dim)), np.ones((len(feature), n_dim))
    for node in range(len(feature)):
        if feature[node] < 0:
            continue
        for child in (left[node], right[node]):
            lower[child], upper[child] = lower[node], upper[node]
        upper[left[node], feature[node]] = threshold[node]
        lower[right[node], feature[node]] = threshold[node]
    return lower, upper


@njit(cache=True)
def shrunk(
    accepts: np.ndarray, totals: np.ndarray, parent: np.ndarray, strength: float
) -> np.ndarray:
    """Return rates (M,) of nodes, shrunk towards those of their parents."""
    rates = np.empty(len(accepts))
    rates[0] = accepts[0] / totals[0] if totals[0] > 0.0 else 0.5
    for node in range(1, len(accepts)):
        above = rates[parent[node]]
        rates[node] = (accepts[node] + strength * above) / (totals[node] + strength)
    return rates
