r"""Gaussian processes in one dimension: counts, a regression, and the same regression with latent values.

.. math:: k(x, x') = \alpha^2 \exp(-(x - x')^2 / (2 \rho^2)), \qquad
          y \sim N(0, K + \sigma^2 I) \quad \text{or} \quad f = \text{chol}(K)\, \tilde f, \ y \sim N(f, \sigma^2 I) .

Both forms of the regression have the same evidence, an integral over three hyperparameters. The counts
are ``gp_pois_regr`` of posteriordb, :math:`y \sim \text{Poisson}(e^f)`, whose evidence is estimated by sampling.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.special import gammaln

from amc_pymc.rng import as_generator
from models.evidence_problem import EvidenceProblem
from models.normal_scores import (
    LOG_2PI,
    NormalScores,
    gamma,
    half_normal,
    scored_problem,
)
from models.student_importance import Reference

COUNT_X = np.arange(-10.0, 11.0, 2.0)
COUNTS = np.array([40, 37, 29, 12, 4, 3, 9, 19, 77, 82, 33])
LENGTH = np.float64(25.0), np.float64(4.0)
AMPLITUDE = np.float64(2.0)
JITTER = np.float64(1e-10)
#: Priors of the regression: Gamma(5, 5) for rho, half-normal scales of alpha and sigma.
REGRESSION_LENGTH = np.float64(5.0), np.float64(5.0)
REGRESSION_AMPLITUDE, NOISE = np.float64(1.0), np.float64(0.5)
FROZEN = {"counts": Reference(-47.630349, 0.0043), "regression": Reference(-11.378186, 8.8e-05)}


def regression_data(n: int = 12, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Simulate inputs and outcomes (n,): a sine and noise."""
    rng = as_generator(seed)
    x = np.linspace(-2.0, 2.0, n)
    return x, np.sin(2.0 * x) + 0.3 * rng.standard_normal(n)


def kernel(x: np.ndarray, rho: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Return covariance matrices (n, N, N) for hyperparameters (n,)."""
    squares = np.square(x[:, None] - x)
    return np.square(alpha)[:, None, None] * np.exp(-0.5 * squares / np.square(rho)[:, None, None])


def covariance(x: np.ndarray, rho, alpha, added: float):
    """Return the covariance matrix as an expression of model variables."""
    squares = np.square(x[:, None] - x)
    return pt.sqr(alpha) * pt.exp(-0.5 * squares / pt.sqr(rho)) + added * np.eye(x.size)


def latent_values(x: np.ndarray, theta: np.ndarray, jitter: float) -> np.ndarray:
    """Return the process (n, N) for rho, alpha and standard normal numbers in columns."""
    matrices = kernel(x, theta[:, 0], theta[:, 1]) + jitter * np.eye(x.size)
    return (np.linalg.cholesky(matrices) @ theta[:, 2:, None])[:, :, 0]


# --- counts --------------------------------------------------------------------------------------


def count_scores() -> NormalScores:
    """Return prior and likelihood of the counts: rho, alpha, eleven standard normal numbers."""
    constant = gammaln(COUNTS + 1.0).sum()

    def parameters(z: np.ndarray) -> np.ndarray:
        return np.column_stack([gamma(z[:, 0], *LENGTH), half_normal(z[:, 1], AMPLITUDE), z[:, 2:]])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        f = latent_values(COUNT_X, theta, JITTER)
        with np.errstate(over="ignore"):
            return f @ COUNTS - np.exp(f).sum(axis=1) - constant

    return NormalScores(2 + COUNTS.size, parameters, log_likelihood)


def gp_counts() -> EvidenceProblem:
    """Build the problem ``gp_pois_regr``, in thirteen dimensions."""

    def variables() -> None:
        rho = pm.Gamma("rho", *LENGTH)
        alpha = pm.HalfNormal("alpha", AMPLITUDE)
        f_tilde = pm.Normal("f_tilde", 0.0, 1.0, shape=COUNTS.size)
        root = pt.linalg.cholesky(covariance(COUNT_X, rho, alpha, JITTER))
        pm.Poisson("k", pt.exp(root @ f_tilde), observed=COUNTS)

    source = "quasi-random importance sampling"
    return scored_problem("gp_counts", variables, count_scores(), FROZEN["counts"], source)


# --- regression ----------------------------------------------------------------------------------


def hyperparameters(z: np.ndarray) -> np.ndarray:
    """Return rho, alpha and sigma (n, 3) of the regression."""
    alpha, sigma = half_normal(z[:, 1], REGRESSION_AMPLITUDE), half_normal(z[:, 2], NOISE)
    return np.column_stack([gamma(z[:, 0], *REGRESSION_LENGTH), alpha, sigma])


def regression_scores() -> NormalScores:
    """Return prior and likelihood of the regression with the process integrated out."""
    x, y = regression_data()

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        noise = np.square(theta[:, 2]) + JITTER
        matrices = kernel(x, theta[:, 0], theta[:, 1]) + noise[:, None, None] * np.eye(x.size)
        values, vectors = np.linalg.eigh(matrices)
        values = np.maximum(values, noise[:, None])
        squares = (np.square(y @ vectors) / values).sum(axis=1)
        return -0.5 * (squares + np.log(values).sum(axis=1) + x.size * LOG_2PI)

    return NormalScores(3, hyperparameters, log_likelihood)


def gp_regression() -> EvidenceProblem:
    """Build the problem with outcomes as one multivariate normal vector, in three dimensions."""
    x, y = regression_data()

    def variables() -> None:
        rho = pm.Gamma("rho", *REGRESSION_LENGTH)
        alpha = pm.HalfNormal("alpha", REGRESSION_AMPLITUDE)
        sigma = pm.HalfNormal("sigma", NOISE)
        spread = covariance(x, rho, alpha, pt.sqr(sigma) + JITTER)
        pm.MvNormal("y", np.zeros(x.size), cov=spread, observed=y)

    source = "three-dimensional quadrature"
    return scored_problem(
        "gp_regression", variables, regression_scores(), FROZEN["regression"], source
    )


def gp_latent() -> EvidenceProblem:
    """Build the same problem with the process as standard normal variables, in fifteen dimensions.

    A fiftieth of the posterior has sigma below 0.05. There the process must be close to each outcome, which makes
    a neck like that of a funnel.
    """
    x, y = regression_data()
    n = x.size

    def variables() -> None:
        rho = pm.Gamma("rho", *REGRESSION_LENGTH)
        alpha = pm.HalfNormal("alpha", REGRESSION_AMPLITUDE)
        sigma = pm.HalfNormal("sigma", NOISE)
        f_tilde = pm.Normal("f_tilde", 0.0, 1.0, shape=n)
        f = pt.linalg.cholesky(covariance(x, rho, alpha, JITTER)) @ f_tilde
        pm.Normal("y", f, sigma, observed=y)

    def parameters(z: np.ndarray) -> np.ndarray:
        return np.column_stack([hyperparameters(z[:, :3]), z[:, 3:]])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        f = latent_values(x, np.delete(theta, 2, axis=1), JITTER)
        squares = np.square((y - f) / theta[:, 2:3]).sum(axis=1)
        return -0.5 * (squares + n * LOG_2PI) - n * np.log(theta[:, 2])

    scores = NormalScores(3 + n, parameters, log_likelihood)
    source = "process integrated out, three-dimensional quadrature"
    return scored_problem("gp_latent", variables, scores, FROZEN["regression"], source, easy=False)
