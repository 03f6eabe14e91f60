"""Races: find which of K arms has the highest population mean from as few rows as needed.

Algorithm 1 of Chen & Ghahramani (2016), *Scalable Discrete Sampling as a Multi-Armed Bandit
Problem*, ICML, PMLR 48:2492-2501. All arms see the same rows, batches are drawn without
replacement, an arm is dropped when the best one leads it by more than a half-width G, and at T = N
every mean is exact. A table holds the number of rows and the half-width of each round, so all bounds
share the same code.
"""

from __future__ import annotations

import math

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numba import typeof, types

from amc_pymc.engine.first_class import FirstClassFunction, bound_function
from amc_pymc.engine.jit import fill, njit
from amc_pymc.engine.records import record
from amc_pymc.engine.streams import GENERATOR
from amc_pymc.tall.racing.lil_ucb import LilParameters, lil_ucb
from amc_pymc.tall.racing.population import (
    Population,
    draw_rows,
    forget_all,
    forget_rows,
    make_population,
    sweep_rows,
)

__all__ = [
    "BY_ROUNDS",
    "DECIDED",
    "NOT_FINITE",
    "REWARDS",
    "RaceResult",
    "RaceRule",
    "race",
    "race_of",
]

#: Signature of the compiled rewards: points (K, D), centre (D,), rows (m,) -> a new array (K, m) of
#: natural logarithms, up to a constant per row common to all arms.
REWARDS = types.float64[:, ::1](types.float64[:, ::1], types.float64[::1], types.int64[::1])

DECIDED, NOT_FINITE = 0, 1
_CHUNK = 4096
#: Number of arms above which sums of products are computed by a matrix product.
_FEW_ARMS = 8
#: Share of the squares held by one row above which a round of a guarded race decides nothing.
_DOMINANT_SHARE = 0.5
#: Lead over arm 0, in half-widths, that is required while the half-width exceeds ``safe_width``.
_FIRM_LEAD = 4.0


@record
class RaceRule(NamedTuple):
    """Decision rule of a race, built by the functions in :mod:`amc_pymc.tall.racing.rules`.

    After round t the half-width of a mean, or of the gap of two means, is
    ``sd_factor[t] * sd + range_factor[t] * C``, where sd is the standard deviation with divisor
    T - 1 of the rewards read (of one arm, or of the differences of two) and C their range.

    Attributes
    ----------
    sizes : (R,) int64 array
        Rows read after each round, increasing; the last is the number of raced rows.
    sd_factor, range_factor : (R,) arrays
        Factors of sd and C, of several tables one after another if loops take one of them; not used in the last round, where means are exact. ``range_factor`` is
        zero if the bound needs no range.
    ranges : (K,), (1,) or (0,) array
        Known range of each arm's rewards, largest minus smallest, or one for all arms. If empty, the
        range of the rewards read so far is used.
    marginal : bool
        Whether the half-widths of two arms are added, instead of using the half-width of their gap.
    guarded : bool
        Whether a round decides nothing as long as one row holds more than half the squares.
    zero_sd_decides : bool
        Whether a half-width of zero may decide. Valid only if the rewards are known to be constant
        over rows (an exact control variate).
    lil : LilParameters
        If its ``delta`` is positive, lil'UCB runs the race.
    safe_width : float
        While a half-width is larger, arm 0 is dropped only if the lead over it is at least four times
        the half-width; infinity treats all arms alike. If arm 0 is the current point of a chain, this
        prevents wrong decisions from moving the chain to a much lower log density.
    """

    sizes: np.ndarray
    sd_factor: np.ndarray
    range_factor: np.ndarray
    ranges: np.ndarray
    marginal: bool
    guarded: bool
    zero_sd_decides: bool
    lil: LilParameters
    safe_width: float


class RaceResult(NamedTuple):
    """Outcome of one race.

    ``winner`` is -1 if every arm is impossible. ``rows`` counts the raced rows read (for lil'UCB, where
    each arm reads its own rows, the largest number of one arm). ``margin`` is the estimated lead of arm
    1 over arm 0 in population means if there are two arms, otherwise 0. ``row`` is the offending row if
    ``status`` is ``NOT_FINITE``. ``rewards`` counts evaluations of one row for one arm, ``arms_left``
    the arms left after the first round.
    """

    winner: int
    rows: int
    rounds: int
    margin: float
    status: int
    row: int
    rewards: int
    arms_left: int


