"""Races: find which of K arms has the highest population mean from as few rows as needed.

Algorithm 1 of Chen & Ghahramani (2016), *Scalable Discrete Sampling as a Multi-Armed Bandit
Problem*, ICML, PMLR 48:2492-2501. All arms see the same rows, batches are drawn without
replacement, an arm is dropped when the best one leads it by more than a half-width G, and at T = N
every mean is exact. A :class:`RaceRule` holds the number of rows and the half-width of each round, so
all bounds share the same code. Gaps are judged by the variance of differences, and a race over D arms
divides its error probability delta by D - 1 (their proposition 3).
"""

from __future__ import annotations

import math

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real
from typing import Any, Literal, NamedTuple

import numpy as np

from numba import types
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from amc_pymc.arguments import positive_int
from amc_pymc.engine.jit import fill, njit, record

Sides = Literal["two", "one"]

#: Share of the rows beyond which a round reads all rows: drawing without replacement becomes
#: expensive there, and one test fewer reduces the error.
_ALL_BEYOND = 0.95
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
    """Decision rule of a race, built by the method ``rule`` of a race such as :class:`NormalRace`.

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


# --- settings -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NormalRace:
    """Race with the normal bound of Chen & Ghahramani (2016), section 3.3.2.

    Parameters
    ----------
    delta : float
        Maximum probability that a decision differs from that on all rows, if batch means are normal.
        In (0, 0.5).
    batch_size : int
        Rows of the first batch; batches double.

    Examples
    --------
    >>> from amc_pymc import NormalRace
    >>> NormalRace(delta=0.05).rule(100_000, 2).sizes[:4].tolist()
    [50, 100, 200, 400]
    """

    delta: float = 0.05
    batch_size: int = 50

    def __post_init__(self) -> None:
        _check_delta(self.delta)
        object.__setattr__(self, "batch_size", positive_int("batch_size", self.batch_size, 2))

    def rule(self, n_raced: int, n_arms: int, *, zero_sd_decides: bool = False) -> RaceRule:
        """Return the rule of a race of ``n_arms`` arms over ``n_raced`` rows.

        B standard errors decide, with error delta in the worst case (equation 9 of Chen & Ghahramani 2016). For
        two arms, B is that of a walk absorbed on both sides; for more, of a walk absorbed on one side, their
        condition 5. A batch dominated by one row decides nothing, unless rows have no spread but
        rounding errors.
        """
        sizes = schedule(n_raced, self.batch_size)
        first = min(1.0, self.batch_size / max(1, n_raced))
        share = self.delta / max(1, n_arms - 1)
        b = b_normal(share, first, sides="two" if n_arms == 2 else "one")
        error = np.sqrt((1.0 - (sizes - 1.0) / max(1, n_raced - 1)) / np.maximum(1, sizes))
        none, decides = np.zeros(sizes.size), bool(zero_sd_decides)
        return RaceRule(sizes, b * error, none, not decides, decides, np.inf)

    def expected_rows(
        self, gap_in_sds: ArrayLike, n_raced: int, b: float | None = None
    ) -> np.ndarray:
        r"""Compute the expected number of rows that a race of two arms reads, for planning.

        :math:`E[T] = \sum_t T_t P(\text{stop at round } t)` under the normal model, where the race
        stops at the first round with :math:`|Z_t| > b` and reads all rows otherwise.

        Parameters
        ----------
        gap_in_sds : array_like
            True gap of the population means in standard deviations of a row (with divisor N), any
            shape, either sign; infinite where rows do not vary.
        n_raced : int
            Rows N.
        b : float, optional
            Constant of the race, at most 37. Default: that of ``delta``.

        Returns
        -------
        array
            Expected number of rows, with the shape of `gap_in_sds`.

        References
        ----------
        Korattikara, Chen & Welling (2014), ICML, PMLR 32:181-189;
        Chen & Ghahramani (2016), ICML, PMLR 48:2492-2501, corollary 4.

        Examples
        --------
        >>> from amc_pymc import NormalRace
        >>> NormalRace(0.05, 50).expected_rows([0.0, 0.1, 1.0], 100_000).round().tolist()
        [90924.0, 960.0, 50.0]
        """
        gaps, rows = np.abs(np.asarray(gap_in_sds, dtype=float)), self.batch_size
        if rows >= n_raced:
            return np.full(gaps.shape, float(n_raced))
        b = b_normal(self.delta, rows / n_raced) if b is None else b
        expected = np.full(gaps.shape, float(rows))
        for step in _walk(b, rows / n_raced, "two"):
            next_rows = min(2 * rows, n_raced)
            scale = math.sqrt((n_raced - 1) * step.information)  # one over the standard error
            farthest = (b + _FARTHEST) / scale
            shift = scale * np.clip(gaps, -farthest, farthest)
            # Girsanov: a drift multiplies the density of the remaining walks by a function of position
            tilt = np.exp(0.5 * step.nodes**2 - 0.5 * (step.nodes - shift[..., None]) ** 2)
            expected += (next_rows - rows) * (tilt @ step.mass)
            rows = next_rows
        return expected


@dataclass(frozen=True)
class AutoRace(NormalRace):
    """Thinned decisions, which are exact, where they are expected to be cheaper than a race; else a normal race.

    Only :class:`amc_pymc.RacingMetropolis` thins decisions; elsewhere this is a :class:`NormalRace`.
    """


@dataclass(frozen=True)
class ExactRace:
    """Exact decisions.

    A race reads all rows. :class:`amc_pymc.RacingMetropolis` made with it thins its decisions instead where the
    remainders of rows can be bounded: they are exact, too, and read few rows or none.
    """

    @property
    def delta(self) -> float:
        """Zero: every decision is made on all rows."""
        return 0.0

    def rule(self, n_raced: int, n_arms: int, *, zero_sd_decides: bool = False) -> RaceRule:
        """Return the rule of a race of ``n_arms`` arms over ``n_raced`` rows."""
        none = np.zeros(1)
        return RaceRule(np.array([n_raced], np.int64), none, none, False, False, np.inf)

    def expected_rows(self, gap_in_sds: ArrayLike, n_raced: int) -> np.ndarray:
        """Return the number of all rows, for any gap."""
        return np.full(np.shape(gap_in_sds), float(n_raced))


Race = NormalRace | ExactRace
_NAMED: dict[str, Any] = {"auto": AutoRace, "normal": NormalRace, "exact": ExactRace}


def as_race(race: str | Race, delta: float | None = None, batch_size: int | None = None) -> Race:
    """Return the settings of the race for a step's arguments.

    Parameters
    ----------
    race : {"auto", "normal", "exact"} or a race
    delta, batch_size : optional
        Settings of a race given by name. Default: those of its class.

    Raises
    ------
    ValueError
        If a value is out of range, the name is unknown, or an argument has no meaning for the race.
    """
    if not isinstance(race, Race) and (not isinstance(race, str) or race not in _NAMED):
        raise ValueError(
            f"race must be {', '.join(map(repr, _NAMED))} or a race such as NormalRace(), "
            f"got {race!r}"
        )
    arguments = {"delta": delta, "batch_size": batch_size}
    given = {name: value for name, value in arguments.items() if value is not None}
    for name, value in given.items():
        if isinstance(race, Race) or name not in _NAMED[race].__dataclass_fields__:
            raise ValueError(f"{name}={value!r} has no meaning for race={race!r}; leave it out")
    found: Race = race if isinstance(race, Race) else _NAMED[race](**given)
    return found


def schedule(n_raced: int, batch_size: int) -> np.ndarray:
    """Return the number of rows read after each round.

    Parameters
    ----------
    n_raced : int
        Number of raced rows.
    batch_size : int
        Rows of the first batch; each round doubles the rows read.

    Returns
    -------
    (R,) int64 array
        Increasing, ``n_raced`` last; a round that would read more than 95 % reads all.

    Examples
    --------
    >>> from amc_pymc.tall.racing import schedule
    >>> schedule(1000, 50).tolist()
    [50, 100, 200, 400, 800, 1000]
    """
    sizes = []
    size = batch_size
    while size <= _ALL_BEYOND * n_raced:
        sizes.append(size)
        size *= 2
    return np.array([*sizes, n_raced], dtype=np.int64)


# --- checks ---------------------------------------------------------------------------------------


def _check_delta(delta: float) -> None:
    if not (isinstance(delta, Real) and 0.0 < delta < 0.5):
        raise ValueError(f"delta must lie in (0, 0.5), got {delta!r}")


# --- the normal bound -----------------------------------------------------------------------------
# The race reads rows without replacement in doubling batches and decides as soon as the estimated gap of two means
# exceeds B standard errors. With pi_t = T_t / N the share of rows read after round t and I_t = pi_t / (1 - pi_t), the
# standardised gap Z_t is at a true gap of zero a Gaussian walk with
#     E[Z_t] = 0,    Var(Z_t) = 1,    Corr(Z_{t-1}, Z_t) = sqrt(I_{t-1} / I_t)
# and sqrt(I_t) Z_t is a Brownian motion at time I_t. At T = N the mean is exact, so errors occur only in rounds with
# T < N. See also Korattikara, Chen & Welling (2014), *Austerity in MCMC Land*, ICML, PMLR 32:181-189.

_LOG_NEGLIGIBLE = 40.0  # paths rarer than exp(-40) times the crossing are neglected
_FARTHEST = 40.0  # in standard deviations; ndtr(-40) underflows
_NODES = 24
_NODES_PER_SD = 4


def b_normal(delta: float, first_fraction: float, *, sides: Sides = "two") -> float:
    r"""Find the number of standard errors at which a race errs with probability `delta`.

    B solves :math:`P(Z_t \ge B \text{ for some } t < t^*) = \delta` at a mean gap of zero, the worst
    case, for the Gaussian walk Z of a race with doubling batches.

    Parameters
    ----------
    delta : float
        Promised error probability of one decision, in (0, 0.5).
    first_fraction : float
        Share of the rows in the first batch, m / N.
    sides : {"two", "one"}
        "two": the race also ends when Z falls to -B. This is exact for two arms and is used in
        table 1 of the paper. "one": the race ends only at +B, the paper's condition (5), which is
        required with more than two arms; B is never smaller.

    Returns
    -------
    float
        B, accurate to about 1e-12. It is 0.0 if the first batch holds every row, since the decision
        is exact, and the standard normal quantile of 1 - `delta` if it holds at least half of them.

    Raises
    ------
    ValueError
        If `delta` is outside (0, 0.5), or `first_fraction` is not positive and finite.

    Notes
    -----
    The density of the walks not yet absorbed is propagated from round to round by Gauss-Legendre
    quadrature. Results are cached.

    Do not interpolate in `first_fraction`: B grows slowly within each octave of m / N and drops
    at 1/2, 1/4, 1/8, ..., where the number of rounds decreases.

    References
    ----------
    Chen & Ghahramani (2016), ICML, PMLR 48:2492-2501, section 3.3.2 and appendix B.

    Examples
    --------
    >>> from amc_pymc.tall.racing import b_normal
    >>> round(b_normal(0.05, 0.01), 4)
    2.3479
    >>> round(b_normal(0.05, 0.01, sides="one"), 4)
    2.3492
    """
    _check_delta(delta)
    if not 0.0 < first_fraction < math.inf:
        raise ValueError(f"first_fraction must be finite and positive, got {first_fraction!r}")
    return _solve(float(delta), float(first_fraction), sides)


def crossing_probability(b: float, first_fraction: float, *, sides: Sides = "two") -> float:
    """Compute the probability that a race with constant `b` decides early for the wrong side.

    The inverse of :func:`b_normal`; the gap is zero, the worst case.

    Parameters
    ----------
    b : float
        Number of standard errors that the estimated gap must exceed, not negative.
    first_fraction : float
        Share of the rows in the first batch, m / N; the probability is 0.0 if this is at least 1.
    sides : {"two", "one"}
        Whether the walk is also absorbed at -`b`, the right decision; see :func:`b_normal`.

    Returns
    -------
    float

    References
    ----------
    Korattikara, Chen & Welling (2014), ICML, PMLR 32:181-189, appendix A, proposition 2;
    Chen & Ghahramani (2016), ICML, PMLR 48:2492-2501, corollary 4.

    Examples
    --------
    >>> from amc_pymc.tall.racing import b_normal, crossing_probability
    >>> b = b_normal(0.05, 0.01)
    >>> round(crossing_probability(b, 0.01), 6)
    0.05
    """
    return float(sum(step.crossed for step in _walk(b, first_fraction, sides)))


@lru_cache(maxsize=4096)
def _solve(delta: float, first_fraction: float, sides: Sides) -> float:
    lowest = -float(ndtri(delta))  # the first round alone
    rounds = sum(1 for _ in _walk(lowest, first_fraction, sides))
    if rounds == 0:
        return 0.0
    if rounds == 1:
        return lowest
    highest = 1e-3 - float(ndtri(delta / rounds))  # union bound

    def excess(b: float) -> float:
        return math.log(crossing_probability(b, first_fraction, sides=sides) / delta)

    return float(brentq(excess, lowest, highest, xtol=1e-12))


class _Round(NamedTuple):
    information: float
    crossed: float  # probability of reaching +b in this round
    nodes: NDArray[np.float64]  # positions of the remaining walks, and their probabilities
    mass: NDArray[np.float64]


def _walk(b: float, first_fraction: float, sides: Sides) -> Iterator[_Round]:
    """Propagate the walks not yet absorbed through the rounds before the last."""
    fractions = first_fraction * 2.0 ** np.arange(max(0, math.ceil(-math.log2(first_fraction))) + 1)
    fractions = fractions[fractions < 1.0]  # pi_t
    reach = min(math.hypot(b, math.sqrt(2.0 * _LOG_NEGLIGIBLE)), _FARTHEST)
    low = -min(b, reach) if sides == "two" else -reach
    nodes, mass = np.zeros(1), np.ones(1)  # Z and its probability
    known = 0.0
    for now in fractions / (1.0 - fractions):
        forecast = math.sqrt(known / now) * nodes
        sd = math.sqrt(1.0 - known / now)
        crossed = mass @ ndtr((forecast - b) / sd)
        high = min(b, reach)
        half = 0.5 * (high - low)
        nodes, weights = _legendre(_NODES + math.ceil(_NODES_PER_SD * (high - low)))
        nodes, weights = low + half * (nodes + 1.0), half * weights
        z = (nodes - forecast[:, None]) / sd
        density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        mass = weights * (mass @ density) / sd
        yield _Round(now, crossed, nodes, mass)
        known = now


_legendre = lru_cache(maxsize=512)(np.polynomial.legendre.leggauss)
