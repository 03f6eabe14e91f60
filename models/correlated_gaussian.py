r"""Correlated normal likelihood in a wide box: one mode, whose evidence depends on its volume alone.

.. math:: x \sim U[-W, W]^d, \quad y \sim N(x, C), \quad
          C_{ij} = \rho + (1 - \rho)\,1\{i = j\}, \qquad Z = (2W)^{-d}

apart from the mass outside the box, which is below rounding error: every y is at least eight standard deviations
from its faces. Nested samplers are often tested with y = 0; here y is not centred, so symmetry does
not help.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm

from models.evidence_problem import EvidenceProblem


def covariance(d: int, rho: float) -> np.ndarray:
    """Return C (d, d)."""
    return np.where(np.eye(d, dtype=bool), 1.0, rho)


def measurements(d: int) -> np.ndarray:
    """Return the measurements y (d,), from -2 to 1."""
    return np.linspace(-2.0, 1.0, d)


def log_evidence(d: int, box: float) -> float:
    """Return log Z in closed form."""
    return -d * math.log(2.0 * box)


def correlated_gaussian(d: int = 10, *, rho: float = 0.95, box: float = 10.0) -> EvidenceProblem:
    """Build the problem of a uniform prior and one multivariate normal measurement.

    Parameters
    ----------
    d : int
        Number of coordinates.
    rho : float
        Correlation of any two coordinates, at least 0 and below 1.
    box : float
        Half width W of the box, at least 10.
    """
    box = np.float64(box)
    y, C = measurements(d), covariance(d, rho)
    precision = np.linalg.inv(C)
    constant = -0.5 * (d * math.log(2.0 * math.pi) + np.linalg.slogdet(C)[1])

    def variables() -> None:
        x = pm.Uniform("x", -box, box, shape=d)
        pm.MvNormal("y", x, cov=C, observed=y)

    def log_likelihood(x: np.ndarray) -> float:
        residuals = y - x
        return float(constant - 0.5 * residuals @ precision @ residuals)

    return EvidenceProblem(
        name=f"correlated_gaussian_{d}", variables=variables, log_evidence=log_evidence(d, box),
        n_dim=d, easy=True, prior_transform=lambda u: box * (2.0 * u - 1.0),
        log_likelihood=log_likelihood,
    )  # fmt: skip
