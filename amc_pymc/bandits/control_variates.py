"""Estimates of mean rewards with control variates of known mean."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.bandits.control_variate_kernels import (
    known_variance_estimate,
    leave_one_out,
    moments_size,
    regression_estimate,
    regression_update,
)

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
