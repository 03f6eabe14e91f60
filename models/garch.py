r"""GARCH(1, 1), a volatility that depends on the previous day.

.. math:: \mu \sim N(0, 1), \quad \omega \sim N^+(0, 1), \quad \alpha \sim \text{Beta}(2, 8), \quad
          b \sim \text{Beta}(8, 2), \\
          \sigma_1^2 = 1, \quad
          \sigma_t^2 = \omega + \alpha (y_{t-1} - \mu)^2 + (1 - \alpha) b\, \sigma_{t-1}^2, \quad
          y_t \sim N(\mu, \sigma_t^2) .

Four dimensions; the returns of 80 days are simulated.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from amc_pymc.rng import as_generator
from models.evidence_problem import EvidenceProblem
from models.normal_scores import (
    LOG_2PI,
    NormalScores,
    beta,
    half_normal,
    sampled_evidence,
    scored_problem,
)
from models.student_importance import Reference

ARCH, PERSISTENCE = (np.float64(2.0), np.float64(8.0)), (np.float64(8.0), np.float64(2.0))
FROZEN = Reference(-83.228735, 0.00016)


def simulate(n: int = 80, seed: int = 1) -> np.ndarray:
    """Simulate returns (n,)."""
    rng = as_generator(seed)
    y, variance = np.empty(n), 1.0
    for t in range(n):
        y[t] = 0.1 + np.sqrt(variance) * rng.standard_normal()
        variance = 0.1 + 0.25 * (y[t] - 0.1) ** 2 + 0.65 * variance
    return y


def garch_scores() -> NormalScores:
    """Return prior and likelihood of mu, omega, alpha and b."""
    y = simulate()

    def parameters(z: np.ndarray) -> np.ndarray:
        omega = half_normal(z[:, 1], 1.0)
        return np.column_stack([z[:, 0], omega, beta(z[:, 2], *ARCH), beta(z[:, 3], *PERSISTENCE)])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        mu, omega, alpha, b = theta.T
        variance, total = np.ones(len(theta)), np.zeros(len(theta))
        for value in y:
            squares = np.square(value - mu)
            total -= 0.5 * (LOG_2PI + np.log(variance) + squares / variance)
            variance = omega + alpha * squares + (1.0 - alpha) * b * variance
        return total

    return NormalScores(4, parameters, log_likelihood)


def reference(**options: int) -> Reference:
    """Return log Z, computed again."""
    return sampled_evidence(garch_scores(), **options)


def garch() -> EvidenceProblem:
    """Build the problem with the recursion written out for every day."""
    y = simulate()

    def variables() -> None:
        mu = pm.Normal("mu", 0.0, 1.0)
        omega = pm.HalfNormal("omega", 1.0)
        alpha = pm.Beta("alpha", *ARCH)
        b = pm.Beta("b", *PERSISTENCE)
        variance = [pt.ones(())]
        for value in y[:-1]:
            fresh = omega + alpha * pt.sqr(value - mu)
            variance.append(fresh + (1.0 - alpha) * b * variance[-1])
        pm.Normal("y", mu, pt.sqrt(pt.stack(variance)), observed=y)

    source = "quasi-random importance sampling"
    return scored_problem("garch", variables, garch_scores(), FROZEN, source)
