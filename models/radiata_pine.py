r"""Radiata pine: two densities, unadjusted or adjusted for resin, as predictors of the strength of wood.

Two regressions of the compression strength y of 42 specimens, on the density x (model 1) or on the density
adjusted for resin z (model 2), each covariate centred:

.. math:: \tau \sim \text{Gamma}(3, 2 \cdot 300^2), \quad
          a \sim N(3000, (0.06\tau)^{-1}), \quad b \sim N(185, (6\tau)^{-1}), \quad
          y_i \sim N(a + b(x_i - \bar x), \tau^{-1}) .

The data are from E. J. Williams (1959), *Regression Analysis*, Wiley, New York; the priors from Friel &
Wyse (2012), *Estimating the evidence: a review*, Statistica Neerlandica 66, 288-308
(doi:10.1111/j.1467-9574.2011.00515.x), and from Carlin & Chib (1995) before them. Given tau everything is
normal, and integrating over tau gives a multivariate t density:

.. math:: Z = t_6\!\left(y; W m, \tfrac{b_0}{3} (I + W Q^{-1} W^\top)\right), \qquad
          W = (1, x - \bar x),\ m = (3000, 185),\ Q = \text{diag}(0.06, 6),\ b_0 = 2 \cdot 300^2 .
"""

from __future__ import annotations

import math

from typing import Literal

import numpy as np
import pymc as pm

from scipy.special import gammaincinv, gammaln, ndtri

from models.evidence_problem import EvidenceProblem

Number = Literal[1, 2]

STRENGTH = np.array([
    3040.0, 2470.0, 3610.0, 3480.0, 3810.0, 2330.0, 1800.0, 3110.0, 3670.0, 2310.0, 4360.0, 1880.0,
    3670.0, 1740.0, 2250.0, 2650.0, 4970.0, 2620.0, 2900.0, 1670.0, 2540.0, 3840.0, 3800.0, 4600.0,
    1900.0, 2530.0, 2920.0, 4990.0, 1670.0, 3310.0, 3450.0, 3600.0, 2850.0, 1590.0, 3770.0, 3850.0,
    2480.0, 3570.0, 2620.0, 1890.0, 3030.0, 3030.0,
])  # fmt: skip
DENSITY = np.array([
    29.2, 24.7, 32.3, 31.3, 31.5, 24.5, 19.9, 27.3, 32.3, 24.0, 33.8, 21.5, 32.2, 22.5, 27.5, 25.6,
    34.5, 26.2, 26.7, 21.1, 24.1, 30.7, 32.7, 32.6, 22.1, 25.3, 30.8, 38.9, 22.1, 29.2, 30.1, 31.4,
    26.7, 22.1, 30.3, 32.0, 23.2, 30.3, 29.9, 20.8, 33.2, 28.2,
])  # fmt: skip
ADJUSTED_DENSITY = np.array([
    25.4, 22.2, 32.2, 31.0, 30.9, 23.9, 19.2, 27.2, 29.0, 23.9, 33.2, 21.0, 29.0, 22.0, 23.8, 25.3,
    34.2, 25.7, 26.4, 20.0, 23.9, 30.7, 32.6, 32.5, 20.8, 23.1, 29.8, 38.1, 21.3, 28.5, 29.2, 31.4,
    25.9, 21.4, 29.8, 30.6, 22.6, 30.3, 23.8, 18.4, 29.4, 28.2,
])  # fmt: skip

MEAN = np.array([3000.0, 185.0])
PRECISION = np.array([0.06, 6.0])
SHAPE = np.float64(3.0)
RATE = np.float64(2.0 * 300.0**2)


def covariate(number: Number) -> np.ndarray:
    """Return the centred covariate (42,) of model 1 or 2."""
    x = DENSITY if number == 1 else ADJUSTED_DENSITY
    return x - x.mean()


def spread_terms(number: Number) -> tuple[float, float]:
    """Return the log determinant of S = I + W Q^-1 W', and r' S^-1 r with r = y - W m."""
    W = np.column_stack([np.ones(STRENGTH.size), covariate(number)])
    spread = np.eye(STRENGTH.size) + (W / PRECISION) @ W.T
    residuals = STRENGTH - W @ MEAN
    return float(np.linalg.slogdet(spread)[1]), float(
        residuals @ np.linalg.solve(spread, residuals)
    )


def log_evidence(number: Number) -> float:
    """Return log Z in closed form."""
    log_det, quadratic = spread_terms(number)
    n = STRENGTH.size
    constant = gammaln(SHAPE + 0.5 * n) - gammaln(SHAPE)
    constant -= 0.5 * (n * math.log(2.0 * math.pi * RATE) + log_det)
    return float(constant - (SHAPE + 0.5 * n) * math.log1p(0.5 * quadratic / RATE))


def radiata_pine(number: Number = 1) -> EvidenceProblem:
    """Build the problem of one of the two models.

    Parameters
    ----------
    number : {1, 2}
        The covariate is the density in model 1 and the resin-adjusted density in model 2.

    Examples
    --------
    >>> import math
    >>> first, second = radiata_pine(1), radiata_pine(2)
    >>> round(math.exp(second.log_evidence - first.log_evidence))
    4554
    """
    x = covariate(number)
    n = x.size

    def variables() -> None:
        tau = pm.Gamma("tau", alpha=SHAPE, beta=RATE)
        a = pm.Normal("a", MEAN[0], tau=PRECISION[0] * tau)
        b = pm.Normal("b", MEAN[1], tau=PRECISION[1] * tau)
        pm.Normal("strength", a + b * x, tau=tau, observed=STRENGTH)

    def prior_transform(u: np.ndarray) -> np.ndarray:
        tau = gammaincinv(SHAPE, u[0]) / RATE
        return np.append(tau, MEAN + ndtri(u[1:]) / np.sqrt(PRECISION * tau))

    def log_likelihood(parameters: np.ndarray) -> float:
        tau, a, b = parameters
        squares = np.square(STRENGTH - a - b * x).sum()
        return float(0.5 * (n * np.log(0.5 * tau / np.pi) - tau * squares))

    return EvidenceProblem(
        name=f"radiata_pine_{number}", variables=variables, log_evidence=log_evidence(number),
        source="closed form, a multivariate t density", n_dim=3, easy=True,
        prior_transform=prior_transform, log_likelihood=log_likelihood,
    )  # fmt: skip
