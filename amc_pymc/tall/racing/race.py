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
from typing import NamedTuple

import numpy as np

from numba import types
from numpy.typing import ArrayLike

from amc_pymc.engine.jit import fill, njit
from amc_pymc.engine.records import record

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


# --- rows drawn without replacement ---------------------------------------------------------------
# A bitmap of N/8 bytes marks the rows that a race has read. Drawing by rejection takes three tries per row on average
# even if 95 % of the rows are read; beyond that, and in the last round, a race reads the remaining rows in order. The
# bitmap is restored after the race, so a race depends only on its random generator, not on earlier races.


@record
class Population(NamedTuple):
    """N rows; those in ``exact`` are not raced but always evaluated.

    ``marked`` holds one bit per row; a set bit means that the row is read or exact.
    """

    n_rows: int
    n_raced: int
    marked: np.ndarray
    exact: np.ndarray


def make_population(n_rows: int, exact: ArrayLike = ()) -> Population:
    """Return a population of ``n_rows`` rows, of which those in ``exact`` are not raced.

    Examples
    --------
    >>> from amc_pymc.tall.racing import make_population
    >>> make_population(100, exact=[3, 5]).n_raced
    98
    """
    exact = np.unique(np.asarray(exact, dtype=np.int64))
    if n_rows < 1:
        raise ValueError(f"n_rows must be at least 1, got {n_rows}")
    if exact.size and (exact[0] < 0 or exact[-1] >= n_rows):
        raise ValueError(f"exact must lie in [0, {n_rows}), got {exact}")
    marked = np.zeros((n_rows + 63) // 64, dtype=np.uint64)
    np.bitwise_or.at(marked, exact >> 6, np.uint64(1) << (exact & 63).astype(np.uint64))
    return Population(int(n_rows), int(n_rows - exact.size), marked, exact)


@njit(cache=True)
def draw_rows(n_rows: int, marked: np.ndarray, out: np.ndarray, rng: np.random.Generator) -> None:
    """Fill ``out`` with distinct unread rows, each equally likely, and mark them as read.

    Requires at least ``out.size`` unread rows.
    """
    one = np.uint64(1)
    for k in range(out.size):
        while True:
            row = np.int64(rng.random() * n_rows)
            word = row >> 6
            bit = one << np.uint64(row & 63)
            if marked[word] & bit == 0:
                marked[word] |= bit
                out[k] = row
                break


@njit(cache=True)
def sweep_rows(n_rows: int, marked: np.ndarray, start: int, out: np.ndarray) -> tuple[int, int]:
    """Fill ``out`` with unread rows from ``start`` on, unmarked; return (number, next start)."""
    one = np.uint64(1)
    k = 0
    row = start
    while row < n_rows and k < out.size:
        if marked[row >> 6] & (one << np.uint64(row & 63)) == 0:
            out[k] = row
            k += 1
        row += 1
    return k, row


@njit(cache=True)
def forget_rows(population: Population, rows: np.ndarray) -> None:
    """Unmark the rows that a race has drawn."""
    marked = population.marked
    one = np.uint64(1)
    for row in rows:
        marked[row >> 6] &= ~(one << np.uint64(row & 63))


# --- rules and results ----------------------------------------------------------------------------


@record
class RaceRule(NamedTuple):
    """Decision rule of a race, built by the functions in :mod:`amc_pymc.tall.racing.rules`.

    After round t the half-width of the gap of two means is ``sd_factor[t] * sd + offset[t]``, where sd is the standard
    deviation with divisor T - 1 of the differences of the rewards read.

    Attributes
    ----------
    sizes : (R,) int64 array
        Rows read after each round, increasing; the last is the number of raced rows.
    sd_factor, offset : (R,) arrays
        Not used in the last round, where means are exact. ``offset`` is zero unless a bound of your own needs it.
    guarded : bool
        Whether a round decides nothing as long as one row holds more than half the squares.
    zero_sd_decides : bool
        Whether a half-width of zero may decide. Valid only if the rewards are known to be constant
        over rows (an exact control variate).
    safe_width : float
        While a half-width is larger, arm 0 is dropped only if the lead over it is at least four times
        the half-width; infinity treats all arms alike. If arm 0 is the current point of a chain, this
        prevents wrong decisions from moving the chain to a much lower log density.
    """

    sizes: np.ndarray
    sd_factor: np.ndarray
    offset: np.ndarray
    guarded: bool
    zero_sd_decides: bool
    safe_width: float


class RaceResult(NamedTuple):
    """Outcome of one race.

    ``winner`` is -1 if every arm is impossible. ``rows`` counts the raced rows read. ``margin`` is the estimated lead of arm
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


# --- rounds of batches ----------------------------------------------------------------------------


@njit(cache=True)
def first_bad(values: np.ndarray) -> int:
    """Return the position of the first row with a reward that is NaN or +inf, else -1."""
    for j in range(values.shape[1]):
        for a in range(values.shape[0]):
            v = values[a, j]
            if np.isnan(v) or v == np.inf:
                return j
    return -1


@njit(cache=True, fastmath={"nnan", "nsz"})
def _extremes(values: np.ndarray, a: int, b: int) -> tuple[float, float]:
    """Return the smallest and largest difference of rows a and b, which must not hold NaN."""
    low, high = np.inf, -np.inf
    for j in range(values.shape[1]):
        d = values[a, j] - values[b, j]
        low = min(low, d)
        high = max(high, d)
    return low, high


class _Seen(NamedTuple):
    """Running moments of the rewards read.

    ``mean`` (K,) is up to a constant common to all arms: the rewards of the first remaining arm are
    subtracted to avoid cancellation. ``squares`` [a, b] holds the sums of products of deviations of arms a <= b,
    ``low`` and ``high`` [a, b] the range of their differences, empty if the race is not guarded.
    """

    mean: np.ndarray
    squares: np.ndarray
    low: np.ndarray
    high: np.ndarray


@njit(cache=True)
def _merge(total: int, seen: _Seen, arms: np.ndarray, values: np.ndarray) -> None:
    """Add a chunk of rewards (k, m), overwritten, of the remaining arms to the moments, which are then of ``total`` rows."""
    mean, squares, low, high = seen
    k, m = values.shape
    n = total - m
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
    if low.size:
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
            squares[arms[a], arms[b]] += shift * (chunk_mean[b] - mean[arms[b]]) * n
    for a in range(k):
        mean[arms[a]] += (chunk_mean[a] - mean[arms[a]]) * m / total


@njit(cache=True)
def _half_width(t: int, n: int, a: int, b: int, seen: _Seen, rule: RaceRule) -> float:
    """Return the half-width of the gap of two arms after round t, n rows; inf blocks the decision."""
    mean, products, low, high = seen
    i, j = min(a, b), max(a, b)
    squares = products[i, i] + products[j, j] - 2.0 * products[i, j]
    if squares <= 0.0:
        return rule.offset[t]
    if rule.guarded:
        lead = mean[i] - mean[j]
        largest = max(high[i, j] - lead, lead - low[i, j])
        if largest * largest > _DOMINANT_SHARE * squares:
            return np.inf
    return rule.offset[t] + rule.sd_factor[t] * math.sqrt(squares / (n - 1.0))


@njit(cache=True)
def _eliminate(
    t: int, n: int, alive: np.ndarray, scores: np.ndarray, seen: _Seen, rule: RaceRule
) -> int:
    """Drop arms that the best arm leads by more than the half-width after round t, n rows; return the best arm."""
    best = -1
    for a in range(alive.size):
        if alive[a] and (best < 0 or scores[a] > scores[best]):
            best = a
    if t == rule.sizes.size - 1:
        for a in range(alive.size):
            alive[a] = a == best
        return best
    for a in range(alive.size):
        if not alive[a] or a == best:
            continue
        half = _half_width(t, n, best, a, seen, rule)
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
        Compiled row rewards, natural logarithms up to a constant per row common to all arms. Returns
        a new array, which the race overwrites.
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
    n_arms = points.shape[0]
    n_raced = population.n_raced
    if rule.sizes[-1] != n_raced:
        raise ValueError("rule is for another number of rows than population holds")
    sizes, kept = rule.sizes, n_arms if rule.guarded else 0
    low, high = np.full((kept, n_arms), np.inf), np.full((kept, n_arms), -np.inf)
    seen = _Seen(np.zeros(n_arms), np.zeros((n_arms, n_arms)), low, high)
    scores = bias.copy()
    alive = bias > -np.inf
    n_alive = int(np.count_nonzero(alive))
    winner = int(np.argmax(bias)) if n_alive else -1
    arms_left = 1 if n_raced == 0 else n_alive
    read = np.empty(min(n_raced, max(sizes[0], _CHUNK)), dtype=np.int64)
    buffer = np.empty(min(n_raced, _CHUNK), dtype=np.int64)
    n, drawn, evaluated, rounds, start = 0, 0, 0, 0, 0
    status, bad_row = DECIDED, -1
    while n_alive > 1 and n < n_raced and status == DECIDED:
        target = sizes[rounds]
        rounds += 1
        arms = np.flatnonzero(alive)
        arm_points = points[arms] if n_alive < n_arms else points
        while n < target:
            if target == n_raced:
                m, start = sweep_rows(population.n_rows, population.marked, start, buffer)
                rows = buffer[:m]
            else:
                rows = buffer[: min(target - n, buffer.size)]
                draw_rows(population.n_rows, population.marked, rows, rng)
                if drawn + rows.size <= read.size:
                    fill(read[drawn:], rows)
                drawn += rows.size
            values = rewards(arm_points, centre, rows)
            evaluated += arms.size * rows.size
            n += rows.size
            bad = first_bad(values)
            if bad >= 0:
                status, bad_row = NOT_FINITE, int(rows[bad])
                break
            for a in range(arms.size):
                if values[a].min() == -np.inf:
                    alive[arms[a]] = False
            n_alive = int(np.count_nonzero(alive))
            if n_alive < arms.size:
                if n_alive <= 1:
                    break
                possible = np.flatnonzero(alive[arms])
                values = values[possible]
                arms = arms[possible]
                arm_points = points[arms]
            _merge(n, seen, arms, values)
        for a in range(n_arms):
            scores[a] = seen.mean[a] + bias[a] if alive[a] else -np.inf
        if status == DECIDED:
            winner = _eliminate(rounds - 1, n, alive, scores, seen, rule)
            n_alive = int(np.count_nonzero(alive))
        if rounds == 1:
            arms_left = n_alive
    if drawn <= read.size:
        forget_rows(population, read[:drawn])
    else:  # more rows than are remembered
        population.marked[:] = np.uint64(0)
        for row in population.exact:
            population.marked[row >> 6] |= np.uint64(1) << np.uint64(row & 63)
    margin = scores[1] - scores[0] if n_arms == 2 else 0.0
    return RaceResult(winner, n, rounds, margin, status, bad_row, evaluated, arms_left)
