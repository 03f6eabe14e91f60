"""What compiled loops share: densities, races, and decisions between two points."""

from __future__ import annotations

import ctypes

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numba import types

from amc_pymc.engine.first_class import FirstClassFunction, first_class
from amc_pymc.engine.jit import fill, njit
from amc_pymc.engine.machine import call
from amc_pymc.engine.records import record
from amc_pymc.tall.racing.race import DECIDED, NOT_FINITE, Population, RaceRule, first_bad, race
from amc_pymc.tall.samplers.raced import Surrogate, surrogate_change
from amc_pymc.tall.thinning import Thinning, not_thinned, rates, thin

#: Signature of the log density without the raced units: x (D,) -> float.
LOGP = types.float64(types.float64[::1])
#: Signature of the map to parameters eta and of priors of coefficients: x (D,) -> vector.
GRADIENT = types.float64[::1](types.float64[::1])


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
    """Accept a move or not, by thinning (:mod:`amc_pymc.tall.thinning`) or a race.

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
def state_values(
    rewards: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
    points: np.ndarray,
    centre: np.ndarray,
    units: np.ndarray,
) -> np.ndarray:
    """Return residuals (K, m) of some units at K points."""
    return rewards(points, centre, units)


def unit_changes(
    rewards: Any, points: np.ndarray, centre: np.ndarray, units: np.ndarray
) -> np.ndarray:
    """Return changes (m,) of the units' residuals from points[0] to points[1]."""
    found: np.ndarray = state_values(rewards, points, centre, units)[1]
    return found


def entry_point(dispatcher: Any, args: tuple[Any, ...]) -> Callable[..., Any]:
    """Return the compiled entry point of a Numba function for arguments of these types.

    It skips the dispatcher's type look-up, which takes longer than a transition for nested tuples.
    Calling it with arguments of other types is undefined.
    """
    kinds = tuple(dispatcher.typeof_pyval(a) for a in args)
    dispatcher.compile(kinds)
    return dispatcher.overloads[kinds].entry_point


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


# --- counts ---------------------------------------------------------------------------------------
# Arrays that loops add to. `amc_pymc.results.tables` declares the statistics that the counts' `stats` return.


def add_counts(total: tuple[np.ndarray, ...], counts: tuple[np.ndarray, ...]) -> None:
    """Add counts to others of the same kind, in place."""
    for mine, new in zip(total, counts):
        mine += new


# --- logs -----------------------------------------------------------------------------------------


@record
class Log(NamedTuple):
    """A uniform sample of C of the decisions made since the last audit (reservoir sampling).

    Attributes
    ----------
    x : (C, D) array
        Points.
    other : (C, W) array
        Proposals, or the Gumbel noise of the states of the elements drawn.
    subject : (C,) array
        Log ratios without the units, minus their thresholds; or the elements drawn.
    outcome : (C,) array
        Whether proposals were accepted, or the positions of the states drawn.
    read : (C,) array
        Number of raced units read, or its mean over states.
    seen : (1,) int64 array
        Number of decisions, also of those that are not in the sample.
    """

    x: np.ndarray
    other: np.ndarray
    subject: np.ndarray
    outcome: np.ndarray
    read: np.ndarray
    seen: np.ndarray

    @classmethod
    def empty(cls, capacity: int, size: int, width: int) -> Log:
        """Return a log for C = ``capacity`` decisions, with D = ``size`` and W = ``width``."""
        points, others = np.zeros((capacity, size)), np.zeros((capacity, width))
        subject, outcome, read = np.zeros((3, capacity))
        return cls(points, others, subject, outcome, read, np.zeros(1, np.int64))


@njit(cache=True)
def log_decision(
    log: Log,
    x: np.ndarray,
    other: np.ndarray,
    subject: float,
    outcome: float,
    read: float,
    rng: np.random.Generator,
) -> None:
    """Log a decision, unless the log has no room (C = 0)."""
    size = log.x.shape[0]
    if size == 0:
        return
    slot = log.seen[0]
    log.seen[0] += 1
    if slot >= size:
        slot = np.int64(rng.random() * (slot + 1))
    if slot < size:
        fill(log.x[slot], x)
        fill(log.other[slot], other)
        log.subject[slot] = subject
        log.outcome[slot] = outcome
        log.read[slot] = read
