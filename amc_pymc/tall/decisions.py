r"""Decisions between two points that read few units: by thinning, without error, or by a race.

*Thinning* reads a Poisson number of rows, often none.

A kernel that is reversible for prior times surrogate proposes x', and r_n is the change of row n's log-likelihood
that the surrogate does not explain. Accepting with probability

    prod_n min(1, exp(r_n))

is reversible for the posterior, because rho_n(x) min(1, rho_n(x') / rho_n(x)) = min(rho_n(x), rho_n(x')) is
symmetric for rho_n = exp(R_n). If abs(r_n) <= c_n, that probability is the one that no point of a Poisson
process is hit: draw m from Poisson(sum_n c_n) and m rows with probabilities proportional to c_n, and reject if
U c_n < -r_n for one of them, with U uniform (Cornish et al. 2019, arXiv:1901.09881; Prado, Nemeth & Sherlock
2024, arXiv:2407.19602).

The coordinates of the parameters that rows read are in *blocks*, whose changes from the centre have lengths p_l. The
first block holds those that all rows read, with the mean effects of factors beside them, and p_0 is the length of its
whitened change. Every other coordinate, such as the effect of a level, is a block of its own, and p_l is the size of
its change given the first block, in standard deviations. A row reads few of them, and abs(R_n) <= sum_l c_nl p_l^3.
So r_n is at most sum_l c_nl q_l with either of

    q_l = p_l^3 + p'_l^3    or    q_l = 3 s max(p_l, p'_l, d_l / s)^3,

where d_l is the length of the difference of both points, and s is any positive number: a typical share d_l / p_l.
"""

from __future__ import annotations

import ctypes
import math

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from numba import types
from scipy.special import chdtri, gammaln

from amc_pymc.engine.jit import FirstClassFunction, fill, first_class, njit, record
from amc_pymc.engine.printer import call
from amc_pymc.engine.row_kernels.bounds import RowBounds
from amc_pymc.tall.racing import DECIDED, NOT_FINITE, Population, RaceRule, first_bad, race
from amc_pymc.tall.surrogate import Surrogate, surrogate_change

#: Signature of the log density without the raced units: x (D,) -> float.
LOGP = types.float64(types.float64[::1])
#: Signature of the map to parameters eta and of priors of coefficients: x (D,) -> vector.
GRADIENT = types.float64[::1](types.float64[::1])
#: Status of a decision in which a row has exceeded its bound.
BROKEN = 2
#: Share by which a residual may exceed its bound, and difference that rounding may cause.
_RELATIVE, _ROUNDING = 1e-6, 1e-10


@record
class Blocks(NamedTuple):
    """Blocks of the coordinates that rows read.

    Attributes
    ----------
    dense : (W,) int64 array
        Coordinates of eta in the first block.
    levels : (L,) int64 array
        Other coordinates, each a block of its own.
    place : (E,) int64 array
        Positions of coordinates of eta among both, which follow one another.
    means : (F, L) array
        Weights of levels in the mean effects of F factors, which are in the first block, too.
    covariance, whiten : (W + F, W + F) array
        Covariance of the first block, and the inverse of its Cholesky factor.
    gains : (L, W + F) array
        Expected change of levels by that of the first block.
    sds : (L,) array
        Standard deviations of levels given the first block.
    """

    dense: np.ndarray
    levels: np.ndarray
    place: np.ndarray
    means: np.ndarray
    covariance: np.ndarray
    whiten: np.ndarray
    gains: np.ndarray
    sds: np.ndarray


