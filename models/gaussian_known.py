r"""Normal mean with a normal prior, for which exact results are known in any dimension.

.. math:: \theta \sim N(0, 0.1 I), \qquad x \sim N(\theta, 0.1 I), \qquad
          \theta \mid x \sim N(x / 2, 0.05 I)

Task T.1 of Lueckmann et al. (2021), *Benchmarking simulation-based inference* (arXiv:2101.04653),
with other data. At a tolerance, parameters follow :math:`N(x' / 2, 0.05 I)`, where x' has its
marginal distribution N(0, 0.2 I) given that it lies in a ball around the data. x' is symmetric about the
direction of the data, so integrals over one coordinate remain: :func:`epsilon_moments`.
"""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np
import pymc as pm

from scipy.special import ndtri
from scipy.stats import chi2, ncx2

from models.simulator_example import SimulatorExample, accepted_draws, in_ball

PRIOR_VARIANCE = NOISE_VARIANCE = 0.1
SHRINKAGE = PRIOR_VARIANCE / (PRIOR_VARIANCE + NOISE_VARIANCE)
POSTERIOR_VARIANCE = SHRINKAGE * NOISE_VARIANCE
MARGINAL_VARIANCE = PRIOR_VARIANCE + NOISE_VARIANCE


class Moments(NamedTuple):
    """Moments of the posterior at a tolerance.

    Attributes
    ----------
    acceptance : float
        Probability that a draw of the prior gives data within the tolerance.
    mean : array (D,)
    covariance : array (D, D)
    """

    acceptance: float
    mean: np.ndarray
    covariance: np.ndarray


def acceptance(observed: np.ndarray, epsilon: float, theta: np.ndarray) -> np.ndarray:
    """Return the probability (n,) of data within a distance of the observed (D,), at means (n, D)."""
    squares = np.square(theta - observed).sum(axis=1)
    return ncx2.cdf(epsilon**2 / NOISE_VARIANCE, len(observed), squares / NOISE_VARIANCE)


def epsilon_moments(observed: np.ndarray, epsilon: float, *, order: int = 200) -> Moments:
    """Compute moments of the prior given data within a distance of the observed (D,), by quadrature.

    Parameters
    ----------
    observed : array (D,)
    epsilon : float
        Radius of the ball.
    order : int
        Number of nodes of the Gauss-Legendre rule.
    """
    observed = np.asarray(observed, dtype=np.float64)
    d, length = observed.size, float(np.linalg.norm(observed))
    axis = observed / length if length > 0.0 else np.eye(d)[0]
    # With the angle as variable, the integrand has no root singularities at the ends of the interval.
    nodes, weights = np.polynomial.legendre.leggauss(order)
    angle = 0.5 * math.pi * nodes
    along = length + epsilon * np.sin(angle)
    radius2 = np.square(epsilon * np.cos(angle))
    density = np.exp(-0.5 * np.square(along) / MARGINAL_VARIANCE)
    density *= 0.5 * math.pi * weights * epsilon * np.cos(angle)
    density /= math.sqrt(2.0 * math.pi * MARGINAL_VARIANCE)
    scaled = radius2 / MARGINAL_VARIANCE
    # For the other coordinates: probability of their ball, and their mean square in it times that probability.
    inside = chi2.cdf(scaled, d - 1) if d > 1 else np.ones(order)
    squares = MARGINAL_VARIANCE * chi2.cdf(scaled, d + 1) if d > 1 else np.zeros(order)
    total = float(density @ inside)
    mean = float((density * inside) @ along) / total
    variance = float((density * inside) @ np.square(along - mean)) / total
    across = float(density @ squares) / total
    projection = np.outer(axis, axis)
    spread = variance * projection + across * (np.eye(d) - projection)
    covariance = POSTERIOR_VARIANCE * np.eye(d) + SHRINKAGE**2 * spread
    return Moments(total, SHRINKAGE * mean * axis, covariance)


def gaussian_known(d: int = 10, *, observed=None, epsilon: float = 1.0) -> SimulatorExample:
    """Build the example: a normal mean of d coordinates with its exact posterior, at any tolerance.

    Parameters
    ----------
    d : int
        Number of coordinates.
    observed : sequence of d floats or None
        Data; evenly spaced from -0.75 to 0.75 if not given.
    epsilon : float
        Tolerance of the Euclidean distance.
    """
    observed = np.array(np.linspace(-0.75, 0.75, d) if observed is None else observed, float)
    prior_sd, posterior_sd = math.sqrt(PRIOR_VARIANCE), math.sqrt(POSTERIOR_VARIANCE)

    def simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
        return theta + math.sqrt(NOISE_VARIANCE) * rng.standard_normal(theta.shape)

    def reference(rng: np.random.Generator, n: int) -> np.ndarray:
        noise = rng.standard_normal((n, d))
        return SHRINKAGE * observed + posterior_sd * noise

    def epsilon_reference(rng: np.random.Generator, n: int, epsilon: float) -> np.ndarray:
        nearest = max(float(np.linalg.norm(observed)) - epsilon, 0.0)

        def propose(rng, m):
            x = observed + in_ball(rng, m, d, epsilon)
            log_ratio = 0.5 * (nearest**2 - np.square(x).sum(axis=1)) / MARGINAL_VARIANCE
            theta = SHRINKAGE * x + posterior_sd * rng.standard_normal((m, d))
            return theta, np.log(rng.random(m)) < log_ratio

        return accepted_draws(propose, rng, n)

    return SimulatorExample(
        name=f"gaussian_{d}", prior=lambda: [pm.Normal("theta", 0.0, prior_sd, shape=d)],
        simulate=simulate, cube=lambda u: prior_sd * ndtri(u), observed=observed, epsilon=epsilon,
        shapes={"theta": (d,)}, reference=reference, epsilon_reference=epsilon_reference,
        mode=SHRINKAGE * observed,
    )  # fmt: skip
