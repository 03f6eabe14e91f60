r"""Two normal components with one mean and two scales.

.. math:: \theta \sim U(-10, 10)^2, \qquad
          x \sim \tfrac12 N(\theta, I) + \tfrac12 N(\theta, 0.01 I)

Sisson, Fan & Tanaka (2007), *Sequential Monte Carlo without likelihoods*, PNAS 104, 1760-1765
(doi:10.1073/pnas.0607208104), in two dimensions as in task T.7 of Lueckmann et al. (2021),
*Benchmarking simulation-based inference* (arXiv:2101.04653). Data are one pair x, not that of the
benchmark.

The posterior is the same mixture around x, truncated to the square. So x minus noise, rejected outside
the square, is an exact draw; with x uniform in a disc it is a draw from the posterior at that tolerance.
"""

from __future__ import annotations

import numpy as np
import pymc as pm

from models.simulator_example import SimulatorExample, accepted_draws, in_ball

HALF_WIDTH = 10.0
SDS = np.array([1.0, 0.1])


def noise(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw from the mixture around zero (n, 2)."""
    return rng.choice(SDS, n)[:, None] * rng.standard_normal((n, 2))


def simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
    """Simulate pairs (n, 2) for means (n, 2)."""
    return theta + noise(rng, len(theta))


def two_scale_mixture(observed=(3.0, -6.0), *, epsilon: float = 0.2) -> SimulatorExample:
    """Build the example: the mixture with its exact posterior, whose mode is x.

    Parameters
    ----------
    observed : sequence of 2 floats
        Observed pair x, inside the square.
    epsilon : float
        Tolerance of the Euclidean distance.
    """
    observed = np.array(observed, float)

    def prior() -> list:
        theta1 = pm.Uniform("theta1", -HALF_WIDTH, HALF_WIDTH)
        theta2 = pm.Uniform("theta2", -HALF_WIDTH, HALF_WIDTH)
        return [theta1, theta2]

    def epsilon_reference(rng: np.random.Generator, n: int, epsilon: float) -> np.ndarray:
        def propose(rng, m):
            theta = observed + in_ball(rng, m, 2, epsilon) - noise(rng, m)
            return theta, (np.abs(theta) < HALF_WIDTH).all(axis=1)

        return accepted_draws(propose, rng, n)

    return SimulatorExample(
        name="two_scale_mixture", prior=prior, simulate=simulate,
        cube=lambda u: HALF_WIDTH * (2.0 * u - 1.0), observed=observed, epsilon=epsilon,
        shapes={"theta1": (), "theta2": ()},
        reference=lambda rng, n: epsilon_reference(rng, n, 0.0),
        epsilon_reference=epsilon_reference, mode=observed,
    )  # fmt: skip
