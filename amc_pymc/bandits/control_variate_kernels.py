"""Compiled regressions on control variates."""

from __future__ import annotations

import math

import numpy as np

from amc_pymc.engine.jit import njit

__all__ = [
    "known_variance_estimate",
    "leave_one_out",
    "moments_size",
    "regression_estimate",
    "regression_update",
]


#: Share of unexplained variation below which a control counts as collinear with earlier ones.
_COLLINEAR = 1e-12


@njit(cache=True)
def moments_size(n_controls: int) -> int:
    """Return the length of the running moments with q controls, 3 + 2 q + q (q + 1) / 2."""
    return 3 + 2 * n_controls + n_controls * (n_controls + 1) // 2


@njit(cache=True)
def regression_update(moments: np.ndarray, reward: float, deviations: np.ndarray) -> None:
    """Add an observation to running moments, in O(q^2).

    Parameters
    ----------
    moments : array (3 + 2 q + q (q + 1) / 2,), changed in place
        With R the rewards and D the deviations: number of observations, mean of R, sum of squares of
        R about its mean; then means of D (q), sums of products of D and R about their means (q), and
        the same of D with D, lower triangle row by row. All zero before the first observation.
    reward : float
    deviations : array (q,)
        Controls minus their known means.
    """
    q = deviations.size
    moments[0] += 1.0
    s = moments[0]
    d = reward - moments[1]
    moments[1] += d / s
    moments[2] += d * (reward - moments[1])
    shrink = (s - 1.0) / s
    at = 3 + 2 * q
    for i in range(q):
        di = deviations[i] - moments[3 + i]
        moments[3 + q + i] += shrink * di * d
        for j in range(i + 1):
            moments[at] += shrink * di * (deviations[j] - moments[3 + j])
            at += 1
    for i in range(q):
        moments[3 + i] += (deviations[i] - moments[3 + i]) / s


