r"""Discrete parameter with a hundred values, for which proposals have no boxes to learn.

.. math:: \theta \in \{1, \ldots, 100\} \text{ uniformly}, \qquad
          U \mid \theta \sim U(\theta - 1, \theta), \qquad X \mid U \sim N(U, 5)

O'Hagan, Kim & Rockova, *Tree bandits for generative Bayes*, example 1 and appendix B.1, figures 3
and 15. The paper gives neither the data nor the tolerance. Here X = 49.5, for which the mode is
50, and the tolerance is 2. As in the paper's other examples, 5 is interpreted as a variance. The 50 points of
its figure 6, whose acceptance rates are only plotted, are not included; ``toy_points(50)`` has as many.

The acceptance probability is known for each point: :func:`acceptance`.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm

from scipy.special import ndtr

from models.simulator_example import SimulatorExample

SD = math.sqrt(5.0)


def simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
    """Simulate data (n, 1) at points (n, 1)."""
    return theta - rng.random(theta.shape) + SD * rng.standard_normal(theta.shape)


def acceptance(observed: float, epsilon: float, n_points: int = 100) -> np.ndarray:
    """Return the probability (n_points,) that data at each point lie within the tolerance of the observed.

    The normal probability of the interval is integrated over U with the antiderivative of the normal
    distribution function, z Phi(z) + phi(z); rounding errors are of the order 1e-14.
    """
    point = np.arange(1, n_points + 1)

    def integral(z: np.ndarray) -> np.ndarray:
        return z * ndtr(z) + np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)

    def below(x: float) -> np.ndarray:
        return SD * (integral((x - point + 1) / SD) - integral((x - point) / SD))

    return np.maximum(below(observed + epsilon) - below(observed - epsilon), 0.0)


def density(observed: float, n_points: int = 100) -> np.ndarray:
    """Return the density (n_points,) of the observed at each point."""
    point = np.arange(1, n_points + 1)
    return ndtr((observed - point + 1) / SD) - ndtr((observed - point) / SD)


def toy_points(
    n_points: int = 100, *, observed: float = 49.5, epsilon: float = 2.0
) -> SimulatorExample:
    """Build the example: the points with their exact posterior.

    Parameters
    ----------
    n_points : int
    observed : float
        Observation X.
    epsilon : float
        Tolerance of the absolute difference from the observation.
    """
    data = np.array([observed], float)
    likelihood = density(observed, n_points)

    def draws(rng: np.random.Generator, n: int, weights: np.ndarray) -> np.ndarray:
        chances = weights / weights.sum()
        return 1.0 + rng.choice(n_points, (n, 1), p=chances)

    return SimulatorExample(
        name=f"toy_points_{n_points}",
        prior=lambda: [pm.DiscreteUniform("theta", 1, n_points)],
        simulate=simulate,
        cube=lambda u: np.minimum(np.floor(n_points * u) + 1.0, n_points),
        observed=data,
        epsilon=epsilon,
        shapes={"theta": ()},
        reference=lambda rng, n: draws(rng, n, likelihood),
        epsilon_reference=lambda rng, n, eps: draws(rng, n, acceptance(observed, eps, n_points)),
        mode=np.array([1.0 + likelihood.argmax()]),
    )
