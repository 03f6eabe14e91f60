r"""Simple likelihood with a complex posterior (SLCP): four points of a bivariate normal distribution.

.. math:: \theta \sim U(-3, 3)^5, \qquad x_k \sim N(m, \Sigma), \quad k = 1, \ldots, 4, \qquad
          m = (\theta_1, \theta_2), \qquad
          \Sigma = \begin{pmatrix} s_1^2 & \rho s_1 s_2 \\ \rho s_1 s_2 & s_2^2 \end{pmatrix},
          \quad s_1 = \theta_3^2, \; s_2 = \theta_4^2, \; \rho = \tanh \theta_5

Papamakarios, Sterratt & Murray (2019, arXiv:1805.07226), and task T.3 of Lueckmann et al. (2021), *Benchmarking
simulation-based inference* (arXiv:2101.04653), with other data. The signs of :math:`\theta_3` and :math:`\theta_4` are
not identified, which makes four modes.

The reference is exact. The mean given :math:`\Sigma` is normal around that of the data with covariance
:math:`\Sigma / 4`, and the remaining factor of the likelihood is bounded,

.. math:: |\Sigma|^{-3/2} \exp\bigl(-\tfrac12 \mathrm{tr}\, \Sigma^{-1} S\bigr)
          \le |S / 3|^{-3/2} e^{-3},

with S the sums of squares and products about the mean. So draws of :math:`\theta_3, \theta_4, \theta_5` from the prior
are accepted with the ratio of the two, and means with them if they lie in the square.
"""

from __future__ import annotations

import functools

import numpy as np
import pymc as pm

from amc_pymc.rng import as_generator
from models.simulator_example import SimulatorExample, accepted_draws, noise_scale

TRUTH = np.array([0.7, -2.9, -1.0, -0.9, 0.6])
#: Number of points, and half width of the prior.
N_POINTS, WIDTH = 4, 3.0


def simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
    """Simulate points (n, 8), one after the other, for parameters (n, 5)."""
    mean, spread, rho = theta[:, None, :2], np.square(theta[:, None, 2:4]), np.tanh(theta[:, 4:])
    z = rng.standard_normal((len(theta), N_POINTS, 2))
    second = rho * z[..., 0] + np.sqrt(1.0 - rho**2) * z[..., 1]
    return (mean + spread * np.stack([z[..., 0], second], axis=-1)).reshape(
        len(theta), 2 * N_POINTS
    )


def moments(points: np.ndarray) -> np.ndarray:
    """Return sufficient statistics (n, 5) of points (n, 8): means, log sds, Fisher's z of the correlation."""
    x = points.reshape(len(points), N_POINTS, 2)
    mean = x.mean(axis=1)
    gaps = x - mean[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        square = np.square(gaps).sum(axis=1)
        correlation = (gaps[..., 0] * gaps[..., 1]).sum(axis=1) / np.sqrt(square.prod(axis=1))
        found = np.column_stack(
            [mean, 0.5 * np.log(square / (N_POINTS - 1)), np.arctanh(correlation)]
        )
    return np.where(np.isfinite(found).all(axis=1, keepdims=True), found, np.nan)


def log_likelihood(points: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Return the log density (m,) of points (8,) at parameters (m, 5)."""
    x = np.asarray(points).reshape(N_POINTS, 2)
    spread, rho = np.square(theta[:, None, 2:4]), np.tanh(theta[:, 4:])
    z = (x - theta[:, None, :2]) / spread
    square = (z[..., 0] ** 2 - 2.0 * rho * z[..., 0] * z[..., 1] + z[..., 1] ** 2) / (1.0 - rho**2)
    log_root = np.log(spread[:, 0]).sum(axis=1) + 0.5 * np.log1p(-(rho[:, 0] ** 2))
    return -0.5 * square.sum(axis=1) - N_POINTS * (log_root + np.log(2.0 * np.pi))


def exact(points: np.ndarray, rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw from the posterior (n, 5) given points (8,)."""
    x = np.asarray(points).reshape(N_POINTS, 2)
    mean = x.mean(axis=0)
    gaps = x - mean
    square = gaps.T @ gaps
    free = N_POINTS - 1
    highest = -0.5 * free * np.log(np.linalg.det(square / free)) - free

    def propose(rng, m):
        theta = rng.uniform(-WIDTH, WIDTH, (m, 5))
        s1, s2 = np.square(theta[:, 2:4]).T
        rho = np.tanh(theta[:, 4])
        root = np.sqrt(1.0 - rho**2)
        log_det = 2.0 * np.log(s1 * s2 * root)
        trace = square[0, 0] / s1**2 + square[1, 1] / s2**2 - 2.0 * rho * square[0, 1] / (s1 * s2)
        log = -0.5 * free * log_det - 0.5 * trace / root**2 - highest
        z = rng.standard_normal((2, m)) / np.sqrt(N_POINTS)
        theta[:, 0] = mean[0] + s1 * z[0]
        theta[:, 1] = mean[1] + s2 * (rho * z[0] + root * z[1])
        inside = (np.abs(theta[:, :2]) < WIDTH).all(axis=1)
        return theta, inside & (np.log(rng.random(m)) < log)

    return accepted_draws(propose, rng, n, batch=100_000)


def slcp(
    *, truth=TRUTH, data_seed: int = 1, epsilon: float = 1.0, sufficient: bool = False
) -> SimulatorExample:
    """Build the example: five parameters of a normal distribution from four points.

    Parameters
    ----------
    truth : sequence of 5 floats
        Parameters of the simulated data.
    data_seed : int
        Seed of that simulation.
    epsilon : float
        Tolerance of the Euclidean distance: of the points as they are or, if `sufficient`, of their moments, each
        divided by its standard deviation at the true parameters.
    sufficient : bool
        Whether summaries are five moments instead of eight coordinates, independently of the order of the points.
    """
    truth = np.array(truth, float)
    points = simulate(as_generator(data_seed), truth[None])

    def summaries(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
        found = simulate(rng, theta)
        return moments(found) if sufficient else found

    observed = moments(points)[0] if sufficient else points[0]
    scale = noise_scale(summaries, truth) if sufficient else np.ones(2 * N_POINTS)

    return SimulatorExample(
        name="slcp_sufficient" if sufficient else "slcp",
        prior=lambda: [pm.Uniform("theta", -WIDTH, WIDTH, shape=5)], simulate=summaries,
        cube=lambda u: WIDTH * (2.0 * u - 1.0), observed=observed, scale=scale, epsilon=epsilon,
        shapes={"theta": (5,)}, truth=truth, reference=lambda rng, n: exact(points[0], rng, n),
    )  # fmt: skip


slcp_sufficient = functools.partial(slcp, sufficient=True)
