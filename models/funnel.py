r"""Funnel with data: group effects whose log variance is nearly unknown.

.. math:: v \sim N(0, s^2), \quad x_i \sim N(0, e^v), \quad y_i \sim N(x_i, \sigma^2), \qquad
          Z = \int N(v; 0, s^2) \prod_i N(y_i; 0, e^v + \sigma^2)\, dv .

The prior is the funnel of Neal (2003), *Slice sampling*, Annals of Statistics 31, 705-767
(doi:10.1214/aos/1056562461); the data y = 0 do not exclude its neck.
"""

from __future__ import annotations

import math

from collections.abc import Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.special import logsumexp, ndtri

from models.evidence_problem import EvidenceProblem

LOG_2PI = math.log(2.0 * math.pi)


def log_integrand(v: np.ndarray, y: np.ndarray, scale: float, sigma: float) -> np.ndarray:
    """Return the log density of v times the evidence given v."""
    v = np.asarray(v, dtype=float)
    log_variance = np.logaddexp(v, 2.0 * math.log(sigma))
    given = -0.5 * (y.size * (LOG_2PI + log_variance) + (y @ y) * np.exp(-log_variance))
    return given - 0.5 * (v / scale) ** 2 - math.log(scale) - 0.5 * LOG_2PI


def log_evidence(y: np.ndarray, scale: float, sigma: float) -> float:
    """Return log Z by the trapezoidal rule over v.

    On the whole line the rule converges faster than any power of the step, here up to rounding.
    """
    v = np.linspace(-14.0 * scale, 14.0 * scale, 20_001)
    return float(logsumexp(log_integrand(v, y, scale, sigma)) + math.log(v[1] - v[0]))


def funnel(
    n_groups: int = 9, *, y: Sequence[float] | None = None, name: str = "funnel"
) -> EvidenceProblem:
    """Build the problem in the centred parameterisation, which is the difficult one.

    Parameters
    ----------
    n_groups : int
    y : sequence of float or None
        One observation per group; zeros by default.
    name : str
        Name of the problem.
    """
    scale, sigma = np.array([3.0, 1.0])  # of v and of observations
    data = np.zeros(n_groups) if y is None else np.asarray(y, dtype=float)
    constant = -n_groups * (0.5 * LOG_2PI + math.log(sigma))

    def variables() -> None:
        v = pm.Normal("v", 0.0, scale)
        x = pm.Normal("x", 0.0, pt.exp(v / 2.0), shape=n_groups)
        pm.Normal("y", x, sigma, observed=data)

    def prior_transform(u: np.ndarray) -> np.ndarray:
        v = scale * ndtri(u[0])
        return np.append(v, np.exp(0.5 * v) * ndtri(u[1:]))

    def log_likelihood(parameters: np.ndarray) -> float:
        residuals = (data - parameters[1:]) / sigma
        return float(constant - 0.5 * residuals @ residuals)

    return EvidenceProblem(
        name=name, variables=variables, log_evidence=log_evidence(data, scale, sigma),
        source="one-dimensional quadrature", n_dim=n_groups + 1, easy=False,
        prior_transform=prior_transform, log_likelihood=log_likelihood,
    )  # fmt: skip