@record
class Thinning(NamedTuple):
    """Bounds of N rows for a range of radii.

    A row has bounds for the first block and for those of up to K entries. Tables are over the N rows, for the first
    block, and then over P pairs of an entry and a row, sorted by block.

    Attributes
    ----------
    centre : (E,) array
        Centre of the expansion of rows.
    blocks : Blocks
    radii : (R, 2) array
        Largest lengths p_0 and p_l for which bounds hold, increasing; empty if decisions are not thinned.
    totals : (R, 1 + L) array
        Sums of c_nl over rows.
    bounds : (R, 1 + K, N) float32 array
        c_nl; zero for rows that are always evaluated.
    numbers : (K, N) int32 array
        Blocks l of entries; 0 if an entry is in the first block.
    starts : (2 + L,) int64 array
        Where each block begins in the tables.
    pairs : (P,) int32 array
        Positions of the pairs in ``numbers``, raveled.
    chances, aliases : (R, N + P) float32 and int32 arrays
        Tables from which rows of a block are drawn in proportion to c_nl.
    exact : (X,) int64 array
        Rows that are always evaluated.
    most : float
        Expected number of rows above which a decision is not thinned.
    expected : float
        Expected number of rows of a step between independent draws.
    """

    centre: np.ndarray
    blocks: Blocks
    radii: np.ndarray
    totals: np.ndarray
    bounds: np.ndarray
    numbers: np.ndarray
    starts: np.ndarray
    pairs: np.ndarray
    chances: np.ndarray
    aliases: np.ndarray
    exact: np.ndarray
    most: float
    expected: float


class Thinned(NamedTuple):
    """Outcome of thinning: whether no row rejects, number of rows read, status, offending row."""

    accepted: bool
    rows: int
    status: int
    row: int


def not_thinned() -> Thinning:
    """Return a thinning that is not used."""
    none, table, whole = np.empty(0, np.int64), np.empty((0, 0)), np.empty(0, np.int32)
    return Thinning(
        centre=np.empty(0),
        blocks=Blocks(none, none, none, table, table, table, table, np.empty(0)),
        radii=np.empty((0, 2)),
        totals=np.empty((0, 1)),
        bounds=np.empty((0, 0, 0), np.float32),
        numbers=np.empty((0, 0), np.int32),
        starts=none,
        pairs=whole,
        chances=np.empty((0, 0), np.float32),
        aliases=np.empty((0, 0), np.int32),
        exact=none,
        most=0.0,
        expected=np.inf,
    )


@njit(cache=True)
def alias_table(weights: np.ndarray, chances: np.ndarray, aliases: np.ndarray) -> None:
    """Fill a table with which one of N numbers is drawn in proportion to weights (Vose 1991).

    Number n is drawn if n or its alias is hit: draw n uniformly, and keep it with probability ``chances[n]``, else
    take ``aliases[n]``. All weights are zero or positive, their sum is positive.

    doi:10.1109/32.92917
    """
    n = weights.size
    mean = weights.sum() / n
    small, large = np.empty(n, np.int32), np.empty(n, np.int32)
    n_small, n_large = 0, 0
    left = weights / mean
    for k in range(n):
        chances[k] = 1.0
        aliases[k] = k
        if left[k] < 1.0:
            small[n_small] = k
            n_small += 1
        else:
            large[n_large] = k
            n_large += 1
    while n_small and n_large:
        n_small -= 1
        a, b = small[n_small], large[n_large - 1]
        chances[a] = left[a]
        aliases[a] = b
        left[b] -= 1.0 - left[a]
        if left[b] < 1.0:
            n_large -= 1
            small[n_small] = b
            n_small += 1


@njit(cache=True)
def alias_tables(
    weights: np.ndarray,
    starts: np.ndarray,
    chances: np.ndarray,
    aliases: np.ndarray,
    totals: np.ndarray,
) -> None:
    """Fill the tables of all blocks, and their sums of weights."""
    for b in range(starts.size - 1):
        own = slice(starts[b], starts[b + 1])
        inner = weights[own].astype(np.float64)
        totals[b] = inner.sum()
        if inner.size:
            alias_table(inner, chances[own], aliases[own])


