"""Sums of weights given by their logarithms.

Weights w >= 0 with a common mean Z are given as log w, which is -inf for zero weights. Sums are computed
relative to the largest weight, so log w of -1e5 or 1e5 cause no overflow or underflow.
"""

import math

from typing import NamedTuple

import numpy as np

from numpy.typing import ArrayLike


def log_mean_exp(log_weights: ArrayLike, axis: int | None = None) -> np.ndarray | float:
    """Return the logarithm of the mean of exponentials; -inf if all weights are zero.

    Examples
    --------
    >>> from amc_pymc.logweights import log_mean_exp
    >>> log_mean_exp([-1000.0, -1000.0])
    -1000.0
    """
    x = np.asarray(log_weights, float)
    top = np.max(x, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        out = np.log(np.mean(np.exp(x - top), axis=axis)) + np.squeeze(top, axis=axis)
    return out if np.ndim(out) else float(out)


def relative(log_weights: np.ndarray) -> np.ndarray:
    """Return weights (n,) divided by the largest one; zeros if all are zero.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.logweights import relative
    >>> relative(np.array([1000.0, 999.0, -np.inf])).round(2)
    array([1.  , 0.37, 0.  ])
    """
    top = log_weights.max(initial=-math.inf)
    with np.errstate(over="ignore"):
        return np.exp(log_weights - (top if math.isfinite(top) else 0.0))


def effective_share(log_weights: np.ndarray) -> float:
    """Return the effective sample size of weights (n,) as a share of their number; 0 if all are zero.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.logweights import effective_share
    >>> effective_share(np.array([5.0, 5.0, -np.inf, -np.inf]))
    0.5
    """
    w = relative(log_weights)
    squares = float(w @ w)
    return float(w.sum()) ** 2 / squares / w.size if squares > 0.0 else 0.0


class LogWeights(NamedTuple):
    """Summary statistics of n weights with mean Z.

    Attributes
    ----------
    n : int
        Number of weights, zeros included.
    log_mean : float
        Logarithm of the mean weight.
    relative_variance : float
        Empirical variance (divisor n - 1) over the squared mean; inf if all weights are zero.
    ess : float
        Effective sample size, (sum w)^2 / sum w^2.
    """

    n: int
    log_mean: float
    relative_variance: float
    ess: float


def summarise_log_weights(log_weights: ArrayLike) -> LogWeights:
    """Summarise log-weights.

    Parameters
    ----------
    log_weights : array_like (n,)
        Natural logarithms, -inf for zero.

    Examples
    --------
    >>> from amc_pymc.logweights import summarise_log_weights
    >>> found = summarise_log_weights([-700.0, -701.0, -699.5])
    >>> round(found.log_mean, 3), round(found.relative_variance, 2), round(found.ess, 1)
    (-699.994, 0.41, 2.4)
    """
    x = np.asarray(log_weights, float)
    if x.ndim != 1 or x.size == 0:
        raise ValueError(f"log_weights must have shape (n,) with n >= 1, got {x.shape}.")
    if np.isnan(x).any() or (x == np.inf).any():
        raise ValueError("log_weights must be numbers or -inf, got nan or inf.")
    n, top = x.size, float(x.max())
    if top == -math.inf:
        return LogWeights(n, -math.inf, math.inf, 0.0)
    w = relative(x)
    total, squares = float(w.sum()), float(w @ w)
    mean = total / n
    spread = max(squares - n * mean**2, 0.0) / (n - 1) / mean**2 if n > 1 else math.inf
    return LogWeights(n, top + math.log(mean), spread, total**2 / squares)


def systematic(weights: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw n indices by systematic sampling, each in proportion to its weight, rounded up or down.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.logweights import systematic
    >>> from amc_pymc.rng import as_generator
    >>> systematic(np.array([0.5, 0.25, 0.25]), 4, as_generator(1)).tolist()
    [0, 0, 1, 2]
    """
    ends = np.cumsum(weights)
    at = (rng.random() + np.arange(n)) / max(n, 1) * ends[-1]
    # Rounding may place the last point beyond the last positive weight.
    last = int(np.searchsorted(ends, ends[-1]))
    index: np.ndarray = np.minimum(np.searchsorted(ends, at, side="right"), last)
    return index


def trusted_variance(
    n: int, empirical: float, surrogate: float, log_variance: float, kurtosis: float
) -> float:
    """Return the relative variance of n positive weights for use in standard errors.

    Parameters
    ----------
    n : int
    empirical : float
        Empirical relative variance. It is increased by its own standard error, because weights are skewed:
        if few of them dominate the variance, it is too small as often as the mean is.
    surrogate : float
        Relative variance of log-normal weights.
    log_variance : float
        Variance s^2 of the log weights. The larger of the two variances dominates until about exp(4 s^2)
        weights have been drawn, the number needed to estimate the variance of log-normal weights.
    kurtosis : float
        Fourth central moment of the weights over their squared variance; nan if they are all equal.

    Examples
    --------
    >>> from amc_pymc.logweights import trusted_variance
    >>> round(trusted_variance(10_000, 0.5, 0.6, 0.4, 3.0), 3)
    0.507
    """
    if 0.0 < empirical < math.inf:
        empirical *= 1.0 + math.sqrt(max(0.0, kurtosis - 1.0) / n)  # nan counts as zero
    cautious = max(empirical, surrogate)
    if empirical <= 0.0 or not math.isfinite(cautious):
        return cautious
    trust = n / (n + math.exp(min(4.0 * log_variance, 700.0)))
    mixed: float = empirical**trust * cautious ** (1.0 - trust)
    return mixed


def reported_variance(found: LogWeights, log_weights: np.ndarray) -> float:
    r"""Return the relative variance of weights that reported errors are based on.

    It lies between the empirical variance and, for few weights, the larger variance exp(s^2) / (1 - p0) - 1 of
    log-normal weights with a share p0 of zeros, which accounts for tails that have not been sampled yet. s^2 is the
    variance of logarithms weighted by square roots of the weights. For log-normal weights that is the variance of
    their logarithms; for others it ignores how small the small weights are, which says nothing about the large ones.
    """
    if found.n < 2 or found.log_mean == -math.inf:
        return math.inf
    logs = log_weights[log_weights > -np.inf]
    share = np.exp(0.5 * (logs - logs.max()))
    share /= share.sum()
    seen = 1.0 - float(share @ share)
    s2 = float(share @ (logs - share @ logs) ** 2) / seen if seen > 0.0 else math.inf
    surrogate = math.exp(s2) / (len(logs) / found.n) - 1.0 if s2 <= 700.0 else math.inf
    kurtosis = _kurtosis(log_weights)
    return trusted_variance(found.n, found.relative_variance, surrogate, s2, kurtosis)


def _kurtosis(log_weights: np.ndarray) -> float:
    """Return the fourth central moment of weights over their squared variance; nan if they are all equal."""
    w = relative(log_weights)
    squares = (w - w.mean()) ** 2
    variance = float(squares.mean())
    return float(squares @ squares) / len(w) / variance**2 if variance > 0.0 else math.nan


def effective_of_first(weight: np.ndarray) -> np.ndarray:
    """Return effective sample sizes (n,) of the first 1, 2, ..., n of the weights (n,).

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.logweights import effective_of_first
    >>> effective_of_first(np.array([1.0, 1.0, 2.0])).round(2)
    array([1.  , 2.  , 2.67])
    """
    total, squares = np.cumsum(weight), np.cumsum(weight**2)
    found: np.ndarray = np.divide(total**2, squares, out=np.zeros(len(weight)), where=squares > 0.0)
    return found


def weighted_mean(weight: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Return weighted means and their standard errors.

    .. math:: \hat\mu = \sum_i w_i f_i, \qquad \mathrm{se}^2 = \sum_i w_i^2 (f_i - \hat\mu)^2

    for weights that sum to one (Hesterberg 1995, doi:10.1080/00401706.1995.10484303). This accounts for weights
    that are correlated with the values, which Kish's effective sample size does not.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.logweights import weighted_mean
    >>> weighted_mean(np.array([0.5, 0.25, 0.25]), np.array([[0.0], [2.0], [2.0]]))
    (array([1.]), array([0.61237244]))
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean = weight @ values
        return mean, np.sqrt(weight**2 @ (values - mean) ** 2)