@njit(cache=True)
def _first_bad(values: np.ndarray) -> int:
    """Return the position of the first row with a reward that is NaN or +inf, else -1."""
    for j in range(values.shape[1]):
        for a in range(values.shape[0]):
            v = values[a, j]
            if np.isnan(v) or v == np.inf:
                return j
    return -1


@njit(cache=True)
def _drop_impossible(alive: np.ndarray, arms: np.ndarray, values: np.ndarray) -> None:
    """Drop arms with a reward of -inf."""
    for a in range(arms.size):
        for j in range(values.shape[1]):
            if values[a, j] == -np.inf:
                alive[arms[a]] = False
                break


@njit(cache=True, fastmath={"nnan", "nsz"})
def _extremes(values: np.ndarray, a: int, b: int) -> tuple[float, float]:
    """Return the smallest and largest difference of rows a and b, which must not hold NaN."""
    low, high = np.inf, -np.inf
    for j in range(values.shape[1]):
        d = values[a, j] - values[b, j]
        low = min(low, d)
        high = max(high, d)
    return low, high


@njit(cache=True)
def _merge_pairs(
    seen: int,
    mean: np.ndarray,
    squares: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    ranged: bool,
    arms: np.ndarray,
    values: np.ndarray,
) -> int:
    """Add a chunk of rewards (k, m), overwritten, of the remaining arms to running moments.

    ``mean`` (K,) is up to a constant common to all arms: the rewards of the first remaining arm are
    subtracted to avoid cancellation. ``squares`` [a, b] holds the sums of products of deviations of
    arms a <= b. If ``ranged``, ``low`` and ``high`` [a, b] hold the range of their differences.
    """
    k, m = values.shape
    total: int = seen + m
    chunk_mean = np.zeros(k)
    for a in range(1, k):
        s = 0.0
        for j in range(m):
            values[a, j] -= values[0, j]
            s += values[a, j]
        chunk_mean[a] = s / m
        for j in range(m):
            values[a, j] -= chunk_mean[a]
    for j in range(m):
        values[0, j] = 0.0
    if ranged:
        for a in range(k):
            for b in range(a + 1, k):
                i, j = arms[a], arms[b]
                lead = chunk_mean[a] - chunk_mean[b]
                lowest, highest = _extremes(values, a, b)
                low[i, j] = min(low[i, j], lowest + lead)
                high[i, j] = max(high[i, j], highest + lead)
    if k <= _FEW_ARMS:
        for a in range(1, k):
            for b in range(a, k):
                s = 0.0
                for j in range(m):
                    s += values[a, j] * values[b, j]
                squares[arms[a], arms[b]] += s
    else:
        products = np.dot(values, values.T)
        for a in range(1, k):
            for b in range(a, k):
                squares[arms[a], arms[b]] += products[a, b]
    for a in range(k):
        shift = (chunk_mean[a] - mean[arms[a]]) * m / total
        for b in range(a, k):
            squares[arms[a], arms[b]] += shift * (chunk_mean[b] - mean[arms[b]]) * seen
    for a in range(k):
        mean[arms[a]] += (chunk_mean[a] - mean[arms[a]]) * m / total
    return total


@njit(cache=True)
def _merge_arms(
    seen: int,
    mean: np.ndarray,
    squares: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    arms: np.ndarray,
    values: np.ndarray,
) -> int:
    """Add a chunk arm by arm: ``squares``, ``low`` and ``high`` [a, 0] are those of arm a alone."""
    k, m = values.shape
    total: int = seen + m
    for a in range(k):
        i = arms[a]
        s = 0.0
        for j in range(m):
            s += values[a, j]
            low[i, 0] = min(low[i, 0], values[a, j])
            high[i, 0] = max(high[i, 0], values[a, j])
        chunk_mean = s / m
        s = 0.0
        for j in range(m):
            s += (values[a, j] - chunk_mean) ** 2
        shift = chunk_mean - mean[i]
        squares[i, 0] += s + shift * shift * seen * m / total
        mean[i] += shift * m / total
    return total


@njit(cache=True)
def _half_width(
    seen: int,
    squares: float,
    mean: float,
    low: float,
    high: float,
    sd_factor: float,
    range_term: float,
    guarded: bool,
) -> float:
    """Return the half-width from the moments of one arm or of a gap; inf blocks the decision."""
    if squares <= 0.0:
        return range_term
    if guarded:
        largest = max(high - mean, mean - low)
        if largest * largest > _DOMINANT_SHARE * squares:
            return np.inf
    return range_term + sd_factor * math.sqrt(squares / (seen - 1.0))


