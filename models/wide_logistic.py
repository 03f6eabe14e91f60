r"""Logistic regression with a hundred coefficients.

.. math:: \beta_j \sim N(0, 1), \qquad y_i \sim \text{Bernoulli}(\text{expit}(x_i^\top \beta)) .

Importance sampling from the Laplace approximation has a very large variance here; annealing from it does not.
"""

from __future__ import annotations

import numpy as np
import pymc as pm

from scipy.special import expit

from amc_pymc.rng import as_generator
from models.evidence_problem import EvidenceProblem
from models.logistic_regression import laplace, log_likelihoods
from models.normal_scores import LOG_2PI, NormalScores, annealed_evidence, scored_problem
from models.student_importance import Reference

ROWS, COEFFICIENTS = 400, 100
FROZEN = Reference(-198.150367, 0.023)


def simulate(seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Simulate covariates (400, 100) and outcomes (400,)."""
    rng = as_generator(seed)
    X = rng.standard_normal((ROWS, COEFFICIENTS))
    return X, (rng.random(ROWS) < expit(X @ rng.normal(0.0, 0.5, COEFFICIENTS))).astype(np.int64)


def reference(**options: int) -> Reference:
    """Return log Z by annealing from the Laplace approximation."""
    X, y = simulate()
    mode, covariance = laplace(X, y, np.ones(COEFFICIENTS))

    def log_joint(beta: np.ndarray) -> np.ndarray:
        prior = -0.5 * (np.square(beta).sum(axis=1) + COEFFICIENTS * LOG_2PI)
        return prior + log_likelihoods(beta, X, y)

    return annealed_evidence(log_joint, mode, covariance, **options)


def wide_logistic() -> EvidenceProblem:
    """Build the problem of the regression as one Bernoulli variable."""
    X, y = simulate()

    def variables() -> None:
        beta = pm.Normal("beta", 0.0, 1.0, shape=COEFFICIENTS)
        pm.Bernoulli("y", logit_p=X @ beta, observed=y)

    scores = NormalScores(COEFFICIENTS, lambda z: z, lambda beta: log_likelihoods(beta, X, y))
    source = "annealing from the Laplace approximation"
    return scored_problem("wide_logistic_100", variables, scores, FROZEN, source)
