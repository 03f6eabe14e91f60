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
from amc_pymc.tall.racing import DECIDED, Population, RaceResult, draw_rows, sweep_rows

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

    ``delta`` is the delta of the bound, not the promised error, and ``scale`` half the range of the rewards.
    ``rows_per_pull`` is the number of rows read at a time.
    """

    delta: float
    scale: float
    rows_per_pull: int


def heuristic(delta: float, reward_range: ArrayLike, rows_per_pull: int = 1) -> LilParameters:
    """Return delta / 5, as in Jamieson et al. (2014), section 5, and half of the range.

    ``reward_range`` is the largest minus the smallest reward of an arm; of several arms, the largest is used.
    """
    return LilParameters(delta / 5.0, float(np.max(reward_range)) / 2.0, rows_per_pull)


@njit
def upper_half_width(pulls: int, lil: LilParameters) -> float:
    """Return the distance of an arm's upper bound from its mean after ``pulls`` rows, with beta = 1/2 and eps = 0.

    The iterated logarithm is evaluated at T >= e, so it is not negative.
    """
    iterated = max(1.0, math.log(pulls))
    return 1.5 * lil.scale * math.sqrt(2.0 * math.log(iterated / lil.delta) / pulls)


@njit
def _highest(scores: np.ndarray, pulls: np.ndarray, n_raced: int, lil: LilParameters) -> int:
    """Return the arm with the highest upper bound."""
    best, highest = 0, -np.inf
    for a in range(scores.size):
        exact = pulls[a] == n_raced
        bound = scores[a] + (0.0 if exact else upper_half_width(pulls[a], lil))
        if bound > highest:
            best, highest = a, bound
    return best


@njit
def lil_ucb(
    rewards: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray], points: np.ndarray,
    centre: np.ndarray, bias: np.ndarray, population: Population, lil: LilParameters,
    rng: np.random.Generator,
) -> RaceResult:  # fmt: skip
    """Find the arm with the highest population mean of finite rewards plus bias by lil'UCB; arguments as for :func:`race`."""
    n_arms, n_raced = points.shape[0], population.n_raced
    marked = np.empty((n_arms, population.marked.size), dtype=np.uint64)
    for a in range(n_arms):
        fill(marked[a], population.marked)
    pulls, sums, scores = np.zeros(n_arms, dtype=np.int64), np.zeros(n_arms), np.zeros(n_arms)
    buffer = np.empty(min(n_raced, max(_CHUNK, lil.rows_per_pull)), dtype=np.int64)
    ratio = 1.0 + 10.0 / n_arms
    drawn, visit, winner = 0, 0, -1
    while winner < 0:
        if visit < n_arms:
            arm, visit = visit, visit + 1
        else:
            arm = _highest(scores, pulls, n_raced, lil)
            if pulls[arm] == n_raced:
                winner = arm
                break
        left = n_raced - pulls[arm]
        all_left = pulls[arm] + lil.rows_per_pull > _ALL_BEYOND * n_raced
        size = left if all_left else min(lil.rows_per_pull, left)
        start = 0
        while size > 0:
            rows = buffer[: min(size, buffer.size)]
            if all_left:
                _, start = sweep_rows(population.n_rows, marked[arm], start, rows)
            else:
                draw_rows(population.n_rows, marked[arm], rows, rng)
            sums[arm] += rewards(points[arm : arm + 1], centre, rows).sum()
            pulls[arm] += rows.size
            drawn += rows.size
            size -= rows.size
        scores[arm] = sums[arm] / pulls[arm] + bias[arm]
        if visit == n_arms and pulls[arm] >= 1.0 + ratio * (drawn - pulls[arm]):
            winner = arm
    margin = scores[1] - scores[0] if n_arms == 2 else 0.0
    return RaceResult(winner, int(pulls.max()), 1, margin, DECIDED, -1, drawn, n_arms)
