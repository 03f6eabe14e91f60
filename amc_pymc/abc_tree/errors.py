"""Standard errors of posterior means, estimated from the accepted simulations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scipy.special import ndtri

from amc_pymc.abc_tree.adjust import AdjustedDraws, LogDensity, regress
from amc_pymc.abc_tree.axes import from_normal

__all__ = ["adjusted_effective", "adjusted_mean", "weighted_mean"]

#: Step of finite differences, in standard deviations; wide enough for integer-valued functions.
_STEP = 0.2
#: Maximum number of jackknife groups.
_GROUPS = 30


def weighted_mean(weight: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Return weighted means and their standard errors.

    .. math:: \hat\mu = \sum_i w_i f_i, \qquad \mathrm{se}^2 = \sum_i w_i^2 (f_i - \hat\mu)^2

    for weights that sum to one (Hesterberg 1995, doi:10.1080/00401706.1995.10484303). This accounts for weights
    that are correlated with the values, which Kish's effective sample size does not.

    Parameters
    ----------
    weight : array (n,)
        Weights that sum to one.
    values : array (n, K)

    Returns
    -------
    arrays (K,), (K,)

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.abc_tree.errors import weighted_mean
    >>> weighted_mean(np.array([0.5, 0.25, 0.25]), np.array([[0.0], [2.0], [2.0]]))
    (array([1.]), array([0.61237244]))
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean = weight @ values
        return mean, np.sqrt(weight**2 @ (values - mean) ** 2)


def adjusted_mean(
    draws: AdjustedDraws,
    values: Callable[[np.ndarray], np.ndarray],
    log_density: LogDensity | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    r"""Return means over adjusted draws and standard errors that include the error of the regression.

    All draws are moved by the same slopes, whose error does not average out. With weights :math:`a_i` that include
    the prior density :math:`\rho`, the mean solves :math:`\sum_i a_i (f_i - \hat\mu) = 0`, and simulation j changes
    it by

    .. math:: \frac{1}{\sum_i a_i} \Bigl[a_j (f_j - \hat\mu) - \sum_d r_{jd}\, p_j^\top \sum_i g_i
        \frac{\partial}{\partial x_{id}} a_i (f_i - \hat\mu)\Bigr]

    with residuals r, summary statistics g relative to the data, and :math:`p_j` the slopes per unit of
    :math:`x_j`. The standard error is the root of the sum of squares (Huber's sandwich estimator); for f = x and a
    uniform prior it is that of the regression intercept. Derivatives are central differences. If residuals are
    stretched, the regression is repeated without each of 30 groups of simulations in turn (the jackknife).

    Parameters
    ----------
    draws : AdjustedDraws
    values : callable
        Function f that maps points (m, D) of the cube to values (m, K).
    log_density : callable, optional
        Log prior density that `draws` were made with.

    Returns
    -------
    arrays (K,), (K,)
    """
    fit = draws.regression
    if fit.kind in ("heteroscedastic", "modes"):
        return _jackknifed(draws, values, log_density)
    top = draws.accepted.log_weight.max()
    x, at = fit.x, fit.u

    def weights(u: np.ndarray) -> np.ndarray:
        log = None if log_density is None else log_density(u)
        return np.exp(draws.log_weight + (0.0 if log is None else log) - top)

    def scores(u: np.ndarray) -> np.ndarray:
        a = weights(u)
        # Values may be undefined where the weight is zero.
        return np.where(a[:, None] > 0.0, a[:, None] * (values(u) - mean), 0.0)

    mean, _ = weighted_mean(draws.accepted.weight, values(draws.u))
    with np.errstate(over="ignore", invalid="ignore"):
        out = scores(at)
        steps = _STEP * np.sqrt(_variance(draws))
        for d in np.flatnonzero(steps):
            step = steps[d] * (np.arange(x.shape[1]) == d)
            slope = (scores(from_normal(x + step)) - scores(from_normal(x - step))) / (
                2.0 * steps[d]
            )
            out -= fit.residuals[:, d, None] * (fit.projection.T @ (fit.gaps.T @ slope))
        return mean, np.sqrt((out**2).sum(axis=0)) / weights(at).sum()


def _jackknifed(
    draws: AdjustedDraws,
    values: Callable[[np.ndarray], np.ndarray],
    log_density: LogDensity | None,
) -> tuple[np.ndarray, np.ndarray]:
    fit = draws.regression
    mean, _ = weighted_mean(draws.accepted.weight, values(draws.u))
    groups = min(_GROUPS, len(fit.x))
    if groups < 2:
        return mean, np.full(len(mean), np.nan)
    means = []
    for g in range(groups):
        kept = np.arange(len(fit.x)) % groups != g
        u = regress(fit.original[kept], fit.gaps[kept], fit.weights[kept], fit.kind).u
        log = draws.log_weight[kept]
        density = None if log_density is None else log_density(u)
        log = log if density is None else log + density
        some = log > -np.inf
        if not some.any():
            continue
        w = np.exp(log[some] - log[some].max())
        with np.errstate(over="ignore", invalid="ignore"):
            means.append(w @ values(u[some]) / w.sum())
    found = np.array(means)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = ((found - found.mean(axis=0)) ** 2).mean(axis=0)
        return mean, np.sqrt((len(found) - 1.0) * squares)


def adjusted_effective(draws: AdjustedDraws, x_error: np.ndarray) -> float:
    r"""Return the number of independent draws whose means would be as precise as those of adjusted draws.

    This is the minimum of :math:`\mathrm{sd}_d^2 / \mathrm{se}_d^2` over coordinates on the normal scale, but at
    most Kish's effective sample size of the weights.

    Parameters
    ----------
    draws : AdjustedDraws
    x_error : array (D,)
        Standard errors of the means of x, by :func:`adjusted_mean`.
    """
    variance, kish = _variance(draws), draws.accepted.effective
    known = (x_error > 0.0) & np.isfinite(x_error)
    return float(min([kish, *(variance[known] / x_error[known] ** 2)]))


def _variance(draws: AdjustedDraws) -> np.ndarray:
    """Return variances (D,) of draws on the normal scale."""
    x, weight = ndtri(draws.u), draws.accepted.weight
    return weight @ (x - weight @ x) ** 2
