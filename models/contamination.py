r"""Good and bad measurements with one label each: a mixture whose labels are not summed out.

.. math:: z_i \sim \text{Bernoulli}(\pi), \quad m \sim N(0, s^2), \quad
          y_i \sim N(m, \sigma_{z_i}^2), \qquad
          Z = \sum_z \pi^{|z|} (1 - \pi)^{n - |z|}\, N(y; 0, \text{diag}(\sigma_z^2) + s^2 1 1^\top) .

Eight labels have 256 states. Given the labels, m integrates in closed form; given m, the labels are
independent, so a one-dimensional integral confirms the result. The model with outliers is from
Box & Tiao (1968), *A Bayesian approach to some outlier problems*, Biometrika 55, 119-129
(doi:10.1093/biomet/55.1.119).
"""

from __future__ import annotations

import math

from collections.abc import Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from models.evidence_problem import EvidenceProblem

MEASUREMENTS = (0.6, 1.3, 0.9, 7.2, 1.1, -3.8, 1.7, 0.2)


def log_evidence(y: np.ndarray, share: float, sigmas: tuple[float, float], scale: float) -> float:
    """Return log Z by enumeration of the labels."""
    logs = []
    for code in range(2**y.size):
        z = (code >> np.arange(y.size)) & 1
        prior = z.sum() * math.log(share) + (1 - z).sum() * math.log1p(-share)
        cov = np.diag(np.where(z, sigmas[1], sigmas[0]) ** 2) + scale**2
        logs.append(prior + multivariate_normal.logpdf(y, cov=cov))
    return float(logsumexp(logs))


def contamination(
    y: Sequence[float] = MEASUREMENTS, *, share: float = 0.2,
    sigmas: tuple[float, float] = (0.5, 5.0), scale: float = 10.0,
) -> EvidenceProblem:  # fmt: skip
    """Build the problem of an unknown mean, and an indicator of each bad measurement.

    Parameters
    ----------
    y : sequence of float
        At most twelve measurements.
    share : float
        Prior probability of a bad measurement.
    sigmas : (float, float)
        Standard deviations of the good and the bad measurements.
    scale : float
        Prior standard deviation of the mean.
    """
    data = np.asarray(y, dtype=float)
    good, bad = np.float64(sigmas[0]), np.float64(sigmas[1])
    share, scale = np.float64(share), np.float64(scale)

    def variables() -> None:
        m = pm.Normal("m", 0.0, scale)
        outlier = pm.Bernoulli("outlier", share, shape=data.size)
        pm.Normal("y", m, pt.where(pt.eq(outlier, 1), bad, good), observed=data)

    return EvidenceProblem(
        name="contamination", variables=variables,
        log_evidence=log_evidence(data, share, (good, bad), scale),
        source="enumeration of the labels", n_dim=1 + data.size, easy=True,
    )  # fmt: skip
