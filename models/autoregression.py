r"""Autoregression of order two.

.. math:: c, \phi_1, \phi_2 \sim N(0, 1), \quad \sigma \sim N^+(0, 1), \qquad
          y_t \sim N(c + \phi_1 y_{t-1} + \phi_2 y_{t-2}, \sigma^2), \quad y_1, y_2 \sim N(0, 2^2) .

Given sigma it is a conjugate regression; the integral over sigma is a one-dimensional quadrature.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm

from scipy.special import logsumexp

from amc_pymc.rng import as_generator
from models.evidence_problem import EvidenceProblem
from models.normal_scores import LOG_2PI, NormalScores, half_normal, scored_problem
from models.student_importance import Reference

START_SD = np.float64(2.0)


def simulate(n: int = 120, seed: int = 1) -> np.ndarray:
    """Simulate a series (n,)."""
    rng = as_generator(seed)
    y = np.zeros(n + 50)
    for t in range(2, y.size):
        y[t] = 0.2 + 1.1 * y[t - 1] - 0.5 * y[t - 2] + 0.7 * rng.standard_normal()
    return y[50:]


def lags(y: np.ndarray) -> np.ndarray:
    """Return columns for the constant and the two lags (n - 2, 3)."""
    return np.column_stack([np.ones(y.size - 2), y[1:-1], y[:-2]])


def log_start(y: np.ndarray) -> float:
    """Return the log density of the first two values."""
    return float(-np.log(2.0 * np.pi * START_SD**2) - 0.5 * np.square(y[:2] / START_SD).sum())


def log_evidence(y: np.ndarray, n: int = 4_001) -> float:
    """Return log Z by the trapezoidal rule over log sigma."""
    X, rest = lags(y), y[2:]
    u = np.linspace(-4.0, 3.0, n)
    gram, projected = X.T @ X, X.T @ rest
    logs = np.empty(n)
    for i, sigma in enumerate(np.exp(u)):
        precision = np.eye(3) + gram / sigma**2
        shift = projected / sigma**2
        squares = rest @ rest / sigma**2 - shift @ np.linalg.solve(precision, shift)
        log_det = 2.0 * rest.size * math.log(sigma) + np.linalg.slogdet(precision)[1]
        logs[i] = -0.5 * (squares + log_det + rest.size * LOG_2PI)
    logs += math.log(2.0) - 0.5 * (np.exp(2.0 * u) + LOG_2PI) + u
    return float(logsumexp(logs)) + math.log(u[1] - u[0]) + log_start(y)


def autoregression_scores(y: np.ndarray) -> NormalScores:
    """Return prior and likelihood of the constant, two coefficients and sigma."""

    def parameters(z: np.ndarray) -> np.ndarray:
        return np.column_stack([z[:, :3], half_normal(z[:, 3], 1.0)])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        squares = np.square((y[2:] - theta[:, :3] @ lags(y).T) / theta[:, 3:]).sum(axis=1)
        n = y.size - 2
        return -0.5 * (squares + n * LOG_2PI) - n * np.log(theta[:, 3]) + log_start(y)

    return NormalScores(4, parameters, log_likelihood)


def autoregression() -> EvidenceProblem:
    """Build the problem with the series as ``pm.AR``."""
    y = simulate()

    def variables() -> None:
        rho = pm.Normal("rho", 0.0, 1.0, shape=3)
        sigma = pm.HalfNormal("sigma", 1.0)
        start = pm.Normal.dist(0.0, START_SD, shape=2)
        pm.AR("y", rho, sigma=sigma, init_dist=start, constant=True, ar_order=2, observed=y)

    source = "closed form given sigma, one-dimensional quadrature"
    found = Reference(log_evidence(y), 0.0)
    return scored_problem("autoregression_2", variables, autoregression_scores(y), found, source)
