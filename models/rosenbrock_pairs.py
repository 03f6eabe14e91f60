r"""Pairs of coordinates, each along a narrow curved valley (Rosenbrock's function).

.. math:: x_i, y_i \sim U[-5, 5] \times U[-5, 25], \qquad
          \log L = -\sum_i \left[ \tfrac{1}{2} (1 - x_i)^2 / \sigma^2 + 10 (y_i - x_i^2)^2 \right] .

The evidence is a product over pairs; that of one is an integral over x of a difference of normal probabilities.
With five pairs, a mixture of a few normal distributions cannot cover all arms.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.integrate import quad
from scipy.special import ndtr

from models.evidence_problem import EvidenceProblem

ALONG = np.float64(5.0)
LOW, HIGH = np.float64(-5.0), np.float64(25.0)
SPREAD = np.float64(1.5)
STEEPNESS = np.float64(10.0)


def log_pair(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the log likelihood of pairs."""
    return -0.5 * np.square((1.0 - x) / SPREAD) - STEEPNESS * np.square(y - np.square(x))


def log_evidence(n_pairs: int) -> float:
    """Return log Z by quadrature over x; the integral over y gives normal probabilities."""
    root = math.sqrt(2.0 * STEEPNESS)

    def along(x: float) -> float:
        inside = ndtr(root * (HIGH - x * x)) - ndtr(root * (LOW - x * x))
        return math.exp(-0.5 * ((1.0 - x) / SPREAD) ** 2) * inside

    area = quad(along, -ALONG, ALONG, epsabs=0.0, epsrel=1e-12, limit=500)[0]
    area *= math.sqrt(math.pi / STEEPNESS) / (2.0 * ALONG * (HIGH - LOW))
    return n_pairs * math.log(area)


def rosenbrock_pairs(n_pairs: int = 5) -> EvidenceProblem:
    """Build the problem with first coordinates ``x``, second coordinates ``y``, and the likelihood as a potential.

    Parameters
    ----------
    n_pairs : int
    """

    def variables() -> None:
        x = pm.Uniform("x", -ALONG, ALONG, shape=n_pairs)
        y = pm.Uniform("y", LOW, HIGH, shape=n_pairs)
        across = STEEPNESS * pt.sqr(y - pt.sqr(x)).sum()
        pm.Potential("valleys", -0.5 * pt.sqr((1.0 - x) / SPREAD).sum() - across)

    def prior_transform(u: np.ndarray) -> np.ndarray:
        x, y = u[:n_pairs], u[n_pairs:]
        return np.concatenate([ALONG * (2.0 * x - 1.0), LOW + (HIGH - LOW) * y])

    def log_likelihood(parameters: np.ndarray) -> float:
        return float(log_pair(parameters[:n_pairs], parameters[n_pairs:]).sum())

    return EvidenceProblem(
        name=f"rosenbrock_pairs_{n_pairs}", variables=variables, log_evidence=log_evidence(n_pairs),
        source="one-dimensional quadrature", n_dim=2 * n_pairs, easy=False,
        prior_transform=prior_transform, log_likelihood=log_likelihood,
    )  # fmt: skip
