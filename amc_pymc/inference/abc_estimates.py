"""What results say of posterior means: Monte Carlo errors, and what the tolerance shifts."""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence

import numpy as np

from amc_pymc.abc_tree.history import History
from amc_pymc.abc_tree.tolerance_bias import ToleranceBias, closest, tolerance_bias

__all__ = ["STATISTICS", "keeps_summaries", "stacked", "tolerance_doubt", "tolerance_shift"]

#: What there is of each variable in group ``estimates``.
STATISTICS = ["mean", "mcse", "tolerance_bias", "tolerance_bias_error", "error"]
#: Summary statistics of a simulation that are kept without being asked for, at most.
_MOST_SUMMARIES = 100
#: Posterior standard deviations that the tolerance shifts means by before there is a warning, and that they may be off by for all
#: that is known.
_SHIFT, _UNKNOWN = 0.25, 0.5
#: Standard errors above which the shift of a single mean is taken for real.
_SURE = 3.0


def keeps_summaries(n_summaries: int, adjust: str | None) -> bool:
    """Whether simulations keep their summary statistics, which tell what the tolerance shifts."""
    return adjust is not None or n_summaries <= _MOST_SUMMARIES


def tolerance_shift(
    history: History,
    observed: np.ndarray,
    tolerance: float,
    values: Callable[[np.ndarray], np.ndarray],
    estimate: tuple[np.ndarray, np.ndarray] | None = None,
) -> ToleranceBias:
    """Bias of means by the tolerance, from the simulations closest to the data.

    Parameters
    ----------
    history : History
    observed : array (S,)
        Summary statistics of the data.
    tolerance : float
        At which simulations were accepted.
    values : callable
        From points (n, D) of the cube to all elements (n, K) of all variables.
    estimate : pair of arrays (K,), optional
        Means and standard errors, if they are not those of the accepted simulations.
    """
    index = closest(history.log_weight, history.distance, tolerance)
    gaps = None if history.summaries is None else history.summaries[index] - observed
    return tolerance_bias(
        values(history.u[index]), history.log_weight[index], history.distance[index], tolerance, gaps, estimate
    )  # fmt: skip


def stacked(mean: np.ndarray, mcse: np.ndarray, shift: ToleranceBias) -> np.ndarray:
    """Rows (5, K), one for each of the statistics; the last is the root of the sum of all squared errors."""
    error = np.sqrt(mcse**2 + shift.bias**2 + shift.error**2)
    return np.stack([mean, mcse, shift.bias, shift.error, error])


def tolerance_doubt(
    rows: np.ndarray, sd: np.ndarray, names: Sequence[str], tolerance: float
) -> list[str]:
    """A flag if the tolerance is what posterior means are mainly uncertain by.

    It is so if the root mean square over all means, in posterior standard deviations, of bias and its error is above their Monte Carlo
    error and above a quarter, and the bias more than chance explains; or above a half in any case; or if the bias of one mean is above a quarter, its
    Monte Carlo error and three of its own standard errors.

    Parameters
    ----------
    rows : array (5, K)
        Of :func:`stacked`.
    sd : array (K,)
        Posterior standard deviations.
    names : sequence of str
        Of the K means.
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
    # Of normal errors the mean square exceeds its expectation by less than two standard deviations.
    most = 1.0 + 2.0 * math.sqrt(2.0 / some.sum())
    evident = (bias[some] ** 2).sum() > most * (error[some] ** 2).sum()
    doubtful = overall > max(_SHIFT if evident else _UNKNOWN, chance)
    if not (doubtful or alone.any()):
        return []
    worst = int(np.argmax(np.where(alone, shift, 0.0) if alone.any() else shift))
    at = int(np.flatnonzero(some)[worst])
    return [
        f"the tolerance {tolerance:.3g} may shift posterior means by {overall:.2g} posterior standard deviations, "
        f"that of {names[at]} by {shift[worst]:.2g}, while their Monte Carlo error is {chance:.2g}; group 'estimates' has an "
        "'error' with both. Simulate more, try adjust='linear', or give fewer summary statistics"
    ]
