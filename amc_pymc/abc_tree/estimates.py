"""Errors of posterior means: Monte Carlo standard errors and bias due to the tolerance."""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence

import numpy as np

from amc_pymc.abc_tree.history import History
from amc_pymc.abc_tree.tolerance_bias import ToleranceBias, closest, tolerance_bias
from amc_pymc.flags import Flag, flag

__all__ = [
    "STATISTICS",
    "keeps_summaries",
    "posterior_sd",
    "stacked",
    "tolerance_doubt",
    "tolerance_shift",
]

#: Statistics of each variable in group ``estimates``.
STATISTICS = ["mean", "mcse", "tolerance_bias", "tolerance_bias_error", "error"]
#: Maximum number of summary statistics stored without `adjust`.
_MOST_SUMMARIES = 100
#: Shifts by the tolerance, in posterior standard deviations, above which a warning is given: if the bias is
#: significant, and if it is not.
_SHIFT, _UNKNOWN = 0.25, 0.5
#: Number of standard errors above which the bias of a single mean is significant.
_SURE = 3.0


def keeps_summaries(n_summaries: int, adjust: str | None) -> bool:
    """Whether simulations keep their summary statistics, which help to estimate the bias due to the tolerance."""
    return adjust is not None or n_summaries <= _MOST_SUMMARIES


def tolerance_shift(
    history: History,
    observed: np.ndarray,
    tolerance: float,
    values: Callable[[np.ndarray], np.ndarray],
    estimate: tuple[np.ndarray, np.ndarray] | None = None,
) -> ToleranceBias:
    """Estimate the bias of means due to the tolerance from the simulations closest to the data.

    Parameters
    ----------
    history : History
    observed : array (S,)
        Summary statistics of the data.
    tolerance : float
        Tolerance at which simulations were accepted.
    values : callable
        Maps points (n, D) of the cube to all elements (n, K) of all variables.
    estimate : pair of arrays (K,), optional
        Means and standard errors, if they are not those of the accepted simulations.
    """
    index = closest(history.log_weight, history.distance, tolerance)
    gaps = None if history.summaries is None else history.summaries[index] - observed
    return tolerance_bias(
        values(history.u[index]), history.log_weight[index], history.distance[index], tolerance, gaps, estimate
    )  # fmt: skip


def stacked(mean: np.ndarray, mcse: np.ndarray, shift: ToleranceBias) -> np.ndarray:
    """Return rows (5, K), one per statistic; the last is the root of the sum of all squared errors."""
    error = np.sqrt(mcse**2 + shift.bias**2 + shift.error**2)
    return np.stack([mean, mcse, shift.bias, shift.error, error])


def posterior_sd(weight: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return posterior standard deviations (K,) of values (n, K) with weights (n,) of sum one."""
    with np.errstate(over="ignore", invalid="ignore"):
        spread: np.ndarray = np.sqrt(weight @ (values - weight @ values) ** 2)
        return spread


def tolerance_doubt(
    rows: np.ndarray, sd: np.ndarray, names: Sequence[str], tolerance: float
) -> list[Flag]:
    """Return a flag if the tolerance is the main source of error of posterior means.

    Sizes are in posterior standard deviations. The root mean square of bias and its error over all means must be
    above their Monte Carlo error, and above a quarter if the bias is significant or a half if it is not.
    Alternatively, the bias of one mean must be above a quarter, its Monte Carlo error and three of its own standard
    errors.

    Parameters
    ----------
    rows : array (5, K)
        Result of :func:`stacked`.
    sd : array (K,)
        Posterior standard deviations.
    names : sequence of str
        Names of the K means.
    tolerance : float
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        mcse, bias, error = rows[1:4] / sd
    some = np.isfinite(bias) & np.isfinite(error) & np.isfinite(mcse)
    if not some.any():
        return []
    shift = np.sqrt(bias[some] ** 2 + error[some] ** 2)
    overall, chance = (float(np.sqrt(np.mean(x**2))) for x in (shift, mcse[some]))
    size = np.abs(bias[some])
    alone = (size > _SURE * error[some]) & (size > np.maximum(_SHIFT, mcse[some]))
    # The mean square of normal errors exceeds its expectation by less than two standard deviations.
    most = 1.0 + 2.0 * math.sqrt(2.0 / some.sum())
    evident = (bias[some] ** 2).sum() > most * (error[some] ** 2).sum()
    doubtful = overall > max(_SHIFT if evident else _UNKNOWN, chance)
    if not (doubtful or alone.any()):
        return []
    worst = int(np.argmax(np.where(alone, shift, 0.0) if alone.any() else shift))
    at = int(np.flatnonzero(some)[worst])
    return [
        flag("tolerance_shift", tolerance=tolerance, overall=overall, name=names[at], largest=shift[worst], chance=chance)
    ]  # fmt: skip