@njit(cache=True)
def _half_width_of_arm(
    row: int,
    seen: int,
    a: int,
    squares: np.ndarray,
    mean: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    rule: RaceRule,
) -> float:
    term = rule.range_factor[row]
    if term > 0.0:
        size = rule.ranges.size
        term *= rule.ranges[min(a, size - 1)] if size else high[a, 0] - low[a, 0]
    return _half_width(
        seen, squares[a, 0], mean[a], low[a, 0], high[a, 0], rule.sd_factor[row], term, rule.guarded
    )


@njit(cache=True)
def _half_width_of_pair(
    row: int,
    seen: int,
    a: int,
    b: int,
    squares: np.ndarray,
    mean: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    ranged: bool,
    rule: RaceRule,
) -> float:
    i, j = min(a, b), max(a, b)
    lowest, highest = (low[i, j], high[i, j]) if ranged else (0.0, 0.0)
    term = rule.range_factor[row]
    if term > 0.0:
        last = rule.ranges.size - 1
        if last >= 0:
            term *= rule.ranges[min(i, last)] + rule.ranges[min(j, last)]
        else:
            term *= highest - lowest
    s = squares[i, i] + squares[j, j] - 2.0 * squares[i, j]
    lead = mean[i] - mean[j]
    return _half_width(seen, s, lead, lowest, highest, rule.sd_factor[row], term, rule.guarded)


@njit(cache=True)
def _eliminate(
    t: int,
    row: int,
    seen: int,
    alive: np.ndarray,
    scores: np.ndarray,
    squares: np.ndarray,
    mean: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    ranged: bool,
    rule: RaceRule,
) -> int:
    """Drop arms that the best arm leads by more than the half-width; return the best arm."""
    best = -1
    for a in range(alive.size):
        if alive[a] and (best < 0 or scores[a] > scores[best]):
            best = a
    if t == rule.sizes.size - 1:
        for a in range(alive.size):
            alive[a] = a == best
        return best
    marginal = rule.marginal
    half_of_best = 0.0
    if marginal:
        half_of_best = _half_width_of_arm(row, seen, best, squares, mean, low, high, rule)
    for a in range(alive.size):
        if not alive[a] or a == best:
            continue
        if marginal:
            half = half_of_best + _half_width_of_arm(row, seen, a, squares, mean, low, high, rule)
        else:
            half = _half_width_of_pair(row, seen, best, a, squares, mean, low, high, ranged, rule)
        if a == 0 and half > rule.safe_width:
            half *= _FIRM_LEAD
        if half <= 0.0:
            if rule.zero_sd_decides:
                alive[a] = False
        elif scores[best] - scores[a] > half:
            alive[a] = False
    return best


@njit(cache=True)
def race(
    rewards: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
    points: np.ndarray,
    centre: np.ndarray,
    bias: np.ndarray,
    population: Population,
    rule: RaceRule,
    rng: np.random.Generator,
) -> RaceResult:
    """Find the arm with the highest population mean of rewards plus bias.

    Parameters
    ----------
    rewards : first-class function of signature ``REWARDS``
        Compiled row rewards, natural logarithms up to a constant per row common to all arms (which
        marginal variances and lil'UCB do not remove). Returns a new array, which the race overwrites.
        -inf makes an arm impossible, NaN and +inf end the race.
    points : (K, D) array
        Description of the arms: row k holds the arguments of ``rewards`` for arm k.
    centre : (D,) array
        Expansion point of the control variate, passed to ``rewards``.
    bias : (K,) array
        Term added to each arm's population mean: (log f_0 + Gumbel noise)/N. An arm whose bias is
        -inf does not race.
    population : Population
    rule : RaceRule
        Rule for the number of raced rows in ``population``.
    rng : numpy.random.Generator

    Returns
    -------
    RaceResult
    """
    if rule.lil.delta > 0.0:
        return _by_lil_ucb(rewards, points, centre, bias, population, rule, rng, 0)
    return _by_rounds(rewards, points, centre, bias, population, rule, rng, 0)


@njit(cache=True)
def _by_lil_ucb(
    rewards: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
    points: np.ndarray,
    centre: np.ndarray,
    bias: np.ndarray,
    population: Population,
    rule: RaceRule,
    rng: np.random.Generator,
    table: int,
) -> RaceResult:
    out = lil_ucb(rewards, points, centre, bias, population, rule.lil, rng)
    winner, most, drawn, margin, bad_row, left = out
    status = DECIDED if bad_row < 0 else NOT_FINITE
    return RaceResult(winner, most, 1, margin, status, bad_row, drawn, left)


