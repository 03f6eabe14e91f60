"""Bridge sampling: ratio of two normalising constants from draws of both densities, and its error."""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from scipy.optimize import brentq
from scipy.special import log_expit, logsumexp

__all__ = ["Bridge", "acceptance_ratio", "bridge", "variance_of_mean"]

#: Nats by which the bridge is tilted towards each end to test whether the ends agree.
_TILT = 2.0


class Bridge(NamedTuple):
    """Estimate of the normalising constant Z of the upper end of a path, from draws of both ends.

    Attributes
    ----------
    log_z : float
        Natural logarithm of Z; -inf if all works of the lower end are.
    variance : float
        Variance of `log_z`, including the autocorrelation of the draws.
    upper_variance : float
        Part of the variance that is due to the draws of the upper end.
    overlap : float
        Between 0 (the two densities are disjoint) and 1 (they are equal).
    effective : float
        Smaller effective sample size of the two ends.
    time : float
        Integrated autocorrelation time of the draws of the upper end, at least one.
    tension : float
        Difference in nats between estimates tilted towards the lower and the upper end. Its expectation is zero
        if the draws of the upper end have the correct distribution.
    tension_error : float
        Standard error of `tension`.
    """

    log_z: float
    variance: float
    upper_variance: float
    overlap: float
    effective: float
    time: float
    tension: float
    tension_error: float


def bridge(forward: np.ndarray, backward: np.ndarray, *, copies: float = 1.0) -> Bridge:
    r"""Estimate log Z by the optimal bridge between two ends, or by Bennett's acceptance ratio along a path.

    With works :math:`l = \log p(x) - \log q(x)` at :math:`n_q` draws from q and :math:`n_p` from p, the
    estimate solves

    .. math::
        \hat Z = \frac{\frac{1}{n_q} \sum_{x \sim q} e^{l} / (s_p e^{l} + s_q \hat Z)}
                      {\frac{1}{n_p} \sum_{x \sim p} 1 / (s_p e^{l} + s_q \hat Z)},
        \qquad s_p = \frac{n_p / \tau}{n_p / \tau + n_q}, \quad s_q = 1 - s_p,

    which is the bridge with the smallest error (Meng & Wong 1996). For annealing runs between q and p, the works
    are sums along the path, and the same equation holds if the upward and the downward kernels are each other's
    reversal (Bennett 1976; Crooks 2000). With the summands :math:`h_q` and :math:`h_p`, the variance of
    :math:`\log \hat Z` is, to first order,

    .. math:: \frac{\operatorname{var}_q(h_q)}{n_q \operatorname{E}_q(h_q)^2}
        + \tau \frac{\operatorname{var}_p(h_p)}{n_p \operatorname{E}_p(h_p)^2}

    with the integrated autocorrelation time :math:`\tau` of :math:`h_p` (Frühwirth-Schnatter 2004).

    Parameters
    ----------
    forward : array (n,)
        Works of independent runs from the lower end, whose density is normalised; -inf where p is zero.
    backward : array (C, N)
        Works of runs from draws of the upper end, in chains; finite, with the sign of the upward path.
    copies : float, default 1
        Minimum autocorrelation time: the mean number of copies of each draw, for draws in random order.

    Returns
    -------
    Bridge

    References
    ----------
    Meng & Wong (1996), Simulating ratios of normalizing constants via a simple identity, Statistica Sinica
    6:831-860.
    Bennett (1976), Efficient estimation of free energy differences from Monte Carlo data,
    doi:10.1016/0021-9991(76)90078-4.
    Crooks (2000), Path-ensemble averages in systems driven far from equilibrium,
    doi:10.1103/PhysRevE.61.2361.
    Frühwirth-Schnatter (2004), Estimating marginal likelihoods for mixture and Markov switching models using
    bridge sampling techniques, doi:10.1111/j.1368-423X.2004.00125.x.

    Examples
    --------
    Between a standard normal density and exp(-(x - 1)^2 / 2), whose integral is the root of 2 pi:

    >>> import numpy as np
    >>> from amc_pymc.evidence.bridge import bridge
    >>> from amc_pymc.rng import as_generator
    >>> work = lambda x: x - 0.5 + 0.5 * np.log(2.0 * np.pi)
    >>> rng = as_generator(1)
    >>> found = bridge(work(rng.normal(0.0, 1.0, 2000)), work(rng.normal(1.0, 1.0, (4, 500))))
    >>> (
    ...     bool(abs(found.log_z - 0.9189) < 3.0 * found.variance**0.5),
    ...     bool(found.variance**0.5 < 0.04),
    ... )
    (True, True)
    """
    if forward.max(initial=-math.inf) == -math.inf:
        return Bridge(-math.inf, math.inf, math.inf, 0.0, 0.0, 1.0, math.nan, math.inf)
    time = max(copies, 1.0)
    for _ in range(2):
        share = backward.size / time / (backward.size / time + forward.size)
        log_z = acceptance_ratio(forward, backward, share)
        level = log_z + math.log((1.0 - share) / share)
        time = max(variance_of_mean(_summands(backward, level, -1.0))[1], copies)
    ahead, behind = _summands(forward, level, 1.0), _summands(backward, level, -1.0)
    tension, tension_error = _tension(forward, backward, level, time)
    effective = min(_effective(ahead), _effective(behind) / time)
    overlap = min(float(np.exp(_log_mean(log_expit(forward - level)))) / share, 1.0)
    upper = _variance(behind, time)
    variance = float(ahead.var(ddof=1)) / ahead.size + upper
    return Bridge(log_z, variance, upper, overlap, effective, time, tension, tension_error)


