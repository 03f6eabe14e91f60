r"""Multinomial counts of four categories in six groups with a common Dirichlet prior.

.. math:: \kappa \sim \text{Gamma}(2, 0.1), \quad \theta_j \sim \text{Dirichlet}(\kappa m), \quad
          y_j \sim \text{Multinomial}(n_j, \theta_j), \qquad m = (0.4, 0.3, 0.2, 0.1) .

Shares are integrated out, which gives Dirichlet-multinomial counts; kappa is integrated by quadrature.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm

from scipy.special import betaincinv, gammaincinv, gammaln, logsumexp, xlogy

from amc_pymc.rng import as_generator
from models.evidence_problem import EvidenceProblem

GROUPS = 6
MEAN = np.array([0.4, 0.3, 0.2, 0.1])
KAPPA = np.float64(2.0), np.float64(0.1)


def simulate(seed: int = 1) -> np.ndarray:
    """Simulate counts (6, 4)."""
    rng = as_generator(seed)
    shares = rng.dirichlet(15.0 * MEAN, GROUPS)
    return np.array([rng.multinomial(30, share) for share in shares])


def log_coefficients(y: np.ndarray) -> float:
    """Return the log of the product of multinomial coefficients."""
    return float((gammaln(y.sum(axis=1) + 1.0) - gammaln(y + 1.0).sum(axis=1)).sum())


def log_given_kappa(log_kappa: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the log probability (n,) of counts (J, K) for log kappa (n,), with shares integrated out."""
    kappa = np.exp(log_kappa)[:, None, None]
    totals = y.sum(axis=1)[:, None]
    terms = (gammaln(kappa * MEAN + y) - gammaln(kappa * MEAN)).sum(axis=(1, 2))
    return terms - (gammaln(kappa + totals) - gammaln(kappa)).sum(axis=(1, 2)) + log_coefficients(y)


def log_evidence(y: np.ndarray, n: int = 4_001) -> float:
    """Return log Z by the trapezoidal rule over log kappa."""
    u = np.linspace(-10.0, 8.0, n)
    a, b = KAPPA
    log_prior = a * math.log(b) - gammaln(a) + a * u - b * np.exp(u)
    return float(logsumexp(log_given_kappa(u, y) + log_prior)) + math.log(u[1] - u[0])


def dirichlet_groups() -> EvidenceProblem:
    """Build the problem with kappa and a simplex for each group, in nineteen dimensions."""
    y = simulate()
    k = MEAN.size

    def variables() -> None:
        kappa = pm.Gamma("kappa", *KAPPA)
        theta = pm.Dirichlet("theta", kappa * MEAN, shape=(GROUPS, k))
        pm.Multinomial("y", n=y.sum(axis=1), p=theta, observed=y)

    def prior_transform(u: np.ndarray) -> np.ndarray:
        kappa = gammaincinv(KAPPA[0], u[0]) / KAPPA[1]
        concentration = kappa * MEAN
        rest = np.cumsum(concentration[::-1])[::-1]
        # Stick breaking: each category takes a beta distributed share of the remainder.
        sticks = betaincinv(concentration[:-1], rest[1:], u[1:].reshape(GROUPS, k - 1))
        left = np.cumprod(np.column_stack([np.ones(GROUPS), 1.0 - sticks]), axis=1)[:, :-1]
        return np.append(kappa, (sticks * left).ravel())

    def log_likelihood(parameters: np.ndarray) -> float:
        theta = parameters[1:].reshape(GROUPS, k - 1)
        theta = np.column_stack([theta, np.maximum(1.0 - theta.sum(axis=1), 0.0)])
        return float(xlogy(y, theta).sum()) + log_coefficients(y)

    return EvidenceProblem(
        name="dirichlet_groups", variables=variables, log_evidence=log_evidence(y),
        source="closed form given kappa, one-dimensional quadrature", n_dim=1 + GROUPS * (k - 1),
        easy=True, prior_transform=prior_transform, log_likelihood=log_likelihood,
    )  # fmt: skip
