r"""Two distant modes of unequal weight: a measurement whose sign may be wrong.

.. math:: x \sim N(0, s^2 I), \qquad
          L(x) = \alpha N(y; -x, \sigma^2 I) + (1 - \alpha) N(y; x, \sigma^2 I), \qquad
          Z = N(y; 0, (s^2 + \sigma^2) I)

with y = (2, ..., 2): the posterior has a mode near y and a smaller one near -y, and by symmetry of
the prior both signs have the same evidence.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.special import ndtri

from models.evidence_problem import EvidenceProblem


def log_evidence(d: int, share: float, distance: float, sigma: float, scale: float) -> float:
    """Return log Z in closed form; `share` cancels."""
    variance = scale**2 + sigma**2
    return -0.5 * d * (math.log(2.0 * math.pi * variance) + distance**2 / variance)


def two_modes(
    d: int = 10, *, share: float = 0.3, distance: float = 2.0, sigma: float = 0.5,
    scale: float = 3.0,
) -> EvidenceProblem:  # fmt: skip
    """Build the problem: a normal prior and two normal modes, as a custom distribution of the measurement.

    Parameters
    ----------
    d : int
        Number of coordinates.
    share : float
        Posterior probability of the mode near -y.
    distance : float
        Distance from zero of every coordinate of a mode of the likelihood.
    sigma : float
        Standard deviation of the measurement.
    scale : float
        Prior standard deviation.
    """
    sigma, scale = np.float64(sigma), np.float64(scale)
    y = np.full(d, distance)
    log_shares = math.log(share), math.log1p(-share)
    constant = -0.5 * d * math.log(2.0 * math.pi * sigma**2)

    def log_either_sign(value, x):
        flipped = pm.logp(pm.Normal.dist(-x, sigma), value).sum(axis=-1)
        upright = pm.logp(pm.Normal.dist(x, sigma), value).sum(axis=-1)
        return pt.logaddexp(log_shares[0] + flipped, log_shares[1] + upright)

    def variables() -> None:
        x = pm.Normal("x", 0.0, scale, shape=d)
        pm.CustomDist("y", x, logp=log_either_sign, signature="(d)->(d)", observed=y)

    def log_likelihood(x: np.ndarray) -> float:
        flipped = constant - 0.5 * np.square((y + x) / sigma).sum()
        upright = constant - 0.5 * np.square((y - x) / sigma).sum()
        return float(np.logaddexp(log_shares[0] + flipped, log_shares[1] + upright))

    return EvidenceProblem(
        name=f"two_modes_{d}", variables=variables,
        log_evidence=log_evidence(d, share, distance, sigma, scale), n_dim=d, easy=False,
        prior_transform=lambda u: scale * ndtri(u), log_likelihood=log_likelihood,
    )  # fmt: skip
