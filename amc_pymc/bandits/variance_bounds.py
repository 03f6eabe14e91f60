"""Confidence interval for a variance from the Kullback-Leibler divergence (Neufeld et al. 2014)."""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.jit import njit

__all__ = ["VarianceInterval", "kl_variance_delta", "kl_variance_error", "kl_variance_interval"]


class VarianceInterval(NamedTuple):
    """Estimate and confidence interval for a variance, or for mean cost times variance.

    Attributes
    ----------
    estimate, low, high : float
    """

    estimate: float
    low: float
    high: float


@njit(cache=True)
def _kl_end(p: float, d: float, upper: bool) -> float:
    """Return the end of {q: KL(Bernoulli(p), Bernoulli(q)) <= d} above or below p.

    The divergence is convex in log q, so Newton's method does not overshoot from outside, and small
    values of q are accurate.
    """
    if upper:
        if p >= 1.0:
            return 1.0
        if p <= 0.0:
            return -math.expm1(-d)
    elif p <= 0.0:
        return 0.0
    elif p >= 1.0:
        return math.exp(-d)
    level = d - p * math.log(p) - (1.0 - p) * math.log1p(-p)
    v = math.log(-math.expm1(-level / (1.0 - p))) if upper else -level / p
    for _ in range(200):
        rest = -math.expm1(v)
        if rest <= 0.0:
            return 1.0
        slope = (1.0 - p) * (1.0 - rest) / rest - p
        if slope <= 0.0 if upper else slope >= 0.0:
            break
        step = (-p * v - (1.0 - p) * math.log(rest) - level) / slope
        v -= step
        if abs(step) < 1e-13:
            break
    q = math.exp(v)
    return min(max(q, p), 1.0) if upper else min(q, p)


@njit(cache=True)
def _interval(halves: np.ndarray, delta: float, all_times: bool) -> tuple[float, float, float]:
    """Compute estimate and interval from costs times squared differences (n,)."""
    total, low, high = 0.0, 0.0, 0.5
    for s in range(halves.size):
        total += halves[s]
        if all_times or s == halves.size - 1:
            mean = min(total / (s + 1.0), 1.0)
            d = delta / (s + 1.0)
            low = max(low, 0.5 * _kl_end(mean, d, False))
            high = min(high, 0.5 * _kl_end(mean, d, True))
    return 0.5 * total / halves.size, low, high


def kl_variance_interval(
    values: ArrayLike, costs: ArrayLike | None = None, *, delta: float, all_times: bool = False
) -> VarianceInterval:
    r"""Estimate the variance of values in [0, 1] from differences of pairs, with a confidence interval.

    From 2 n values and n costs, with :math:`Z_s = Q_s (Y_{2s} - Y_{2s-1})^2`, which are in [0, 1] and
    have mean :math:`2 E[Q] V[Y]`:

    .. math::
        \bar V = \frac{1}{2n} \sum_{s=1}^n Z_s, \qquad
        \{ \mu : \mathrm{KL}(2 \bar V, 2 \mu) \le \delta / n \}

    where KL is the divergence between Bernoulli distributions. :func:`kl_variance_delta` converts a
    probability of error to `delta`. Unlike intervals from the range alone, the interval is short if the
    variance is small.

    Parameters
    ----------
    values : array_like (2 n,)
        Independent values Y in [0, 1]: first pair, second pair and so on. The last of an odd number of
        values is ignored.
    costs : array_like (n,), optional
        Cost Q in [0, 1] of each pair, independent of the values; the interval is then for E[Q] V[Y]. By
        default 1.
    delta : float
        Positive; larger values give wider intervals.
    all_times : bool, default False
        Whether to intersect the intervals after 1, 2, ..., n pairs, which hold simultaneously by
        corollary 1. The lower end can then exceed the upper end, at most with the probability of error.

    Returns
    -------
    VarianceInterval

    References
    ----------
    Neufeld, György, Schuurmans & Szepesvári (2014), Adaptive Monte Carlo via bandit allocation,
    appendix D. Proceedings of Machine Learning Research 32(2), 1944-1952. Two misprints there: equation 23
    sums Q_t for Q_s, and the probability of error has the e of :func:`kl_variance_error` in an exponent.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.bandits import kl_variance_delta, kl_variance_interval
    >>> values = 0.5 + 0.1 * np.random.default_rng(1).choice([-1.0, 1.0], size=2000)
    >>> delta = kl_variance_delta(0.05, 1000, all_times=False)
    >>> interval = kl_variance_interval(values, delta=delta)
    >>> [round(float(v), 3) for v in interval]
    [0.01, 0.005, 0.017]
    """
    y = np.asarray(values, float)
    if y.ndim != 1 or y.size < 2:
        raise ValueError(f"values must have shape (2 n,) with n at least 1, got {y.shape}.")
    n = y.size // 2
    q = np.ones(n) if costs is None else np.asarray(costs, float)
    if q.shape != (n,):
        raise ValueError(f"costs must have shape ({n},), one for each pair, got {q.shape}.")
    for name, v in (("values", y), ("costs", q)):
        if not ((v >= 0.0) & (v <= 1.0)).all():
            bad = v[~((v >= 0.0) & (v <= 1.0))][0]
            raise ValueError(f"{name} must lie in [0, 1], got {bad}; scale them by their range.")
    if not 0.0 < delta < math.inf:
        raise ValueError(f"delta must be positive and finite, got {delta!r}.")
    squares = q * (y[1 : 2 * n : 2] - y[0 : 2 * n : 2]) ** 2
    return VarianceInterval(*_interval(squares, float(delta), all_times))