@njit(cache=True)
def _lengths(points: np.ndarray, centre: np.ndarray, blocks: Blocks) -> np.ndarray:
    """Return the lengths (3, 1 + L) of the changes of both points from the centre, and of their difference."""
    n_dense, n_levels = blocks.dense.size, blocks.levels.size
    n, out = blocks.whiten.shape[0], np.empty((3, 1 + n_levels))
    y, v = np.zeros((2, n)), np.empty((2, n_levels))
    for e in range(2):
        for a in range(n_dense):
            k = blocks.dense[a]
            y[e, a] = points[e, k] - centre[k]
        for b in range(n_levels):
            k = blocks.levels[b]
            v[e, b] = points[e, k] - centre[k]
        for f in range(n - n_dense):
            for b in range(n_levels):
                y[e, n_dense + f] += blocks.means[f, b] * v[e, b]
    here = there = apart = 0.0
    for a in range(n):
        s = t = 0.0
        for b in range(a + 1):
            s += blocks.whiten[a, b] * y[0, b]
            t += blocks.whiten[a, b] * y[1, b]
        here += s * s
        there += t * t
        apart += (s - t) ** 2
    out[0, 0], out[1, 0], out[2, 0] = math.sqrt(here), math.sqrt(there), math.sqrt(apart)
    for b in range(n_levels):
        s, t = v[0, b], v[1, b]
        for a in range(n):
            s -= blocks.gains[b, a] * y[0, a]
            t -= blocks.gains[b, a] * y[1, a]
        s /= blocks.sds[b]
        t /= blocks.sds[b]
        out[0, 1 + b], out[1, 1 + b], out[2, 1 + b] = abs(s), abs(t), abs(s - t)
    return out


@njit(cache=True)
def rates(points: np.ndarray, thinning: Thinning, q: np.ndarray) -> int:
    """Write q_l to ``q`` (1 + L,); return the position of the smallest radii that contain both points, else -1."""
    p = _lengths(points, thinning.centre, thinning.blocks)
    largest = sizes = steps = 0.0
    for b in range(q.size):
        longer = max(p[0, b], p[1, b])
        sizes += longer * longer
        steps += p[2, b] * p[2, b]
        if b > 0:
            largest = max(largest, longer)
    k = 0
    while k < thinning.radii.shape[0] and not (
        max(p[0, 0], p[1, 0]) <= thinning.radii[k, 0] and largest <= thinning.radii[k, 1]
    ):
        k += 1
    if k == thinning.radii.shape[0]:
        return -1
    share, ends, slope = max(math.sqrt(steps / sizes), 1e-12), 0.0, 0.0
    for b in range(q.size):
        q[b] = p[0, b] ** 3 + p[1, b] ** 3
        p[2, b] = 3.0 * share * max(p[0, b], p[1, b], p[2, b] / share) ** 3
        ends += thinning.totals[k, b] * q[b]
        slope += thinning.totals[k, b] * p[2, b]
    if slope < ends:
        fill(q, p[2])
    return k


@njit(cache=True)
def thin(
    rewards: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
    points: np.ndarray,
    k: int,
    q: np.ndarray,
    thinning: Thinning,
    rng: np.random.Generator,
) -> Thinned:
    """Draw whether no row rejects the move from points[0] to points[1].

    Parameters
    ----------
    rewards : first-class function
        ``(points (2, E), centre, rows (m,)) -> (2, m)``, whose second row holds r_n.
    points : (2, E) array
    k, q : int, (1 + L,) array
        Results of :func:`rates`.
    thinning : Thinning
    rng : numpy.random.Generator
    """
    total = 0.0
    for b in range(q.size):
        total += q[b] * thinning.totals[k, b]
    m = rng.poisson(total)
    if m == 0:
        return Thinned(True, 0, 0, -1)
    n_rows, rows = thinning.bounds.shape[2], np.empty(m, np.int64)
    for i in range(m):
        u, b = rng.random() * total, 0
        while b < q.size - 1 and u >= q[b] * thinning.totals[k, b]:
            u -= q[b] * thinning.totals[k, b]
            b += 1
        first = thinning.starts[b]
        u = rng.random() * (thinning.starts[b + 1] - first)
        pair = np.int64(u)
        if u - pair >= thinning.chances[k, first + pair]:
            pair = np.int64(thinning.aliases[k, first + pair])
        rows[i] = pair if b == 0 else thinning.pairs[first + pair - n_rows] % n_rows
    changes = rewards(points, thinning.centre, rows)[1]
    for i in range(m):
        most = q[0] * thinning.bounds[k, 0, rows[i]]
        for j in range(thinning.numbers.shape[0]):
            most += q[thinning.numbers[j, rows[i]]] * thinning.bounds[k, 1 + j, rows[i]]
        if not abs(changes[i]) <= most * (1.0 + _RELATIVE) + _ROUNDING:
            return Thinned(False, m, BROKEN, rows[i])
        if rng.random() * most < -changes[i]:
            return Thinned(False, m, 0, -1)
    return Thinned(True, m, 0, -1)


