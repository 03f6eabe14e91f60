"""Regression adjustment of accepted parameters for the difference between simulated and observed data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from amc_pymc.likelihood_free.accepted import Accepted, accept
from amc_pymc.likelihood_free.proposal import FARTHEST, NONCENTRED, Parametrisation
from amc_pymc.logweights import weighted_mean

Kind = Literal[
    "none", "linear", "heteroscedastic", "quadratic", "marginal", "marginal heteroscedastic"
]
#: Natural log density (n,) of the prior at points (n, D) of the cube; None if it is uniform.
LogDensity = Callable[[np.ndarray], np.ndarray | None]

#: Fraction of the largest eigenvalue of the normal equations below which eigenvalues count as zero.
_RANK = 1e-13
#: Maximum leverage that residuals are corrected for.
_MOST_LEVERAGE = 0.9
#: Maximum number of statistics for which a quadratic regression includes cross products.
_PRODUCTS = 12
#: Minimum effective points in a mode per regression coefficient.
_PER_MODE = 2.0
#: Maximum factor by which a residual is stretched or shrunk.
_MOST_STRETCH = 5.0
#: Fraction of the residual variance that is added to squared residuals before taking logarithms.
_FLOOR = 1e-3
#: Kurtosis below which a direction counts as bimodal: it is 1 for two points, 1.8 for a uniform distribution, 3
#: for a normal one; maximum number of bimodal directions, and of reclassifications.
_TWO_MODES, _DIRECTIONS, _AGAIN = 1.75, 2, 4
#: Fraction of a variance that is added to it.
_RIDGE = 1e-6
#: Step of finite differences, in standard deviations; wide enough for integer-valued functions.
_STEP = 0.2
#: Minimum effective simulations per coefficient of a linear regression on accepted simulations.
_PER_COEFFICIENT = 3
#: Numbers of jackknife groups, for few points and for more than this many.
_GROUPS, _FEWER, _MANY = 30, 12, 20_000


class Adjusted(NamedTuple):
    """Adjusted parameters.

    Attributes
    ----------
    x : array (n, D)
        Adjusted parameters on the normal scale.
    original : array (n, D)
        Parameters on the normal scale before the adjustment.
    residuals : array (n, D)
        Residuals, before they are stretched.
    gaps : array (n, P)
        Regressors, which are zero at the data; constant ones are left out.
    projection : array (P, n)
        Matrix that maps parameters to their slopes on `gaps`.
    weights : array (n,)
        Regression weights, which sum to one.
    kind : Kind
    coordinates : Parametrisation
    """

    x: np.ndarray
    original: np.ndarray
    residuals: np.ndarray
    gaps: np.ndarray
    projection: np.ndarray
    weights: np.ndarray
    kind: Kind
    coordinates: Parametrisation = NONCENTRED

    @property
    def u(self) -> np.ndarray:
        """Adjusted points (n, D) in the open unit cube."""
        return self.coordinates.back(self.x)


class AdjustedDraws(NamedTuple):
    """Accepted and adjusted simulations with their regression.

    Attributes
    ----------
    accepted : Accepted
        A simulations; their weights include the kernel and the prior density at the adjusted points.
    u : array (A, D)
        Adjusted points of the cube.
    regression : Adjusted
        Regression on n >= A simulations: all within the tolerance, including those left out of `accepted`
        because their weight is zero.
    log_weight : array (n,)
        Natural log weights of these n simulations, without the prior density.
    """

    accepted: Accepted
    u: np.ndarray
    regression: Adjusted
    log_weight: np.ndarray


def regress(x: np.ndarray, gaps: np.ndarray, weights: np.ndarray, kind: Kind) -> Adjusted:
    r"""Adjust parameters by a regression on the gaps between simulated and observed summary statistics.

    "linear" (Beaumont, Zhang & Balding 2002, doi:10.1093/genetics/162.4.2025) is

    .. math:: x_i^* = x_i - B^\top (s_i - s_{\mathrm{obs}}), \qquad x = \Phi^{-1}(u)

    with slopes B by weighted least squares. Residuals are divided by :math:`\sqrt{1 - h_i}`, where :math:`h_i` is the
    leverage of simulation i, to correct for overfitting. "quadratic" adds squares and products of the gaps (only
    squares for more than twelve statistics). "heteroscedastic" also stretches residuals,

    .. math:: x_i^* = \hat m(s_{\mathrm{obs}}) + \frac{\hat\sigma(s_{\mathrm{obs}})}{\hat\sigma(s_i)}
        (x_i - \hat m(s_i)),

    with log squared residuals linear in the statistics (Blum & Francois 2010, doi:10.1007/s11222-009-9116-0), within
    each mode if the parameters have several modes. "marginal" is linear, too, but each of the D parameters is regressed on
    only two of 2D statistics, d and D + d, which are its own learned ones (marginal adjustment; Nott, Fan, Marshall & Sisson 2014,
    arXiv:1112.4755): few simulations are enough in many dimensions. "none" moves no points.

    Parameters
    ----------
    x : array (n, D)
        Parameters on the normal scale, which is unbounded; it is linear in a parameter with a normal prior.
    gaps : array (n, S)
        Summary statistics minus those of the data.
    weights : array (n,)
        Nonnegative weights; equal weights are used if all are zero.
    kind : Kind

    Returns
    -------
    Adjusted

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.adjust import regress
    >>> rng = np.random.default_rng(1)
    >>> gaps = rng.uniform(-1.0, 1.0, (5000, 1))
    >>> x = np.exp(gaps) * rng.normal(size=(5000, 1))
    >>> found = regress(x, gaps, np.ones(5000), "heteroscedastic")
    >>> bool(abs(found.x.std() - 1.0) < 0.05)
    True
    """
    if not weights.any():
        weights = np.ones(len(x))
    w = weights / weights.sum()
    if kind == "none":
        return Adjusted(x, x, np.zeros_like(x), gaps[:, :0], np.zeros((0, len(x))), w, kind)
    scale = gaps.std(axis=0)
    if kind.startswith("marginal"):
        base: Kind = "linear" if kind == "marginal" else "heteroscedastic"
        columns = [[d, x.shape[1] + d] for d in range(x.shape[1])]
        each = [regress(x[:, [d]], gaps[:, own], w, base).x for d, own in enumerate(columns)]
        return Adjusted(np.hstack(each), x, np.zeros_like(x), gaps, gaps[:, :0].T, w, kind)
    regressors = gaps[:, scale > 0.0] / scale[scale > 0.0]
    found = _moved(x, regressors, w, kind)
    if kind == "heteroscedastic":
        design = np.concatenate([np.ones((len(x), 1)), regressors], axis=1)
        least = _PER_MODE * design.shape[1]
        mode = _classify(x, design, w, split_by_sign(x, w), least)
        for k in range(int(mode.max()) + 1) if mode.any() else ():
            own = np.flatnonzero(mode == k)
            if w[own].any():
                found.x[own] = _moved(x[own], regressors[own], w[own] / w[own].sum(), kind).x
    return found


def regress_near(
    x: np.ndarray, summaries: np.ndarray | None, observed: np.ndarray, weights: np.ndarray
) -> Adjusted | None:
    """Regress accepted parameters (n, D) linearly on their summary statistics (n, S).

    None without summaries, or with fewer than three effective simulations per coefficient.
    """
    n = weights.sum() ** 2 / max(weights @ weights, 1e-300)
    if summaries is None or n < _PER_COEFFICIENT * (1 + len(observed)):
        return None
    return regress(x, summaries - observed, weights, "linear")


def _moved(x: np.ndarray, gaps: np.ndarray, w: np.ndarray, kind: Kind) -> Adjusted:
    """Move parameters (n, D) by one regression on gaps (n, S), which are zero at the data."""
    if kind == "quadratic":
        s = gaps.shape[1]
        i, j = np.triu_indices(s) if s <= _PRODUCTS else (np.arange(s), np.arange(s))
        gaps = np.concatenate([gaps, gaps[:, i] * gaps[:, j]], axis=1)
    design = np.concatenate([np.ones((len(x), 1)), gaps], axis=1)
    inverse = weighted_inverse(design, w)
    found = inverse @ x
    leverage = np.einsum("ij,ji->i", design, inverse)
    slack = np.sqrt(1.0 - np.clip(leverage, 0.0, _MOST_LEVERAGE))
    residuals = stretched = (x - design @ found) / slack[:, None]
    if kind == "heteroscedastic":
        with np.errstate(divide="ignore", invalid="ignore"):
            log_squares = np.log(residuals**2 / (w @ residuals**2) + _FLOOR)
        most = np.log(_MOST_STRETCH)
        slopes = inverse[1:] @ np.nan_to_num(log_squares)
        stretched = residuals * np.exp(np.clip(-0.5 * gaps @ slopes, -most, most))
    moved = np.clip(found[0] + stretched, -FARTHEST, FARTHEST)
    return Adjusted(moved, x, residuals, gaps, inverse[1:], w, kind)


def weighted_inverse(design: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the matrix (P, n) that maps responses to least-squares coefficients."""
    weighted = design * w[:, None]
    scale = np.sqrt(np.einsum("ij,ij->j", design, weighted))
    scale[scale == 0.0] = 1.0
    gram = (weighted / scale).T @ (design / scale)
    inverse = np.linalg.pinv(gram, rcond=_RANK, hermitian=True)
    return (inverse / scale[:, None]) @ (weighted / scale).T


