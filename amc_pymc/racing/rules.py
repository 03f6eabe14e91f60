"""Rules of races: when rows are read and how far the best arm must lead, for every bound.

A race over D arms divides its error probability delta by D' = D - 1 if gaps are judged by the
variance of differences ("pairwise"), and by D' = D if the half-widths of two arms are added
("marginal"; proposition 3 of Chen & Ghahramani 2016, ICML, PMLR 48:2492-2501). Pairwise costs
O(D^2) per row and is tighter where arms go up and down together, as they do when they share rows;
marginal costs O(D).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from scipy.special import stdtrit

from amc_pymc.bounds import b_normal, bernstein_serfling
from amc_pymc.racing.lil_ucb import LilParameters
from amc_pymc.racing.race import RaceRule

__all__ = [
    "Variance",
    "bardenet_rule",
    "bernstein_rule",
    "exact_rule",
    "lil_rule",
    "normal_rule",
    "schedule",
    "t_test_rule",
]

Variance = Literal["pairwise", "marginal"]

#: A round that would end with more than this share of the rows reads all: drawing without
#: replacement gets dear there, and one look less errs less.
_ALL_BEYOND = 0.95
_NO_LIL = LilParameters(0.0, 0.0, 0.0, 0.0, 1)


def schedule(n_raced: int, batch_size: int, *, doubling: bool = True) -> np.ndarray:
    """Rows read after each round.

    Parameters
    ----------
    n_raced : int
        Rows that race.
    batch_size : int
        Rows of the first batch.
    doubling : bool
        Whether each round doubles the rows read, or adds ``batch_size``.

    Returns
    -------
    (R,) int64 array
        Increasing, ``n_raced`` last; a round that would read more than 95 % reads all.

    Examples
    --------
    >>> from amc_pymc.racing.rules import schedule
    >>> schedule(1000, 50).tolist()
    [50, 100, 200, 400, 800, 1000]
    """
    sizes = []
    size = batch_size
    while size <= _ALL_BEYOND * n_raced:
        sizes.append(size)
        size += size if doubling else batch_size
    return np.array([*sizes, n_raced], dtype=np.int64)


def normal_rule(
    n_raced: int,
    n_arms: int,
    *,
    delta: float = 0.05,
    batch_size: int = 50,
    variance: Variance = "pairwise",
    zero_sd_decides: bool = False,
) -> RaceRule:
    """Racing-Normal: B standard errors, the error exactly delta at the worst case.

    Equation 9 of Chen & Ghahramani (2016). B is that of a walk absorbed on both sides for two arms
    compared pairwise, and of one absorbed on one side, their condition 5, otherwise
    (:func:`amc_pymc.bounds.b_normal`). A batch that one row dominates decides nothing.
    """
    sizes = schedule(n_raced, batch_size)
    sides: Literal["one", "two"] = "two" if n_arms == 2 and variance == "pairwise" else "one"
    share = delta / _comparisons(n_arms, variance)
    b = b_normal(share, min(1.0, batch_size / max(1, n_raced)), sides=sides)
    factor = b * _standard_error(sizes, n_raced)
    # What rounding leaves of an exact control variate is of no size, so no row of it dominates.
    guarded = not zero_sd_decides
    return _rule(sizes, factor, variance, guarded=guarded, zero_sd_decides=zero_sd_decides)


def bernstein_rule(
    n_raced: int,
    n_arms: int,
    *,
    delta: float = 0.05,
    batch_size: int = 2,
    reward_range: float | Sequence[float] | None = None,
    variance: Variance = "pairwise",
    zero_sd_decides: bool = False,
) -> RaceRule:
    """Racing-EBS: the empirical Bernstein-Serfling bound, delta divided by the number of looks.

    Equations 6-7 of Chen & Ghahramani (2016). The promise holds for any rewards whose ranges are
    at most ``reward_range``; without it, the range seen so far takes its place and there is no
    promise.
    """
    sizes = schedule(n_raced, batch_size)
    share = delta / _comparisons(n_arms, variance) / max(1, sizes.size - 1)
    return _bernstein(sizes, share, n_arms, reward_range, variance, zero_sd_decides)


def bardenet_rule(
    n_raced: int,
    n_arms: int,
    *,
    delta: float = 0.05,
    batch_size: int = 2,
    p: float = 2.0,
    reward_range: float | Sequence[float] | None = None,
    zero_sd_decides: bool = False,
) -> RaceRule:
    """The race of Bardenet, Doucet & Holmes (2014), a baseline.

    Racing-EBS with delta_t = (p - 1) / (p T^p) delta for the look at T rows, which spends little
    of delta where it is needed. *Towards scaling up Markov chain Monte Carlo: an adaptive
    subsampling approach*, ICML, PMLR 32:405-413.
    """
    sizes = schedule(n_raced, batch_size)
    share = delta / _comparisons(n_arms, "pairwise")
    shares = (p - 1.0) / (p * np.maximum(sizes, 1.0) ** p) * share
    return _bernstein(sizes, shares, n_arms, reward_range, "pairwise", zero_sd_decides)


def t_test_rule(
    n_raced: int,
    n_arms: int,
    *,
    delta: float = 0.05,
    batch_size: int = 500,
    zero_sd_decides: bool = False,
) -> RaceRule:
    """The race of Korattikara, Chen & Welling (2014), a baseline.

    A t-test at level delta after every ``batch_size`` rows, without any correction for the number
    of looks: a race errs more often than delta. *Austerity in MCMC Land*, ICML, PMLR 32:181-189,
    algorithm 1.
    """
    sizes = schedule(n_raced, batch_size, doubling=False)
    share = delta / _comparisons(n_arms, "pairwise")
    quantile = -stdtrit(np.maximum(1, sizes - 1), share)
    factor = quantile * _standard_error(sizes, n_raced)
    return _rule(sizes, factor, "pairwise", zero_sd_decides=zero_sd_decides)


def exact_rule(n_raced: int, n_arms: int = 2, *, zero_sd_decides: bool = False) -> RaceRule:
    """Read all rows."""
    return _rule(np.array([n_raced], dtype=np.int64), np.zeros(1), "pairwise")


def lil_rule(
    n_raced: int,
    n_arms: int,
    *,
    delta: float = 0.05,
    reward_range: float | Sequence[float] | None = None,
    beta: float = 0.5,
    epsilon: float = 0.0,
    rows_per_pull: int = 1,
) -> RaceRule:
    """Lil'UCB for finite populations with the heuristic parameters (:mod:`.lil_ucb`).

    The scale is half the (largest) range; without ``reward_range`` half of the largest range an
    arm has shown.
    """
    widest = 0.0 if reward_range is None else float(np.max(reward_range))
    lil = LilParameters(delta / 5.0, widest / 2.0, float(beta), float(epsilon), int(rows_per_pull))
    return exact_rule(n_raced, n_arms)._replace(lil=lil)


def _comparisons(n_arms: int, variance: Variance) -> int:
    return n_arms if variance == "marginal" else max(1, n_arms - 1)


def _standard_error(sizes: np.ndarray, n_raced: int) -> np.ndarray:
    """Of a mean, where the standard deviation with divisor T - 1 is one."""
    return np.sqrt((1.0 - (sizes - 1.0) / max(1, n_raced - 1)) / np.maximum(1, sizes))


def _bernstein(sizes, delta, n_arms, reward_range, variance, zero_sd_decides) -> RaceRule:
    n_raced = int(sizes[-1])
    if n_raced == 0:
        return exact_rule(0)
    sd, width = bernstein_serfling(delta, sizes, n_raced)
    sd = sd * np.sqrt((sizes - 1.0) / sizes)  # from divisor T to T - 1
    ranges = _ranges(reward_range, n_arms)
    return _rule(sizes, sd, variance, width, ranges, zero_sd_decides=zero_sd_decides)


def _ranges(reward_range, n_arms: int) -> np.ndarray:
    if reward_range is None:
        return np.empty(0)
    ranges = np.atleast_1d(np.asarray(reward_range, dtype=np.float64))
    if ranges.shape not in ((1,), (n_arms,)):
        raise ValueError(
            f"reward_range must be a number or one for each of {n_arms} arms, got {reward_range!r}"
        )
    return ranges


def _rule(
    sizes: np.ndarray,
    sd_factor: np.ndarray,
    variance: Variance,
    range_factor: np.ndarray | None = None,
    ranges: np.ndarray | None = None,
    *,
    guarded: bool = False,
    zero_sd_decides: bool = False,
) -> RaceRule:
    return RaceRule(
        sizes,
        np.ascontiguousarray(sd_factor, dtype=np.float64),
        np.zeros(sizes.size) if range_factor is None else np.ascontiguousarray(range_factor),
        np.empty(0) if ranges is None else ranges,
        variance == "marginal",
        guarded,
        bool(zero_sd_decides),
        _NO_LIL,
        np.inf,
    )
