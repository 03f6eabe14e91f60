"""Bias of posterior means due to the tolerance, by extrapolation to a distance of zero."""

from __future__ import annotations

import math

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from amc_pymc.flags import Flag, flag
from amc_pymc.likelihood_free.accepted import closest_first
from amc_pymc.logweights import effective_of_first, relative

#: Statistics of each variable in group ``estimates``.
STATISTICS = [
    "mean", "mcse", "tolerance_bias", "tolerance_bias_error", "error", "sd", "sd_at_zero",
]  # fmt: skip
#: Shifts by the tolerance, in posterior standard deviations, above which a warning is given: if the bias is
#: significant, and if it is not.
_SHIFT, _UNKNOWN = 0.25, 0.5
#: Number of standard errors above which the bias of a single mean is significant.
_SURE = 3.0
#: Ratio of standard deviations at the tolerance and at zero above which a warning is given, and standard errors allowed.
_WIDE, _SPREAD_ERRORS = 1.5, 2.0
#: Largest ratio that a warning states.
_MOST_TIMES = 10.0

#: Ratio of the numbers of effective draws in successive windows, and maximum number of windows.
_STEP, _WINDOWS = 1.6, 9
#: Minimum effective draws in a window per regression coefficient.
_DRAWS_PER_COEFFICIENT = 5.0
#: Multiple of the variance up to which squared differences between windows count as noise.
_CHANCE = 1.5
#: Maximum leverage that residuals are corrected for.
_MOST_LEVERAGE = 0.9
#: Fraction of the largest singular value below which singular values count as zero.
_RANK = 1e-10
#: Number of columns processed at a time.
_BLOCK = 64


class ToleranceBias(NamedTuple):
    """Bias of means at a tolerance.

    Attributes
    ----------
    bias : array (K,)
        Mean at the tolerance minus extrapolated mean; nan if it cannot be estimated.
    error : array (K,)
        Standard error of the bias; nan if the bias cannot be estimated.
    """

    bias: np.ndarray
    error: np.ndarray


class _Window(NamedTuple):
    """A regression on the n closest simulations.

    Attributes
    ----------
    design : array (n, p)
    solve : array (p, n)
        Matrix that maps values to coefficients.
    intercept : array (n,)
        Weight of each residual in the intercept.
    """

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
    r"""Estimate the bias of posterior means by extrapolation to a distance of zero.

    If the likelihood of the summary statistics is smooth, parameters given a distance d have the mean
    :math:`m_0 + c\, d^2 + O(d^4)` (Barber, Voss & Webster 2015, doi:10.1214/15-EJS988, for the bias at a tolerance).
    Simulations within a window are therefore regressed on :math:`d^2` and, if given, on summary statistics relative to
    the data, which explain most of the variation apart from noise:

    .. math:: f_i = m_0 + c\, d_i^2 + b^\top (s_i - s_{\mathrm{obs}}) + \text{noise}

    by least squares with the weights of simulations. Windows are nested: the first contains the simulations within the
    tolerance, and each further window has 1.6 times as many effective draws. The squared error of window k is estimated
    as

    .. math:: \mathrm{se}_k^2 + \max_{j < k} \bigl[(m_j - m_k)^2 - \tfrac32 \mathrm{se}_{jk}^2\bigr]_+

    averaged over all functions in units of their variances, and the window with the smallest error is chosen
    (Goldenshluger & Lepski 2011, doi:10.1214/10-AOS883). Without summary statistics, or with too many for the number of
    simulations, only the first window is used, because differences between wider windows are then not significant even
    if their bias is not small. Because windows share simulations, the variances of differences,
    :math:`\mathrm{se}_{jk}^2` and that of the bias, are sums of squared differences of influence functions.

    Parameters
    ----------
    values : array (N, K)
        Values f of the simulations.
    log_weight : array (N,)
        Natural log weights.
    distance : array (N,)
        Distances; simulations where they are not finite are left out.
    tolerance : float
        Tolerance of the means.
    gaps : array (N, S), optional
        Summary statistics minus those of the data.
    estimate : pair of arrays (K,), optional
        Means at the tolerance and their standard errors, if they are not weighted means of `values`. They are assumed
        to be efficient: the variance of the difference is then the difference of variances (Hausman 1978,
        doi:10.2307/1913827).

    Returns
    -------
    ToleranceBias

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.tolerance_bias import tolerance_bias
    >>> d = np.linspace(0.0, 2.0, 2001)
    >>> found = tolerance_bias(3.0 + d[:, None] ** 2, np.zeros(2001), d, 1.0)
    >>> found.bias.round(2)
    array([0.33])
    """
    k = values.shape[1]
    unknown = ToleranceBias(np.full(k, np.nan), np.full(k, np.nan))
    order, sizes = _nested(log_weight, distance, tolerance)
    if sizes and tolerance == 0.0:
        return ToleranceBias(np.zeros(k), np.zeros(k))
    d, weight = distance[order], relative(log_weight[order])
    windows = [] if gaps is None else _windows(d, weight, gaps[order], sizes)
    windows = windows or _windows(d, weight, None, sizes[:1])
    if not windows:
        return unknown
    first = weight[: sizes[0]] / weight[: sizes[0]].sum()
    parts = [
        _block(values[order, start : start + _BLOCK], first, windows)
        for start in range(0, k, _BLOCK)
    ]
    means, differences, own, variance = (
        np.concatenate(p, axis=-1) for p in zip(*parts, strict=True)
    )
    weighted, means, from_mean = means[0], means[1:], differences[0, 1:]
    differences = differences[1:, 1:]
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
    return ToleranceBias(mean - means[best], np.sqrt(error2 + shift[best] * variance))


