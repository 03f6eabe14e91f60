r"""Eggbox function: equal peaks on a grid.

.. math:: x \sim U[0, 10\pi]^2, \qquad
          \log L(x) = \left(2 + \cos\tfrac{x_1}{2} \cos\tfrac{x_2}{2}\right)^5 .

Feroz & Hobson (2008), *Multimodal nested sampling*, MNRAS 384, 449-463
(doi:10.1111/j.1365-2966.2007.12353.x). With u = x / 2 the box is five half periods wide in each
direction, and adding half a period to one coordinate only changes the sign of the product, which
a reflection of the other coordinate reverses: Z is the average of L over one cell :math:`u \in [0, \pi]^2`.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.special import logsumexp

from models.evidence_problem import EvidenceProblem


def log_evidence(power: float = 5.0, *, points: int = 2000) -> float:
    """Return log Z by the midpoint rule on one cell, which has spectral accuracy for a periodic function."""
    cosines = np.cos(np.pi * (np.arange(points) + 0.5) / points)
    return float(logsumexp((2.0 + np.outer(cosines, cosines)) ** power) - 2.0 * math.log(points))


def eggbox(cells: int = 5, *, power: float = 5.0) -> EvidenceProblem:
    """Build the problem: a uniform prior, and the likelihood as a potential.

    Parameters
    ----------
    cells : int
        Half periods of the cosine along each side, which do not affect the evidence.
    power : float
        Exponent, 5 in the formula above.
    """
    side = 2.0 * math.pi * cells

    def variables() -> None:
        x = pm.Uniform("x", 0.0, side, shape=2)
        pm.Potential("likelihood", (2.0 + pt.cos(x[0] / 2.0) * pt.cos(x[1] / 2.0)) ** power)

    def log_likelihood(x: np.ndarray) -> float:
        return float((2.0 + math.cos(0.5 * x[0]) * math.cos(0.5 * x[1])) ** power)

    return EvidenceProblem(
        name="eggbox", variables=variables, log_evidence=log_evidence(power),
        source="two-dimensional quadrature", n_dim=2, easy=False,
        prior_transform=lambda u: side * u, log_likelihood=log_likelihood,
    )  # fmt: skip
