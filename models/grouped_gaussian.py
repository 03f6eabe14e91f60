r"""Gaussian mixed models: the marginal likelihood in closed form, and the posterior by quadrature.

With r = y - X beta and n_g rows in group g, the effects of groups are integrated out by Woodbury's
identity,

.. math:: \log p(y \mid \beta, \sigma, \tau) = -\tfrac N2 \log 2\pi\sigma^2
          - \tfrac12 \sum_g \log\left(1 + \frac{n_g\tau^2}{\sigma^2}\right)
          - \frac{1}{2\sigma^2} \Big( \sum_i r_i^2
          - \sum_g \frac{\tau^2}{\sigma^2 + n_g\tau^2} \big(\textstyle\sum_{i\in g} r_i\big)^2 \Big) .

Given (sigma, tau) beta is normal, so two dimensions remain for a grid. For eight schools
(:func:`eight_schools_reference`) one remains.
"""

from __future__ import annotations

import math

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pymc as pm

from scipy.special import logsumexp

from models import group_problems as schools
from models.grouped import PRIOR_SD, GroupedData, effects
from models.normal_scores import LOG_2PI

#: Difference in nats from the maximum of the log density at which a grid ends.
_DROP = 28.0


class Moments(NamedTuple):
    """Posterior mean and standard deviation of a variable, scalars or arrays."""

    mean: np.ndarray
    sd: np.ndarray


# --- the marginal likelihood ----------------------------------------------------------------------


def log_marginal(
    data: GroupedData, beta: np.ndarray, sigma: float, tau: float, factor: str = "group"
) -> float:
    """Return the log density of y given the population parameters, with the groups' effects integrated out."""
    index, n_groups = data.groups[factor], data.n_groups[factor]
    r = data.y - data.X @ beta
    counts = np.bincount(index, minlength=n_groups)
    sums = np.bincount(index, weights=r, minlength=n_groups)
    share = tau**2 / (sigma**2 + counts * tau**2)
    square = (r @ r - share @ sums**2) / sigma**2
    log_det = r.size * 2.0 * math.log(sigma) + np.log1p(counts * tau**2 / sigma**2).sum()
    return float(-0.5 * (r.size * LOG_2PI + log_det + square))


class Sums(NamedTuple):
    """Sums over all rows and over groups that determine the marginal likelihood."""

    n_rows: int
    XX: np.ndarray
    Xy: np.ndarray
    yy: float
    counts: np.ndarray
    X: np.ndarray
    y: np.ndarray


def sums(data: GroupedData) -> Sums:
    """Compute sums over the rows, in O(N p^2) operations."""
    index, n_groups = data.groups["group"], data.n_groups["group"]

    def by_group(values: np.ndarray | None) -> np.ndarray:
        return np.bincount(index, weights=values, minlength=n_groups)

    X, y = data.X, np.asarray(data.y, dtype=float)
    grouped = np.column_stack([by_group(column) for column in X.T])
    return Sums(y.size, X.T @ X, X.T @ y, float(y @ y), by_group(None), grouped, by_group(y))