@njit(cache=True)
def _by_rounds(
    rewards: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
    points: np.ndarray,
    centre: np.ndarray,
    bias: np.ndarray,
    population: Population,
    rule: RaceRule,
    rng: np.random.Generator,
    table: int,
) -> RaceResult:
    n_arms = points.shape[0]
    n_raced = population.n_raced
    if rule.sizes[-1] != n_raced:
        raise ValueError("rule is for another number of rows than population holds")
    first = table * rule.sizes.size
    ranged = rule.guarded or (rule.ranges.size == 0 and rule.range_factor[first] > 0.0)
    marginal, sizes = rule.marginal, rule.sizes
    wide = 1 if marginal else n_arms
    mean = np.zeros(n_arms)
    squares = np.zeros((n_arms, wide))
    kept = n_arms if ranged or marginal else 0
    low = np.full((kept, wide), np.inf)
    high = np.full((kept, wide), -np.inf)
    scores = bias.copy()
    alive = bias > -np.inf
    n_alive = int(np.count_nonzero(alive))
    winner = int(np.argmax(bias)) if n_alive else -1
    arms_left = 1 if n_raced == 0 else n_alive
    read = np.empty(min(n_raced, max(sizes[0], _CHUNK)), dtype=np.int64)
    buffer = np.empty(min(n_raced, _CHUNK), dtype=np.int64)
    seen, drawn, evaluated, rounds, start = 0, 0, 0, 0, 0
    status, bad_row = DECIDED, -1
    while n_alive > 1 and seen < n_raced and status == DECIDED:
        target = sizes[rounds]
        rounds += 1
        arms = np.flatnonzero(alive)
        arm_points = points[arms] if n_alive < n_arms else points
        while seen < target:
            if target == n_raced:
                m, start = sweep_rows(population.n_rows, population.marked, start, buffer)
                rows = buffer[:m]
            else:
                rows = buffer[: min(target - seen, buffer.size)]
                draw_rows(population.n_rows, population.marked, rows, rng)
                if drawn + rows.size <= read.size:
                    fill(read[drawn:], rows)
                drawn += rows.size
            values = rewards(arm_points, centre, rows)
            evaluated += arms.size * rows.size
            bad = _first_bad(values)
            if bad >= 0:
                status, bad_row = NOT_FINITE, int(rows[bad])
                seen += rows.size
                break
            _drop_impossible(alive, arms, values)
            n_alive = int(np.count_nonzero(alive))
            if n_alive < arms.size:
                if n_alive <= 1:
                    seen += rows.size
                    break
                possible = np.flatnonzero(alive[arms])
                values = values[possible]
                arms = arms[possible]
                arm_points = points[arms]
            if marginal:
                seen = _merge_arms(seen, mean, squares, low, high, arms, values)
            else:
                seen = _merge_pairs(seen, mean, squares, low, high, ranged, arms, values)
        for a in range(n_arms):
            scores[a] = mean[a] + bias[a] if alive[a] else -np.inf
        if status == DECIDED:
            winner = _eliminate(
                rounds - 1,
                first + rounds - 1,
                seen,
                alive,
                scores,
                squares,
                mean,
                low,
                high,
                ranged,
                rule,
            )
            n_alive = int(np.count_nonzero(alive))
        if rounds == 1:
            arms_left = n_alive
    if drawn <= read.size:
        forget_rows(population, read[:drawn])
    else:
        forget_all(population)
    margin = scores[1] - scores[0] if n_arms == 2 else 0.0
    return RaceResult(winner, seen, rounds, margin, status, bad_row, evaluated, arms_left)


# --- as arguments of loops --------------------------------------------------------------------------

_none, _whole = np.zeros(1), np.zeros(1, np.int64)
_lil = LilParameters(0.0, 0.0, 0.0, 0.0, 0)
_RACE = typeof(RaceResult(0, 0, 0, 0.0, 0, 0, 0, 0))(
    typeof(FirstClassFunction(None, REWARDS)),
    types.float64[:, ::1],
    types.float64[::1],
    types.float64[::1],
    typeof(make_population(1)),
    typeof(RaceRule(_whole, _none, _none, _none, False, False, False, _lil, 0.0)),
    GENERATOR,
    types.int64,
)
BY_ROUNDS = bound_function(_by_rounds, _RACE, ())
_BY_LIL_UCB = bound_function(_by_lil_ucb, _RACE, ())


def race_of(rule: RaceRule) -> Any:
    """Return the compiled race of a rule, with the arguments of :func:`race`."""
    return _BY_LIL_UCB if rule.lil.delta > 0.0 else BY_ROUNDS
