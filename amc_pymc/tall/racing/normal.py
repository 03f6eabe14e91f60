"""Constant and error probability of the normal bound of a race, and the cost of a race.

The race (algorithm 1 of Chen & Ghahramani 2016) reads rows without replacement in doubling batches
and decides as soon as the estimated gap of two means exceeds B standard errors. With
pi_t = T_t / N the share of rows read after round t and I_t = pi_t / (1 - pi_t), the standardised
gap Z_t is a Gaussian walk with

    E[Z_t] = -gap sqrt(I_t / I_1),    Var(Z_t) = 1,    Corr(Z_{t-1}, Z_t) = sqrt(I_{t-1} / I_t),

and sqrt(I_t) Z_t is a Brownian motion at time I_t. At T = N the mean is exact, so errors occur only
in rounds with T < N.

References
----------
Chen & Ghahramani (2016), *Scalable Discrete Sampling as a Multi-Armed Bandit Problem*, ICML,
PMLR 48:2492-2501. Korattikara, Chen & Welling (2014), *Austerity in MCMC Land: Cutting the
Metropolis-Hastings Budget*, ICML, PMLR 32:181-189.
"""

from __future__ import annotations

import math

from collections.abc import Iterator
from functools import lru_cache
from numbers import Integral
from typing import Literal, NamedTuple, get_args

import numpy as np

from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

__all__ = ["b_normal", "crossing_probability", "expected_rows", "race_cost_bound"]

Sides = Literal["two", "one"]
Variance = Literal["pairwise", "marginal"]

