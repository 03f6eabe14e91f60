r"""Linear regression with conjugate priors: evidence in closed form, for any number of rows.

With known variance,

.. math:: \beta \sim N(0, s^2 I), \quad y \sim N(X\beta, \sigma^2 I), \qquad
          Z = N(y; 0, \sigma^2 I + s^2 X X^\top),

and with an unknown one (the normal-inverse-gamma prior, e.g. O'Hagan & Forster 2004, *Kendall's
Advanced Theory of Statistics* 2B, chapter 11)

.. math:: \sigma^2 \sim \text{InvGamma}(a, b), \quad \beta | \sigma^2 \sim N(0, \sigma^2 s^2 I),
          \qquad Z = t_{2a}\!\left(y; 0, \tfrac{b}{a} (I + s^2 X X^\top)\right) .

Both depend only on the determinant and a quadratic form of :math:`I + r^2 X X^\top`, which take
:math:`O(n p^2)` operations with the p x p matrix :math:`I + r^2 X^\top X`. For a thousand rows, Z is far below
the smallest double.
"""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.linalg import cho_factor, cho_solve
from scipy.special import gammainccinv, gammaln, ndtri

from amc_pymc.rng import as_generator
from models.evidence_problem import EvidenceProblem

LOG_2PI = math.log(2.0 * math.pi)
#: Prior standard deviation of a coefficient, with unknown variance in standard deviations of the errors.
SCALE = np.float64(2.5)


class RegressionData(NamedTuple):
    """Covariates (N, p) and outcomes (N,)."""

    X: np.ndarray
    y: np.ndarray


def simulate(n: int, p: int, *, seed: int = 1) -> RegressionData:
    """Simulate standard normal covariates, coefficients and errors."""
    rng = as_generator(seed)
    X = rng.standard_normal((n, p))
    return RegressionData(X, X @ rng.standard_normal(p) + rng.standard_normal(n))


def spread_terms(X: np.ndarray, y: np.ndarray, ratio: float) -> tuple[float, float]:
    """Return the log determinant of S = I + ratio^2 X X', and y' S^-1 y."""
    factor = cho_factor(np.eye(X.shape[1]) + ratio**2 * X.T @ X)
    projected = X.T @ y
    quadratic = y @ y - ratio**2 * projected @ cho_solve(factor, projected)
    return 2.0 * float(np.log(np.diag(factor[0])).sum()), float(quadratic)


def log_evidence_known_variance(X: np.ndarray, y: np.ndarray, sigma: float, scale: float) -> float:
    """Return log Z with known sigma and prior standard deviation `scale`."""
    log_det, quadratic = spread_terms(X, y, scale / sigma)
    n = y.size
    return -0.5 * (n * (LOG_2PI + 2.0 * math.log(sigma)) + log_det + quadratic / sigma**2)


def log_evidence_unknown_variance(
    X: np.ndarray, y: np.ndarray, scale: float, a: float, b: float
) -> float:
    """Return log Z under the normal-inverse-gamma prior."""
    log_det, quadratic = spread_terms(X, y, scale)
    n = y.size
    constant = gammaln(a + 0.5 * n) - gammaln(a) - 0.5 * (n * math.log(2.0 * math.pi * b) + log_det)
    return float(constant - (a + 0.5 * n) * math.log1p(0.5 * quadratic / b))


def linear_regression(n: int = 100, p: int = 5) -> EvidenceProblem:
    """Build the problem of simulated rows with known error variance.

    Parameters
    ----------
    n, p : int
        Numbers of rows and covariates; there is no intercept.
    """
    sigma = np.float64(1.0)
    X, y = simulate(n, p)
    constant = -0.5 * n * (LOG_2PI + 2.0 * math.log(sigma))

    def variables() -> None:
        beta = pm.Normal("beta", 0.0, SCALE, shape=p)
        pm.Normal("y", X @ beta, sigma, observed=y)

    def prior_transform(u: np.ndarray) -> np.ndarray:
        return SCALE * ndtri(u)

    def log_likelihood(beta: np.ndarray) -> float:
        residuals = (y - X @ beta) / sigma
        return float(constant - 0.5 * residuals @ residuals)

    return EvidenceProblem(
        name=f"linear_regression_{n}", variables=variables,
        log_evidence=log_evidence_known_variance(X, y, sigma, SCALE),
        source="closed form, a multivariate normal density", n_dim=p, easy=True,
        prior_transform=prior_transform, log_likelihood=log_likelihood,
    )  # fmt: skip


def linear_regression_unknown_variance(n: int = 100, p: int = 5) -> EvidenceProblem:
    """Build the problem of simulated rows with error variance one, which is unknown in the model.

    Parameters
    ----------
    n, p : int
        Numbers of rows and covariates; there is no intercept.
    """
    a, b = np.float64(3.0), np.float64(2.0)
    X, y = simulate(n, p)

    def variables() -> None:
        variance = pm.InverseGamma("variance", a, b)
        sigma = pt.sqrt(variance)
        beta = pm.Normal("beta", 0.0, SCALE * sigma, shape=p)
        pm.Normal("y", X @ beta, sigma, observed=y)

    def prior_transform(u: np.ndarray) -> np.ndarray:
        variance = b / gammainccinv(a, u[0])
        return np.append(variance, SCALE * math.sqrt(variance) * ndtri(u[1:]))

    def log_likelihood(parameters: np.ndarray) -> float:
        variance = parameters[0]
        residuals = y - X @ parameters[1:]
        return float(-0.5 * (n * (LOG_2PI + np.log(variance)) + residuals @ residuals / variance))

    return EvidenceProblem(
        name="linear_regression_unknown_variance", variables=variables,
        log_evidence=log_evidence_unknown_variance(X, y, SCALE, a, b),
        source="closed form, a multivariate t density", n_dim=p + 1, easy=True,
        prior_transform=prior_transform, log_likelihood=log_likelihood,
    )  # fmt: skip