def closest(log_weight: np.ndarray, distance: np.ndarray, tolerance: float) -> np.ndarray:
    """Return indices (n,) of the simulations, among all (N,), that :func:`tolerance_bias` uses."""
    return _nested(log_weight, distance, tolerance)[0]


def _nested(
    log_weight: np.ndarray, distance: np.ndarray, tolerance: float
) -> tuple[np.ndarray, Sequence[int]]:
    """Return the closest simulations in order and the window sizes; both are empty if none is accepted."""
    order, weight = closest_first(distance, log_weight)
    kept = int(np.searchsorted(distance[order], tolerance, side="right"))
    if kept == 0:
        return order[:0], []
    effective, sizes = effective_of_first(weight), [kept]
    for step in range(1, _WINDOWS):
        more = np.flatnonzero(effective[sizes[-1] :] >= effective[kept - 1] * _STEP**step)
        if not len(more):
            break
        sizes.append(sizes[-1] + int(more[0]) + 1)
    return order[: sizes[-1]], sizes


def _windows(
    d: np.ndarray, weight: np.ndarray, gaps: np.ndarray | None, sizes: Sequence[int]
) -> list[_Window]:
    """Return regressions on the squared distance and gaps (N, S) for windows with enough draws."""
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
        out.append(_Window(design, solve, solve[0] / np.sqrt(1.0 - leverage)))
    return out


