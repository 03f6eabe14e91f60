r"""Weeks of remission of leukaemia with and without a drug: a Weibull model with censored rows.

.. math:: k \sim \text{Gamma}(2, 1), \quad b_0 \sim N(3, 1), \quad b_1 \sim N(0, 1), \qquad
          T_i \sim \text{Weibull}(k, e^{b_0 + b_1 x_i}) .

Three dimensions. Data of Freireich et al. (1963), Blood 21, 699-716, as printed by Gehan (1965).
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from models.evidence_problem import EvidenceProblem
from models.normal_scores import NormalScores, gamma, grid_evidence, scored_problem
from models.student_importance import Reference

WEEKS = np.array([
    6, 6, 6, 6, 7, 9, 10, 10, 11, 13, 16, 17, 19, 20, 22, 23, 25, 32, 32, 34, 35,
    1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23,
], dtype=float)  # fmt: skip
RELAPSED = np.array([1, 1, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0] + [1] * 21)
DRUG = np.repeat([1.0, 0.0], 21)
SHAPE, LEVEL = (np.float64(2.0), np.float64(1.0)), np.float64(3.0)
FROZEN = Reference(-112.622330, 1e-06)


def remission_scores() -> NormalScores:
    """Return prior and likelihood of the shape, the level and the effect of the drug."""

    def parameters(z: np.ndarray) -> np.ndarray:
        return np.column_stack([gamma(z[:, 0], *SHAPE), LEVEL + z[:, 1], z[:, 2]])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        k, log_scale = theta[:, :1], theta[:, 1:2] + theta[:, 2:] * DRUG
        log_ratio = np.log(WEEKS) - log_scale
        with np.errstate(over="ignore"):
            terms = RELAPSED * (np.log(k) - log_scale + (k - 1.0) * log_ratio)
            return (terms - np.exp(k * log_ratio)).sum(axis=1)

    return NormalScores(3, parameters, log_likelihood)


def reference(**options: int) -> Reference:
    """Return log Z, computed again."""
    return grid_evidence(remission_scores(), **options)


def leukaemia() -> EvidenceProblem:
    """Build the problem with times as ``pm.Censored``; in censored rows, no relapse was observed."""
    ends = np.where(RELAPSED > 0, np.inf, WEEKS)

    def variables() -> None:
        k = pm.Gamma("k", *SHAPE)
        level = pm.Normal("level", LEVEL, 1.0)
        drug = pm.Normal("drug", 0.0, 1.0)
        times = pm.Weibull.dist(alpha=k, beta=pt.exp(level + drug * DRUG))
        pm.Censored("weeks", times, lower=None, upper=ends, observed=WEEKS)

    source = "three-dimensional quadrature"
    return scored_problem("leukaemia", variables, remission_scores(), FROZEN, source)
