"""Whether estimates of the evidence that come from different ends agree."""

from __future__ import annotations

import math

from amc_pymc.annealing import Ladder
from amc_pymc.importance import AdaptedMixture

__all__ = ["clearly_more", "error_of", "less_than_climb", "prior_error"]

#: Relative variance that one step of a climb leaves, and by how much errors of climbs exceed what it explains.
_PER_STEP, _CORRELATED = 1.0 / 0.6 - 1.0, 1.6
#: Standard errors, and nats beside them, by which two estimates may differ.
_ERRORS, _NATS = 3.0, 0.1


def clearly_more(log_z: float, error: float, other: float, other_error: float) -> float:
    """Nats by which one estimate of a log evidence is above another; 0 where errors explain it."""
    gap = log_z - other
    return gap if gap > _ERRORS * math.hypot(error, other_error) + _NATS else 0.0


def less_than_climb(log_z: float, error: float, ladder: Ladder) -> float:
    """Nats by which a climb from the prior has found more than an estimate; 0 where errors explain it."""
    return clearly_more(ladder.log_z, prior_error(ladder), log_z, error)


def prior_error(ladder: Ladder) -> float:
    """Rough standard error of the log evidence that a climb from the prior has found."""
    steps, particles = len(ladder.betas) - 1, len(ladder.particles.x)
    return _CORRELATED * math.sqrt(_PER_STEP * steps / particles)


def error_of(adapted: AdaptedMixture) -> float:
    """Standard error of the log evidence by the weights of an adapted mixture; inf without draws that count."""
    return 1.0 / math.sqrt(adapted.ess) if adapted.ess > 0.0 else math.inf
