"""Estimates of mean rewards with control variates of known mean."""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.jit import njit

__all__ = [
    "ControlledMean",
    "batching",
    "jackknife",
    "known_variance",
    "known_variance_estimate",
    "leave_one_out",
    "moments_size",
    "regression",
    "regression_estimate",
    "regression_update",
    "splitting",
]

#: Share of unexplained variation below which a control counts as collinear with earlier ones.
_COLLINEAR = 1e-12


class ControlledMean(NamedTuple):
    """Estimate of a mean.

    Attributes
    ----------
    mean : float
    variance : float
        Estimated variance of `mean`; inf if it cannot be estimated.
    df : float
        Degrees of freedom of Student's interval mean ± quantile * sqrt(variance).
    """

    mean: float
    variance: float
    df: float


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


def _observations(
    rewards: ArrayLike, controls: ArrayLike, control_means: ArrayLike
) -> tuple[np.ndarray, np.ndarray]:
    """Check the arguments and return rewards (s,) and deviations of controls (s, q)."""
    x = np.ascontiguousarray(rewards, float)
    if x.ndim != 1 or x.size == 0:
        raise ValueError(f"rewards must have shape (s,) with s at least 1, got {x.shape}.")
    w = np.asarray(controls, float)
    if w.ndim == 1:
        w = w.reshape(-1, 1) if w.size else w.reshape(x.size, 0)
    if w.ndim != 2 or w.shape[0] != x.size:
        raise ValueError(
            f"controls must have shape ({x.size}, q) for {x.size} rewards, got {np.shape(controls)}."
        )
    omega = np.asarray(control_means, float)
    if omega.ndim > 1 or (omega.ndim == 1 and omega.size != w.shape[1]):
        raise ValueError(
            f"control_means must be a number or have shape ({w.shape[1]},), got {omega.shape}."
        )
    for name, values in (("rewards", x), ("controls", w), ("control_means", omega)):
        if not np.isfinite(values).all():
            raise ValueError(f"{name} must be finite.")
    return x, np.ascontiguousarray(w - omega)


def _enough(s: int, least: int, what: str) -> None:
    if s < least:
        raise ValueError(f"{what} needs at least {least} rewards, got {s}.")