#: Probabilities outside of radii under a Gaussian posterior; beyond the first, decisions are not thinned. Smaller
#: radii are kept if they need less than this share of the rows that the last one kept needs, and no more are tried
#: if they need about as many.
_OUTSIDE, _BETTER, _ALIKE = (1e-40, 1e-8, 1e-3, 0.05), 0.8, 0.95
#: Share of a step's expected rows that one row may have, above which it is always evaluated.
_DOMINANT = 0.2
#: Share of the rows above which decisions are not thinned.
_MOST_SHARE = 0.25
#: Least share of a variance that is left given other coordinates.
_LEAST = 1e-9
#: Largest number of pairs of a row and a block, each of which takes up to 44 bytes.
_MOST_PAIRS = 20_000_000
#: Number of boxes of arguments, over all rows and radii, whose derivatives are bounded: about a second.
_BOXES = 300_000


def fit_thinning(
    bounds_of: RowBounds, n_rows: int, centre: np.ndarray, covariance: np.ndarray
) -> Thinning | None:
    """Compute bounds of all rows; None if most rows would be read anyway, or tables would be too large.

    Parameters
    ----------
    bounds_of : RowBounds
        Bounds of all rows, infinite where nothing is known.
    n_rows : int
    centre : (E,) array
    covariance : (E, E) array
        Approximate posterior covariance of the coordinates that rows read, zero elsewhere.
    """
    blocks, numbers = _blocks(bounds_of.dense, bounds_of.positions(centre), covariance)
    read = np.flatnonzero(numbers.any(axis=1))
    numbers = numbers[read]
    if n_rows + numbers.size > _MOST_PAIRS:
        return None
    sizes = blocks.whiten.shape[0], 1
    cubes = np.array(
        [2.0**1.5 * math.exp(gammaln(0.5 * n + 1.5) - gammaln(0.5 * n)) for n in sizes]
    )
    cuts = max(1, int((_BOXES / n_rows) ** (1.0 / max(1, bounds_of.n_arguments))))
    tables: list[tuple[np.ndarray, np.ndarray]] = []
    least, most = np.inf, _MOST_SHARE * n_rows
    for outside in _OUTSIDE:
        share = outside / np.maximum(1, [1, blocks.levels.size])
        reach = np.sqrt(chdtri(np.maximum(1, sizes), share))  # of the longest of several vectors
        with np.errstate(all="ignore"):
            found = bounds_of(centre, blocks, reach, np.cbrt(cubes), cuts)[[0, *(1 + read)]]
            each = 2.0 * (cubes[0] * found[0] + cubes[1] * found[1:].sum(axis=0))
        rows = np.minimum(np.nan_to_num(each, nan=1.0), 1.0).sum()
        if rows >= _ALIKE * least:
            break
        if rows <= most and rows < _BETTER * least:
            least, expected = rows, each
            tables.insert(0, (reach, found))
    if not tables:
        return None
    radii, bounds = (np.stack(parts) for parts in zip(*tables))
    known = np.isfinite(bounds).all(axis=(0, 1))
    exact = np.flatnonzero(~known | (expected > _DOMINANT))
    bounds[:, :, exact] = expected[exact] = 0.0
    rows = float(exact.size + expected.sum())
    rounded = np.nextafter(bounds.astype(np.float32), np.float32(np.inf))
    rounded[:, :, exact] = 0.0
    lengths = np.bincount(numbers.ravel(), minlength=1 + blocks.levels.size)
    pairs = np.argsort(numbers, axis=None, kind="stable")[lengths[0] :].astype(np.int32)
    lengths[0] = n_rows  # the first block has all rows, and no pairs
    starts = np.concatenate([[0], np.cumsum(lengths)])
    chances = np.empty((len(radii), n_rows + pairs.size), np.float32)
    aliases, totals = np.empty(chances.shape, np.int32), np.empty((len(radii), starts.size - 1))
    for k, table in enumerate(rounded):
        weights = np.concatenate([table[0], table[1:].ravel()[pairs]])
        alias_tables(weights, starts, chances[k], aliases[k], totals[k])
    return Thinning(
        centre, blocks, radii, totals, rounded, numbers, starts, pairs, chances, aliases, exact, most, rows
    )  # fmt: skip


