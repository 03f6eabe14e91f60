r"""Bayesian variable selection with tall data.

Every covariate j has an indicator gamma_j, and rows depend on X (gamma * beta): a logistic or
linear regression with

.. math:: \gamma_j \sim \text{Bernoulli}(\pi), \qquad \beta_j | \gamma_j = 1 \sim N(0, \tau^2),
          \qquad \beta_j | \gamma_j = 0 \sim N(\hat b_j, s_j^2) .

The last is a pseudo-prior, which does not affect the posterior of gamma. With the estimate and
standard error of the full model, an excluded coefficient stays where an included one would be, so
indicators change easily (Gibbs variable selection: Dellaportas, Forster & Ntzoufras (2002), *On
Bayesian model and variable selection using MCMC*, Statistics and Computing 12:27-36,
doi:10.1023/A:1013164120801). An indicator's full conditional reads every row: the discrete tall-data
problem of section 1 of Chen & Ghahramani (2016); the paper has no figure of it.

:func:`inclusion_probabilities` is exact, by enumeration.
"""

from __future__ import annotations

import itertools
import math

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from scipy.special import expit, logsumexp

from amc_pymc.rng import as_generator

Family = Literal["bernoulli", "normal"]


# --- data ----------------------------------------------------------------------------------------


class SelectionData(NamedTuple):
    """Covariates (N, p), outcomes (N,), names (p,), and the true coefficients (NaN if unknown)."""

    X: np.ndarray
    y: np.ndarray
    names: list[str]
    beta: np.ndarray


def sparse_data(
    n: int, n_covariates: int = 12, n_active: int = 6, *, family: Family = "bernoulli",
    weakest: float = 2.5, strongest: float = 6.0, correlation: float = 0.3, sigma: float = 1.0,
    rng: np.random.Generator,
) -> SelectionData:  # fmt: skip
    """Simulate data in which some covariates are hard to distinguish from noise, for any n.

    Parameters
    ----------
    n, n_covariates, n_active : int
        Rows, covariates, and covariates with an effect, which come first.
    family : {"bernoulli", "normal"}
    weakest, strongest : float
        Effects in standard errors, evenly spaced, with alternating signs. With tau = 1 and an
        inclusion probability of one half, an effect estimated at about sqrt(log n) standard errors
        is included or excluded with equal probability.
    correlation : float
        Correlation of any two covariates.
    sigma : float
        Standard deviation of the errors of a linear regression.
    rng : numpy.random.Generator
    """
    X = math.sqrt(correlation) * rng.standard_normal((n, 1))
    X = X + math.sqrt(1.0 - correlation) * rng.standard_normal((n, n_covariates))
    covariance = np.full((n_covariates, n_covariates), correlation)
    np.fill_diagonal(covariance, 1.0)
    information = 0.25 if family == "bernoulli" else sigma**-2
    error = math.sqrt(np.linalg.inv(covariance)[0, 0] / (n * information))
    beta = np.zeros(n_covariates)
    signs = (-1.0) ** np.arange(n_active)
    beta[:n_active] = signs * error * np.linspace(weakest, strongest, n_active)
    if family == "bernoulli":
        y: np.ndarray = (rng.random(n) < expit(X @ beta)).astype(np.int64)
    else:
        y = X @ beta + sigma * rng.standard_normal(n)
    return SelectionData(X, y, [f"x{j}" for j in range(n_covariates)], beta)


def doctor_visits(n_noise: int = 6, *, seed: int = 0) -> SelectionData:
    """Load whether a person saw a doctor in a year: 20,190 rows of the RAND health insurance experiment.

    The nine covariates are standardised, and ``n_noise`` columns of pure noise are added. The data
    come with statsmodels, which is required.
    """
    from statsmodels.datasets import randhie

    frame = randhie.load_pandas().data
    y = (frame["mdvis"] > 0).to_numpy(dtype=np.int64)
    covariates = frame.drop(columns="mdvis")
    X = covariates.to_numpy(dtype=float)
    noise = as_generator(seed).standard_normal((len(frame), n_noise))
    X = np.column_stack([(X - X.mean(axis=0)) / X.std(axis=0), noise])
    names = [*covariates.columns, *(f"noise{j}" for j in range(n_noise))]
    return SelectionData(X, y, names, np.full(len(names), np.nan))


# --- models --------------------------------------------------------------------------------------


class FullFit(NamedTuple):
    """Posterior mode and standard errors of all coefficients, the intercept first."""

    mode: np.ndarray
    error: np.ndarray


def full_fit(
    X, y, *, family: Family = "bernoulli", sigma=1.0, tau=1.0, intercept_sd=10.0
) -> FullFit:
    """Fit the model with all covariates by Newton's method under the normal priors.

    Parameters
    ----------
    X, y : (N, p), (N,) arrays
    family : {"bernoulli", "normal"}
    sigma, tau, intercept_sd : float
        As in :func:`selection_model`.
    """
    X, y = _checked(X, y, family)
    design = np.column_stack([np.ones(len(y)), X])
    precision = np.full(design.shape[1], tau**-2.0)
    precision[0] = intercept_sd**-2.0
    mode = np.zeros(design.shape[1])
    for _ in range(100):
        eta = design @ mode
        if family == "bernoulli":
            mean = expit(eta)
            weight = mean * (1.0 - mean)
            slope = y - mean
        else:
            weight, slope = np.full(len(y), sigma**-2.0), (y - eta) * sigma**-2.0
        hessian = (design * weight[:, None]).T @ design + np.diag(precision)
        step = np.linalg.solve(hessian, design.T @ slope - precision * mode)
        mode = mode + step
        if np.max(np.abs(step)) < 1e-10:
            return FullFit(mode, np.sqrt(np.diag(np.linalg.inv(hessian))))
    raise FloatingPointError("the fit of the full model did not converge in 100 steps")


