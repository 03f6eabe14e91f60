"""Tests of whether two estimates of the evidence agree within their errors."""

from __future__ import annotations

import math

from amc_pymc.evidence.annealing import Ladder
from amc_pymc.importance import AdaptedMixture

__all__ = ["PER_STEP", "clearly_more", "error_of", "less_than_climb", "prior_error", "share_error"]

#: Relative variance of the weights in one step of a pilot run, and the factor by which the errors of pilot runs
#: exceed the sum of these steps.
PER_STEP, _CORRELATED = 1.0 / 0.6 - 1.0, 1.6
#: Effective number of prior draws with descendants below which a pilot run says nothing of the evidence.
_FEWEST = 2.0
#: Largest difference between estimates that agree: standard errors, plus nats.
_ERRORS, _NATS = 3.0, 0.1


def clearly_more(
    log_z: float, error: float, other: float, other_error: float, errors: float = _ERRORS
) -> float:
    """Return by how many nats one log evidence exceeds another; 0 if their errors explain the difference."""
    gap = log_z - other
    return gap if gap > errors * math.hypot(error, other_error) + _NATS else 0.0


def less_than_climb(log_z: float, error: float, ladder: Ladder) -> float:
    """Return by how many nats a pilot run from the prior exceeds an estimate; 0 if the errors explain it."""
    return clearly_more(ladder.log_z, prior_error(ladder), log_z, error)


def prior_error(ladder: Ladder) -> float:
    """Return a rough standard error of the log evidence from a pilot run that starts at the prior."""
    steps, particles = len(ladder.betas) - 1, len(ladder.particles.x)
    return math.hypot(_CORRELATED * math.sqrt(PER_STEP * steps / particles), share_error(ladder))


def share_error(ladder: Ladder) -> float:
    """Return the standard error of the logarithm of the share of prior draws with a positive likelihood.

    It is infinite if nearly all particles descend from one draw: this one may have come near a narrow peak by chance, and
    the pilot run then exceeds the evidence by far.
    """
    if ladder.lineages < _FEWEST:
        return math.inf
    return math.sqrt((1.0 / ladder.possible - 1.0) / ladder.drawn) if ladder.drawn else 0.0


def error_of(adapted: AdaptedMixture) -> float:
    """Return the standard error of the log evidence from an adapted mixture; inf if all weights are zero."""
    return 1.0 / math.sqrt(adapted.ess) if adapted.ess > 0.0 else math.inf
