r"""Velocity of a reaction against the concentration of its substrate: the Michaelis-Menten curve.

.. math:: V \sim N^+(0, 300^2), \quad K \sim N^+(0, 0.5^2), \quad \sigma \sim N^+(0, 30^2), \qquad
          v_i \sim N\left(\frac{V c_i}{K + c_i}, \sigma^2\right) .

Twelve runs with an enzyme treated with puromycin, three dimensions. Data of Treloar (1974), in Bates &
Watts (1988), *Nonlinear Regression Analysis and Its Applications*, Wiley.
"""

from __future__ import annotations

import numpy as np
import pymc as pm

from models.evidence_problem import EvidenceProblem
from models.normal_scores import LOG_2PI, NormalScores, grid_evidence, half_normal, scored_problem
from models.student_importance import Reference

CONCENTRATION = np.repeat([0.02, 0.06, 0.11, 0.22, 0.56, 1.10], 2)
VELOCITY = np.array(
    [76.0, 47.0, 97.0, 107.0, 123.0, 139.0, 159.0, 152.0, 191.0, 201.0, 207.0, 200.0]
)
FASTEST, HALFWAY, NOISE = np.float64(300.0), np.float64(0.5), np.float64(30.0)
FROZEN = Reference(-53.658330, 1.4e-06)


def reaction_scores() -> NormalScores:
    """Return prior and likelihood of V, K and sigma."""

    def parameters(z: np.ndarray) -> np.ndarray:
        return half_normal(z, 1.0) * [FASTEST, HALFWAY, NOISE]

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        mean = theta[:, :1] * CONCENTRATION / (theta[:, 1:2] + CONCENTRATION)
        squares = np.square((VELOCITY - mean) / theta[:, 2:]).sum(axis=1)
        n = VELOCITY.size
        return -0.5 * (squares + n * LOG_2PI) - n * np.log(theta[:, 2])

    return NormalScores(3, parameters, log_likelihood)


def reference(**options: int) -> Reference:
    """Return log Z, computed again."""
    return grid_evidence(reaction_scores(), **options)


def puromycin() -> EvidenceProblem:
    """Build the problem of the curve with normal errors."""

    def variables() -> None:
        fastest = pm.HalfNormal("V", FASTEST)
        halfway = pm.HalfNormal("K", HALFWAY)
        sigma = pm.HalfNormal("sigma", NOISE)
        mean = fastest * CONCENTRATION / (halfway + CONCENTRATION)
        pm.Normal("velocity", mean, sigma, observed=VELOCITY)

    source = "three-dimensional quadrature"
    return scored_problem("puromycin", variables, reaction_scores(), FROZEN, source)
