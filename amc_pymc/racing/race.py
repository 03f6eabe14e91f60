"""The race: which of K arms has the highest population mean, from as few rows as needed.

Algorithm 1 of Chen & Ghahramani (2016), *Scalable Discrete Sampling as a Multi-Armed Bandit
Problem*, ICML, PMLR 48:2492-2501, with pairwise variances: all arms see the same rows, batches
are drawn without replacement and double, an arm is dropped when the best one leads it by more
than B standard errors, and at T = N every mean is exact.
"""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from numba import njit, types

from amc_pymc.racing.population import draw_rows, forget_all, forget_rows, sweep_rows

__all__ = ["DECIDED", "NOT_FINITE", "REWARDS", "RaceResult", "RaceRule", "race"]

#: Signature of the compiled rewards: points (K, D), centre (D,), rows (m,) -> (K, m), natural
#: logarithms relative to arm 0, whose row is zero.
REWARDS = types.float64[:, ::1](types.float64[:, ::1], types.float64[::1], types.int64[::1])

DECIDED, NOT_FINITE = 0, 1
_CHUNK = 4096
#: A round that would end with more than this share of the rows reads all: drawing without
#: replacement gets dear there, and one look less errs less.
_ALL_BEYOND = 0.95
#: A batch in which one row holds more than this share of the squares decides nothing.
_DOMINANT_SHARE = 0.5


class RaceRule(NamedTuple):
    """How a race decides.

    Attributes
    ----------
    bound : float
        Constant B of the normal bound, in standard errors.
    batch_size : int
        Rows of the first batch; N or more reads everything at once.
    zero_sd_decides : bool
        Whether a batch without any spread may decide. Only right where the rewards are known to
        be constant over rows (a control variate that is exact).
    """

    bound: float
    batch_size: int
    zero_sd_decides: bool


class RaceResult(NamedTuple):
    """Outcome of one race.

    ``margin`` is the estimated lead of arm 1 over arm 0 in population means (meaningful for
    K = 2), ``rows`` counts the raced rows read, ``row`` names an offending row if ``status`` is
    ``NOT_FINITE``.
    """

    winner: int
    rows: int
    rounds: int
    margin: float
    status: int
    row: int


@njit(cache=True)
def _merge(seen, mean, comoment, low, high, arms, values):
    """Add a chunk of rewards (k, m) of the arms still racing to the running moments.

    ``low`` and ``high`` [a, b] hold the range of the differences of arms a < b.
    """
    k, m = values.shape
    total = seen + m
    chunk_mean = np.empty(k)
    for a in range(k):
        s = 0.0
        for j in range(m):
            s += values[a, j]
        chunk_mean[a] = s / m
        for b in range(a + 1, k):
            lowest, highest = low[arms[a], arms[b]], high[arms[a], arms[b]]
            for j in range(m):
                d = values[a, j] - values[b, j]
                lowest = min(lowest, d)
                highest = max(highest, d)
            low[arms[a], arms[b]], high[arms[a], arms[b]] = lowest, highest
    for a in range(k):
        shift_a = chunk_mean[a] - mean[arms[a]]
        for b in range(a, k):
            s = 0.0
            for j in range(m):
                s += (values[a, j] - chunk_mean[a]) * (values[b, j] - chunk_mean[b])
            s += shift_a * (chunk_mean[b] - mean[arms[b]]) * seen * m / total
            comoment[arms[a], arms[b]] += s
            if a != b:
                comoment[arms[b], arms[a]] += s
    for a in range(k):
        mean[arms[a]] += (chunk_mean[a] - mean[arms[a]]) * m / total
    return total


@njit(cache=True)
def _first_bad(values):
    """Position of the first row whose rewards are NaN or +inf, else -1."""
    for j in range(values.shape[1]):
        for a in range(values.shape[0]):
            v = values[a, j]
            if np.isnan(v) or v == np.inf:
                return j
    return -1


@njit(cache=True)
def _drop_impossible(alive, arms, values):
    """Arms with a -inf reward are out at once."""
    for a in range(arms.size):
        for j in range(values.shape[1]):
            if values[a, j] == -np.inf:
                alive[arms[a]] = False
                break


