"""Decision rules of races for each bound: batch schedule and required lead of the best arm.

A race over D arms divides its error probability delta by D' = D - 1 if gaps are judged by the
variance of differences ("pairwise"), and by D' = D if the half-widths of two arms are added
("marginal"; proposition 3 of Chen & Ghahramani 2016, ICML, PMLR 48:2492-2501). Pairwise costs
O(D^2) per row and is tighter if the arms' rewards are positively correlated, as they usually are
on shared rows; marginal costs O(D).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from amc_pymc.tall.racing.bernstein import bernstein_serfling
from amc_pymc.tall.racing.lil_ucb import LilParameters
from amc_pymc.tall.racing.normal import b_normal
from amc_pymc.tall.racing.race import RaceRule

__all__ = [
    "Variance",
    "bernstein_rule",
    "exact_rule",
    "lil_rule",
    "normal_rule",
    "schedule",
]

Variance = Literal["pairwise", "marginal"]

#: Share of the rows beyond which a round reads all rows: drawing without replacement becomes
#: expensive there, and one test fewer reduces the error.
_ALL_BEYOND = 0.95
_NO_LIL = LilParameters(0.0, 0.0, 0.0, 0.0, 1)


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


def normal_rule(
    n_raced: int,
    n_arms: int,
    *,
    delta: float = 0.05,
    batch_size: int = 50,
    variance: Variance = "pairwise",
    zero_sd_decides: bool = False,
) -> RaceRule:
    """Build the rule of Racing-Normal: B standard errors, with error delta in the worst case.

    Equation 9 of Chen & Ghahramani (2016). For two arms compared pairwise, B is that of a walk
    absorbed on both sides; otherwise of a walk absorbed on one side, their condition 5
    (:func:`amc_pymc.tall.racing.b_normal`). A batch dominated by one row decides nothing.
    """
    sizes = schedule(n_raced, batch_size)
    sides: Literal["one", "two"] = "two" if n_arms == 2 and variance == "pairwise" else "one"
    share = delta / _comparisons(n_arms, variance)
    b = b_normal(share, min(1.0, batch_size / max(1, n_raced)), sides=sides)
    factor = b * _standard_error(sizes, n_raced)
    # Residuals of an exact control variate are rounding errors; a dominant row means nothing.
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
    """Build the rule of Racing-EBS: empirical Bernstein-Serfling bound, delta divided by the rounds.

    Equations 6-7 of Chen & Ghahramani (2016). The error is guaranteed for any rewards whose ranges
    are at most ``reward_range``. If that is None, the range seen so far is used and there is no
    guarantee.
    """
    sizes = schedule(n_raced, batch_size)
    share = delta / _comparisons(n_arms, variance) / max(1, sizes.size - 1)
    return _bernstein(sizes, share, n_arms, reward_range, variance, zero_sd_decides)


def exact_rule(n_raced: int, n_arms: int = 2, *, zero_sd_decides: bool = False) -> RaceRule:
    """Build a rule that reads all rows.

    ``n_arms`` and ``zero_sd_decides`` make no difference, because means are exact in the only round.
    They are accepted so that all rules are built in the same way.
    """
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
    """Build the rule of lil'UCB for finite populations with heuristic parameters (:mod:`.lil_ucb`).

    The scale is half the largest ``reward_range`` or, if None, half the largest range seen in an arm.
    """
    widest = 0.0 if reward_range is None else float(np.max(reward_range))
    lil = LilParameters(delta / 5.0, widest / 2.0, float(beta), float(epsilon), int(rows_per_pull))
    return exact_rule(n_raced, n_arms)._replace(lil=lil)


def _comparisons(n_arms: int, variance: Variance) -> int:
    return n_arms if variance == "marginal" else max(1, n_arms - 1)


def _standard_error(sizes: np.ndarray, n_raced: int) -> np.ndarray:
    """Return the standard error of a mean per unit standard deviation (divisor T - 1)."""
    error: np.ndarray = np.sqrt((1.0 - (sizes - 1.0) / max(1, n_raced - 1)) / np.maximum(1, sizes))
    return error


def _bernstein(
    sizes: np.ndarray,
    delta: float | np.ndarray,
    n_arms: int,
    reward_range: float | Sequence[float] | None,
    variance: Variance,
    zero_sd_decides: bool,
) -> RaceRule:
    n_raced = int(sizes[-1])
    if n_raced == 0:
        return exact_rule(0)
    sd, width = bernstein_serfling(delta, sizes, n_raced)
    sd = sd * np.sqrt((sizes - 1.0) / sizes)  # from divisor T to T - 1
    ranges = _ranges(reward_range, n_arms)
    return _rule(sizes, sd, variance, width, ranges, zero_sd_decides=zero_sd_decides)


def _ranges(reward_range: float | Sequence[float] | None, n_arms: int) -> np.ndarray:
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
