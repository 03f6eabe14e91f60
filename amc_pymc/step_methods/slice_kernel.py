"""Slice sampling whose tests of a point against the slice's height are two-arm races.

Along a direction v, a height log f(x) + log u is drawn under the density, an interval around x is
stepped out until its ends are below that height, and points are drawn in it, shrinking it at those
below, until one is above (Neal 2003). "Above" is the decision of a Metropolis step with the slice's
u (DuBois, Korattikara, Welling & Smyth 2014).
"""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from numba import njit

from amc_pymc.racing import NOT_FINITE
from amc_pymc.step_methods.compiled import decide
from amc_pymc.step_methods.metropolis_kernel import log_decision

__all__ = ["Slices", "run_slices"]

_MOST_SHRINKS = 100


class Slices(NamedTuple):
    """Directions (A, A), one per row, over the ``active`` (A,) coordinates.

    The first interval is ``width`` times a direction long, and is stepped out by ``most_steps``
    such lengths at most.
    """

    active: np.ndarray
    directions: np.ndarray
    width: float
    most_steps: int


@njit(cache=True)
def _above(
    t,
    points,
    arms,
    direction,
    active,
    rest,
    log_u,
    densities,
    surrogate,
    population,
    rule,
    rng,
    log,
    log_rng,
    stats,
):
    """Whether x + t v is above the slice's height; a row that is not finite there is below.

    Writes the point to points[1]. ``stats[3]`` remembers one more than such a row's number.
    """
    points[1] = points[0]
    for a in range(active.size):
        points[1, active[a]] += t * direction[a]
    stats[0] += 1
    known = densities.rest(points[1]) - rest - log_u
    if not known > -np.inf:
        return False
    arms[1] = densities.parameters(points[1])
    verdict = decide(known, arms, densities, surrogate, population, rule, rng)
    stats[1] += verdict.rounds
    stats[2] += verdict.raced + verdict.exact
    if verdict.status == NOT_FINITE:
        stats[3] = verdict.row + 1
        return False
    if log.x.shape[0]:
        log_decision(log, points, known, verdict.accepted, verdict.raced, log_rng)
    return verdict.accepted


@njit(cache=True)
def run_slices(n, points, slices, densities, surrogate, population, rule, rng, log, log_rng, stats):
    """Make ``n`` sweeps over all directions in turn from points[0] (points is (2, D), overwritten).

    Adds to ``stats`` (4,): decisions, rounds, rows read; its last entry is one more than the number
    of the last row that was not finite at a point tried.
    """
    active = slices.active
    here = densities.parameters(points[0])
    arms = np.empty((2, here.size))
    for sweep in range(n):
        for j in range(active.size):
            direction = slices.directions[j]
            arms[0] = densities.parameters(points[0])
            rest = densities.rest(points[0])
            log_u = math.log(1.0 - rng.random())
            width = slices.width
            low = -width * rng.random()
            high = low + width
            lefts = np.int64(rng.random() * slices.most_steps)
            rights = slices.most_steps - 1 - lefts
            for side in range(2):
                left = lefts if side == 0 else rights
                while left > 0:
                    end = low if side == 0 else high
                    above = _above(
                        end,
                        points,
                        arms,
                        direction,
                        active,
                        rest,
                        log_u,
                        densities,
                        surrogate,
                        population,
                        rule,
                        rng,
                        log,
                        log_rng,
                        stats,
                    )
                    if not above:
                        break
                    left -= 1
                    if side == 0:
                        low -= width
                    else:
                        high += width
            for _ in range(_MOST_SHRINKS):
                t = low + (high - low) * rng.random()
                above = _above(
                    t,
                    points,
                    arms,
                    direction,
                    active,
                    rest,
                    log_u,
                    densities,
                    surrogate,
                    population,
                    rule,
                    rng,
                    log,
                    log_rng,
                    stats,
                )
                if above:
                    points[0] = points[1]
                    break
                if t < 0.0:
                    low = t
                else:
                    high = t