def _block(
    values: np.ndarray, weight: np.ndarray, windows: list[_Window]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return estimates for some columns of values (n, K) and their variances.

    Returns
    -------
    tuple of arrays
        The weighted mean and extrapolated means (1 + J, K), variances of their differences (1 + J, 1 + J, K), variances
        of the extrapolated means (J, K), and the variance of values (K,).
    """
    kept = len(weight)
    influence = np.zeros((1 + len(windows), *values.shape))
    with np.errstate(over="ignore", invalid="ignore"):
        means = [weight @ values[:kept]]
        gap = values[:kept] - means[0]
        influence[0, :kept] = weight[:, None] * gap
        for own, window in zip(influence[1:], windows, strict=True):
            f = values[: len(window.design)]
            coefficients = window.solve @ f
            own[: len(f)] = window.intercept[:, None] * (f - window.design @ coefficients)
            means.append(coefficients[0])
        products = np.einsum("jnk,lnk->jlk", influence, influence)
        own = np.einsum("jjk->jk", products)
        differences = np.maximum(own[:, None] + own[None] - 2.0 * products, 0.0)
    return np.array(means), differences, own[1:], weight @ gap**2


def _pooled(ratios: np.ndarray) -> np.ndarray:
    """Return means of finite values over the last axis; zero if none is finite."""
    some = np.isfinite(ratios)
    return np.where(some, ratios, 0.0).sum(axis=-1) / np.maximum(some.sum(axis=-1), 1)


# --- estimates ---


class Estimates(NamedTuple):
    """Posterior means and standard deviations of K elements of variables, and the bias of both by the tolerance.

    Attributes
    ----------
    mean, mcse : arrays (K,)
    shift : ToleranceBias
        Of the means.
    sd : array (K,)
    sd_at_zero : array (K,)
        Standard deviations extrapolated to a distance of zero; nan if unknown.
    sd_error : array (K,)
        Their standard errors.
    excess : float
        Squared error in posterior variances that pseudo-observed data show, beyond that of means and variances.
    """

    mean: np.ndarray
    mcse: np.ndarray
    shift: ToleranceBias
    sd: np.ndarray
    sd_at_zero: np.ndarray
    sd_error: np.ndarray
    excess: float = 0.0

    @property
    def rows(self) -> np.ndarray:
        """One row (K,) for each of :data:`STATISTICS`; "error" is the root of the sum of all squared errors."""
        shift = self.shift
        squares = self.mcse**2 + shift.bias**2 + shift.error**2 + self.excess * self.sd**2
        own = [self.mean, self.mcse, shift.bias, shift.error, np.sqrt(squares), self.sd]
        return np.stack([*own, self.sd_at_zero])


def posterior_estimates(
    values: np.ndarray,
    log_weight: np.ndarray,
    distance: np.ndarray,
    tolerance: float,
    gaps: np.ndarray | None,
    drawn: tuple[np.ndarray, np.ndarray, np.ndarray],
    *,
    adjusted: bool,
    excess: float = 0.0,
) -> Estimates:
    """Estimate the bias of means and spreads due to the tolerance from the simulations closest to the data.

    Parameters
    ----------
    values, log_weight, distance, tolerance, gaps
        As for :func:`tolerance_bias`.
    drawn : tuple of arrays (K,)
        Means, their standard errors and standard deviations of the draws.
    adjusted : bool
        Whether these are of adjusted draws, and not of the simulations within the tolerance.
    excess : float
        See :class:`Estimates`.
    """
    mean, mcse, sd = drawn
    shift = tolerance_bias(
        values, log_weight, distance, tolerance, gaps, (mean, mcse) if adjusted else None
    )
    inside = np.flatnonzero((distance <= tolerance) & (log_weight > -np.inf))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        weight = relative(log_weight[inside])
        centre = weight @ values[inside] / weight.sum()
        squares = tolerance_bias((values - centre) ** 2, log_weight, distance, tolerance, gaps)
        plain = weight @ (values[inside] - centre) ** 2 / weight.sum()
        # Second moments at zero are about the mean at the tolerance.
        moved = mean - shift.bias - centre
        at_zero = np.sqrt(np.maximum(plain - squares.bias - moved**2, 0.0))
        error = squares.error / (2.0 * np.maximum(at_zero, np.sqrt(squares.error)))
    return Estimates(mean, mcse, shift, sd, at_zero, error, excess)


def spread_doubt(
    found: Estimates, narrowing: np.ndarray | float, names: Sequence[str], tolerance: float
) -> list[Flag]:
    """Return a flag if a posterior, or its modes, are much wider than they would be at a distance of zero.

    The standard deviation must be 1.5 times the extrapolated one plus twice its standard error, or a regression on the
    summary statistics must narrow the modes by a factor (K,) of 1.5 (nan: unknown).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        surely = np.fmax(found.sd / (found.sd_at_zero + _SPREAD_ERRORS * found.sd_error), narrowing)
        times = np.fmax(found.sd / found.sd_at_zero, narrowing)
    surely = np.where(np.isfinite(surely), surely, 0.0)
    if not len(surely) or surely.max() < _WIDE:
        return []
    worst = int(surely.argmax())
    told = {"name": names[worst], "times": min(times[worst], _MOST_TIMES)}
    return [flag("too_wide", tolerance=tolerance, **told)]


def tolerance_doubt(found: Estimates, names: Sequence[str], tolerance: float) -> list[Flag]:
    """Return a flag if the tolerance is the main source of error of posterior means.

    Sizes are in posterior standard deviations. The root mean square of bias and its error over all means must be
    above their Monte Carlo error, and above a quarter if the bias is significant or a half if it is not.
    Alternatively, the bias of one mean must be above a quarter, its Monte Carlo error and three of its own standard
    errors.

    Parameters
    ----------
    found : Estimates
    names : sequence of str
        Names of the K means.
    tolerance : float
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        mcse, bias, error = (
            a / found.sd for a in (found.mcse, found.shift.bias, found.shift.error)
        )
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