def coefficients(n_summaries: int, kind: Kind) -> int:
    """Return the number of regression coefficients for each parameter.

    Examples
    --------
    >>> from amc_pymc.likelihood_free.adjust import coefficients
    >>> coefficients(4, "linear"), coefficients(4, "heteroscedastic"), coefficients(4, "quadratic")
    (5, 10, 15)
    """
    s = n_summaries
    if kind == "quadratic":
        return 1 + s + (s * (s + 1) // 2 if s <= _PRODUCTS else s)
    return {
        "none": 1, "linear": 1 + s, "heteroscedastic": 2 * (1 + s), "marginal": 3,
        "marginal heteroscedastic": 6,
    }[kind]  # fmt: skip


def adjusted_accepted(
    x: np.ndarray,
    gaps: np.ndarray,
    distance: np.ndarray,
    log_weight: np.ndarray,
    tolerance: float,
    kind: Kind = "linear",
    log_density: LogDensity | None = None,
    coordinates: Parametrisation = NONCENTRED,
) -> AdjustedDraws | None:
    r"""Accept simulations within a tolerance and adjust them.

    Weights are those for a uniform prior in the cube. If the prior has another density :math:`\rho`, as with a
    ``pm.Potential``, weights are multiplied by its values at the adjusted points afterwards,

    .. math:: w_i^* = w_i (1 - d_i^2 / \epsilon^2)\, \rho(u_i^*),

    because it is a factor of the posterior. In the regression it could make linear relations nonlinear, and
    :math:`\rho(u_i)` is not the density at the adjusted point.

    Parameters
    ----------
    x : array (N, D)
        Parameters of all simulations, in the coordinates.
    gaps : array (N, S)
        Their summary statistics minus those of the data.
    distance : array (N,)
    log_weight : array (N,)
        Natural log weights without the prior density.
    tolerance : float
    kind : Kind
        Kind of regression; for "none" the kernel is uniform.
    log_density : callable, optional
    coordinates : Parametrisation

    Returns
    -------
    AdjustedDraws or None
        None if the prior's density is zero at all adjusted points.
    """
    kept = accept(distance, log_weight, tolerance)
    at = kept.index
    kernel = epanechnikov(distance[at], tolerance) if kind != "none" else np.ones(len(at))
    found = regress(x[at], gaps[at], kept.weight * kernel, kind)._replace(coordinates=coordinates)
    moved = found.u
    with np.errstate(divide="ignore"):
        before_density = kept.log_weight + np.log(kernel)
    after = _with_density(before_density, moved, log_density)
    some = after > -np.inf
    if not some.any():
        return None
    accepted = Accepted(tolerance, at[some], after[some])
    return AdjustedDraws(accepted, moved[some], found, before_density)


def _with_density(
    log_weight: np.ndarray, u: np.ndarray, log_density: LogDensity | None
) -> np.ndarray:
    log = None if log_density is None else log_density(u)
    return log_weight if log is None else log_weight + log


def epanechnikov(distance: np.ndarray, tolerance: float) -> np.ndarray:
    """Return Epanechnikov kernel values (n,), or ones if all values would be zero."""
    if not 0.0 < tolerance < np.inf:
        return np.ones(len(distance))
    found = np.maximum(1.0 - (distance / tolerance) ** 2, 0.0)
    return found if found.any() else np.ones(len(distance))


# --- modes ----------------------------------------------------------------------------------------


def split_by_sign(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Assign points (n, D) with weights (n,) of sum one to modes, by the signs of bimodal coordinates or principal axes.

    Returns
    -------
    array of int (n,)
        Mode of each point, numbered from zero; all zero if there is only one mode.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.adjust import split_by_sign
    >>> x = np.random.default_rng(1).normal(size=(400, 2))
    >>> x[200:, 0] += 10.0
    >>> mode = split_by_sign(x, np.full(400, 1 / 400))
    >>> set(mode[:200].tolist()), set(mode[200:].tolist())
    ({0}, {1})
    """
    z = x - weight @ x
    sd = np.sqrt(weight @ z**2)
    z = z / np.where(sd > 0.0, sd, 1.0)
    _, axes = np.linalg.eigh((z * weight[:, None]).T @ z)
    along = np.concatenate([z, z @ axes], axis=1) if x.shape[1] > 1 else z
    squared = along**2
    squares = weight @ squared
    with np.errstate(divide="ignore", invalid="ignore"):
        kurtosis = weight @ squared**2 / squares**2  # powers above two are slow
    # Axes without variance are excluded; axes similar to one already taken are skipped below.
    kurtosis = np.where(squares > _RIDGE, kurtosis, np.inf)
    out = np.zeros(len(x), int)
    taken: list[np.ndarray] = []
    for k in np.argsort(kurtosis, kind="stable"):
        if not kurtosis[k] < _TWO_MODES or len(taken) == _DIRECTIONS:
            break
        side = np.sign(along[:, k])
        if any(abs(weight @ (side * other)) > 0.5 for other in taken):
            continue
        taken.append(side)
        out = 2 * out + (side > 0.0)
    return np.unique(out, return_inverse=True)[1]


def modes(x: np.ndarray, weight: np.ndarray) -> list[np.ndarray]:
    """Return the indices of the points (n, D) of each mode, see :func:`split_by_sign`."""
    mode = split_by_sign(x, weight)
    return [np.flatnonzero(mode == k) for k in range(int(mode.max()) + 1)]


def _classify(
    x: np.ndarray, design: np.ndarray, weight: np.ndarray, mode: np.ndarray, least: float
) -> np.ndarray:
    """Reclassify points (n,) by linear regressions within modes: classification EM for a mixture of regressions.

    Modes with less than `least` effective points are dropped.
    """
    for _ in range(_AGAIN if mode.any() else 0):
        log = []
        for k in range(int(mode.max()) + 1):
            w = np.where(mode == k, weight, 0.0)
            if not (w.any() and w.sum() ** 2 / (w @ w) >= least):
                continue
            share = w.sum()
            w = w / share
            gram = (design * w[:, None]).T @ design
            gram += _RIDGE * np.diag(np.diag(gram) + _RIDGE)
            residuals = x - design @ np.linalg.solve(gram, (design * w[:, None]).T @ x)
            covariance = (residuals * w[:, None]).T @ residuals
            covariance += np.diag(_RIDGE * np.diag(covariance) + 1e-12)
            root = np.linalg.cholesky(covariance)
            z = np.linalg.solve(root, residuals.T)
            log.append(np.log(share) - 0.5 * (z**2).sum(axis=0) - np.log(np.diag(root)).sum())
        if not log:
            return np.zeros(len(x), int)
        found = np.unique(np.argmax(log, axis=0), return_inverse=True)[1]
        if np.array_equal(found, mode):
            break
        mode = found
    return mode


# --- standard errors ------------------------------------------------------------------------------


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

    with residuals r, regressors g, and :math:`p_j` the slopes per unit of :math:`x_j`. The standard error is the root
    of the sum of squares (Huber's sandwich estimator); for f = x and a uniform prior it is that of the regression
    intercept. Derivatives are central differences. If residuals are stretched, the regression is repeated without each
    of 30 groups of simulations in turn (the jackknife).

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
    mean, error = weighted_mean(draws.accepted.weight, values(draws.u))
    if fit.kind == "none":
        return mean, error
    if fit.kind not in ("linear", "quadratic"):
        return mean, _jackknifed(draws, values, log_density)
    top = draws.accepted.log_weight.max()

    def weights(u: np.ndarray) -> np.ndarray:
        return np.exp(_with_density(draws.log_weight, u, log_density) - top)

    def scores(u: np.ndarray) -> np.ndarray:
        a = weights(u)[:, None]
        # Values may be undefined where the weight is zero.
        return np.where(a > 0.0, a * (values(u) - mean), 0.0)

    with np.errstate(over="ignore", invalid="ignore"):
        out = scores(fit.u)
        variance = fit.weights @ (fit.x - fit.weights @ fit.x) ** 2
        steps = np.diag(_STEP * np.sqrt(variance))
        for d in np.flatnonzero(steps.any(axis=1)):
            above, below = (
                scores(fit.coordinates.back(fit.x + sign * steps[d])) for sign in (1.0, -1.0)
            )
            slope = (above - below) / (2.0 * steps[d, d])
            out -= fit.residuals[:, d, None] * (fit.projection.T @ (fit.gaps.T @ slope))
        return mean, np.sqrt((out**2).sum(axis=0)) / weights(fit.u).sum()


def _jackknifed(
    draws: AdjustedDraws, values: Callable[[np.ndarray], np.ndarray], log_density: LogDensity | None
) -> np.ndarray:
    """Return standard errors (K,) from repetitions of the regression without a part of the simulations."""
    fit, means = draws.regression, []
    groups = min(_GROUPS if len(fit.x) <= _MANY else _FEWER, len(fit.x))
    if groups < 2:
        return np.full(values(draws.u).shape[1], np.nan)
    for g in range(groups):
        kept = np.arange(len(fit.x)) % groups != g
        again = regress(fit.original[kept], fit.gaps[kept], fit.weights[kept], fit.kind)
        u = fit.coordinates.back(again.x)
        log = _with_density(draws.log_weight[kept], u, log_density)
        some = log > -np.inf
        if some.any():
            w = np.exp(log[some] - log[some].max())
            with np.errstate(over="ignore", invalid="ignore"):
                means.append(w @ values(u[some]) / w.sum())
    found = np.array(means)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = ((found - found.mean(axis=0)) ** 2).mean(axis=0)
        return np.sqrt((len(found) - 1.0) * squares)


def adjusted_effective(draws: AdjustedDraws, x_error: np.ndarray) -> float:
    r"""Return the number of independent draws whose means would be as precise as those of adjusted draws.

    This is the minimum of :math:`\mathrm{sd}_d^2 / \mathrm{se}_d^2` over coordinates on the normal scale, for
    standard errors (D,) by :func:`adjusted_mean`, but at most Kish's effective sample size of the weights.
    """
    x, weight = NONCENTRED.to(draws.u), draws.accepted.weight
    variance = weight @ (x - weight @ x) ** 2
    known = (x_error > 0.0) & np.isfinite(x_error)
    return float(min([draws.accepted.effective, *(variance[known] / x_error[known] ** 2)]))
