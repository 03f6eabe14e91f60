"""Gibbs sweeps over discrete elements whose draws are races, compiled as one loop.

An element with K states gets the state k with the highest log p(x_k) + eps_k, eps standard Gumbel
noise: an exact draw from its full conditional (Papandreou & Yuille 2011; Chen & Ghahramani 2016,
eq. 2). Each state is an arm whose rewards are the rows' log-likelihoods less a control variate.
"""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from numba import njit

from amc_pymc.racing import DECIDED, NOT_FINITE, RaceResult, RaceRule, race
from amc_pymc.step_methods.compiled import surrogate_total

__all__ = [
    "NOT_EXPANDABLE",
    "NO_STATE",
    "REST_NOT_FINITE",
    "Elements",
    "StateLog",
    "arm_scores",
    "run_sweeps",
]

#: Further outcomes of a sweep: no state has a positive density; the rest of the model is NaN; the
#: control variate does not hold in a state.
NO_STATE, REST_NOT_FINITE, NOT_EXPANDABLE = 11, 12, 13


class Elements(NamedTuple):
    """Discrete elements to be drawn.

    ``coordinate`` (J,) are their places in x, ``first`` (J + 1,) where each one's states begin in
    ``states``, ``rule`` (J,) which row of the rules' tables holds for its number of states,
    ``raced`` (J,) whether rows depend on it. ``fixed`` are coordinates of the parameters eta that
    the control variate takes as they are at its centre: conditions and indices.
    """

    coordinate: np.ndarray
    first: np.ndarray
    states: np.ndarray
    rule: np.ndarray
    raced: np.ndarray
    fixed: np.ndarray


class StateLog(NamedTuple):
    """A uniform sample of C of the draws made since the last audit.

    ``x`` (C, D) holds the point, ``noise`` (C, K) the Gumbel noise, ``decision`` (C, 3) the
    element, the position of the state drawn and the raced rows read, a mean over the states;
    ``count`` (1,) counts all.
    """

    x: np.ndarray
    noise: np.ndarray
    decision: np.ndarray
    count: np.ndarray  # type: ignore[assignment]


@njit(cache=True)
def _rule_of(rules, j):
    """Rule for one number of states from tables (J, R) over numbers of states."""
    return RaceRule(
        rules.sizes,
        rules.sd_factor[j],
        rules.range_factor[j],
        rules.ranges,
        rules.marginal,
        rules.guarded,
        rules.zero_sd_decides,
        rules.lil,
    )


@njit(cache=True)
def arm_scores(x, coordinate, states, noise, densities):
    """Score (K,) of each state without the rows: rest of the log density plus noise.

    x is left as it was. Returns the scores, whether one is NaN or +inf, and how many are finite.
    """
    old = x[coordinate]
    scores = np.empty(states.size)
    bad = False
    possible = 0
    for k in range(states.size):
        x[coordinate] = states[k]
        rest = densities.rest(x)
        bad = bad or np.isnan(rest) or rest == np.inf
        possible += rest > -np.inf
        scores[k] = rest + noise[k]
    x[coordinate] = old
    return scores, bad, possible


