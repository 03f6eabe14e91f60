r"""Two Gaussian shells in a box: curved, bimodal, and relatively thinner in more dimensions.

.. math:: x \sim U[-6, 6]^d, \qquad
          L(x) = \sum_{c \in \{-a, a\}} \frac{1}{\sqrt{2\pi}\,w}
          \exp\left(-\frac{(\|x - c\| - r)^2}{2 w^2}\right), \qquad a = (3.5, 0, \ldots, 0)

with r = 2 and w = 0.1. Feroz, Hobson & Bridges (2009), *MultiNest*, MNRAS 398, 1601-1614
(doi:10.1111/j.1365-2966.2009.14548.x). The two shells have the same integral, which is over the
radius. From a sphere of radius s about a centre, the face of the box at distance h = 2.5 cuts off the
share :math:`\tfrac12 I_{1 - h^2/s^2}(\tfrac{d-1}{2}, \tfrac12)`.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.integrate import quad
from scipy.special import betainc, gammaln

from models.evidence_problem import EvidenceProblem

LOG_2PI = math.log(2.0 * math.pi)


def log_sphere(d: int) -> float:
    """Return the log surface of the unit sphere in d dimensions (two points for d = 1)."""
    return float(math.log(2.0) + 0.5 * d * math.log(math.pi) - gammaln(0.5 * d))


def log_evidence(d: int, radius: float, width: float, distance: float, box: float) -> float:
    """Return log Z by adaptive quadrature over the radius."""
    gap = box - distance

    def inside(s: float) -> float:
        if s <= gap:
            return 1.0
        return 1.0 - 0.5 * float(betainc(0.5 * (d - 1), 0.5, 1.0 - (gap / s) ** 2))

    def log_density(s: float) -> float:
        return (d - 1) * math.log(s) - 0.5 * ((s - radius) / width) ** 2

    # Radius at which the derivative of log_density vanishes.
    mode = 0.5 * (radius + math.sqrt(radius**2 + 4.0 * (d - 1) * width**2))
    top = log_density(mode)
    low, high = max(mode - 12.0 * width, 1e-9 * radius), mode + 12.0 * width
    area = quad(
        lambda s: math.exp(log_density(s) - top) * inside(s),
        low, high, points=sorted({mode, min(max(gap, low), high)}),
        epsabs=0.0, epsrel=1e-12, limit=500,
    )[0]  # fmt: skip
    shell = math.log(area) + top + log_sphere(d) - 0.5 * LOG_2PI - math.log(width)
    return math.log(2.0) + shell - d * math.log(2.0 * box)


def shells(
    d: int = 10, *, radius: float = 2.0, width: float = 0.1, distance: float = 3.5, box: float = 6.0
) -> EvidenceProblem:
    """Build the problem: a uniform prior, and the likelihood as a potential.

    Parameters
    ----------
    d : int
        Number of coordinates, at least two.
    radius, width : float
        Radius r and width w of both shells.
    distance : float
        Distance of each shell's centre from the origin, along the first axis.
    box : float
        Half width of the box, which must contain the shells.
    """
    radius, width, box = np.float64(radius), np.float64(width), np.float64(box)
    centre = np.zeros(d)
    centre[0] = distance
    constant = -0.5 * LOG_2PI - math.log(width)

    def variables() -> None:
        x = pm.Uniform("x", -box, box, shape=d)
        norms = [pt.sqrt(pt.sum((x - c) ** 2)) for c in (-centre, centre)]
        logs = [pm.logp(pm.Normal.dist(radius, width), norm) for norm in norms]
        pm.Potential("likelihood", pt.logaddexp(*logs))

    def log_likelihood(x: np.ndarray) -> float:
        norms = np.sqrt([np.square(x + centre).sum(), np.square(x - centre).sum()])
        return float(constant + np.logaddexp(*(-0.5 * ((norms - radius) / width) ** 2)))

    return EvidenceProblem(
        name=f"shells_{d}", variables=variables,
        log_evidence=log_evidence(d, radius, width, distance, box),
        source="quadrature over the radius", n_dim=d, easy=False,
        prior_transform=lambda u: box * (2.0 * u - 1.0), log_likelihood=log_likelihood,
    )  # fmt: skip
