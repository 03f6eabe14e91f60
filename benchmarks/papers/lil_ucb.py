"""lil'UCB adapted to finite populations, with which the paper of races compares them.

Each arm draws its own rows, one or a few at a time, and better arms draw more. Chen & Ghahramani (2016),
section 3.2; the heuristic parameters have no proof, so the error may exceed delta.
"""

from __future__ import annotations

import math

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.engine.jit import fill, njit
from amc_pymc.tall.racing import DECIDED, NOT_FINITE, Population, RaceResult
from amc_pymc.tall.racing.race import draw_rows, sweep_rows

_CHUNK = 4096
#: Share of the rows beyond which an arm reads all remaining rows at once.
_ALL_BEYOND = 0.95


# The arm with the highest upper confidence bound
#     mean_i + (1 + beta) (1 + sqrt(eps)) sqrt(2 s^2 (1 + eps) log(log((1 + eps) T_i) / delta) / T_i)
# is pulled, where s is half the range of the rewards. The winner is the first arm pulled more than lambda times as often
# as all the others together (Jamieson, Malloy, Nowak & Bubeck 2014, *lil' UCB: An Optimal Exploration Algorithm for
# Multi-Armed Bandits*, COLT, PMLR 35:423-439; figure 1; the heuristic parameters beta = 1/2, eps = 0, lambda = 1 + 10/K,
# delta = nu/5 of its section 5 have no proof). Chen & Ghahramani (2016), section 3.2, adapt it to finite populations:
# each arm draws its own rows without replacement, the bound of an arm that has read all rows is its exact mean, and the
# race also stops when the highest bound is exact.


class LilParameters(NamedTuple):
    """Parameters of lil'UCB.

    ``delta`` is the delta of the bound, not the promised error. ``scale`` is half
    the range of the rewards, or 0 to estimate it from the rewards read. ``rows_per_pull`` is the
    number of rows read at a time.
    """

    delta: float
    scale: float
    beta: float
    epsilon: float
    rows_per_pull: int


def heuristic(
    delta: float, reward_range: ArrayLike | None = None, rows_per_pull: int = 1
) -> LilParameters:
    """Return beta = 1/2, eps = 0 and delta / 5 of Jamieson et al. (2014), section 5.

    ``reward_range`` is the largest minus the smallest reward of an arm; of several arms, the largest is used.
    None uses the largest range seen in an arm.
    """
    scale = 0.0 if reward_range is None else float(np.max(reward_range)) / 2.0
    return LilParameters(delta / 5.0, scale, 0.5, 0.0, rows_per_pull)


@njit
def upper_half_width(pulls: int, scale: float, lil: LilParameters) -> float:
    """Return the distance of an arm's upper bound from its mean after ``pulls`` rows.

    The iterated logarithm is evaluated at (1 + eps) T >= e, so it is not negative.
    """
    iterated = max(1.0, math.log((1.0 + lil.epsilon) * pulls))
    inner = 2.0 * (1.0 + lil.epsilon) * math.log(iterated / lil.delta) / pulls
    return (1.0 + lil.beta) * (1.0 + math.sqrt(lil.epsilon)) * scale * math.sqrt(inner)


@njit
def _highest(
    scores: np.ndarray,
    pulls: np.ndarray,
    alive: np.ndarray,
    scale: float,
    n_raced: int,
    lil: LilParameters,
) -> int:
    """Return the arm with the highest upper bound, -1 if no arm is left."""
    best, highest = -1, -np.inf
    for a in range(alive.size):
        if not alive[a]:
            continue
        bound = scores[a]
        if pulls[a] < n_raced:
            bound += upper_half_width(pulls[a], scale, lil)
        if best < 0 or bound > highest:
            best, highest = a, bound
    return best


@njit
def lil_ucb(
    rewards: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
    points: np.ndarray,
    centre: np.ndarray,
    bias: np.ndarray,
    population: Population,
    lil: LilParameters,
    rng: np.random.Generator,
) -> RaceResult:
    """Find the arm with the highest population mean of rewards plus bias by lil'UCB; arguments as for :func:`race`."""
    n_arms = points.shape[0]
    n_raced = population.n_raced
    alive = bias > -np.inf
    n_alive = int(np.count_nonzero(alive))
    if n_alive <= 1 or n_raced == 0:
        winner = int(np.argmax(bias)) if n_alive else -1
        margin = bias[1] - bias[0] if n_arms == 2 else 0.0
        return RaceResult(winner, 0, 1, margin, DECIDED, -1, 0, min(n_alive, 1))
    marked = np.empty((n_arms, population.marked.size), dtype=np.uint64)
    for a in range(n_arms):
        fill(marked[a], population.marked)
    pulls = np.zeros(n_arms, dtype=np.int64)
    sums = np.zeros(n_arms)
    scores = np.zeros(n_arms)
    buffer = np.empty(min(n_raced, max(_CHUNK, lil.rows_per_pull)), dtype=np.int64)
    known = lil.scale > 0.0
    scale = lil.scale
    ratio = 1.0 + 10.0 / n_arms
    first = lil.rows_per_pull if known else max(2, lil.rows_per_pull)
    drawn, visit, winner, bad_row, arms_left = 0, 0, -1, -1, 1
    low, high = np.full(n_arms, np.inf), np.full(n_arms, -np.inf)
    while (n_alive > 1 or (n_alive == 1 and visit < n_arms)) and bad_row < 0:
        if visit < n_arms:
            arm, size = visit, first
            visit += 1
            if not alive[arm]:
                continue
        else:
            arm = _highest(scores, pulls, alive, scale, n_raced, lil)
            if pulls[arm] == n_raced:
                winner = arm
                break
            size = lil.rows_per_pull
        n_rows, own = population.n_rows, marked[arm]
        left = n_raced - pulls[arm]
        all_left = pulls[arm] + size > _ALL_BEYOND * n_raced
        size = left if all_left else min(size, left)
        start = 0
        while size > 0:
            rows = buffer[: min(size, buffer.size)]
            if all_left:
                _, start = sweep_rows(n_rows, own, start, rows)
            else:
                draw_rows(n_rows, own, rows, rng)
            values = rewards(points[arm : arm + 1], centre, rows)
            for j in range(rows.size):
                v = values[0, j]
                if np.isnan(v) or v == np.inf:
                    bad_row = rows[j]
                    break
                low[arm] = min(low[arm], v)
                high[arm] = max(high[arm], v)
                sums[arm] += v
            pulls[arm] += rows.size
            drawn += rows.size
            size -= rows.size
            if bad_row >= 0 or sums[arm] == -np.inf:
                break
        scores[arm] = sums[arm] / pulls[arm] + bias[arm]
        if sums[arm] == -np.inf:
            alive[arm] = False
            n_alive -= 1
        elif not known:
            scale = max(scale, 0.5 * float(high[arm] - low[arm]))
        if visit == n_arms:
            arms_left = max(arms_left, n_alive)
            if alive[arm] and pulls[arm] >= 1.0 + ratio * (drawn - pulls[arm]):
                winner = arm
                break
    if n_alive <= 1:
        winner = _highest(scores, pulls, alive, scale, n_raced, lil)
    margin = scores[1] - scores[0] if n_arms == 2 else 0.0
    status = DECIDED if bad_row < 0 else NOT_FINITE
    return RaceResult(winner, int(pulls.max()), 1, margin, status, bad_row, drawn, arms_left)
