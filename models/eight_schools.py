r"""Eight schools: effects of coaching with known standard errors, centred or not.

.. math:: \mu \sim N(0, 5^2), \quad \tau \sim C^+(0, 5), \quad \theta_j \sim N(\mu, \tau^2), \quad
          y_j \sim N(\theta_j, s_j^2) .

Given tau everything is normal. Data from Rubin (1981), *Estimation in parallel randomized experiments*, Journal of
Educational Statistics 6, 377-401. The centred posterior has a funnel-shaped neck at small tau.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm

from scipy.special import logsumexp

from models.evidence_problem import EvidenceProblem
from models.normal_scores import LOG_2PI, NormalScores, half_cauchy, scored_problem
from models.student_importance import Reference

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
SCALE = np.float64(5.0)


def log_evidence(n: int = 20_001) -> float:
    """Return log Z by the trapezoidal rule over log tau."""
    u = np.linspace(-25.0, 25.0, n)
    tau = np.exp(u)
    variance = np.square(tau)[:, None] + np.square(ERRORS)
    precision = (1.0 / variance).sum(axis=1) + SCALE**-2.0
    shift = (EFFECTS / variance).sum(axis=1)
    squares = (np.square(EFFECTS) / variance).sum(axis=1) - np.square(shift) / precision
    log_det = np.log(variance).sum(axis=1) + np.log(precision) + 2.0 * math.log(SCALE)
    logs = -0.5 * (squares + log_det + EFFECTS.size * LOG_2PI)
    logs += math.log(2.0 / math.pi / SCALE) - np.log1p(np.square(tau / SCALE)) + u
    return float(logsumexp(logs)) + math.log(u[1] - u[0])


def school_scores(centred: bool) -> NormalScores:
    """Return prior and likelihood of mu, tau, and effects or their standardised form."""

    def parameters(z: np.ndarray) -> np.ndarray:
        mu, tau = SCALE * z[:, :1], half_cauchy(z[:, 1:2], SCALE)
        return np.column_stack([mu, tau, mu + tau * z[:, 2:] if centred else z[:, 2:]])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        effects = theta[:, 2:] if centred else theta[:, :1] + theta[:, 1:2] * theta[:, 2:]
        squares = np.square((EFFECTS - effects) / ERRORS).sum(axis=1)
        return -0.5 * (squares + EFFECTS.size * LOG_2PI) - np.log(ERRORS).sum()

    return NormalScores(2 + EFFECTS.size, parameters, log_likelihood)


def eight_schools(centred: bool = False) -> EvidenceProblem:
    """Build the problem in ten dimensions.

    Parameters
    ----------
    centred : bool
        Whether the variables are the effects themselves or standardised effects.
    """

    def variables() -> None:
        mu = pm.Normal("mu", 0.0, SCALE)
        tau = pm.HalfCauchy("tau", SCALE)
        if centred:
            theta = pm.Normal("theta", mu, tau, shape=EFFECTS.size)
        else:
            theta = mu + tau * pm.Normal("theta_tilde", 0.0, 1.0, shape=EFFECTS.size)
        pm.Normal("y", theta, ERRORS, observed=EFFECTS)

    name = "eight_schools_centred" if centred else "eight_schools"
    source = "closed form given tau, one-dimensional quadrature"
    found = Reference(log_evidence(), 0.0)
    return scored_problem(name, variables, school_scores(centred), found, source, easy=not centred)
