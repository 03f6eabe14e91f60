r"""Tumours of rats in 71 experiments, whose probabilities are drawn from one beta distribution.

.. math:: m \sim U[0, 1], \quad \kappa = e^v,\ v \sim N(3, 1), \quad
          \theta_j \sim \text{Beta}(m \kappa, (1 - m) \kappa), \quad y_j \sim \text{Binomial}(n_j, \theta_j) .

Probabilities are integrated out to beta-binomial counts, which leaves two of 73 dimensions. Data from Tarone (1982),
*The use of historical control information in testing for a trend in proportions*, Biometrics 38, 215-220, by way of
Gelman et al., *Bayesian Data Analysis*, section 5.1.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.special import betaincinv, betaln, gammaln, ndtr

from models.evidence_problem import EvidenceProblem
from models.normal_scores import NormalScores, grid_evidence, scored_problem
from models.student_importance import Reference

TUMOURS = np.array([
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1,
    5, 2, 5, 3, 2, 7, 7, 3, 3, 2, 9, 10, 4, 4, 4, 4, 4, 4, 4, 10, 4, 4, 4, 5, 11, 12, 5, 5, 6, 5, 6,
    6, 6, 6, 16, 15, 15, 9, 4,
])  # fmt: skip
RATS = np.array([
    20, 20, 20, 20, 20, 20, 20, 19, 19, 19, 19, 18, 18, 17, 20, 20, 20, 20, 19, 19, 18, 18, 25, 24,
    23, 20, 20, 20, 20, 20, 20, 10, 49, 19, 46, 27, 17, 49, 47, 20, 20, 13, 48, 50, 20, 20, 20, 20,
    20, 20, 20, 48, 19, 19, 19, 22, 46, 49, 20, 20, 23, 19, 22, 20, 20, 20, 52, 46, 47, 24, 14,
])  # fmt: skip
PLACE = np.float64(3.0)
FROZEN = Reference(-161.144277, 1e-06)


def log_binomials() -> float:
    """Return the log of the product of binomial coefficients."""
    return float((gammaln(RATS + 1) - gammaln(TUMOURS + 1) - gammaln(RATS - TUMOURS + 1)).sum())


def population(z: np.ndarray) -> np.ndarray:
    """Return the mean m and v (n, 2) from normal scores."""
    return np.column_stack([ndtr(z[:, 0]), PLACE + z[:, 1]])


def log_given_population(theta: np.ndarray) -> np.ndarray:
    """Return the log probability (n,) of the counts for m and v, with the experiments integrated out."""
    kappa = np.exp(theta[:, 1:])
    a, b = theta[:, :1] * kappa, (1.0 - theta[:, :1]) * kappa
    terms = betaln(a + TUMOURS, b + RATS - TUMOURS) - betaln(a, b)
    return terms.sum(axis=1) + log_binomials()


def reference() -> Reference:
    """Return log Z, computed again."""
    scores = NormalScores(2, population, log_given_population)
    return grid_evidence(scores, step=0.125, reach=8.0)


def rat_tumours() -> EvidenceProblem:
    """Build the problem of the hierarchical model with a variable for each experiment."""

    def variables() -> None:
        m = pm.Uniform("m", np.float64(0.0), np.float64(1.0))
        kappa = pt.exp(pm.Normal("v", PLACE, 1.0))
        theta = pm.Beta("theta", m * kappa, (1.0 - m) * kappa, shape=RATS.size)
        pm.Binomial("y", n=RATS, p=theta, observed=TUMOURS)

    def parameters(z: np.ndarray) -> np.ndarray:
        top = population(z)
        kappa = np.exp(top[:, 1:])
        theta = betaincinv(top[:, :1] * kappa, (1.0 - top[:, :1]) * kappa, ndtr(z[:, 2:]))
        return np.column_stack([top, theta])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        p = theta[:, 2:]
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.where(TUMOURS > 0, TUMOURS * np.log(p), 0.0)
            return (found + (RATS - TUMOURS) * np.log1p(-p)).sum(axis=1) + log_binomials()

    scores = NormalScores(2 + RATS.size, parameters, log_likelihood)
    source = "beta-binomial counts, two-dimensional quadrature"
    return scored_problem("rat_tumours", variables, scores, FROZEN, source)
