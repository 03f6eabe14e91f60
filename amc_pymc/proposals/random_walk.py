"""Symmetric Gaussian random walk with a given Cholesky factor."""

from __future__ import annotations

import numpy as np

from amc_pymc.jit import njit

__all__ = ["propose_random_walk"]


@njit(cache=True)
def propose_random_walk(
    x_active: np.ndarray, chol: np.ndarray, scale: float, rng: np.random.Generator
) -> np.ndarray:
    """Propose x + scale L z, z ~ N(0, I); symmetric, so the log proposal ratio is zero."""
    return x_active + scale * (chol @ rng.standard_normal(x_active.size))