def kl_variance_error(delta: float, n_pairs: int, *, all_times: bool = True) -> float:
    r"""Return a bound on the probability of error of :func:`kl_variance_interval`.

    .. math:: 2 e \lceil \delta \log n \rceil e^{-\delta}

    bounds the probability that not all intervals after 1, 2, ..., n pairs hold (lemma 6). For the interval
    after n pairs alone, Chernoff's bound is :math:`2 e^{-\delta}`.

    Parameters
    ----------
    delta : float
        Positive.
    n_pairs : int
        Number of pairs n, at least 1.
    all_times : bool, default True

    Returns
    -------
    float
        Bound on the probability, at most 1.

    Examples
    --------
    >>> from amc_pymc.bandits import kl_variance_error
    >>> round(kl_variance_error(12.0, 1000), 5)
    0.00277
    """
    if not 0.0 < delta < math.inf:
        raise ValueError(f"delta must be positive and finite, got {delta!r}.")
    if n_pairs < 1:
        raise ValueError(f"n_pairs must be at least 1, got {n_pairs!r}.")
    if not all_times or n_pairs == 1:
        return min(1.0, 2.0 * math.exp(-delta))
    return min(1.0, 2.0 * math.e * math.ceil(delta * math.log(n_pairs)) * math.exp(-delta))


def kl_variance_delta(error: float, n_pairs: int, *, all_times: bool = True) -> float:
    """Return the smallest `delta` whose :func:`kl_variance_error` is at most `error`.

    Parameters
    ----------
    error : float
        Probability in (0, 1).
    n_pairs : int
        Number of pairs n, at least 1.
    all_times : bool, default True

    Returns
    -------
    float

    Examples
    --------
    >>> from amc_pymc.bandits import kl_variance_delta
    >>> round(kl_variance_delta(0.05, 1000), 3)
    8.8
    """
    if not 0.0 < error < 1.0:
        raise ValueError(f"error must be between 0 and 1, got {error!r}.")
    if n_pairs < 1:
        raise ValueError(f"n_pairs must be at least 1, got {n_pairs!r}.")
    if not all_times or n_pairs == 1:
        return math.log(2.0 / error)
    steps = 1
    while True:
        # exact if the ceiling is `steps`
        delta = math.log(2.0 * math.e * steps / error)
        if delta * math.log(n_pairs) <= steps:
            return delta
        steps += 1
