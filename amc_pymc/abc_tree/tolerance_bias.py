"""What the tolerance shifts posterior means by, from extrapolation to a distance of zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from amc_pymc.abc_tree.accepted import effective_of_first
from amc_pymc.logweights import relative

__all__ = ["ToleranceBias", "closest", "tolerance_bias"]

#: Growth of the number of effective draws from one window to the next, and how often it grows.
_STEP, _WINDOWS = 1.6, 9
#: Effective draws of a window for each coefficient of its regression, at least.
_DRAWS_PER_COEFFICIENT = 5.0
#: Multiple of the variance by which squared differences of windows exceed what chance explains.
_CHANCE = 1.5
#: Leverage of a simulation that is made up for, at most.
_MOST_LEVERAGE = 0.9
#: Singular values below this part of the largest count as zero.
_RANK = 1e-10
#: Columns that are worked on at a time.
_BLOCK = 64


class ToleranceBias(NamedTuple):
    """How far means at a tolerance are from those at a distance of zero.

    Attributes
    ----------
    bias : array (K,)
        Mean at the tolerance minus that extrapolated; nan if nothing can be said.
    error : array (K,)
        Standard error of the bias; nan if nothing can be said.
    tolerance : float
        Up to which simulations were used.
    """

    bias: np.ndarray
    error: np.ndarray
    tolerance: float


class _Window(NamedTuple):
    """A regression on the n closest simulations.

    Attributes
    ----------
    n : int
    design : array (n, p)
    solve : array (p, n)
        Makes coefficients of values.
    intercept : array (n,)
        Part of each residual in the intercept.
    """

    n: int
    design: np.ndarray
    solve: np.ndarray
    intercept: np.ndarray


def tolerance_bias(
    values: np.ndarray,
    log_weight: np.ndarray,
    distance: np.ndarray,
    tolerance: float,
    gaps: np.ndarray | None = None,
    estimate: tuple[np.ndarray, np.ndarray] | None = None,
) -> ToleranceBias:
    r"""Extrapolate posterior means to a distance of zero.

    Where the likelihood of the summary statistics is smooth, parameters given a distance d have the mean
    :math:`m_0 + c\, d^2 + O(d^4)` (Barber, Voss & Webster 2015, doi:10.1214/15-EJS988, for the bias at a tolerance). So simulations within a
    window are regressed on :math:`d^2` and, if there are any, on summary statistics relative to the data, which take away most of
    what is not noise:

    .. math:: f_i = m_0 + c\, d_i^2 + b^\top (s_i - s_{\mathrm{obs}}) + \text{noise}

    by least squares with the weights of simulations. Windows are nested: the first has the simulations within the tolerance,
    each further one 1.6 times as many effective draws. Of window k the squared error is estimated as

    .. math:: \mathrm{se}_k^2 + \max_{j < k} \bigl[(m_j - m_k)^2 - \tfrac32 \mathrm{se}_{jk}^2\bigr]_+

    averaged over all functions in units of their variances, and the window with the least is taken (Goldenshluger & Lepski 2011,
    doi:10.1214/10-AOS883). Without summary statistics, or with too many for the simulations, only the first window is used, because wider ones
    then differ less than chance explains long before their bias is small. Standard errors of differences, :math:`\mathrm{se}_{jk}` and that of the bias, are sums of squared
    differences of what each simulation adds to both estimates (influence functions), for windows share simulations.

    Parameters
    ----------
    values : array (N, K)
        f of simulations.
    log_weight : array (N,)
        Natural logarithms.
    distance : array (N,)
        Those that are not finite are left out.
    tolerance : float
        At which the means are.
    gaps : array (N, S), optional
        Summary statistics minus those of the data.
    estimate : pair of arrays (K,), optional
        Means at the tolerance and their standard errors, where they are not weighted means of `values`. They are then
        taken for efficient, so that the variance of the difference is the difference of variances (Hausman 1978,
        doi:10.2307/1913827).

    Returns
    -------
    ToleranceBias

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.abc_tree.tolerance_bias import tolerance_bias
    >>> d = np.linspace(0.0, 2.0, 2001)
    >>> found = tolerance_bias(3.0 + d[:, None] ** 2, np.zeros(2001), d, 1.0)
    >>> found.bias.round(2)
    array([0.33])
    """
    k = values.shape[1]
    unknown = ToleranceBias(np.full(k, np.nan), np.full(k, np.nan), tolerance)
    order, sizes = _nested(log_weight, distance, tolerance)
    if not sizes:
        return unknown
    if tolerance == 0.0:
        return ToleranceBias(np.zeros(k), np.zeros(k), 0.0)
    kept, d, weight = sizes[0], distance[order], relative(log_weight[order])
    near = None if gaps is None else gaps[order]
    windows = [] if near is None else _windows(d, weight, near, sizes)
    windows = windows or _windows(d, weight, None, sizes[:1])
    if not windows:
        return unknown
    first = weight[:kept] / weight[:kept].sum()
    parts = [
        _block(values[order, start : start + _BLOCK], first, windows)
        for start in range(0, k, _BLOCK)
    ]
    means, own, differences, from_mean, weighted, variance = (
        np.concatenate(p, axis=-1) for p in zip(*parts, strict=True)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = (means[:, None] - means[None]) ** 2 - _CHANCE * differences
        shifts = _pooled(squares / variance)
        noise = _pooled(own / variance)
    shift = np.array([max([0.0, *shifts[j, :j]]) for j in range(len(windows))])
    best = int(np.argmin(shift + noise))
    if estimate is None:
        mean, error2 = weighted, from_mean[best]
    else:
        mean, error2 = estimate[0], np.maximum(own[best] - estimate[1] ** 2, 0.0)
    return ToleranceBias(
        mean - means[best],
        np.sqrt(error2 + shift[best] * variance),
        float(d[windows[best].n - 1]),
    )


def closest(log_weight: np.ndarray, distance: np.ndarray, tolerance: float) -> np.ndarray:
    """Indices (n,) of the simulations, of all (N,), that :func:`tolerance_bias` looks at: it needs no others."""
    return _nested(log_weight, distance, tolerance)[0]


def _nested(
    log_weight: np.ndarray, distance: np.ndarray, tolerance: float
) -> tuple[np.ndarray, Sequence[int]]:
    """Indices of the closest simulations in order, and how many are in each window; none if none is accepted."""
    order = np.flatnonzero(np.isfinite(distance) & (log_weight > -np.inf))
    order = order[np.argsort(distance[order], kind="stable")]
    kept = int(np.searchsorted(distance[order], tolerance, side="right"))
    if kept == 0:
        return order[:0], []
    sizes = _sizes(relative(log_weight[order]), kept)
    return order[: sizes[-1]], sizes


def _sizes(weight: np.ndarray, kept: int) -> Sequence[int]:
    """Numbers of closest simulations in windows, from those that are kept on."""
    effective = effective_of_first(weight)
    sizes = [kept]
    for step in range(1, _WINDOWS):
        more = np.flatnonzero(effective[sizes[-1] :] >= effective[kept - 1] * _STEP**step)
        if not len(more):
            break
        sizes.append(sizes[-1] + int(more[0]) + 1)
    return sizes


def _windows(
    d: np.ndarray, weight: np.ndarray, gaps: np.ndarray | None, sizes: Sequence[int]
) -> list[_Window]:
    """Regressions on the squared distance and gaps (N, S), where there are enough draws for it."""
    out = []
    for n in sizes:
        w = weight[:n] / weight[:n].sum()
        columns = [np.ones(n), (d[:n] / d[n - 1]) ** 2] if d[n - 1] > 0.0 else [np.ones(n)]
        if gaps is not None:
            scale = gaps[:n].std(axis=0)
            some = np.isfinite(scale) & (scale > 0.0)
            columns += list((gaps[:n, some] / scale[some]).T)
        if 1.0 / (w @ w) < _DRAWS_PER_COEFFICIENT * len(columns):
            continue
        design, root = np.column_stack(columns), np.sqrt(w)[:, None]
        solve = np.linalg.pinv(root * design, rcond=_RANK) * root.T
        leverage = np.clip(np.einsum("ij,ji->i", design, solve), 0.0, _MOST_LEVERAGE)
        out.append(_Window(n, design, solve, solve[0] / np.sqrt(1.0 - leverage)))
    return out


def _block(values: np.ndarray, weight: np.ndarray, windows: list[_Window]):
    """Estimates for some columns of values (n, K), and how they vary.

    Returns
    -------
    tuple of arrays
        Extrapolated means (J, K), their variances, those of differences between windows (J, J, K) and of differences from the weighted
        mean (J, K), that mean (K,), and the variance of values (K,).
    """
    kept, n = len(weight), len(values)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = weight @ values[:kept]
        gap = values[:kept] - mean
        variance = weight @ gap**2
        plain = np.zeros(values.shape)
        plain[:kept] = weight[:, None] * gap
        means, added = [], []
        for window in windows:
            f = values[: window.n]
            coefficients = window.solve @ f
            each = np.zeros((n, values.shape[1]))
            each[: window.n] = window.intercept[:, None] * (f - window.design @ coefficients)
            means.append(coefficients[0])
            added.append(each)
        own = np.array([np.square(a).sum(axis=0) for a in added])
        differences = np.array([[np.square(a - b).sum(axis=0) for b in added] for a in added])
        from_mean = np.array([np.square(plain - a).sum(axis=0) for a in added])
    return np.array(means), own, differences, from_mean, mean, variance


def _pooled(ratios: np.ndarray) -> np.ndarray:
    """Means over the last axis of those that are finite; zero if none is."""
    some = np.isfinite(ratios)
    return np.where(some, ratios, 0.0).sum(axis=-1) / np.maximum(some.sum(axis=-1), 1)
