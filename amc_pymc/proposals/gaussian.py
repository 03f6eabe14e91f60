"""Moves that leave a Gaussian approximation of the posterior invariant.

With the Gaussian N(mu, L L^T) and w = L^-1 (x - mu), the move w' = sqrt(1 - s^2) w + s z with
z ~ N(0, I) is reversible for it (preconditioned Crank-Nicolson; Cotter, Roberts, Stuart & White
2013, Statistical Science 28:424-446, doi:10.1214/13-STS421). s = 1 is an independent draw from the
Gaussian. If the posterior is close to the Gaussian, nearly every move is accepted.
"""

from __future__ import annotations

import math

import numpy as np

from amc_pymc.jit import njit

__all__ = ["conditional_mean", "gaussian_log_ratio", "propose_gaussian"]


@njit(cache=True)
def conditional_mean(
    x: np.ndarray, centre: np.ndarray, active: np.ndarray, gain: np.ndarray
) -> np.ndarray:
    """Return the mean (A,) of the Gaussian's active coordinates given the others of ``x``.

    ``gain`` (A, D) has zero columns at the active coordinates.
    """
    return centre[active] + gain @ (x - centre)


@njit(cache=True)
def propose_gaussian(w: np.ndarray, scale: float, rng: np.random.Generator) -> np.ndarray:
    """Propose a move in whitened coordinates: w (A,) -> w' (A,)."""
    keep = math.sqrt(max(0.0, 1.0 - scale * scale))
    return keep * w + scale * rng.standard_normal(w.size)


@njit(cache=True)
def gaussian_log_ratio(w: np.ndarray, w_new: np.ndarray) -> float:
    """Return log q(w | w') - log q(w' | w) = (|w'|^2 - |w|^2) / 2, for any scale."""
    return 0.5 * (np.dot(w_new, w_new) - np.dot(w, w))
