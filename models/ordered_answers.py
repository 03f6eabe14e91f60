r"""Ordered logistic model of answers on a scale from 0 to 4 with two covariates.

.. math:: b \sim N(0, I), \quad c_1 \sim N(-1.5, 1), \quad d_k \sim \text{Exp}(1), \quad
          c_{k+1} = c_k + d_k, \quad P(y_i \le k) = \text{expit}(c_{k+1} - x_i^\top b) .

The distances between cut points are the variables, so their prior is normalised. A prior of ordered cut
points with only a transform, as in many models, integrates to 1 / 4!. Sixty simulated answers.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.special import expit

from amc_pymc.rng import as_generator
from models.evidence_problem import EvidenceProblem
from models.normal_scores import NormalScores, exponential, sampled_evidence, scored_problem
from models.student_importance import Reference

FIRST = np.float64(-1.5)
FROZEN = Reference(-97.665756, 0.00022)


def simulate(n: int = 60, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Simulate covariates (n, 2) and answers (n,)."""
    rng = as_generator(seed)
    X = rng.standard_normal((n, 2))
    latent = X @ [1.0, -0.5] + rng.logistic(size=n)
    return X, np.searchsorted([-1.5, -0.5, 0.5, 2.0], latent)


def answer_scores() -> NormalScores:
    """Return prior and likelihood of two coefficients, the first cut point and three distances."""
    X, y = simulate()

    def parameters(z: np.ndarray) -> np.ndarray:
        return np.column_stack([z[:, :2], FIRST + z[:, 2], exponential(z[:, 3:], 1.0)])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        cuts = np.cumsum(theta[:, 2:], axis=1)
        below = expit(cuts[:, None] - (theta[:, :2] @ X.T)[:, :, None])
        ends = np.concatenate(
            [np.zeros_like(below[..., :1]), below, np.ones_like(below[..., :1])], 2
        )
        chance = np.take_along_axis(np.diff(ends, axis=2), y[None, :, None], axis=2)[..., 0]
        with np.errstate(divide="ignore"):
            return np.log(chance).sum(axis=1)

    return NormalScores(6, parameters, log_likelihood)


def reference(**options: int) -> Reference:
    """Return log Z, computed again."""
    return sampled_evidence(answer_scores(), **options)


def ordered_answers() -> EvidenceProblem:
    """Build the problem with answers as ``pm.OrderedLogistic``, in six dimensions."""
    X, y = simulate()

    def variables() -> None:
        b = pm.Normal("b", 0.0, 1.0, shape=2)
        first = pm.Normal("first", FIRST, 1.0)
        apart = pm.Exponential("apart", 1.0, shape=3)
        cuts = pt.concatenate([first[None], first + pt.cumsum(apart)])
        pm.OrderedLogistic("y", eta=X @ b, cutpoints=cuts, observed=y)

    source = "quasi-random importance sampling"
    return scored_problem("ordered_answers", variables, answer_scores(), FROZEN, source)
