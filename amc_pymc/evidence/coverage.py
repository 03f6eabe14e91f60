"""Effective number of prior draws in the regions that a fitted reference misses."""

from __future__ import annotations

import math

import numpy as np

from amc_pymc.evidence.pilot import DEFENSIVE_SHARE, Pilot, PriorPath
from amc_pymc.importance import log_mixture_density
from amc_pymc.logweights import effective_share

__all__ = ["effective_beside"]

#: Number of prior draws evaluated.
_DRAWS = 4096


def effective_beside(path: PriorPath, pilot: Pilot, rng: np.random.Generator) -> float:
    """Return the effective number of 4,096 prior draws in the regions that a fitted reference misses.

    Importance sampling proposals contain a share of the prior. If many prior draws reach the missed regions, the
    weights there are even, and the standard error accounts for these regions. If few do, it may be too small.

    Returns
    -------
    float
        Between 0 and 4,096; 0 if there is no mixture.
    """
    if pilot.adapted is None:
        return 0.0
    x = path.draw_prior(_DRAWS, rng)
    terms = path.values(x)
    log_f, log_prior = terms.sum(axis=0), terms[0]
    log_q = pilot.adapted.mixture.log_density(x)
    log_odds = math.log(DEFENSIVE_SHARE / (1.0 - DEFENSIVE_SHARE))
    alone = (log_prior + log_odds > log_q) & (log_f > -np.inf)
    if not alone.any():
        return 0.0
    log_w = log_f[alone] - log_mixture_density(log_q[alone], log_prior[alone], DEFENSIVE_SHARE)
    return effective_share(log_w) * int(alone.sum())
