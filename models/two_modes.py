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


def two_modes(d: int = 10) -> EvidenceProblem:
    """Build the problem: a normal prior and two normal modes, as a custom distribution of the measurement.

    Parameters
    ----------
    d : int
        Number of coordinates.
    """
    share, distance, sigma, scale = np.array([0.3, 2.0, 0.5, 3.0])
    variance = scale**2 + sigma**2
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
        log_evidence=-0.5 * d * (math.log(2.0 * math.pi * variance) + distance**2 / variance),
        n_dim=d, easy=False,
        prior_transform=lambda u: scale * ndtri(u), log_likelihood=log_likelihood,
    )  # fmt: skip