@njit(cache=True)
def _race_states(x, coordinate, states, scores, fixed, densities, surrogate, population, rule, rng):
    """Race the states with a finite score; return the result, its winner a position in states."""
    arms = np.flatnonzero(scores > -np.inf)
    old = x[coordinate]
    points = np.empty((arms.size, surrogate.centre.size))
    bias = np.empty(arms.size)
    for a in range(arms.size):
        x[coordinate] = states[arms[a]]
        points[a] = densities.parameters(x)
        bias[a] = scores[arms[a]] + surrogate_total(points[a], surrogate)
        bias[a] += densities.control(points[a])
        expandable = np.all(np.isfinite(points[a]))
        for f in fixed:
            expandable = expandable and points[a, f] == surrogate.centre[f]
        if not expandable:
            x[coordinate] = old
            return RaceResult(arms[a], 0, 0, 0.0, NOT_EXPANDABLE, -1, 0, 0)
    x[coordinate] = old
    if population.exact.size:
        exact = densities.rewards(points, surrogate.centre, population.exact)
        for a in range(arms.size):
            bias[a] += exact[a].sum()
            if np.isnan(bias[a]) or bias[a] == np.inf:
                row = population.exact[0]
                for j in range(population.exact.size):
                    if np.isnan(exact[a, j]) or exact[a, j] == np.inf:
                        row = population.exact[j]
                return RaceResult(0, 0, 0, 0.0, NOT_FINITE, row, 0, 0)
    # A control variate may overflow far from its centre; such a state is raced as hopeless.
    kept = np.flatnonzero(np.isfinite(bias))
    if kept.size == 0:
        return RaceResult(-1, 0, 0, 0.0, DECIDED, -1, 0, 0)
    if kept.size < arms.size:
        arms = arms[kept]
        points = points[kept]
        bias = bias[kept]
    top = bias.max()
    for a in range(arms.size):
        bias[a] = (bias[a] - top) / max(1, population.n_raced)
    result = race(densities.rewards, points, surrogate.centre, bias, population, rule, rng)
    return RaceResult(
        arms[result.winner] if result.winner >= 0 else -1,
        result.rows,
        result.rounds,
        result.margin,
        result.status,
        result.row,
        result.rewards,
        result.arms_left,
    )


@njit(cache=True)
def _shuffle(order, rng):
    for i in range(order.size - 1, 0, -1):
        j = np.int64(rng.random() * (i + 1))
        order[i], order[j] = order[j], order[i]


@njit(cache=True)
def _log_draw(log, x, element, noise, winner, rows, rng):
    """Reservoir sampling of draws to be audited."""
    size = log.x.shape[0]
    k = log.count[0]
    log.count[0] += 1
    slot = k if k < size else np.int64(rng.random() * (k + 1))
    if slot < size:
        log.x[slot] = x
        log.noise[slot, : noise.size] = noise
        log.decision[slot, 0] = element
        log.decision[slot, 1] = winner
        log.decision[slot, 2] = rows


@njit(cache=True)
def run_sweeps(n, x, elements, densities, surrogate, population, rules, rng, log, log_rng, stats):
    """Make ``n`` sweeps over all elements in random order, overwriting x (D,).

    Adds to ``stats`` (8,): draws made, draws that changed the element, races, rounds, raced rows
    read, other rows read, arms left after the first round summed over races, rewards drawn.

    Returns the status, the element at which it stopped and the offending row, or the position of
    the offending state.
    """
    n_elements = elements.coordinate.size
    order = np.arange(n_elements)
    for _ in range(n):
        _shuffle(order, rng)
        for e in order:
            coordinate = elements.coordinate[e]
            states = elements.states[elements.first[e] : elements.first[e + 1]]
            noise = np.empty(states.size)
            for k in range(states.size):
                noise[k] = -math.log(-math.log(1.0 - rng.random()))
            scores, bad, possible = arm_scores(x, coordinate, states, noise, densities)
            if bad:
                return REST_NOT_FINITE, e, -1
            if possible == 0:
                return NO_STATE, e, -1
            rows = 0
            if possible == 1 or not elements.raced[e]:
                winner = np.argmax(scores)
            else:
                rule = _rule_of(rules, elements.rule[e])
                result = _race_states(
                    x,
                    coordinate,
                    states,
                    scores,
                    elements.fixed,
                    densities,
                    surrogate,
                    population,
                    rule,
                    rng,
                )
                if result.status == NOT_EXPANDABLE:
                    return NOT_EXPANDABLE, e, result.winner
                if result.status != DECIDED:
                    return result.status, e, result.row
                if result.winner < 0:
                    return NO_STATE, e, -1
                winner = result.winner
                rows = result.rows
                stats[2] += 1
                stats[3] += result.rounds
                stats[4] += rows
                stats[5] += population.exact.size
                stats[6] += result.arms_left
                stats[7] += result.rewards
                if log.x.shape[0]:
                    read = result.rewards / possible
                    _log_draw(log, x, e, noise, winner, read, log_rng)
            stats[0] += 1
            stats[1] += states[winner] != x[coordinate]
            x[coordinate] = states[winner]
    return DECIDED, -1, -1
