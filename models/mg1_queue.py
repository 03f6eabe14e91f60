r"""Queue with one server, of which only departures are observed.

.. math:: \theta_1 \sim U(0, 10), \qquad \theta_2 - \theta_1 \sim U(0, 10), \qquad
          \theta_3 \sim U(0, 1/3)

Service takes :math:`s_i \sim U(\theta_1, \theta_2)`, the time between arrivals is exponential
with rate :math:`\theta_3`, and the time between the departures of customer i and the one before is

.. math:: y_i = s_i + \max\Bigl(0, \sum_{j \le i} w_j - \sum_{j < i} y_j\Bigr)

Blum & Francois (2010), *Non-linear regression models for approximate Bayesian computation*,
Statistics and Computing 20, 63-73 (doi:10.1007/s11222-009-9116-0), with 50 customers; summaries
are the minimum, the quartiles and the maximum, as in Papamakarios & Murray (2016,
arXiv:1605.06376). True parameters are (1, 5, 0.2). There is no reference, because the likelihood of the
summaries is not known.
"""

from __future__ import annotations

import numpy as np
import pymc as pm

from amc_pymc.engine.jit import njit
from amc_pymc.rng import as_generator
from models.simulator_example import SimulatorExample, noise_scale

TRUTH = np.array([1.0, 5.0, 0.2])
LEVELS = np.array([0.0, 0.25, 0.5, 0.75, 1.0])


@njit(cache=True)
def departures(rng, theta, out):
    """Simulate times between departures into `out` (n,), for parameters (3,)."""
    arrived = left = 0.0
    for i in range(out.size):
        arrived += rng.standard_exponential() / theta[2]
        service = theta[0] + (theta[1] - theta[0]) * rng.random()
        out[i] = service + max(0.0, arrived - left)
        left += out[i]


@njit(cache=True)
def quantiles(y):
    """Return quantiles (5,) of times (n,), with linear interpolation."""
    y = np.sort(y)
    out = np.empty(LEVELS.size)
    for j in range(LEVELS.size):
        position = LEVELS[j] * (y.size - 1)
        k = min(int(position), y.size - 2)
        out[j] = y[k] + (position - k) * (y[k + 1] - y[k])
    return out


@njit(cache=True)
def summaries_of_queues(rng, theta, n):
    out = np.full((theta.shape[0], LEVELS.size), np.nan)
    y = np.empty(n)
    for i in range(theta.shape[0]):
        if 0.0 <= theta[i, 0] <= theta[i, 1] < np.inf and 0.0 < theta[i, 2] < np.inf:
            departures(rng, theta[i], y)
            out[i] = quantiles(y)
    return out


def cube(u: np.ndarray) -> np.ndarray:
    """Map points (n, 3), uniform in the unit cube, to parameters (n, 3) with the prior distribution."""
    return np.column_stack([10.0 * u[:, 0], 10.0 * (u[:, 0] + u[:, 1]), u[:, 2] / 3.0])


def mg1_queue(
    n: int = 50, *, truth=TRUTH, data_seed: int = 1, epsilon: float = 1.0
) -> SimulatorExample:
    """Build the example: three parameters of a queue from quantiles of the times between departures.

    Parameters
    ----------
    n : int
        Number of customers, at least two.
    truth : sequence of 3 floats
        Parameters of the simulated data.
    data_seed : int
        Seed of that simulation.
    epsilon : float
        Tolerance of the Euclidean distance between quantiles, each divided by its standard
        deviation at the true parameters.
    """
    truth = np.array(truth, float)

    def simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
        return summaries_of_queues(rng, theta, n)

    observed = simulate(as_generator(data_seed), truth[None])[0]
    scale = noise_scale(simulate, truth)

    def prior() -> list:
        theta1 = pm.Uniform("theta1", 0.0, 10.0)
        theta2 = pm.Uniform("theta2", theta1, theta1 + 10.0)
        theta3 = pm.Uniform("theta3", 0.0, 1.0 / 3.0)
        return [theta1, theta2, theta3]

    return SimulatorExample(
        name="mg1_queue", prior=prior, simulate=simulate, cube=cube, observed=observed, scale=scale,
        epsilon=epsilon, shapes={"theta1": (), "theta2": (), "theta3": ()}, truth=truth,
    )  # fmt: skip
