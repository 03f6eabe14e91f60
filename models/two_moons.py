r"""Two moons: a posterior of two crescents, each with half of the mass.

.. math:: \theta \sim U(-1, 1)^2, \quad a \sim U(-\pi/2, \pi/2), \quad r \sim N(0.1, 0.01^2), \quad
          x = \begin{pmatrix} r \cos a + 0.25 \\ r \sin a \end{pmatrix}
              + \frac{1}{\sqrt 2}
              \begin{pmatrix} -|\theta_1 + \theta_2| \\ -\theta_1 + \theta_2 \end{pmatrix}

Greenberg, Nonnenmacher & Macke (2019), *Automatic posterior transformation for likelihood-free
inference* (arXiv:1905.07488); in the benchmark of Lueckmann et al. (2021), *Benchmarking
simulation-based inference* (arXiv:2101.04653), task T.8. Data are one pair x.

The map from noise to parameters is linear on either side of the line :math:`\theta_1 = -\theta_2`.
Its Jacobian is therefore constant, and the density of the posterior is that of the noise at x minus the shift:
a draw of the noise and of a sign gives a draw from the posterior, rejected outside the
square. With x uniform in a disc around the data, it is a draw from the posterior at that tolerance.
Exchanging :math:`(\theta_1, \theta_2)` and :math:`(-\theta_2, -\theta_1)` changes neither prior
nor likelihood: each crescent has exactly half of the mass, at every tolerance. There is no single
mode: the density is constant along each crescent.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm

from models.simulator_example import SimulatorExample, accepted_draws, in_ball

RADIUS, WIDTH, CENTRE = 0.1, 0.01, 0.25


def crescent(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw the noise (n, 2)."""
    angle = rng.uniform(-0.5 * math.pi, 0.5 * math.pi, n)
    radius = rng.normal(RADIUS, WIDTH, n)
    return np.column_stack([radius * np.cos(angle) + CENTRE, radius * np.sin(angle)])


def simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
    """Simulate pairs (n, 2) for parameters (n, 2)."""
    x = crescent(rng, len(theta))
    x[:, 0] -= np.abs(theta[:, 0] + theta[:, 1]) / math.sqrt(2.0)
    x[:, 1] += (theta[:, 1] - theta[:, 0]) / math.sqrt(2.0)
    return x


def log_likelihood(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Return the log density (n,) of one pair x (2,) at parameters (n, 2); -inf behind the crescent.

    Negative radii, which are ten standard deviations away, are ignored.
    """
    a = x[0] + np.abs(theta[:, 0] + theta[:, 1]) / math.sqrt(2.0) - CENTRE
    b = x[1] - (theta[:, 1] - theta[:, 0]) / math.sqrt(2.0)
    radius = np.hypot(a, b)
    with np.errstate(divide="ignore"):
        log_density = -0.5 * ((radius - RADIUS) / WIDTH) ** 2 - np.log(radius)
    constant = -0.5 * math.log(2.0 * math.pi) - math.log(WIDTH * math.pi)
    return np.where(a > 0.0, log_density + constant, -np.inf)


def two_moons(observed=(0.0, 0.0), *, epsilon: float = 0.03) -> SimulatorExample:
    """Build the example: two moons with their exact posterior.

    Parameters
    ----------
    observed : sequence of 2 floats
        Observed pair x.
    epsilon : float
        Tolerance of the Euclidean distance.
    """
    observed = np.array(observed, float)
    scale = np.ones(2)

    def prior() -> list:
        theta1 = pm.Uniform("theta1", -1.0, 1.0)
        theta2 = pm.Uniform("theta2", -1.0, 1.0)
        return [theta1, theta2]

    def epsilon_reference(rng: np.random.Generator, n: int, epsilon: float) -> np.ndarray:
        def propose(rng, m):
            noise, x = crescent(rng, m), observed + in_ball(rng, m, 2, epsilon)
            sign = rng.choice([-1.0, 1.0], m)
            total = sign * math.sqrt(2.0) * (noise[:, 0] - x[:, 0])
            difference = math.sqrt(2.0) * (x[:, 1] - noise[:, 1])
            theta = 0.5 * np.column_stack([total - difference, total + difference])
            return theta, (noise[:, 0] > x[:, 0]) & (np.abs(theta) < 1.0).all(axis=1)

        return accepted_draws(propose, rng, n)

    return SimulatorExample(
        name="two_moons", prior=prior, simulate=simulate, cube=lambda u: 2.0 * u - 1.0,
        observed=observed, scale=scale, epsilon=epsilon, shapes={"theta1": (), "theta2": ()},
        reference=lambda rng, n: epsilon_reference(rng, n, 0.0),
        epsilon_reference=epsilon_reference,
    )  # fmt: skip
