"""Sequential Monte Carlo on a fixed schedule."""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from amc_pymc.evidence.annealing.ladder import Ladder, resample, taken
from amc_pymc.evidence.mcmc import Kernel, Path, start
from amc_pymc.logweights import effective_share, log_mean_exp

__all__ = ["Resampled", "resample", "sequential"]

#: Effective share below which particles are resampled.
_THRESHOLD = 0.5


class Resampled(NamedTuple):
    """Run of sequential Monte Carlo with P particles.

    Attributes
    ----------
    log_z : float
        Natural logarithm of an unbiased estimate of the normalising constant.
    x : array (P, D)
        Last points.
    log_weights : array (P,)
        Natural logarithms of their weights.
    evaluations, gradients : int
    """

    log_z: float
    x: np.ndarray
    log_weights: np.ndarray
    evaluations: int
    gradients: int


def sequential(
    path: Path,
    x: np.ndarray,
    betas: np.ndarray,
    kernel: Kernel,
    ladder: Ladder,
    rng: np.random.Generator,
    *,
    n_moves: int = 1,
) -> Resampled:
    r"""Move particles along a path and resample them when their weights become uneven.

    The estimate :math:`\prod_r \bar w_r` over the stages between resampling is unbiased for Z if schedule and
    kernels are fixed beforehand. This also holds if particles are resampled only when the effective share falls
    below one half (Del Moral, Doucet & Jasra 2006, doi:10.1111/j.1467-9868.2006.00553.x).

    Parameters
    ----------
    path, x, betas, kernel, ladder, rng
        As for :func:`amc_pymc.evidence.annealing.anneal`.
    n_moves : int
        Moves at each inverse temperature.

    Returns
    -------
    Resampled
    """
    particles = start(path, x, with_gradient=kernel.needs_gradient)
    evaluations, gradients = (0, len(x)) if kernel.needs_gradient else (len(x), 0)
    log_z, log_w = 0.0, np.zeros(len(x))
    for t in range(1, len(betas)):
        log_w += (betas[t] - betas[t - 1]) * particles.terms[1]
        if t == len(betas) - 1:
            break
        if effective_share(log_w) < _THRESHOLD:
            mean = float(log_mean_exp(log_w))
            log_z += mean
            if mean == -math.inf:
                return Resampled(-math.inf, particles.x, log_w, evaluations, gradients)
            chosen = resample(log_w, len(x), rng)
            particles = taken(particles, chosen)
            log_w = np.zeros(len(x))
        tuning = ladder.at(betas[t])
        for _ in range(n_moves):
            particles, move = kernel.step(path, particles, betas[t], tuning, rng)
            evaluations += move.evaluations
            gradients += move.gradients
    return Resampled(log_z + float(log_mean_exp(log_w)), particles.x, log_w, evaluations, gradients)
