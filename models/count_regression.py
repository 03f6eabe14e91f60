r"""Regressions of counts with more zeros or a larger variance than Poisson counts.

.. math:: b \sim N(0, I), \quad
          y_i \sim \text{NB}(\mu_i = e^{b_0 + b_1 x_i + b_2 v_i}, \alpha),\ \alpha \sim \text{Exp}(0.5)

with 60 rows, and

.. math:: \psi \sim U[0, 1], \quad b \sim N(0, I), \quad
          y_i \sim \psi\, \text{Poisson}(e^{b_0 + b_1 x_i}) + (1 - \psi) \delta_0

with 80 rows. Data are simulated.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.special import gammaln, ndtr

from amc_pymc.rng import as_generator
from models.evidence_problem import EvidenceProblem
from models.normal_scores import (
    NormalScores,
    exponential,
    grid_evidence,
    sampled_evidence,
    scored_problem,
)
from models.student_importance import Reference

RATE = np.float64(0.5)
FROZEN = {
    "negative_binomial": Reference(-127.856472, 0.00012),
    "zero_inflated": Reference(-133.524903, 1.4e-06),
}


def negative_binomial_data(n: int = 60, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Simulate covariates (n, 3) and counts (n,)."""
    rng = as_generator(seed)
    X = np.column_stack([np.ones(n), rng.standard_normal((n, 2))])
    mean = np.exp(X @ [1.0, 0.6, -0.4])
    return X, rng.poisson(mean * rng.gamma(2.0, 0.5, n))


def zero_inflated_data(n: int = 80, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Simulate covariates (n, 2) and counts (n,)."""
    rng = as_generator(seed)
    X = np.column_stack([np.ones(n), rng.standard_normal(n)])
    return X, rng.poisson(np.exp(X @ [0.8, 0.5])) * (rng.random(n) < 0.7)


def negative_binomial_scores() -> NormalScores:
    """Return prior and likelihood of three coefficients and alpha."""
    X, y = negative_binomial_data()

    def parameters(z: np.ndarray) -> np.ndarray:
        return np.column_stack([z[:, :3], exponential(z[:, 3], RATE)])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        eta, alpha = theta[:, :3] @ X.T, theta[:, 3:]
        both = np.logaddexp(eta, np.log(alpha))
        terms = gammaln(y + alpha) - gammaln(alpha) + alpha * (np.log(alpha) - both)
        return (terms + y * (eta - both) - gammaln(y + 1.0)).sum(axis=1)

    return NormalScores(4, parameters, log_likelihood)


def zero_inflated_scores() -> NormalScores:
    """Return prior and likelihood of psi and two coefficients."""
    X, y = zero_inflated_data()

    def parameters(z: np.ndarray) -> np.ndarray:
        return np.column_stack([ndtr(z[:, 0]), z[:, 1:]])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        eta, psi = theta[:, 1:] @ X.T, theta[:, :1]
        with np.errstate(over="ignore", divide="ignore"):
            counted = np.log(psi) + y * eta - np.exp(eta) - gammaln(y + 1.0)
            none = np.logaddexp(np.log1p(-psi), counted)
        return np.where(y > 0, counted, none).sum(axis=1)

    return NormalScores(3, parameters, log_likelihood)


def reference(name: str, **options: int) -> Reference:
    """Return log Z of ``negative_binomial`` or ``zero_inflated``, computed again."""
    if name == "zero_inflated":
        return grid_evidence(zero_inflated_scores(), **options)
    return sampled_evidence(negative_binomial_scores(), **options)


def negative_binomial() -> EvidenceProblem:
    """Build the problem of the negative-binomial regression, in four dimensions."""
    X, y = negative_binomial_data()

    def variables() -> None:
        b = pm.Normal("b", 0.0, 1.0, shape=3)
        alpha = pm.Exponential("alpha", RATE)
        pm.NegativeBinomial("y", mu=pt.exp(X @ b), alpha=alpha, observed=y)

    name, source = "negative_binomial", "quasi-random importance sampling"
    return scored_problem(name, variables, negative_binomial_scores(), FROZEN[name], source)


def zero_inflated() -> EvidenceProblem:
    """Build the problem of the zero-inflated regression, in three dimensions."""
    X, y = zero_inflated_data()

    def variables() -> None:
        psi = pm.Uniform("psi", np.float64(0.0), np.float64(1.0))
        b = pm.Normal("b", 0.0, 1.0, shape=2)
        pm.ZeroInflatedPoisson("y", psi=psi, mu=pt.exp(X @ b), observed=y)

    name, source = "zero_inflated", "three-dimensional quadrature"
    return scored_problem(name, variables, zero_inflated_scores(), FROZEN[name], source)