@njit(cache=True)
def _factor(products: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the Cholesky factor of a matrix (q, q), and its rank.

    Columns that depend on earlier ones are omitted: their diagonal is 0.
    """
    q = products.shape[0]
    lower, rank = np.zeros((q, q)), 0
    for j in range(q):
        pivot = products[j, j]
        for k in range(j):
            pivot -= lower[j, k] ** 2
        if pivot <= _COLLINEAR * products[j, j]:
            continue
        rank += 1
        lower[j, j] = math.sqrt(pivot)
        for i in range(j + 1, q):
            value = products[i, j]
            for k in range(j):
                value -= lower[i, k] * lower[j, k]
            lower[i, j] = value / lower[j, j]
    return lower, rank


@njit(cache=True)
def _half_solve(lower: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return L^-1 right, with zeros for omitted columns."""
    out = np.zeros(right.size)
    for i in range(right.size):
        if lower[i, i] > 0.0:
            value = right[i]
            for k in range(i):
                value -= lower[i, k] * out[k]
            out[i] = value / lower[i, i]
    return out


@njit(cache=True)
def _solve(lower: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return (L L')^-1 right, with zeros for omitted columns."""
    out = _half_solve(lower, right)
    for i in range(right.size - 1, -1, -1):
        if lower[i, i] > 0.0:
            value = out[i]
            for k in range(i + 1, right.size):
                value -= lower[k, i] * out[k]
            out[i] = value / lower[i, i]
    return out


@njit(cache=True)
def _triangle(moments: np.ndarray, q: int) -> np.ndarray:
    """Return the sums of products of deviations (q, q) from running moments."""
    products, at = np.empty((q, q)), 3 + 2 * q
    for i in range(q):
        for j in range(i + 1):
            products[i, j] = products[j, i] = moments[at]
            at += 1
    return products


@njit(cache=True)
def regression_estimate(moments: np.ndarray, q: int) -> tuple[float, float, float]:
    """Compute the least-squares estimate from running moments, in O(q^3).

    Parameters
    ----------
    moments : array, see `regression_update`
    q : int

    Returns
    -------
    mean, variance, df : float
        The variance is inf without degrees of freedom.
    """
    s, mean = moments[0], moments[1]
    if q == 0:
        df, z, explained = s - 1.0, 0.0, 0.0
    elif q == 1:
        off, products = moments[3], moments[5]
        rank = 1.0 if products > 0.0 else 0.0
        df, z, explained = s - 1.0 - rank, 0.0, 0.0
        if rank > 0.0:
            mean -= moments[4] / products * off
            z, explained = off * off / products, moments[4] ** 2 / products
    else:
        lower, rank_many = _factor(_triangle(moments, q))
        a = _half_solve(lower, moments[3 : 3 + q])
        b = _half_solve(lower, moments[3 + q : 3 + 2 * q])
        df, z, explained = s - 1.0 - rank_many, 0.0, 0.0
        for i in range(q):
            mean -= a[i] * b[i]
            z += a[i] * a[i]
            explained += b[i] * b[i]
    if df < 1.0:
        return mean, np.inf, df
    return mean, max(moments[2] - explained, 0.0) / df * (1.0 / s + z), df


@njit(cache=True)
def known_variance_estimate(
    moments: np.ndarray, q: int, covariance: np.ndarray
) -> tuple[float, float, float]:
    """Compute the estimate for a known covariance (q, q) of the controls.

    As `regression_estimate`, except that the coefficients are the sample covariances of controls and
    rewards over the known covariance.
    """
    s = moments[0]
    df = s - q - 1.0
    if df < 1.0:
        return moments[1], np.inf, df
    off, cross = moments[3 : 3 + q], moments[3 + q : 3 + 2 * q]
    beta = _solve(_factor(covariance)[0], cross / (s - 1.0))
    products = _triangle(moments, q)
    half = _half_solve(_factor(products)[0], off)
    mean, squares, z = moments[1], moments[2], 1.0 / s
    for i in range(q):
        mean -= beta[i] * off[i]
        squares -= 2.0 * beta[i] * cross[i]
        z += half[i] * half[i]
        for j in range(q):
            squares += beta[i] * products[i, j] * beta[j]
    return mean, max(squares, 0.0) / df * z, df


@njit(cache=True)
def leave_one_out(
    rewards: np.ndarray, deviations: np.ndarray, pseudo: bool
) -> tuple[float, float, float]:
    """Compute the jackknife or splitting estimate, in O(s q^2).

    Parameters
    ----------
    rewards : array (s,)
    deviations : array (s, q)
        Controls minus their known means.
    pseudo : bool
        Whether to average jackknife pseudo-values. If false, average observations corrected with the
        coefficients from the others.

    Returns
    -------
    mean, variance, df : float
        If the other observations do not determine the coefficients for one of them, the least-squares mean
        and infinite variance.
    """
    s, q = deviations.shape
    off, mean = np.zeros(q), 0.0
    for r in range(s):
        mean += rewards[r]
        for i in range(q):
            off[i] += deviations[r, i]
    mean /= s
    for i in range(q):
        off[i] /= s
    products, cross = np.zeros((q, q)), np.zeros(q)
    for r in range(s):
        for i in range(q):
            d = deviations[r, i] - off[i]
            cross[i] += d * (rewards[r] - mean)
            for j in range(i + 1):
                products[i, j] += d * (deviations[r, j] - off[j])
    for i in range(q):
        for j in range(i):
            products[j, i] = products[i, j]
    lower, rank = _factor(products)
    beta, to_mean = _solve(lower, cross), _solve(lower, off)
    estimate = mean
    for i in range(q):
        estimate -= beta[i] * off[i]
    if s < rank + 2:
        return estimate, np.inf, s - 1.0
    total, squares, half, last = 0.0, 0.0, np.zeros(q), 0.0
    for r in range(s):
        # leverage, residual, and weight of this observation in the estimate
        leverage, residual, weight = 1.0 / s, rewards[r] - mean, 1.0 / s
        for i in range(q):
            half[i] = 0.0
            d = deviations[r, i] - off[i]
            residual -= beta[i] * d
            weight -= to_mean[i] * d
            if lower[i, i] > 0.0:
                value = d
                for k in range(i):
                    value -= lower[i, k] * half[k]
                half[i] = value / lower[i, i]
                leverage += half[i] * half[i]
        if leverage > 1.0 - 1e-10:
            return estimate, np.inf, s - 1.0
        residual /= 1.0 - leverage
        if pseudo:
            value = estimate + (s - 1.0) * weight * residual
        else:
            # rewards[r] - beta' deviations, with beta estimated without this observation
            value = rewards[r]
            move = weight - 1.0 / s
            for i in range(q):
                value -= beta[i] * deviations[r, i]
            value += residual * (leverage - 1.0 / s - move)
        last = value - total
        total += last / (r + 1.0)
        squares += last * (value - total)
    return total, squares / (s * (s - 1.0)), s - 1.0