def acceptance_ratio(forward: np.ndarray, backward: np.ndarray, share: float) -> float:
    """Solve for log Z from works of both ends; `share` is s_p, the weight of the upper end, between 0 and 1.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.bridge import acceptance_ratio
    >>> round(acceptance_ratio(np.array([2.0, 2.0]), np.array([2.0]), 0.5), 6)
    2.0
    """
    odds = math.log((1.0 - share) / share)

    def excess(log_z: float) -> float:
        up = _log_mean(log_expit(forward - log_z - odds))
        down = _log_mean(log_expit(log_z + odds - backward))
        return up - down + odds

    works = np.concatenate([forward[forward > -np.inf], backward.ravel()])
    reach = 50.0 + abs(odds)
    return float(brentq(excess, float(works.min()) - reach, float(works.max()) + reach, xtol=1e-10))


def variance_of_mean(series: np.ndarray) -> tuple[float, float]:
    r"""Estimate the variance of the mean of chains (C, N), and their integrated autocorrelation time.

    .. math:: \operatorname{var}(\bar h) = \tau\,\frac{\hat\sigma^2}{C N}, \qquad
        \tau = 1 + 2 \sum_t \rho_t

    by the initial monotone sequence of pairs of autocorrelations (Geyer 1992, doi:10.1214/ss/1177011137),
    including the variance between chains (Vehtari, Gelman, Simpson, Carpenter & Bürkner 2021,
    doi:10.1214/20-BA1221). A time below one, from antithetic chains, is set to one.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.bridge import variance_of_mean
    >>> from amc_pymc.rng import as_generator
    >>> x = np.repeat(as_generator(1).standard_normal((4, 1000)), 3, axis=1)
    >>> bool(2.5 < variance_of_mean(x)[1] < 3.6)
    True
    """
    chains, n = series.shape
    centred = series - series.mean(axis=1, keepdims=True)
    size = 2 ** (2 * n - 1).bit_length()
    spectrum = np.abs(np.fft.rfft(centred, size, axis=1)) ** 2
    covariances = np.fft.irfft(spectrum, size, axis=1)[:, :n].mean(axis=0) / n
    between = float(series.mean(axis=1).var(ddof=1)) if chains > 1 else 0.0
    total = float(covariances[0]) + between
    if total <= 0.0 or n < 4:
        return float(series.var(ddof=1)) / series.size, 1.0
    within = covariances[0] * n / (n - 1)
    correlations = 1.0 - (within - covariances) / total
    correlations[0] = 1.0
    pairs = correlations[: n - n % 2].reshape(-1, 2).sum(axis=1)
    pairs = pairs[: int(np.argmax(pairs <= 0.0)) if (pairs <= 0.0).any() else len(pairs)]
    time = max(2.0 * float(np.minimum.accumulate(pairs).sum()) - 1.0, 1.0) if pairs.size else 1.0
    return time * total / series.size, time


def _summands(works: np.ndarray, level: float, sign: float) -> np.ndarray:
    """Return the summands of one end over their mean; the sign is 1 for the lower end and -1 for the upper."""
    logs = log_expit(sign * (works - level))
    return np.exp(logs - _log_mean(logs))


def _log_mean(logs: np.ndarray) -> float:
    return float(logsumexp(logs)) - math.log(logs.size)


def _effective(weights: np.ndarray) -> float:
    return float(weights.sum() ** 2 / np.square(weights).sum())


def _variance(behind: np.ndarray, time: float) -> float:
    """Return the variance of the mean of chains with an autocorrelation time of at least `time`."""
    found, own = variance_of_mean(behind)
    return found * max(time / own, 1.0)


def _tension(
    forward: np.ndarray, backward: np.ndarray, level: float, time: float
) -> tuple[float, float]:
    """Return the estimate tilted towards the lower end less that tilted towards the upper end, and its error.

    Any level k gives an estimate, log k + log E_q expit(l - log k) - log E_p expit(log k - l).
    """
    difference, ahead, behind = 0.0, np.zeros(forward.shape), np.zeros(backward.shape)
    for side in (1.0, -1.0):
        tilted = level + side * _TILT
        up, down = log_expit(forward - tilted), log_expit(tilted - backward)
        difference += side * (tilted + _log_mean(up) - _log_mean(down))
        ahead += side * _summands(forward, tilted, 1.0)
        behind += side * _summands(backward, tilted, -1.0)
    variance = np.var(ahead, ddof=1) / forward.size + _variance(behind, time)
    return difference, math.sqrt(variance)
