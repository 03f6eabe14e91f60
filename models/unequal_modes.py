r"""Two separated normal modes of unequal width in a box, each with half of the mass.

.. math:: x \sim U[-10, 10]^d, \qquad
          L(x) = \tfrac12 N(x; -c, s_1^2 I) + \tfrac12 N(x; c, s_2^2 I), \qquad c = (4, \dots, 4) .

The mass outside the box is negligible, so Z is :math:`20^{-d}`. Starting points drawn from the
prior that lead to the narrow mode are rarer than those of the wide one by the factor (s_2 / s_1)^d.
"""

from __future__ import annotations

import math

from collections.abc import Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.special import log_ndtr, logsumexp

from models.evidence_problem import EvidenceProblem

BOX = np.float64(10.0)
LOG_2PI = math.log(2.0 * math.pi)


def log_evidence(d: int, centre: float, sds: Sequence[float]) -> float:
    """Return log Z in closed form, corrected for the mass outside the box."""
    inside = []
    for sd in sds:
        beyond = np.exp(log_ndtr(-(BOX - centre) / sd)) + np.exp(log_ndtr(-(BOX + centre) / sd))
        inside.append(d * math.log1p(-beyond))
    return float(logsumexp(inside)) - math.log(len(sds)) - d * math.log(2.0 * BOX)


def log_evidence_by_quadrature(d: int, centre: float, sds: Sequence[float]) -> float:
    """Return log Z by the midpoint rule over a coordinate of each mode."""
    x = BOX * ((2.0 * np.arange(400_000) + 1.0) / 400_000 - 1.0)
    parts = []
    for sign, sd in zip((-1.0, 1.0), sds, strict=True):
        logs = -0.5 * ((x - sign * centre) / sd) ** 2 - math.log(sd) - 0.5 * LOG_2PI
        parts.append(d * (logsumexp(logs) + math.log(x[1] - x[0]) - math.log(2.0 * BOX)))
    return float(logsumexp(parts)) - math.log(2.0)


def unequal_modes(
    d: int = 5, *, centre: float = 4.0, sds: tuple[float, float] = (1.0, 0.2)
) -> EvidenceProblem:
    """Build the problem: a uniform prior, and the likelihood as a potential.

    Parameters
    ----------
    d : int
        Number of coordinates.
    centre : float
        Absolute value of every coordinate of the modes; within the box.
    sds : tuple of two floats
        Standard deviations of the modes.
    """
    centre, wide, narrow = np.float64(centre), np.float64(sds[0]), np.float64(sds[1])
    constants = [-d * (math.log(s) + 0.5 * LOG_2PI) - math.log(2.0) for s in (wide, narrow)]

    def variables() -> None:
        x = pm.Uniform("x", -BOX, BOX, shape=d)
        first = constants[0] - 0.5 * pt.sqr((x + centre) / wide).sum()
        second = constants[1] - 0.5 * pt.sqr((x - centre) / narrow).sum()
        pm.Potential("modes", pt.logaddexp(first, second))

    def log_likelihood(x: np.ndarray) -> float:
        first = constants[0] - 0.5 * np.square((x + centre) / wide).sum()
        second = constants[1] - 0.5 * np.square((x - centre) / narrow).sum()
        return float(np.logaddexp(first, second))

    return EvidenceProblem(
        name=f"unequal_modes_{d}", variables=variables,
        log_evidence=log_evidence(d, centre, (wide, narrow)), n_dim=d, easy=False,
        prior_transform=lambda u: BOX * (2.0 * u - 1.0), log_likelihood=log_likelihood,
    )  # fmt: skip