@njit(cache=True)
def _eliminate(alive, scores, comoment, mean, low, high, seen, n_raced, rule):
    """Drop every arm that the best one leads by more than B standard errors."""
    best = -1
    for a in range(alive.size):
        if alive[a] and (best < 0 or scores[a] > scores[best]):
            best = a
    if seen >= n_raced:
        for a in range(alive.size):
            alive[a] = a == best
        return best
    finite = (1.0 - (seen - 1.0) / (n_raced - 1.0)) / (seen * (seen - 1.0))
    for a in range(alive.size):
        if not alive[a] or a == best:
            continue
        squares = comoment[best, best] + comoment[a, a] - 2.0 * comoment[best, a]
        if squares <= 0.0:
            if rule.zero_sd_decides:
                alive[a] = False
            continue
        i, j = min(best, a), max(best, a)
        lead = mean[i] - mean[j]
        largest = max(high[i, j] - lead, lead - low[i, j])
        if largest * largest > _DOMINANT_SHARE * squares:
            continue
        if scores[best] - scores[a] > rule.bound * math.sqrt(squares * finite):
            alive[a] = False
    return best


@njit(cache=True)
def race(rewards, points, centre, bias, population, rule, rng):
    """Find the arm with the highest population mean of rewards plus bias.

    Parameters
    ----------
    rewards : first-class function of signature ``REWARDS``
        Compiled row rewards, natural logarithms, relative to arm 0.
    points : (K, D) array
        One flat point per arm.
    centre : (D,) array
        Expansion point of the control variate, handed on to ``rewards``.
    bias : (K,) array
        What each arm's population mean gets besides its rows: (log f_0 + Gumbel noise)/N.
    population : Population
    rule : RaceRule
    rng : numpy.random.Generator

    Returns
    -------
    RaceResult
    """
    n_arms = points.shape[0]
    n_raced = population.n_raced
    mean = np.zeros(n_arms)
    comoment = np.zeros((n_arms, n_arms))
    low = np.full((n_arms, n_arms), np.inf)
    high = np.full((n_arms, n_arms), -np.inf)
    scores = bias.copy()
    alive = np.ones(n_arms, dtype=np.bool_)
    read = np.empty(min(n_raced, max(rule.batch_size, _CHUNK)), dtype=np.int64)
    buffer = np.empty(min(n_raced, _CHUNK), dtype=np.int64)
    seen, drawn, rounds, start, winner, n_alive = 0, 0, 0, 0, 0, n_arms
    status, bad_row = DECIDED, -1
    while n_alive > 1 and seen < n_raced and status == DECIDED:
        target = rule.batch_size if seen == 0 else 2 * seen
        if target > _ALL_BEYOND * n_raced:
            target = n_raced
        rounds += 1
        arms = np.flatnonzero(alive)
        arm_points = points[arms] if n_alive < n_arms else points
        while seen < target:
            if target == n_raced:
                m, start = sweep_rows(population, start, buffer)
                rows = buffer[:m]
            else:
                rows = buffer[: min(target - seen, buffer.size)]
                draw_rows(population, rows, rng)
                if drawn + rows.size <= read.size:
                    read[drawn : drawn + rows.size] = rows
                drawn += rows.size
            values = rewards(arm_points, centre, rows)
            bad = _first_bad(values)
            if bad >= 0:
                status, bad_row = NOT_FINITE, rows[bad]
                seen += rows.size
                break
            _drop_impossible(alive, arms, values)
            n_alive = np.count_nonzero(alive)
            if n_alive < arms.size:
                if n_alive <= 1:
                    seen += rows.size
                    break
                kept = np.flatnonzero(alive[arms])
                values = values[kept]
                arms = arms[kept]
                arm_points = points[arms]
            seen = _merge(seen, mean, comoment, low, high, arms, values)
        for a in range(n_arms):
            scores[a] = mean[a] + bias[a] if alive[a] else -np.inf
        if status == DECIDED:
            winner = _eliminate(alive, scores, comoment, mean, low, high, seen, n_raced, rule)
            n_alive = np.count_nonzero(alive)
    if n_raced == 0:
        winner = int(np.argmax(scores))
    if drawn <= read.size:
        forget_rows(population, read[:drawn])
    else:
        forget_all(population)
    margin = scores[1] - scores[0] if n_arms == 2 else 0.0
    return RaceResult(winner, seen, rounds, margin, status, bad_row)
