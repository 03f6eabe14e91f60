r"""Moves that leave a Student t approximation of the posterior invariant.

The t with nu degrees of freedom is a mixture of Gaussians N(0, I / lambda). In whitened coordinates
w (A,), lambda is drawn from Gamma((nu + A) / 2, rate (nu + |w|^2) / 2) given w, and w' = sqrt(1 -
s^2) w + s z / sqrt(lambda) with z ~ N(0, I). Given lambda this is reversible for the Gaussian; with
lambda integrated out it is reversible for the t (Kamatani 2018, Bernoulli 24:3711-3750,
doi:10.3150/17-BEJ980). In the tails, steps are as long as the distance back to the centre, whereas
Gaussian moves get stuck.
"""

from __future__ import annotations

import math

import numpy as np

from amc_pymc.jit import njit

__all__ = ["propose_student", "student_log_ratio"]


@njit(cache=True)
def propose_student(
    w: np.ndarray, scale: float, freedom: float, rng: np.random.Generator
) -> np.ndarray:
    """Propose a move in whitened coordinates: w (A,) -> w' (A,)."""
    rate = 0.5 * (freedom + np.dot(w, w))
    precision = rng.standard_gamma(0.5 * (freedom + w.size)) / rate
    keep = math.sqrt(max(0.0, 1.0 - scale * scale))
    return keep * w + (scale / math.sqrt(precision)) * rng.standard_normal(w.size)


@njit(cache=True)
def student_log_ratio(w: np.ndarray, w_new: np.ndarray, freedom: float) -> float:
    """Return log q(w | w') - log q(w' | w), the difference of the t's log densities, for any scale."""
    here, there = np.dot(w, w) / freedom, np.dot(w_new, w_new) / freedom
    return 0.5 * (freedom + w.size) * (math.log1p(there) - math.log1p(here))