def _blocks(
    dense: np.ndarray, positions: np.ndarray, covariance: np.ndarray
) -> tuple[Blocks, np.ndarray]:
    """Return the blocks of coordinates, and those of the entries (A, N) that rows read; 0 is the first block."""
    levels = np.setdiff1d(positions, dense).astype(np.int64)
    n_rows, n_dense, n_levels = positions.shape[1], dense.size, levels.size
    place = np.full(len(covariance), -1)
    place[dense], place[levels] = np.arange(n_dense), n_dense + np.arange(n_levels)
    numbers = np.maximum(place[positions] - (n_dense - 1), 0).astype(np.int32)
    shares = [np.bincount(n, minlength=1 + n_levels)[1:] / n_rows for n in numbers]
    shares = [w for w in shares if np.count_nonzero(w) > 1]
    means = np.array(shares).reshape(len(shares), n_levels)
    first = np.zeros((n_dense + len(means), len(covariance)))
    first[np.arange(n_dense), dense] = 1.0
    first[n_dense:, levels] = means
    inner = first @ covariance @ first.T
    inner += np.diag(_LEAST * np.diag(inner))  # bounds hold for any covariance
    cross, variances = covariance[levels] @ first.T, np.diag(covariance)[levels]
    gains = np.ascontiguousarray(np.linalg.solve(inner, cross.T).T)
    left = np.maximum(variances - np.sum(gains * cross, axis=1), _LEAST * variances)
    whiten = np.linalg.inv(np.linalg.cholesky(inner))
    sds = np.sqrt(np.maximum(left, 1e-200))
    return Blocks(dense, levels, place, means, inner, whiten, gains, sds), numbers


# --- decisions ------------------------------------------------------------------------------------


@first_class(GRADIENT, cache=True)
def as_they_are(x: np.ndarray) -> np.ndarray:
    """Return x; used if the parameters are the value variables."""
    return x.copy()


@record
class Densities(NamedTuple):
    """Parts of the log posterior, as first-class functions.

    ``rewards`` takes parameters eta (E,), the others x (D,).
    ``parameters`` maps x to eta. ``reads`` are the coordinates of eta that units depend on.
    """

    rewards: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    rest: Callable[[np.ndarray], float]
    parameters: Callable[[np.ndarray], np.ndarray]
    reads: np.ndarray


@record
class Races(NamedTuple):
    """Arguments of a chain's decisions: densities, surrogate, population of units, rule, and thinning, if any."""

    densities: Densities
    surrogate: Surrogate
    population: Population
    rule: RaceRule
    thinning: Thinning = not_thinned()


class Verdict(NamedTuple):
    """Outcome of a two-arm decision.

    ``gap`` is the estimated log ratio minus its threshold. ``raced`` and ``exact`` count units.
    ``unit`` is the offending unit if ``status`` is ``NOT_FINITE``. ``sure`` says whether the decision cannot be wrong.
    """

    accepted: bool
    gap: float
    raced: int
    exact: int
    status: int
    unit: int
    sure: bool = True


@njit(cache=True)
def _verdict(accepted: bool, gap: float, exact: int, status: int, unit: int) -> Verdict:
    return Verdict(accepted, gap, 0, exact, status, unit, True)


@njit(cache=True)
def _alike(points: np.ndarray, coordinates: np.ndarray) -> bool:
    """Whether two points agree in some coordinates."""
    for k in coordinates:
        if points[0, k] != points[1, k]:
            return False
    return True


@njit(cache=True)
def of_exact(
    points: np.ndarray, centre: np.ndarray, units: np.ndarray, densities: Densities
) -> tuple[float, int]:
    """Return the sum of the last point's rewards over units, and a unit that is not finite or -1."""
    if units.size == 0:
        return 0.0, -1
    values = densities.rewards(points, centre, units)
    bad = first_bad(values)
    return values[-1].sum(), units[bad] if bad >= 0 else -1


