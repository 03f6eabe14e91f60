"""Nodes and weights of quadrature over the local effects of a group."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = ["Nodes", "hermite_nodes", "state_nodes"]


class Nodes(NamedTuple):
    """K points z (K, q) around a mode, and the logarithms (K,) of their weights.

    The integral of f is the sum of weights times f(m + C z) times |det C|.
    """

    points: np.ndarray
    log_weights: np.ndarray


def hermite_nodes(number: int, n_local: int) -> Nodes:
    """Gauss-Hermite product rule with ``number`` nodes along each of q axes.

    It is exact for a Gaussian times a polynomial of degree 2 ``number`` - 1. One node is Laplace's
    approximation.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.marginals import hermite_nodes
    >>> z, log_w = hermite_nodes(5, 1)
    >>> f = np.exp(-0.5 * z[:, 0] ** 2) * z[:, 0] ** 4 / np.sqrt(2 * np.pi)
    >>> float(np.sum(np.exp(log_w) * f).round(12))
    3.0
    """
    z, w = np.polynomial.hermite_e.hermegauss(number)
    log_w = np.log(w) + 0.5 * z**2
    grid = np.stack(np.meshgrid(*[z] * n_local, indexing="ij"), axis=-1).reshape(-1, n_local)
    each = np.stack(np.meshgrid(*[log_w] * n_local, indexing="ij"), axis=-1)
    return Nodes(np.ascontiguousarray(grid), each.reshape(-1, n_local).sum(axis=1))


def state_nodes(states: np.ndarray) -> Nodes:
    """The states (K, q) of discrete effects, all of weight one."""
    return Nodes(np.ascontiguousarray(states, dtype=float), np.zeros(len(states)))