def _moments(x: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    moments = np.zeros(moments_size(deviations.shape[1]))
    for reward, d in zip(x.tolist(), deviations, strict=True):
        regression_update(moments, reward, d)
    return moments


def as_covariance(control_variance: ArrayLike, q: int) -> np.ndarray:
    """Return the covariance (q, q) of controls from a variance, variances (q,) or the matrix itself."""
    v = np.asarray(control_variance, float)
    if v.ndim < 2:
        if v.ndim == 1 and v.size != q:
            raise ValueError(f"control_variance must have {q} entries, got {v.size}.")
        v = np.diag(np.broadcast_to(v, q))
    if v.shape != (q, q):
        raise ValueError(
            f"control_variance must be a number, ({q},) or ({q}, {q}), got shape {v.shape}."
        )
    if not np.isfinite(v).all() or not np.allclose(v, v.T) or np.linalg.eigvalsh(v).min() <= 0.0:
        raise ValueError(
            f"control_variance must be finite, symmetric and positive definite, got {v.tolist()}."
        )
    return np.ascontiguousarray(v)


def regression(
    rewards: ArrayLike, controls: ArrayLike, control_means: ArrayLike = 0.0
) -> ControlledMean:
    r"""Estimate a mean reward by linear regression on control variates.

    .. math::
        \hat\mu^c = \hat\mu + \hat\beta^\top (\omega - \hat\omega), \qquad
        \hat\nu = \frac{\sum_r (X_r - \hat\mu^c - \hat\beta^\top (W_r - \omega))^2}{s - q - 1}
        \left( \frac1s + (\hat\omega - \omega)^\top S^{-1} (\hat\omega - \omega) \right)

    with :math:`\hat\beta = S^{-1} \sum_r (W_r - \hat\omega)(X_r - \hat\mu)` and S the sums of products
    of deviations of controls from their *sample* means. It is the intercept of ordinary least squares
    on controls centred at :math:`\omega`, and the interval with s - q - 1 degrees of freedom is exact
    for normal rewards and controls. The variance is then (s - 2) / (s - q - 2) (1 - rho^2) times that
    of the plain mean, so a control helps only if its correlation outweighs the lost degree of freedom.

    Parameters
    ----------
    rewards : array_like (s,)
        Rewards, with s at least q + 2.
    controls : array_like (s, q) or (s,)
        Controls observed with the rewards. Those that depend linearly on earlier ones are omitted.
    control_means : float or array_like (q,), default 0.0
        Known means omega of the controls.

    Returns
    -------
    ControlledMean

    Notes
    -----
    Verma & Hanawal's equation 4 divides by squares about omega; their Lemma 1 and their formula for
    q controls hold with squares about the sample mean, as here.

    References
    ----------
    Nelson (1990), Control variate remedies. Operations Research 38, 974-992.
    doi:10.1287/opre.38.6.974

    Verma & Hanawal (2021), Stochastic multi-armed bandits with control variates, Lemmas 1-3.
    arXiv:2105.03962

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.bandits import regression
    >>> rng = np.random.default_rng(1)
    >>> w = rng.normal(size=1000)
    >>> x = 2.0 + 3.0 * w + 0.1 * rng.normal(size=1000)
    >>> estimate = regression(x, w, 0.0)
    >>> round(float(estimate.mean), 2), round(float(estimate.variance**0.5), 4)
    (2.0, 0.0032)
    """
    x, deviations = _observations(rewards, controls, control_means)
    q = deviations.shape[1]
    _enough(x.size, q + 2, f"regression on {q} controls")
    return ControlledMean(*map(float, regression_estimate(_moments(x, deviations), q)))


def known_variance(
    rewards: ArrayLike,
    controls: ArrayLike,
    control_means: ArrayLike = 0.0,
    *,
    control_variance: ArrayLike,
) -> ControlledMean:
    r"""Estimate a mean reward by control variates with known variance.

    As :func:`regression` with :math:`\hat\beta = \Sigma_W^{-1} \sum_r (W_r - \omega)(X_r - \hat\mu) / (s - 1)`.
    This is rarely better: with a correlation near 1, the sample covariance varies with the sample variance, but
    the known variance does not. For normal variables, the variance of the mean is

    .. math::
        \frac{\sigma^2}{s} \left( (1 - \rho^2) \Big(1 + \frac{q}{s-1}\Big) + \rho^2 \frac{q + 1}{s - 1} \right) .

    The variance is estimated as in Lemma 1 with this coefficient, and is biased upwards (for normal
    variables, q = 1 and rho = 0.9: twofold at s = 6, by 11 % at s = 20, hardly at s = 100).

    Parameters
    ----------
    rewards, controls, control_means
        As in :func:`regression`.
    control_variance : float, array_like (q,) or (q, q)
        Variances or covariance matrix of the controls.

    Returns
    -------
    ControlledMean

    Examples
    --------
    >>> from amc_pymc.bandits import known_variance
    >>> known_variance([0.0, 1.0, 3.0, 4.0], [0.0, 0.0, 1.0, 1.0], 0.5, control_variance=0.25).df
    2.0
    """
    x, deviations = _observations(rewards, controls, control_means)
    q = deviations.shape[1]
    covariance = as_covariance(control_variance, q)
    _enough(x.size, q + 2, f"known_variance with {q} controls")
    found = known_variance_estimate(_moments(x, deviations), q, covariance)
    return ControlledMean(*map(float, found))


def jackknife(
    rewards: ArrayLike, controls: ArrayLike, control_means: ArrayLike = 0.0
) -> ControlledMean:
    r"""Estimate a mean reward by control variates and the jackknife, for variables that are not normal.

    The estimate is the mean of the pseudo-values :math:`s \hat\mu^c - (s - 1) \hat\mu^{c,-j}`, with
    :math:`\hat\mu^{c,-j}` from :func:`regression` without observation j, and its variance is their
    variance over s, computed from leverages in O(s q^2). The interval, with s - 1 degrees of freedom,
    is asymptotic.

    Parameters
    ----------
    rewards, controls, control_means
        As in :func:`regression`.

    Returns
    -------
    ControlledMean
        The variance is infinite if a single observation determines a coefficient.

    Notes
    -----
    Verma & Hanawal (2021), section 5.1, has two misprints: both terms of the pseudo-value omit
    observation j, and intervals use the variance instead of its square root.

    References
    ----------
    Lavenberg, Moeller & Welch (1982), Statistical results on control variables with application to
    queueing network simulation. Operations Research 30, 182-202. doi:10.1287/opre.30.1.182

    Examples
    --------
    >>> from amc_pymc.bandits import jackknife
    >>> round(float(jackknife([0.0, 1.0, 3.0, 4.0], [0.0, 0.1, 1.0, 1.2], 0.5).mean), 3)
    1.778
    """
    return _leave_one_out(rewards, controls, control_means, True, "jackknife")


def splitting(
    rewards: ArrayLike, controls: ArrayLike, control_means: ArrayLike = 0.0
) -> ControlledMean:
    r"""Estimate a mean reward by control variates, correcting each reward with coefficients from the others.

    The estimate is the mean of :math:`X_j + \hat\beta^{-j} (\omega - W_j)`, and its variance is their
    variance over s, with the coefficients :math:`\hat\beta^{-j}` of :func:`regression` without observation
    j, computed from leverages in O(s q^2). The mean is unbiased for any distribution, because the coefficients
    of an observation do not depend on it. The interval, with s - 1 degrees of freedom, is approximate.

    Parameters
    ----------
    rewards, controls, control_means
        As in :func:`regression`.

    Returns
    -------
    ControlledMean
        The variance is infinite if a single observation determines a coefficient.

    References
    ----------
    Nelson (1990), Control variate remedies. Operations Research 38, 974-992.
    doi:10.1287/opre.38.6.974

    Examples
    --------
    >>> from amc_pymc.bandits import splitting
    >>> round(float(splitting([0.0, 1.0, 3.0, 4.0], [0.0, 0.1, 1.0, 1.2], 0.5).mean), 3)
    1.788
    """
    return _leave_one_out(rewards, controls, control_means, False, "splitting")


def _leave_one_out(
    rewards: ArrayLike, controls: ArrayLike, control_means: ArrayLike, pseudo: bool, what: str
) -> ControlledMean:
    x, deviations = _observations(rewards, controls, control_means)
    q = deviations.shape[1]
    _enough(x.size, q + 2, f"{what} with {q} controls")
    return ControlledMean(*map(float, leave_one_out(x, deviations, pseudo)))


def batching(
    rewards: ArrayLike,
    controls: ArrayLike,
    control_means: ArrayLike = 0.0,
    *,
    n_batches: int = 30,
) -> ControlledMean:
    """Estimate a mean reward by regression of batch means on batch means of control variates.

    Batch means are closer to normal, for which :func:`regression` is exact, but leave fewer degrees of
    freedom: n_batches - q - 1.

    Parameters
    ----------
    rewards, controls, control_means
        As in :func:`regression`.
    n_batches : int, default 30
        Number of batches of equal size, at least q + 2. Observations after the last full batch are ignored.

    Returns
    -------
    ControlledMean

    References
    ----------
    Nelson (1989), Batch size effects on the efficiency of control variates in simulation. European
    Journal of Operational Research 43, 184-196.

    Examples
    --------
    >>> from amc_pymc.bandits import batching
    >>> estimate = batching([0.0, 1.0, 3.0, 4.0, 9.0], [], n_batches=2)
    >>> estimate.mean, estimate.variance
    (2.0, 2.25)
    """
    x, deviations = _observations(rewards, controls, control_means)
    q = deviations.shape[1]
    if n_batches < q + 2:
        raise ValueError(f"n_batches must be at least q + 2 = {q + 2}, got {n_batches}.")
    _enough(x.size, n_batches, f"batching into {n_batches} batches")
    size = x.size // n_batches
    x = x[: n_batches * size].reshape(n_batches, size).mean(axis=1)
    means = deviations[: n_batches * size].reshape(n_batches, size, q).mean(axis=1)
    return ControlledMean(*map(float, regression_estimate(_moments(x, means), q)))
