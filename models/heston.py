r"""Heston's stochastic volatility model from seven summaries of daily returns.

.. math:: dS_t = \mu S_t dt + \sqrt{\nu_t} S_t dW^1_t, \qquad
          d\nu_t = \kappa (\xi - \nu_t) dt + \sigma \sqrt{\nu_t} dW^2_t, \qquad
          \operatorname{corr}(dW^1_t, dW^2_t) = \rho

.. math:: \kappa \sim U(0, 10), \quad \xi \sim U(0, 1), \quad \nu_0 \sim U(0, 1), \quad
          \rho \sim U(-1, 1), \quad \sigma \sim U(0, 1)

O'Hagan, Kim & Rockova, *Tree bandits for generative Bayes*, appendix C.1, figure 11, with
:math:`\mu = 0.02` and 2000 steps. The paper does not give the length of a step, the scheme, the
true parameters or the scaling of the summaries. Here a step is a day, 1/252 of a year. The
log price is simulated by Euler steps, the variance by Euler steps with full truncation (Lord, Koekkoek & van Dijk
2010, doi:10.1080/14697680802392496): it may become negative, but counts as zero then. The true
parameters are (3, 0.3, 0.2, -0.6, 0.6). The initial price of 100 cancels from the returns. There is no
reference, because the likelihood of the summaries is not known.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm

from amc_pymc.engine.jit import njit
from amc_pymc.rng import as_generator
from models.simulator_example import SimulatorExample, noise_scale

DRIFT = 0.02
TRUTH = np.array([3.0, 0.3, 0.2, -0.6, 0.6])
NAMES = ("kappa", "xi", "nu0", "rho", "sigma")
LOWER = np.array([0.0, 0.0, 0.0, -1.0, 0.0])
UPPER = np.array([10.0, 1.0, 1.0, 1.0, 1.0])
SUMMARIES = (
    "mean return", "mean squared return", "log sd of returns", "log sd of squared returns",
    "autocorrelation of squared returns 1", "autocorrelation of squared returns 2",
    "correlation of returns and squared returns",
)  # fmt: skip


@njit(cache=True)
def log_returns(rng, theta, dt, out):
    """Simulate log returns into `out` (n,), for parameters (5,)."""
    kappa, xi, variance, rho, sigma = theta
    across = math.sqrt(max(1.0 - rho * rho, 0.0))
    for t in range(out.size):
        z1, z2 = rng.standard_normal(), rng.standard_normal()
        v = max(variance, 0.0)
        root = math.sqrt(v * dt)
        out[t] = (DRIFT - 0.5 * v) * dt + root * z1
        variance += kappa * (xi - v) * dt + sigma * root * (rho * z1 + across * z2)


@njit(cache=True)
def summarise(r, out):
    """Compute seven summaries of returns (n,): see ``SUMMARIES``."""
    n = r.size
    mean, square = 0.0, 0.0
    for value in r:
        mean += value / n
        square += value * value / n
    var, var2, cross, lag1, lag2 = 0.0, 0.0, 0.0, 0.0, 0.0
    last, before = 0.0, 0.0
    for value in r:
        gap, gap2 = value - mean, value * value - square
        var += gap * gap
        var2 += gap2 * gap2
        cross += gap * gap2
        lag1 += gap2 * last
        lag2 += gap2 * before
        last, before = gap2, last
    # Constant returns differ only by rounding errors, and a summary is not a number.
    if not (var > 1e-20 * n * square and var2 > 1e-20 * n * square * square):
        out[:] = np.nan
        return
    out[0] = mean
    out[1] = square
    out[2] = 0.5 * math.log(var / n)
    out[3] = 0.5 * math.log(var2 / n)
    out[4] = lag1 / var2
    out[5] = lag2 / var2
    out[6] = cross / math.sqrt(var * var2)


@njit(cache=True)
def summaries_of_paths(rng, theta, n_steps, dt):
    out = np.empty((theta.shape[0], 7))
    r = np.empty(n_steps)
    for i in range(theta.shape[0]):
        log_returns(rng, theta[i], dt, r)
        summarise(r, out[i])
    return out


def heston(
    n_steps: int = 2000, *, dt: float = 1.0 / 252.0, truth=TRUTH, data_seed: int = 1,
    epsilon: float = 2.0,
) -> SimulatorExample:  # fmt: skip
    """Build the example: five parameters from summaries of a simulated path.

    Parameters
    ----------
    n_steps : int
        Number of steps, at least three.
    dt : float
        Length of a step in years.
    truth : sequence of 5 floats
        Parameters of the simulated data, within the prior.
    data_seed : int
        Seed of that simulation.
    epsilon : float
        Tolerance of the Euclidean distance between summaries, each divided by its standard
        deviation at the true parameters.
    """
    truth = np.array(truth, float)

    def simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
        return summaries_of_paths(rng, theta, n_steps, dt)

    observed = simulate(as_generator(data_seed), truth[None])[0]
    scale = noise_scale(simulate, truth, 500)

    def prior() -> list:
        return [pm.Uniform(*args) for args in zip(NAMES, LOWER, UPPER, strict=True)]

    return SimulatorExample(
        name="heston", prior=prior, simulate=simulate, cube=lambda u: LOWER + (UPPER - LOWER) * u,
        observed=observed, scale=scale, epsilon=epsilon, shapes=dict.fromkeys(NAMES, ()),
        truth=truth,
    )  # fmt: skip
