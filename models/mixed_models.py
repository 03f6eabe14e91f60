r"""Regressions with an intercept for every group as variables of the model, not centred.

.. math:: \mu, b \sim N(0, 2^2), \quad \tau \sim N^+(0, 1), \quad z_j \sim N(0, 1), \quad
          \eta_{ij} = \mu + b x_{ij} + \tau z_j, \\
          y_{ij} \sim N(\eta_{ij}, \sigma^2),\ \sigma \sim N^+(0, 2^2)
          \quad \text{or} \quad y_{ij} \sim \text{Poisson}(e^{\eta_{ij}}) .

In the linear model everything but the two scales is integrated out in closed form. In the Poisson model the
intercepts are integrated out one at a time by the trapezoidal rule, and the other three by quadrature.
"""

from __future__ import annotations

import math

from typing import Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.special import gammaln, logsumexp

from amc_pymc.rng import as_generator
from models.evidence_problem import EvidenceProblem
from models.grouped import GroupedData
from models.grouped_gaussian import gaussian_reference
from models.normal_scores import LOG_2PI, NormalScores, grid_evidence, half_normal, scored_problem
from models.student_importance import Reference

Family = Literal["linear", "poisson"]
ROWS = 5
COEFFICIENT_SD, TAU_SD, SIGMA_SD = np.float64(2.0), np.float64(1.0), np.float64(2.0)
FROZEN = {
    ("linear", 50): Reference(-386.963262, 1e-06),
    ("linear", 200): Reference(-1566.690798, 1e-05),
    ("poisson", 80): Reference(-675.711047, 1e-06),
}


def simulate(family: Family, n_groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Simulate covariates and outcomes (J, 5)."""
    rng = as_generator(1)
    x = rng.standard_normal((n_groups, ROWS))
    if family == "linear":
        return x, 0.5 + 0.3 * x + rng.normal(0.0, 0.7, (n_groups, 1)) + rng.standard_normal(x.shape)
    return x, rng.poisson(np.exp(0.3 + 0.4 * x + rng.normal(0.0, 0.6, (n_groups, 1))))


# --- references ----------------------------------------------------------------------------------


def poisson_given_population(theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the log density (n,) of counts (J, R) for mu, slope and tau (n, 3), with intercepts integrated out."""
    z = np.linspace(-7.0, 7.0, 141)
    log_prior = -0.5 * (np.square(z) + LOG_2PI) + math.log(z[1] - z[0])
    per_group = y.sum(axis=1)
    with_slope = (x * y).sum()
    values = np.empty(len(theta))
    for i, (mu, slope, tau) in enumerate(theta):
        eta = mu + tau * z
        with np.errstate(over="ignore"):
            level = np.exp(slope * x).sum(axis=1)
            logs = per_group[:, None] * eta - level[:, None] * np.exp(eta) + log_prior
        values[i] = logsumexp(logs, axis=1).sum() + slope * with_slope
    return values - gammaln(y + 1.0).sum()


def population(z: np.ndarray) -> np.ndarray:
    """Return coefficients and tau (n, 3) from normal scores."""
    return np.column_stack([COEFFICIENT_SD * z[:, :2], half_normal(z[:, 2], TAU_SD)])


def reference(family: Family, n_groups: int) -> Reference:
    """Return log Z, computed again."""
    x, y = simulate(family, n_groups)
    if family == "linear":
        design = np.column_stack([np.ones(x.size), x.ravel()])
        index = np.repeat(np.arange(n_groups), ROWS)
        data = GroupedData(design, y.ravel(), {"group": index}, {"group": n_groups}, {}, {})
        scales = float(SIGMA_SD), float(TAU_SD)
        rule, finer = (
            gaussian_reference(data, sd_scales=scales, step=step)[1] for step in (0.25, 0.125)
        )
        return Reference(finer, abs(finer - rule))
    scores = NormalScores(3, population, lambda theta: poisson_given_population(theta, x, y))
    return grid_evidence(scores, step=0.5, reach=7.0, particles=128)


# --- problems ------------------------------------------------------------------------------------


def mixed_model(family: Family, n_groups: int) -> EvidenceProblem:
    """Build the problem of one of the models, with n_groups + 4 (linear) or + 3 dimensions.

    Parameters
    ----------
    family : {"linear", "poisson"}
    n_groups : int
        Number of groups; there are stored references of 50, 200 and 80.
    """
    x, y = simulate(family, n_groups)
    group, linear = np.repeat(np.arange(n_groups), ROWS), family == "linear"
    outcomes, first = y.ravel(), 4 if linear else 3
    constant = gammaln(y + 1.0).sum()

    def variables() -> None:
        mu = pm.Normal("mu", 0.0, COEFFICIENT_SD)
        slope = pm.Normal("slope", 0.0, COEFFICIENT_SD)
        tau = pm.HalfNormal("tau", TAU_SD)
        sigma = pm.HalfNormal("sigma", SIGMA_SD) if linear else None
        z = pm.Normal("z", 0.0, 1.0, shape=n_groups)
        eta = mu + slope * x.ravel() + tau * z[group]
        if linear:
            pm.Normal("y", eta, sigma, observed=outcomes)
        else:
            pm.Poisson("y", pt.exp(eta), observed=outcomes)

    def parameters(z: np.ndarray) -> np.ndarray:
        return np.column_stack([population(z), half_normal(z[:, 3:first], SIGMA_SD), z[:, first:]])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        eta = theta[:, :1] + theta[:, 1:2] * x.ravel() + theta[:, 2:3] * theta[:, first:][:, group]
        if linear:
            squares = np.square((outcomes - eta) / theta[:, 3:4]).sum(axis=1)
            return -0.5 * (squares + y.size * LOG_2PI) - y.size * np.log(theta[:, 3])
        with np.errstate(over="ignore"):
            return eta @ outcomes - np.exp(eta).sum(axis=1) - constant

    scores = NormalScores(n_groups + first, parameters, log_likelihood)
    source = "intercepts by quadrature each, the others by three-dimensional quadrature"
    if linear:
        source = "closed form given the scales, two-dimensional quadrature"
    found = FROZEN[family, n_groups]
    return scored_problem(f"mixed_{family}_{n_groups}", variables, scores, found, source)
