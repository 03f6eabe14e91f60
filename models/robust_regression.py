r"""Regressions with Student errors: Newcomb's speed of light, and Brownlee's stack losses.

.. math:: \nu - 1 \sim \text{Gamma}(2, 0.1), \quad \sigma \sim N^+(0, s^2), \quad y_i \sim t_\nu(x_i^\top b, \sigma) .

66 deviations of passage times from 24,800 nanoseconds, including two outliers, with a mean alone (three dimensions;
Newcomb 1882, in Stigler 1977, *Do robust estimators work with real data?*, Annals of Statistics 5, 1055-1098),
and losses of ammonia on 21 days by air flow, temperature and acid, standardised (six dimensions; Brownlee
1965, *Statistical Theory and Methodology in Science and Engineering*).
"""

from __future__ import annotations

import numpy as np
import pymc as pm

from scipy.special import gammaln

from models.evidence_problem import EvidenceProblem
from models.normal_scores import (
    NormalScores,
    gamma,
    grid_evidence,
    half_normal,
    sampled_evidence,
    scored_problem,
)
from models.student_importance import Reference

PASSAGE = np.array([
    28.0, 26.0, 33.0, 24.0, 34.0, -44.0, 27.0, 16.0, 40.0, -2.0, 29.0, 22.0, 24.0, 21.0, 25.0, 30.0,
    23.0, 29.0, 31.0, 19.0, 24.0, 20.0, 36.0, 32.0, 36.0, 28.0, 25.0, 21.0, 28.0, 29.0, 37.0, 25.0,
    28.0, 26.0, 30.0, 32.0, 36.0, 26.0, 30.0, 22.0, 36.0, 23.0, 27.0, 27.0, 28.0, 27.0, 31.0, 27.0,
    26.0, 33.0, 26.0, 32.0, 32.0, 24.0, 39.0, 28.0, 24.0, 25.0, 32.0, 25.0, 29.0, 27.0, 28.0, 29.0,
    16.0, 23.0,
])  # fmt: skip
AIR = np.array([80, 80, 75, 62, 62, 62, 62, 62, 58, 58, 58, 58, 58, 58, 50, 50, 50, 50, 50, 56, 70])
WATER = np.array(
    [27, 27, 25, 24, 22, 23, 24, 24, 23, 18, 18, 17, 18, 19, 18, 18, 19, 19, 20, 20, 20]
)
ACID = np.array(
    [89, 88, 90, 87, 87, 87, 93, 93, 87, 80, 89, 88, 82, 93, 89, 86, 72, 79, 80, 82, 91]
)
LOSS = np.array([42, 37, 37, 28, 18, 18, 19, 20, 15, 14, 14, 13, 11, 12, 8, 7, 8, 8, 9, 15, 15])
TAIL = np.float64(2.0), np.float64(0.1)
FROZEN = {
    "speed_of_light": Reference(-224.943915, 1e-06),
    "stack_loss": Reference(-65.439327, 0.00023),
}


def data(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.float64]:
    """Return covariates (N, P), outcomes (N,), prior means and sds of coefficients (P,), and the scale of sigma."""
    if name == "speed_of_light":
        ones = np.ones((PASSAGE.size, 1))
        return ones, PASSAGE, np.array([25.0]), np.array([20.0]), np.float64(10.0)
    X = np.column_stack([AIR, WATER, ACID]).astype(float)
    X = np.column_stack([np.ones(LOSS.size), (X - X.mean(axis=0)) / X.std(axis=0)])
    sds = np.array([20.0, 10.0, 10.0, 10.0])
    return X, LOSS.astype(float), np.zeros(4), sds, np.float64(5.0)


def robust_scores(name: str) -> NormalScores:
    """Return prior and likelihood of coefficients, sigma and nu - 1."""
    X, y, means, sds, scale = data(name)
    p = means.size

    def parameters(z: np.ndarray) -> np.ndarray:
        sigma = half_normal(z[:, p], scale)
        return np.column_stack([means + sds * z[:, :p], sigma, gamma(z[:, p + 1], *TAIL)])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        sigma, nu = theta[:, p : p + 1], 1.0 + theta[:, p + 1 :]
        squares = np.square((y - theta[:, :p] @ X.T) / sigma)
        terms = gammaln(0.5 * nu + 0.5) - gammaln(0.5 * nu) - 0.5 * np.log(nu * np.pi)
        terms = terms - np.log(sigma) - 0.5 * (nu + 1.0) * np.log1p(squares / nu)
        return terms.sum(axis=1)

    return NormalScores(p + 2, parameters, log_likelihood)


def reference(name: str, **options: int) -> Reference:
    """Return log Z, computed again."""
    scores = robust_scores(name)
    if name == "speed_of_light":
        return grid_evidence(scores, **options)
    return sampled_evidence(scores, **options)


def robust_regression(name: str) -> EvidenceProblem:
    """Build the problem of one of the two models.

    Parameters
    ----------
    name : {'speed_of_light', 'stack_loss'}
    """
    X, y, means, sds, scale = data(name)

    def variables() -> None:
        b = pm.Normal("b", means, sds)
        sigma = pm.HalfNormal("sigma", scale)
        tail = pm.Gamma("tail", *TAIL)
        pm.StudentT("y", nu=1.0 + tail, mu=X @ b, sigma=sigma, observed=y)

    source = "three-dimensional quadrature"
    if name == "stack_loss":
        source = "quasi-random importance sampling"
    return scored_problem(name, variables, robust_scores(name), FROZEN[name], source)