@njit(cache=True)
def _by_race(known: float, points: np.ndarray, races: Races, rng: np.random.Generator) -> Verdict:
    """Decide whether known + sum_n [l_n(eta') - l_n(eta)] > 0 for the points (2, E) eta, eta'.

    ``known`` is the log ratio without the raced units, minus the threshold. The race estimates only
    the mean of the residuals (Chen & Ghahramani 2016, eq. 11-12).
    """
    densities, surrogate, population = races.densities, races.surrogate, races.population
    n_raced = population.n_raced
    change = surrogate_change(points, surrogate)
    n_exact = population.exact.size
    more, bad = of_exact(points, surrogate.centre, population.exact, densities)
    if bad >= 0:
        return _verdict(False, -np.inf, n_exact, NOT_FINITE, bad)
    change += more
    if not np.isfinite(change):
        return _verdict(False, -np.inf, n_exact, DECIDED, -1)
    bias = np.zeros(2)
    bias[1] = (known + change) / max(1, n_raced)
    args = points, surrogate.centre, bias, population, races.rule
    result = race(densities.rewards, *args, rng)
    return Verdict(
        result.winner == 1,
        result.margin * max(1, n_raced),
        result.rows,
        n_exact,
        result.status,
        result.row,
        result.rows >= n_raced,
    )


@njit(cache=True)
def decide(known: float, points: np.ndarray, races: Races, rng: np.random.Generator) -> Verdict:
    """Accept a move or not, by thinning or a race.

    ``known`` is the log ratio without the units, minus the logarithm of a uniform number, ``points`` (2, E) are both
    ends. No unit is read if they agree in all coordinates that units depend on. A race decides if there is no
    thinning, if the points are far from the centre, or if thinning is expected to read many rows.
    """
    densities, thinning = races.densities, races.thinning
    if _alike(points, densities.reads):
        return _verdict(known > 0.0, known, 0, DECIDED, -1)
    if thinning.radii.shape[0] == 0:
        return _by_race(known, points, races, rng)
    q = np.empty(1 + thinning.blocks.levels.size)
    k = rates(points, thinning, q)
    expected = np.dot(q, thinning.totals[k]) if k >= 0 else np.inf
    total, always = known + surrogate_change(points, races.surrogate), thinning.exact
    if not expected <= thinning.most:
        if always.size == 0 and abs(total) > expected:  # more than all rows could change
            return _verdict(total > 0.0, total, 0, DECIDED, -1)
        return _by_race(known, points, races, rng)
    more, bad = of_exact(points, thinning.centre, always, densities)
    if bad >= 0:
        return _verdict(False, -np.inf, always.size, NOT_FINITE, bad)
    total += more
    if not total > 0.0:
        return _verdict(False, total, always.size, DECIDED, -1)
    found = thin(densities.rewards, points, k, q, thinning, rng)
    gap = total if found.accepted else -np.inf
    return Verdict(found.accepted, gap, found.rows, always.size, found.status, found.row, True)


# --- from Python ----------------------------------------------------------------------------------


@njit(cache=True)
def call_total(total: Callable[[np.ndarray], float], x: np.ndarray) -> float:
    """Return the value of a first-class function of a point."""
    return total(x)


@njit(cache=True)
def residuals(
    rewards: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
    points: np.ndarray,
    centre: np.ndarray,
    units: np.ndarray,
) -> np.ndarray:
    """Return residuals (K, m) of some units at K points, or in row 1 their changes between two points."""
    return rewards(points, centre, units)


# --- Python functions in compiled loops ------------------------------------------------------------


#: Type of native functions of an array, a place for the result, and the size of the array.
_NATIVE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


@njit(cache=True)
def _ask(x, place):
    """Call the Python function at address place[0] at x (D,)."""
    out = np.empty(1)
    call(place[0], x, out, x.size)
    return out[0]


def log_density_of(function: Callable) -> FirstClassFunction:
    """Return a first-class function that calls the Python ``function(x) -> float``.

    An exception inside ``function`` becomes NaN.
    """

    def called(x, out, size) -> None:
        found = ctypes.c_double.from_address(out)
        try:
            found.value = function(np.array((ctypes.c_double * size).from_address(x)))
        except BaseException:  # also interrupts, which ctypes would print and ignore
            found.value = np.nan

    native = _NATIVE(called)
    address = ctypes.cast(native, ctypes.c_void_p).value
    return FirstClassFunction(_ask, LOGP, [np.array([address], np.int64)], native)
