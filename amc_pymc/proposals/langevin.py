"""Langevin moves in whitened coordinates, with any gradient estimate.

w' = w + s^2/2 g(w) + s z (Roberts & Tweedie 1996, Bernoulli 2:341-363, doi:10.2307/3318418), where
g is an estimate of the whitened gradient of the log posterior. With a gradient from a subset of
rows, the same rows must give g(w') in the reverse density, and must be drawn independently of the
state and of the race: then, given the rows, this is an ordinary Metropolis-Hastings proposal.
"""

from __future__ import annotations

import numpy as np

from amc_pymc.jit import njit

__all__ = ["langevin_log_ratio", "propose_langevin"]


@njit(cache=True)
def propose_langevin(w, gradient, scale, rng):
    """Move in whitened coordinates: w (A,) -> w' (A,)."""
    return w + 0.5 * scale * scale * gradient + scale * rng.standard_normal(w.size)


@njit(cache=True)
def langevin_log_ratio(w, gradient, w_new, gradient_new, scale):
    """Log q(w | w') - log q(w' | w)."""
    forward = w_new - w - 0.5 * scale * scale * gradient
    backward = w - w_new - 0.5 * scale * scale * gradient_new
    return (np.dot(forward, forward) - np.dot(backward, backward)) / (2.0 * scale * scale)