def given_sds(
    s: Sums, sigma: np.ndarray, tau: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return log p(y | sigma, tau) (K,), beta integrated out, and means (K, p) and covariances (K, p, p) of beta."""
    n, p = s.X.shape
    noise, between = np.square(sigma)[:, None], np.square(tau)[:, None]
    share = between / (noise + s.counts * between)
    squares = (s.X[:, :, None] * s.X[:, None]).reshape(n, p * p)
    precision = (s.XX - (share @ squares).reshape(-1, p, p)) / noise[:, :, None]
    precision += np.eye(p) / PRIOR_SD**2
    linear = (s.Xy - share @ (s.y[:, None] * s.X)) / noise
    covariance = np.linalg.inv(precision)
    mean = np.matvec(covariance, linear)
    square = (s.yy - share @ s.y**2) / noise[:, 0] - np.vecdot(linear, mean)
    log_det = s.n_rows * 2.0 * np.log(sigma) + np.log1p(s.counts * between / noise).sum(axis=1)
    log_det += np.linalg.slogdet(precision)[1] + 2.0 * p * math.log(PRIOR_SD)
    return -0.5 * (s.n_rows * LOG_2PI + log_det + square), mean, covariance


# --- the posterior --------------------------------------------------------------------------------


def gaussian_reference(
    data: GroupedData, *, sd_scales: tuple[float, float] = (1.0, 1.0), step: float = 0.25
) -> tuple[dict[str, Moments], float]:
    """Compute the posterior of a Gaussian model of :func:`models.grouped.intercepts_model`, and its evidence.

    Parameters
    ----------
    data : GroupedData
        Data with the factor ``group``.
    sd_scales : tuple of 2 floats
        Scales of the half-normal priors of sigma and of tau.
    step : float
        Step of the grid of log sigma and log tau, in their posterior standard deviations. Halving it
        should not change the results.

    Returns
    -------
    moments : dict
        Moments by variable: ``beta``, ``sigma``, ``sd_group`` and, for ``group``, the effects (G,).
    log_evidence : float
    """
    s = sums(data)

    def log_density(x: np.ndarray) -> np.ndarray:
        sigma, tau = np.exp(x.T)
        prior = 2.0 * math.log(2.0) - np.log(sd_scales).sum() - LOG_2PI
        prior += x.sum(axis=1) - 0.5 * np.square(np.exp(x) / sd_scales).sum(axis=1)
        return given_sds(s, sigma, tau)[0] + prior

    axes, log_p = grid(log_density, _start(s), step)
    cell = math.prod(axis[1] - axis[0] for axis in axes)
    log_evidence = float(logsumexp(log_p) + math.log(cell))
    nodes = np.exp(np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1))
    weights = np.exp(log_p - logsumexp(log_p))
    some = weights > 1e-14
    weights, (sigma, tau) = weights[some], nodes[some].T
    _, mean, covariance = given_sds(s, sigma, tau)
    noise, between = np.square(sigma)[:, None], np.square(tau)[:, None]
    share = between / (noise + s.counts * between)
    # The mean of the effects decreases with beta at the rate `share * X`.
    own = share * noise
    own += share**2 * np.einsum("kij,gi,gj->kg", covariance, s.X, s.X, optimize=True)
    effects_mean = share * (s.y - mean @ s.X.T)
    moments = {
        "beta": _mixed(weights, mean, np.diagonal(covariance, axis1=1, axis2=2)),
        "sigma": _mixed(weights, sigma, 0.0), "sd_group": _mixed(weights, tau, 0.0),
        "group": _mixed(weights, effects_mean, own),
    }  # fmt: skip
    return moments, log_evidence


def _start(s: Sums) -> np.ndarray:
    """Return the logs of the standard deviation of the residuals and of half of it."""
    beta = np.linalg.lstsq(s.XX, s.Xy, rcond=None)[0]
    sigma = math.sqrt(max((s.yy - beta @ s.Xy) / s.n_rows, 1e-12))
    return np.log([sigma, 0.5 * sigma])


def grid(
    log_density: Callable[[np.ndarray], np.ndarray], start: np.ndarray, step: float
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return a rectangular grid that covers a density with one mode, and the log density on it.

    ``log_density`` takes points (K, d). On the whole line the trapezoidal rule converges faster than any power of
    the step.
    """
    from scipy.optimize import minimize

    mode = minimize(lambda x: -log_density(x[None])[0], start, method="Nelder-Mead").x
    low, high = mode - 0.02, mode + 0.02
    while True:
        axes = [np.linspace(a, b, 25) for a, b in zip(low, high, strict=True)]
        log_p = _on_grid(log_density, axes)
        inside = log_p > log_p.max() - _DROP
        wide = high - low
        grow_low = [inside.take(0, axis=k).any() for k in range(mode.size)]
        grow_high = [inside.take(-1, axis=k).any() for k in range(mode.size)]
        if not any(grow_low + grow_high):
            break
        low, high = low - 0.5 * wide * grow_low, high + 0.5 * wide * grow_high
    share = np.exp(log_p - logsumexp(log_p))
    for k, axis in enumerate(axes):
        others = tuple(set(range(mode.size)) - {k})
        kept, weight = np.flatnonzero(inside.any(axis=others)), share.sum(axis=others)
        ends = axis[kept[0] - 1], axis[kept[-1] + 1]
        sd = max(math.sqrt(weight @ (axis - weight @ axis) ** 2), 0.5 * (axis[1] - axis[0]))
        axes[k] = np.linspace(*ends, 2 + int((ends[1] - ends[0]) / (step * sd)))
    return axes, _on_grid(log_density, axes)


def _on_grid(log_density, axes: list[np.ndarray]) -> np.ndarray:
    shape = tuple(axis.size for axis in axes)
    nodes = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    return log_density(nodes).reshape(shape)


def _mixed(weights: np.ndarray, means: np.ndarray, variances: np.ndarray | float) -> Moments:
    """Return the moments of a mixture of K components with means and variances (K, ...)."""
    mean = np.tensordot(weights, means, 1)
    square = np.tensordot(weights, np.square(means) + variances, 1)
    return Moments(mean, np.sqrt(np.maximum(square - mean**2, 0.0)))


# --- eight schools --------------------------------------------------------------------------------


def eight_schools_model(
    centred: bool = True, *, mean_scale: float = 5.0, sd_scale: float = 5.0
) -> pm.Model:
    """Build the model of coaching effects in eight schools, one row each (Rubin 1981).

    Rubin, *Estimation in parallel randomized experiments*, Journal of Educational Statistics 6,
    377-401 (doi:10.3102/10769986006004377). Variables ``mu``, ``tau`` and ``theta`` (8,).

    Parameters
    ----------
    centred : bool
    mean_scale : float
        Standard deviation of the prior of mu.
    sd_scale : float
        Scale of the half-normal prior of tau.
    """
    with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
        mu = pm.Normal("mu", 0.0, np.float64(mean_scale))
        tau = pm.HalfNormal("tau", np.float64(sd_scale))
        theta = effects("theta", mu, tau, centred, dims="school")
        pm.Normal("obs", theta, schools.ERRORS, observed=schools.EFFECTS, dims="school")
    return model


def eight_schools_reference(
    *, mean_scale: float = 5.0, sd_scale: float = 5.0, step: float = 0.25
) -> tuple[dict[str, Moments], float]:
    """Compute moments of ``mu``, ``tau`` and ``theta`` and the log evidence, by quadrature over log tau."""
    y, errors = schools.EFFECTS, schools.ERRORS

    def given_tau(tau: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        variance = errors**2 + tau[:, None] ** 2
        precision = (1.0 / variance).sum(axis=1) + mean_scale**-2
        mean = (y / variance).sum(axis=1) / precision
        log_p = -0.5 * (np.log(2.0 * math.pi * variance) + y**2 / variance).sum(axis=1)
        log_p += 0.5 * (mean**2 * precision - np.log(mean_scale**2 * precision))
        return log_p, mean, precision

    def log_density(x: np.ndarray) -> np.ndarray:
        tau = np.exp(x[:, 0])
        prior = math.log(2.0 / sd_scale) - 0.5 * (LOG_2PI + (tau / sd_scale) ** 2) + x[:, 0]
        return given_tau(tau)[0] + prior

    (axis,), log_p = grid(log_density, np.array([math.log(sd_scale)]), step)
    weights, tau = np.exp(log_p - logsumexp(log_p)), np.exp(axis)
    _, mean, precision = given_tau(tau)
    shrink = tau[:, None] ** 2 / (errors**2 + tau[:, None] ** 2)
    theta = shrink * y + (1.0 - shrink) * mean[:, None]
    spread = shrink * errors**2 + (1.0 - shrink) ** 2 / precision[:, None]
    moments = {
        "mu": _mixed(weights, mean, 1.0 / precision),
        "tau": _mixed(weights, tau, 0.0),
        "theta": _mixed(weights, theta, spread),
    }
    return moments, float(logsumexp(log_p) + math.log(axis[1] - axis[0]))
