r"""Moving average of order two, from two autocovariances.

.. math:: x_t = e_t + \theta_1 e_{t-1} + \theta_2 e_{t-2}, \qquad e_t \sim N(0, 1), \qquad
          t = 1, \ldots, n

with the parameters uniform on the triangle where they are identified,

.. math:: -2 < \theta_1 < 2, \qquad \theta_1 + \theta_2 > -1, \qquad \theta_1 - \theta_2 < 1,
          \qquad \theta_2 < 1.

Marin, Pudlo, Robert & Ryder (2012), *Approximate Bayesian computational methods*, Statistics and
Computing 22, 1167-1180 (doi:10.1007/s11222-011-9288-2). Summaries are theirs, :math:`\sum_t x_t
x_{t-1}` and :math:`\sum_t x_t x_{t-2}`, here divided by n.

The triangle's slice at :math:`\theta_1` is :math:`|\theta_1| - 1 < \theta_2 < 1`, of length
:math:`2 - |\theta_1|`. So the product of a triangular distribution of :math:`\theta_1` on (-2, 2) with its peak
at 0, density :math:`(2 - |\theta_1|) / 4`, and a uniform one of :math:`\theta_2` on the slice
is the constant 1/4 on the triangle, and both have quantile functions.

The reference is the posterior given the whole series, whose normal likelihood is known: draws from
the prior are accepted with probability likelihood over its maximum. It is narrower than the
posterior given the summaries, which a sampler without a likelihood approaches at a small
tolerance.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm

from scipy.optimize import minimize

from amc_pymc.engine.jit import njit
from amc_pymc.rng import as_generator
from models.simulator_example import SimulatorExample, accepted_draws, noise_scale

TRUTH = np.array([0.6, 0.2])


@njit(cache=True)
def series(rng, theta, n):
    """Simulate series (m, n) for parameters (m, 2)."""
    out = np.empty((theta.shape[0], n))
    for i in range(theta.shape[0]):
        last, before = rng.standard_normal(), rng.standard_normal()
        for t in range(n):
            e = rng.standard_normal()
            out[i, t] = e + theta[i, 0] * last + theta[i, 1] * before
            last, before = e, last
    return out


@njit(cache=True)
def autocovariances(x):
    """Return sums (2,) of products one and two steps apart, divided by the length, of one series (n,)."""
    out = np.zeros(2)
    for t in range(1, x.size):
        out[0] += x[t] * x[t - 1]
        if t >= 2:
            out[1] += x[t] * x[t - 2]
    return out / x.size


@njit(cache=True)
def summaries_of_series(rng, theta, n):
    out = np.empty((theta.shape[0], 2))
    for i in range(theta.shape[0]):
        out[i] = autocovariances(series(rng, theta[i : i + 1], n)[0])
    return out


@njit(cache=True)
def log_likelihood(x, theta):
    """Return the log density (m,) of a series x (n,) at parameters (m, 2), by a banded Cholesky factor."""
    n = x.size
    out = np.empty(theta.shape[0])
    z = np.empty(n)
    for i in range(theta.shape[0]):
        a, b = theta[i, 0], theta[i, 1]
        c0, c1, c2 = 1.0 + a * a + b * b, a + a * b, b
        # Row t of the factor: d on the diagonal, preceded by l1 and l2.
        d1, d2, l1_last = 1.0, 1.0, 0.0
        total = -0.5 * n * math.log(2.0 * math.pi)
        for t in range(n):
            l2 = c2 / d2 if t >= 2 else 0.0
            l1 = (c1 - l2 * l1_last) / d1 if t >= 1 else 0.0
            d = math.sqrt(max(c0 - l1 * l1 - l2 * l2, 1e-300))
            z[t] = x[t]
            if t >= 1:
                z[t] -= l1 * z[t - 1]
            if t >= 2:
                z[t] -= l2 * z[t - 2]
            z[t] /= d
            total -= 0.5 * z[t] * z[t] + math.log(d)
            d2, d1, l1_last = d1, d, l1
        out[i] = total
    return out


def cube(u: np.ndarray) -> np.ndarray:
    """Map points (n, 2), uniform in the unit square, to parameters (n, 2) uniform on the triangle."""
    half = np.minimum(u[:, 0], 1.0 - u[:, 0])
    theta1 = np.sign(u[:, 0] - 0.5) * (2.0 - np.sqrt(8.0 * half))
    theta2 = np.abs(theta1) - 1.0 + u[:, 1] * (2.0 - np.abs(theta1))
    return np.column_stack([theta1, theta2])


def inside(theta: np.ndarray) -> np.ndarray:
    """Whether parameters (n, 2) lie in the triangle."""
    return (np.abs(theta[:, 0]) < theta[:, 1] + 1.0) & (theta[:, 1] < 1.0)


def most_likely(x: np.ndarray, n_start: int = 4000) -> tuple[np.ndarray, float]:
    """Find the parameters (2,) of the highest likelihood in the triangle, and its logarithm."""
    start = cube(as_generator(0).random((n_start, 2)))
    first = start[log_likelihood(x, start).argmax()]

    def loss(theta: np.ndarray) -> float:
        return -float(log_likelihood(x, theta[None])[0]) if inside(theta[None])[0] else math.inf

    found = minimize(loss, first, method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10})
    return found.x, -float(found.fun)


def ma2(n: int = 100, *, truth=TRUTH, data_seed: int = 1, epsilon: float = 0.3) -> SimulatorExample:
    """Build the example: two parameters from the autocovariances of a simulated series.

    Parameters
    ----------
    n : int
        Length of the series.
    truth : sequence of 2 floats
        Parameters of the simulated data, in the triangle.
    data_seed : int
        Seed of that simulation.
    epsilon : float
        Tolerance of the Euclidean distance between autocovariances, each divided by its standard
        deviation at the true parameters.
    """
    truth = np.array(truth, float)

    def simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
        return summaries_of_series(rng, theta, n)

    x = series(as_generator(data_seed), truth[None], n)[0]
    observed = autocovariances(x)
    scale = noise_scale(simulate, truth)
    mode, top = most_likely(x)

    def prior() -> list:
        theta1 = pm.Triangular("theta1", lower=-2.0, c=0.0, upper=2.0)
        theta2 = pm.Uniform("theta2", pm.math.abs(theta1) - 1.0, 1.0)
        return [theta1, theta2]

    def reference(rng: np.random.Generator, n: int) -> np.ndarray:
        def propose(rng, m):
            theta = cube(rng.random((m, 2)))
            return theta, np.log(rng.random(m)) < log_likelihood(x, theta) - top

        return accepted_draws(propose, rng, n)

    return SimulatorExample(
        name="ma2", prior=prior, simulate=simulate, cube=cube, observed=observed, scale=scale,
        epsilon=epsilon, shapes={"theta1": (), "theta2": ()}, truth=truth, reference=reference,
        mode=mode,
    )  # fmt: skip