_LOG_NEGLIGIBLE = 40.0  # paths rarer than exp(-40) times the crossing are neglected
_FARTHEST = 40.0  # in standard deviations; ndtr(-40) underflows
_LARGEST_B = 37.0  # an error of 1e-299; the exponential of b^2 / 2 must not overflow
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
        "two": the race also ends when Z falls to -B. This is exact for two arms compared by their
        pairwise variance and is used in table 1 of the paper. "one": the race ends only at +B, the
        paper's condition (5), which is required with more than two arms or marginal variances; B
        is never smaller.

    Returns
    -------
    float
        B, accurate to about 1e-12. It is 0.0 if the first batch holds every row, since the decision
        is exact, and the standard normal quantile of 1 - `delta` if it holds at least half of them.

    Raises
    ------
    ValueError
        If `delta` is outside (0, 0.5), `first_fraction` is not positive and finite, or `sides`
        is unknown.

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
    >>> from amc_pymc.tall.racing.normal import b_normal
    >>> round(b_normal(0.05, 0.01), 4)
    2.3479
    >>> round(b_normal(0.05, 0.01, sides="one"), 4)
    2.3492
    """
    _check_delta(delta)
    _check_walk(first_fraction, sides)
    return _solve(float(delta), float(first_fraction), sides)


def crossing_probability(
    b: float, first_fraction: float, *, sides: Sides = "two", gap: float = 0.0
) -> float:
    r"""Compute the probability that a race with constant `b` decides early for the wrong side.

    The inverse of :func:`b_normal` at ``gap=0``; at a positive gap it is smaller.

    Parameters
    ----------
    b : float
        Number of standard errors that the estimated gap must exceed, not negative.
    first_fraction : float
        Share of the rows in the first batch, m / N; the probability is 0.0 if this is at least 1.
    sides : {"two", "one"}
        Whether the walk is also absorbed at -`b`, the right decision; see :func:`b_normal`.
    gap : float
        True gap of the population means in standard errors of the first batch,
        :math:`\mu / \mathrm{se}_1` with
        :math:`\mathrm{se}_t^2 = \sigma^2 (N - T_t) / ((N - 1) T_t)`. The walk then has
        :math:`E[Z_t] = -\mathrm{gap}\,\mathrm{se}_1 / \mathrm{se}_t
        = -\mathrm{gap}\,\sqrt{I_t / I_1}`. A negative gap gives the probability of deciding early
        for the right side.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If `b` is negative or not finite, `first_fraction` is not positive and finite, `gap` is
        NaN, or `sides` is unknown.

    References
    ----------
    Korattikara, Chen & Welling (2014), ICML, PMLR 32:181-189, appendix A, proposition 2;
    Chen & Ghahramani (2016), ICML, PMLR 48:2492-2501, corollary 4.

    Examples
    --------
    >>> from amc_pymc.tall.racing.normal import b_normal, crossing_probability
    >>> b = b_normal(0.05, 0.01)
    >>> round(crossing_probability(b, 0.01), 6)
    0.05
    >>> round(crossing_probability(b, 0.01, gap=0.5), 6)
    0.003366
    """
    _check_bound(b)
    _check_walk(first_fraction, sides)
    if math.isnan(gap):
        raise ValueError(f"gap must be a number, got {gap!r}.")
    return min(1.0, _crossing(b, first_fraction, sides, float(gap)))


def race_cost_bound(
    gap: float,
    n_rows: int,
    batch_size: int,
    delta: float,
    n_arms: int = 2,
    *,
    variance: Variance = "pairwise",
) -> int:
    r"""Bound the number of rewards that a race draws, for planning.

    With probability at least 1 - `delta` a race of D arms over N rows with first batch m draws at
    most

    .. math:: T^*(\Delta) = D \left[ \frac{N}{(N - 1) \Delta^2 / (4 B^2) + 1} \right]_m

    rewards, where B is the constant for :math:`\delta / D'` and :math:`[n]_m` is n rounded up to
    the next of m, 2m, 4m, ..., but at most N.

    Parameters
    ----------
    gap : float
        Smallest standardised gap :math:`\Delta` between the best arm and another, not negative:
        difference of the population means over the standard deviation of the rows' differences
        ("pairwise"), or over the sum of the two arms' standard deviations ("marginal").
    n_rows, batch_size : int
        Rows N and rows of the first batch m.
    delta : float
        Promised error probability of the race, in (0, 0.5).
    n_arms : int
        Arms D, at least two.
    variance : {"pairwise", "marginal"}
        Variances used for decisions. D' = D - 1 for "pairwise" and D for "marginal".

    Returns
    -------
    int
        Number of rewards, D times the rows read. At most D N, at least D m.

    Raises
    ------
    TypeError
        If `n_rows` or `batch_size` is not an integer.
    ValueError
        If an argument is out of its range.

    Notes
    -----
    B is two-sided for two arms with pairwise variance, because the race then ends on both sides.
    With more arms or marginal variances, condition (5) of the paper must hold for each arm
    separately, so B is one-sided (see :func:`b_normal`). A gap of 2 B standard errors is missed in
    a round only if the noise is below -B.

    References
    ----------
    Chen & Ghahramani (2016), ICML, PMLR 48:2492-2501, proposition 7.

    Examples
    --------
    >>> from amc_pymc.tall.racing.normal import race_cost_bound
    >>> race_cost_bound(0.3, n_rows=1000, batch_size=10, delta=0.05)
    640
    >>> race_cost_bound(0.0, n_rows=1000, batch_size=10, delta=0.05)
    2000
    """
    if not gap >= 0.0:
        raise ValueError(f"gap must not be negative, got {gap!r}.")
    _check_sizes(n_rows, batch_size)
    _check_delta(delta)
    if n_arms < 2:
        raise ValueError(f"n_arms must be at least 2, got {n_arms!r}.")
    if variance not in get_args(Variance):
        raise ValueError(f"variance must be one of {get_args(Variance)}, got {variance!r}.")
    marginal = variance == "marginal"
    comparisons = n_arms if marginal else n_arms - 1
    sides: Sides = "one" if marginal or n_arms > 2 else "two"
    if batch_size >= n_rows:
        return n_arms * n_rows
    b = b_normal(delta / comparisons, batch_size / n_rows, sides=sides)
    ratio = float(gap) / (2.0 * b)
    needed = n_rows / ((n_rows - 1) * ratio * ratio + 1.0)
    rows = batch_size
    while rows < needed:
        rows *= 2
    return n_arms * min(rows, n_rows)


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

    Raises
    ------
    TypeError
        If `n_rows` or `batch_size` is not an integer.
    ValueError
        If an argument is out of its range.

    References
    ----------
    Korattikara, Chen & Welling (2014), ICML, PMLR 32:181-189;
    Chen & Ghahramani (2016), ICML, PMLR 48:2492-2501, corollary 4.

    Examples
    --------
    >>> from amc_pymc.tall.racing.normal import b_normal, expected_rows
    >>> b = b_normal(0.05, 50 / 100_000)
    >>> [round(rows) for rows in expected_rows([0.0, 0.1, 1.0], 100_000, 50, b)]
    [90924, 960, 50]
    """
    _check_bound(b)
    _check_sizes(n_rows, batch_size)
    if b > _LARGEST_B:
        raise ValueError(f"b must be at most {_LARGEST_B}, which errs never, got {b!r}.")
    gaps = np.asarray(gap, dtype=float)
    if np.any(np.isnan(gaps)):
        raise ValueError(f"gap must hold numbers, got {gap!r}.")
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
        return math.log(_crossing(b, first_fraction, sides) / delta)

    return float(brentq(excess, lowest, highest, xtol=1e-12))


