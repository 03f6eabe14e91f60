r"""Normal mean with a uniform prior in a box, whose posterior is a truncated normal distribution.

.. math:: \theta \sim U(-1, 1)^d, \qquad x \sim N(\theta, 0.1 I), \qquad
          p(\theta \mid x) \propto \prod_j N(\theta_j; x_j, 0.1)\, 1\{|\theta_j| < 1\}

Task T.2 of Lueckmann et al. (2021), *Benchmarking simulation-based inference* (arXiv:2101.04653), with other data. At a
tolerance :math:`\theta` follows the same distribution given x' in place of x, which has its marginal distribution

.. math:: p(x') = \prod_j \tfrac12 \Bigl[\Phi\Bigl(\frac{1 - x'_j}{\sqrt{0.1}}\Bigr)
          - \Phi\Bigl(\frac{-1 - x'_j}{\sqrt{0.1}}\Bigr)\Bigr]

given that it lies in the ball around the data; no factor exceeds its value at zero.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm

from scipy.special import log_ndtr, ndtr
from scipy.stats import truncnorm

from models.simulator_example import SimulatorExample, accepted_draws, in_ball

NOISE_SD = math.sqrt(0.1)


def posterior_draws(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Draw from the posterior (n, d), once for each of the data (n, d)."""
    return truncnorm.rvs(
        (-1.0 - x) / NOISE_SD, (1.0 - x) / NOISE_SD, loc=x, scale=NOISE_SD, random_state=rng
    )


def posterior_mean(x: np.ndarray) -> np.ndarray:
    """Return exact posterior means (d,) given data (d,)."""
    return truncnorm.mean((-1.0 - x) / NOISE_SD, (1.0 - x) / NOISE_SD, loc=x, scale=NOISE_SD)


def log_marginal(x: np.ndarray) -> np.ndarray:
    """Return the log density (n,) of data (n, d) relative to data at zero."""
    upper = ndtr((1.0 - np.abs(x)) / NOISE_SD) - ndtr((-1.0 - np.abs(x)) / NOISE_SD)
    at_zero = ndtr(1.0 / NOISE_SD) - ndtr(-1.0 / NOISE_SD)
    far = log_ndtr((1.0 - np.abs(x)) / NOISE_SD)
    with np.errstate(divide="ignore"):
        log = np.where(upper > 0.0, np.log(upper), far)
    return (log - math.log(at_zero)).sum(axis=1)


def gaussian_uniform(d: int = 10, *, observed=None, epsilon: float = 1.0) -> SimulatorExample:
    """Build the example: a normal mean of d bounded coordinates with its exact posterior, at any tolerance.

    Parameters
    ----------
    d : int
        Number of coordinates.
    observed : sequence of d floats or None
        Data; evenly spaced from -0.9 to 0.9 if not given.
    epsilon : float
        Tolerance of the Euclidean distance.
    """
    observed = np.array(np.linspace(-0.9, 0.9, d) if observed is None else observed, float)

    def simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
        return theta + NOISE_SD * rng.standard_normal(theta.shape)

    def reference(rng: np.random.Generator, n: int) -> np.ndarray:
        return posterior_draws(rng, np.tile(observed, (n, 1)))

    def epsilon_reference(rng: np.random.Generator, n: int, epsilon: float) -> np.ndarray:
        def propose(rng, m):
            x = observed + in_ball(rng, m, d, epsilon)
            return x, np.log(rng.random(m)) < log_marginal(x)

        return posterior_draws(rng, accepted_draws(propose, rng, n))

    return SimulatorExample(
        name=f"gaussian_uniform_{d}", prior=lambda: [pm.Uniform("theta", -1.0, 1.0, shape=d)],
        simulate=simulate, cube=lambda u: 2.0 * u - 1.0, observed=observed, epsilon=epsilon,
        shapes={"theta": (d,)}, reference=reference, epsilon_reference=epsilon_reference,
        mode=np.clip(observed, -1.0, 1.0),
    )  # fmt: skip