def selection_model(
    X, y, *, family: Family = "bernoulli", inclusion: float = 0.5, tau: float = 1.0,
    sigma: float = 1.0, intercept_sd: float = 10.0, names: Sequence[str] | None = None,
):  # fmt: skip
    """Build a regression with an indicator per covariate, and pseudo-priors from the full model.

    Parameters
    ----------
    X, y : (N, p), (N,) arrays
        Outcomes are 0 and 1 for "bernoulli" (logistic regression).
    family : {"bernoulli", "normal"}
    inclusion : float
        Prior probability pi of an indicator.
    tau, intercept_sd : float
        Prior standard deviations of an included coefficient and of the intercept.
    sigma : float
        Known standard deviation of the errors of a linear regression.
    names : sequence of str, optional
        Names of the covariates.

    Returns
    -------
    pm.Model
        Variables ``gamma`` and ``beta`` (dims "covariate"), ``intercept`` and ``y`` (dims "obs").
        gamma starts at ones.
    """
    import pymc as pm

    X, y = _checked(X, y, family)
    fit = full_fit(X, y, family=family, sigma=sigma, tau=tau, intercept_sd=intercept_sd)
    with pm.Model(coords=_coords(X, names)) as model:
        data = pm.Data("X", X, dims=("obs", "covariate"))
        gamma = pm.Bernoulli(
            "gamma", inclusion, dims="covariate", initval=np.ones(X.shape[1], dtype=np.int64)
        )
        beta = pm.Normal(
            "beta", pm.math.switch(gamma, 0.0, fit.mode[1:]),
            pm.math.switch(gamma, tau, fit.error[1:]), dims="covariate", initval=fit.mode[1:],
        )  # fmt: skip
        intercept = pm.Normal("intercept", 0.0, intercept_sd, initval=fit.mode[0])
        _observe(pm, family, intercept + data @ (gamma * beta), sigma, y)
    return model


def _observe(pm, family, eta, sigma, y) -> None:
    if family == "bernoulli":
        pm.Bernoulli("y", logit_p=eta, observed=y, dims="obs")
    else:
        pm.Normal("y", eta, sigma, observed=y, dims="obs")


def _coords(X, names):
    names = [f"x{j}" for j in range(X.shape[1])] if names is None else list(names)
    return {"covariate": names, "obs": np.arange(X.shape[0])}


# --- references ----------------------------------------------------------------------------------


class SelectionPosterior(NamedTuple):
    """All 2^p models (2^p, p) of zeros and ones, their probabilities, and those of inclusion (p,)."""

    models: np.ndarray
    probabilities: np.ndarray
    inclusion: np.ndarray


def inclusion_probabilities(
    X, y, *, inclusion=0.5, tau=1.0, sigma=1.0, intercept_sd=10.0
) -> SelectionPosterior:
    r"""Compute the exact posterior of the indicators of a linear regression, by enumeration.

    With A = X'X / sigma^2, b = X'y / sigma^2 and V the prior variances, each for the columns of a model and
    the intercept, the log evidence of a model is, up to a constant,

    .. math:: \tfrac12 b' (A + V^{-1})^{-1} b - \tfrac12 \log\det(I + V A) .

    Parameters
    ----------
    X, y : (N, p), (N,) arrays
        Covariates, at most 16, and outcomes.
    inclusion, tau, sigma, intercept_sd : float
        As in :func:`selection_model` with ``family="normal"``.
    """
    X, y = _checked(X, y, "normal")
    p = X.shape[1]
    design = np.column_stack([np.ones(len(y)), X]) / sigma
    A, b = design.T @ design, design.T @ y / sigma
    variance = np.concatenate([[intercept_sd**2.0], np.full(p, tau**2.0)])
    models = np.array(list(itertools.product((0, 1), repeat=p)))
    log_weight = np.empty(len(models))
    for m, model in enumerate(models):
        keep = np.flatnonzero(np.concatenate([[1], model]))
        a, v = A[np.ix_(keep, keep)], variance[keep]
        fit = np.linalg.solve(a + np.diag(1.0 / v), b[keep])
        _, log_det = np.linalg.slogdet(np.eye(keep.size) + v[:, None] * a)
        log_weight[m] = 0.5 * b[keep] @ fit - 0.5 * log_det
    n_in = models.sum(axis=1)
    log_weight += n_in * math.log(inclusion) + (p - n_in) * math.log1p(-inclusion)
    probabilities = np.exp(log_weight - logsumexp(log_weight))
    return SelectionPosterior(models, probabilities, probabilities @ models)


# --- checks --------------------------------------------------------------------------------------


def _checked(X, y, family) -> tuple[np.ndarray, np.ndarray]:
    X = np.ascontiguousarray(X, dtype=float)
    y = np.asarray(y)
    if family == "normal":
        return X, y.astype(float)
    return X, y.astype(np.int64)
