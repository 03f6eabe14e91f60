"""Langevin moves in whitened coordinates, with any gradient estimate.

The proposal is w' = w + s^2/2 g(w) + s z (Roberts & Tweedie 1996, Bernoulli 2:341-363,
doi:10.2307/3318418), where g is an estimate of the whitened gradient of the log posterior. If g is
computed from a subset of rows, the reverse density must use the same rows, and the rows must be drawn
independently of the state and of the race. Given the rows, this is then an ordinary
Metropolis-Hastings proposal.
"""

from __future__ import annotations

import numpy as np

from amc_pymc.jit import njit

__all__ = ["langevin_log_ratio", "propose_langevin"]


@njit(cache=True)
def propose_langevin(
    w: np.ndarray, gradient: np.ndarray, scale: float, rng: np.random.Generator
) -> np.ndarray:
    """Propose a move in whitened coordinates: w (A,) -> w' (A,)."""
    return w + 0.5 * scale * scale * gradient + scale * rng.standard_normal(w.size)


@njit(cache=True)
def langevin_log_ratio(
    w: np.ndarray, gradient: np.ndarray, w_new: np.ndarray, gradient_new: np.ndarray, scale: float
) -> float:
    """Return log q(w | w') - log q(w' | w)."""
    forward = w_new - w - 0.5 * scale * scale * gradient
    backward = w - w_new - 0.5 * scale * scale * gradient_new
    return (np.dot(forward, forward) - np.dot(backward, backward)) / (2.0 * scale * scale)
