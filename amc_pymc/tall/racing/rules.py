"""Races by their bounds: settings for ``race=``, and the rules that they give.

A rule has the batch schedule and the required lead of the best arm. Gaps are judged by the variance of differences,
and a race over D arms divides its error probability delta by D - 1 (proposition 3 of Chen & Ghahramani 2016,
*Scalable Discrete Sampling as a Multi-Armed Bandit Problem*, ICML, PMLR 48:2492-2501).
"""

from __future__ import annotations

import math

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real
from typing import Any, Literal, NamedTuple

import numpy as np

from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from amc_pymc.arguments import positive_int
from amc_pymc.tall.racing.race import RaceRule

Sides = Literal["two", "one"]

#: Share of the rows beyond which a round reads all rows: drawing without replacement becomes
#: expensive there, and one test fewer reduces the error.
_ALL_BEYOND = 0.95


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

    def expected_rows(self, gap_in_sds: ArrayLike, n_raced: int) -> np.ndarray:
        """Return the expected rows of a two-arm race for gaps in sds of the rows' differences."""
        b = b_normal(self.delta, min(1.0, self.batch_size / n_raced))
        return np.asarray(expected_rows(np.abs(gap_in_sds), n_raced, self.batch_size, b))


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
    >>> from amc_pymc.tall.racing.rules import schedule
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
    >>> from amc_pymc.tall.racing.rules import b_normal, crossing_probability
    >>> b = b_normal(0.05, 0.01)
    >>> round(crossing_probability(b, 0.01), 6)
    0.05
    """
    return float(sum(step.crossed for step in _walk(b, first_fraction, sides)))


def expected_rows(
    gap: ArrayLike, n_rows: int, batch_size: int, b: float
) -> np.float64 | NDArray[np.float64]:
    r"""Compute the expected number of rows that a race of two arms reads, for planning.

    :math:`E[T] = \sum_t T_t P(\text{stop at round } t)` under the normal model, where the race
    stops at the first round with :math:`|Z_t| > b` and reads all rows otherwise.

    Parameters
    ----------
    gap : array_like
        True gap of the population means in standard deviations of a row (with divisor N), any
        shape, either sign; infinite where rows do not vary.
    n_rows, batch_size : int
        Rows N and rows of the first batch m.
    b : float
        Constant of the race, from :func:`b_normal` with ``sides="two"``, at most 37.

    Returns
    -------
    float or array
        Expected number of rows, with the shape of `gap`.

    References
    ----------
    Korattikara, Chen & Welling (2014), ICML, PMLR 32:181-189;
    Chen & Ghahramani (2016), ICML, PMLR 48:2492-2501, corollary 4.

    Examples
    --------
    >>> from amc_pymc.tall.racing.rules import b_normal, expected_rows
    >>> b = b_normal(0.05, 50 / 100_000)
    >>> [round(rows) for rows in expected_rows([0.0, 0.1, 1.0], 100_000, 50, b)]
    [90924, 960, 50]
    """
    gaps = np.asarray(gap, dtype=float)
    if batch_size >= n_rows:
        return np.full(gaps.shape, float(n_rows))[()]
    expected = np.full(gaps.shape, float(batch_size))
    rows = batch_size
    for step in _walk(b, batch_size / n_rows, "two"):
        next_rows = min(2 * rows, n_rows)
        scale = math.sqrt((n_rows - 1) * step.information)  # one over the standard error
        farthest = (b + _FARTHEST) / scale
        shift = scale * np.clip(gaps, -farthest, farthest)
        # Girsanov: a drift multiplies the density of the remaining walks by a function of position
        tilt = np.exp(0.5 * step.nodes**2 - 0.5 * (step.nodes - shift[..., None]) ** 2)
        expected += (next_rows - rows) * (tilt @ step.mass)
        rows = next_rows
    return expected[()]


@lru_cache(maxsize=4096)
def _solve(delta: float, first_fraction: float, sides: Sides) -> float:
    rounds = _information(first_fraction).size
    if rounds == 0:
        return 0.0
    lowest = -float(ndtri(delta))  # the first round alone
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
    information = _information(first_fraction)
    reach = min(math.hypot(b, math.sqrt(2.0 * _LOG_NEGLIGIBLE)), _FARTHEST)
    low = -min(b, reach) if sides == "two" else -reach
    nodes, mass = np.zeros(1), np.ones(1)  # Z and its probability
    known = 0.0
    for now in information:
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


def _information(first_fraction: float) -> NDArray[np.float64]:
    """Return pi_t / (1 - pi_t) for the rounds before the last, pi_t = 2^(t - 1) first_fraction."""
    rounds = max(0, math.ceil(-math.log2(first_fraction))) + 1
    fractions = first_fraction * 2.0 ** np.arange(rounds)
    fractions = fractions[fractions < 1.0]
    return fractions / (1.0 - fractions)


_legendre = lru_cache(maxsize=512)(np.polynomial.legendre.leggauss)