class _Round(NamedTuple):
    information: float
    crossed: float  # probability of reaching +b in this round
    nodes: NDArray[np.float64]  # positions of the remaining walks, and their probabilities
    mass: NDArray[np.float64]


def _walk(b: float, first_fraction: float, sides: Sides, gap: float = 0.0) -> Iterator[_Round]:
    """Propagate the walks not yet absorbed through the rounds before the last."""
    information = _information(first_fraction)
    reach = min(math.hypot(max(b + gap, 0.0), math.sqrt(2.0 * _LOG_NEGLIGIBLE)), _FARTHEST)
    deviation, mass = np.zeros(1), np.ones(1)  # Z - E[Z] and its probability
    known = 0.0
    for now in information:
        mean = -gap * math.sqrt(now / information[0])
        correlation = math.sqrt(known / now)
        sd = math.sqrt(1.0 - known / now)
        forecast = mean + correlation * deviation
        crossed = mass @ ndtr((forecast - b) / sd)
        low, high = mean - reach, min(b, mean + reach)
        if sides == "two":
            low = max(-b, low)
        nodes, weights = _quadrature(low, high)
        mass = weights * (mass @ _density((nodes - forecast[:, None]) / sd)) / sd
        yield _Round(now, crossed, nodes, mass)
        if not nodes.size:
            return
        deviation = nodes - mean
        known = now


def _crossing(b: float, first_fraction: float, sides: Sides, gap: float = 0.0) -> float:
    return float(sum(step.crossed for step in _walk(b, first_fraction, sides, gap)))


def _information(first_fraction: float) -> NDArray[np.float64]:
    """Return pi_t / (1 - pi_t) for the rounds before the last, pi_t = 2^(t - 1) first_fraction."""
    rounds = max(0, math.ceil(-math.log2(first_fraction))) + 1
    fractions = first_fraction * 2.0 ** np.arange(rounds)
    fractions = fractions[fractions < 1.0]
    return fractions / (1.0 - fractions)


def _quadrature(low: float, high: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if low >= high:
        return np.empty(0), np.empty(0)
    nodes, weights = _legendre(_NODES + math.ceil(_NODES_PER_SD * (high - low)))
    half = 0.5 * (high - low)
    return low + half * (nodes + 1.0), half * weights


@lru_cache(maxsize=512)
def _legendre(size: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.polynomial.legendre.leggauss(size)


def _density(z: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)


def _check_delta(delta: float) -> None:
    if not 0.0 < delta < 0.5:
        raise ValueError(f"delta must be between 0 and 0.5, got {delta!r}.")


def _check_bound(b: float) -> None:
    if not (math.isfinite(b) and b >= 0.0):
        raise ValueError(f"b must be finite and not negative, got {b!r}.")


def _check_walk(first_fraction: float, sides: str) -> None:
    if not (math.isfinite(first_fraction) and first_fraction > 0.0):
        raise ValueError(f"first_fraction must be finite and positive, got {first_fraction!r}.")
    if sides not in get_args(Sides):
        raise ValueError(f"sides must be one of {get_args(Sides)}, got {sides!r}.")


def _check_sizes(n_rows: int, batch_size: int) -> None:
    for name, size in (("n_rows", n_rows), ("batch_size", batch_size)):
        if not isinstance(size, Integral):
            raise TypeError(f"{name} must be an integer, got {size!r}.")
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size!r}.")
