r"""Regression with the horseshoe prior of Carvalho, Polson & Scott (2010), not centred.

.. math:: \tau \sim C^+(0, 0.5), \quad \lambda_j \sim C^+(0, 1), \quad z_j \sim N(0, 1), \quad
          y \sim N(X (z \lambda \tau), I) .

Given the scales the coefficients are normal. They are integrated out, which leaves p + 1 of 2 p + 1 dimensions:

.. math:: y \sim N(0, I + \tau^2 X \Lambda^2 X^\top) .

In these dimensions log Z is estimated by annealing and quasi-random importance sampling. Biometrika 97, 465-480
(doi:10.1093/biomet/asq017).
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm

from amc_pymc.rng import as_generator
from models.evidence_problem import EvidenceProblem
from models.normal_scores import (
    LOG_2PI,
    NormalScores,
    half_cauchy,
    scored_problem,
)
from models.student_importance import Reference

ROWS, COVARIATES = 40, 10
GLOBAL = np.float64(0.5)
FROZEN = Reference(-67.225792, 0.00086)


def simulate(seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Simulate covariates (N, P) and outcomes (N,); three coefficients differ from zero."""
    rng = as_generator(seed)
    X = rng.standard_normal((ROWS, COVARIATES))
    beta = np.zeros(COVARIATES)
    beta[:3] = 2.0, -1.0, 0.5
    return X, X @ beta + rng.standard_normal(ROWS)


def log_given_scales(tau: np.ndarray, lam: np.ndarray) -> np.ndarray:
    """Return the log density (n,) of the outcomes given scales (n,) and (n, P), with coefficients integrated out."""
    X, y = simulate()
    # Beyond this the density falls like one over the scale and rounding errors would dominate.
    scales = np.minimum(tau[:, None] * lam, 1e5)
    weighted = X.T @ X * scales[:, :, None] * scales[:, None, :]
    root = np.linalg.cholesky(weighted + np.eye(COVARIATES))
    projected = scales * (X.T @ y)
    half = np.linalg.solve(root, projected[:, :, None])[:, :, 0]
    log_det = 2.0 * np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
    return -0.5 * (y @ y - np.square(half).sum(axis=1) + log_det + ROWS * LOG_2PI)


def marginal_scores() -> NormalScores:
    """Return prior and likelihood of the scales, with the coefficients integrated out."""

    def parameters(z: np.ndarray) -> np.ndarray:
        return np.column_stack([half_cauchy(z[:, 0], GLOBAL), half_cauchy(z[:, 1:], 1.0)])

    return NormalScores(
        COVARIATES + 1, parameters, lambda theta: log_given_scales(theta[:, 0], theta[:, 1:])
    )


def horseshoe() -> EvidenceProblem:
    """Build the problem in twenty-one dimensions: tau, ten local scales, ten standardised coefficients."""
    X, y = simulate()

    def variables() -> None:
        tau = pm.HalfCauchy("tau", GLOBAL)
        lam = pm.HalfCauchy("lam", 1.0, shape=COVARIATES)
        z = pm.Normal("z", 0.0, 1.0, shape=COVARIATES)
        pm.Normal("y", X @ (z * lam * tau), 1.0, observed=y)

    def parameters(z: np.ndarray) -> np.ndarray:
        scales = [half_cauchy(z[:, :1], GLOBAL), half_cauchy(z[:, 1 : COVARIATES + 1], 1.0)]
        return np.column_stack([*scales, z[:, COVARIATES + 1 :]])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        beta = theta[:, :1] * theta[:, 1 : COVARIATES + 1] * theta[:, COVARIATES + 1 :]
        squares = np.square(y - beta @ X.T).sum(axis=1)
        return -0.5 * (squares + ROWS * math.log(2.0 * math.pi))

    scores = NormalScores(2 * COVARIATES + 1, parameters, log_likelihood)
    source = "coefficients integrated out, quasi-random importance sampling"
    return scored_problem("horseshoe", variables, scores, FROZEN, source, easy=False)
