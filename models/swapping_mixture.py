r"""Two normal components with exchangeable labels.

.. math:: w \sim \text{Beta}(2, 2), \quad \mu_1, \mu_2 \sim N(0, 3^2), \qquad
          y_i \sim w N(\mu_1, 1) + (1 - w) N(\mu_2, 1) .

Sixty simulated numbers; both labellings of the components have half of the posterior. Three dimensions
are few enough for quadrature, of which symmetry saves half.
"""

from __future__ import annotations

import numpy as np
import pymc as pm

from amc_pymc.rng import as_generator
from models.evidence_problem import EvidenceProblem
from models.normal_scores import LOG_2PI, NormalScores, beta, scored_problem, whitened_grid
from models.student_importance import Reference

SHARE, MEAN_SD = np.float64(2.0), np.float64(3.0)
FROZEN = Reference(-115.788508, 0.00086)


def simulate(n: int = 60, seed: int = 1) -> np.ndarray:
    """Simulate numbers (n,) of components at -1.5 and 1.5."""
    rng = as_generator(seed)
    return np.where(rng.random(n) < 0.4, -1.5, 1.5) + rng.standard_normal(n)


def swapping_scores() -> NormalScores:
    """Return prior and likelihood of w, mu_1 and mu_2."""
    y = simulate()

    def parameters(z: np.ndarray) -> np.ndarray:
        return np.column_stack([beta(z[:, 0], SHARE, SHARE), MEAN_SD * z[:, 1:]])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        parts = -0.5 * np.square(y[:, None, None] - theta[:, 1:])
        with np.errstate(divide="ignore"):
            first = np.log(theta[:, 0]) + parts[:, :, 0]
            second = np.log1p(-theta[:, 0]) + parts[:, :, 1]
        return np.logaddexp(first, second).sum(axis=0) - 0.5 * y.size * LOG_2PI

    return NormalScores(3, parameters, log_likelihood)


def reference(step: float = 0.05, reach: float = 6.0) -> Reference:
    """Return log Z by the trapezoidal rule over the part of the prior with non-negligible mass."""
    return whitened_grid(
        swapping_scores().log_joint, np.zeros(3), np.eye(3), step=step, reach=reach
    )


def swapping_mixture() -> EvidenceProblem:
    """Build the problem of the mixture as ``pm.NormalMixture``, without an order of its components."""
    y = simulate()

    def variables() -> None:
        w = pm.Beta("w", SHARE, SHARE)
        mu = pm.Normal("mu", 0.0, MEAN_SD, shape=2)
        shares = pm.math.stack([w, 1.0 - w])
        pm.NormalMixture("y", w=shares, mu=mu, sigma=np.ones(2), observed=y)

    source = "three-dimensional quadrature"
    return scored_problem(
        "swapping_mixture", variables, swapping_scores(), FROZEN, source, easy=False
    )
