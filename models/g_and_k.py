r"""The g-and-k distribution, whose quantiles are known and whose density is not.

.. math:: Q(z) = A + B \Bigl(1 + 0.8 \tanh \frac{g z}{2}\Bigr) (1 + z^2)^k z, \qquad
          z \sim N(0, 1), \qquad A, B, g, k \sim U(0, 10)

Rayner & MacGillivray (2002), *Numerical maximum likelihood estimation for the g-and-k and
generalized g-and-h distributions*, Statistics and Computing 12, 57-75; as a test of inference
without likelihood in Allingham, King & Mengersen (2009), *Bayesian estimation of quantile
distributions*, Statistics and Computing 19, 189-201 (doi:10.1007/s11222-008-9083-x), with the true
parameters (3, 1, 2, 0.5) that are used here. Summaries are octiles, on which Drovandi & Pettitt (2011),
*Likelihood-free Bayesian estimation of multivariate quantile distributions*, Computational
Statistics & Data Analysis 55, 2541-2556, base theirs.

The octiles of n = 8m - 1 draws are order statistics m, 2m, ..., 7m. Q increases, so they are Q at
the order statistics of n normals, whose distribution functions are partial sums of a Dirichlet
vector (m, ..., m): a simulation needs eight gamma draws, for any n. The joint density of the octiles is known
as well,

.. math:: \frac{n!}{(m-1)!^8} \prod_{j=1}^{8} (F_j - F_{j-1})^{m-1} \prod_{j=1}^{7} f(x_j)

with F(x) and f(x) from Q inverted numerically; the reference draws from this posterior, given the
octiles.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import pymc as pm

from scipy.special import gammaln, log_ndtr, ndtri

from amc_pymc.engine.jit import njit
from amc_pymc.rng import as_generator
from models.rejection import RejectionSampler
from models.simulator_example import SimulatorExample, noise_scale

TRUTH = np.array([3.0, 1.0, 2.0, 0.5])
NAMES = ("A", "B", "g", "k")
UPPER = 10.0
ASYMMETRY = 0.8
WIDEST = 30.0  # largest absolute normal quantile in the inversion


def quantile_function(z: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Return Q (n, m) at normal quantiles (n, m), for parameters (n, 4)."""
    a, b, g, k = (theta[:, i, None] for i in range(4))
    skewed = 1.0 + ASYMMETRY * np.tanh(0.5 * g * z)
    return a + b * skewed * np.exp(k * np.log1p(z * z)) * z


@njit(cache=True)
def inverted(x, theta):
    """Return normal quantiles (n, m) at which Q is x (m,), and log dQ/dz there, for parameters (n, 4).

    The values are NaN if the quantile is further than ``WIDEST`` from zero.
    """
    z = np.full((theta.shape[0], x.size), np.nan)
    log_slope = np.full((theta.shape[0], x.size), np.nan)
    for i in range(theta.shape[0]):
        a, b, g, k = theta[i]
        for j in range(x.size):
            if not (b > 0.0 and k >= 0.0):
                continue
            target = (x[j] - a) / b
            lower, upper, middle, slope = -WIDEST, WIDEST, 0.0, 1.0
            # Newton steps, replaced by bisection where one leaves the bracket.
            for _ in range(100):
                tanh = math.tanh(0.5 * g * middle)
                square = middle * middle
                skewed = 1.0 + ASYMMETRY * tanh
                power = (1.0 + square) ** k
                slope = skewed * (1.0 + (2.0 * k + 1.0) * square) / (1.0 + square)
                slope = power * (slope + 0.5 * ASYMMETRY * g * (1.0 - tanh * tanh) * middle)
                gap = skewed * power * middle - target
                if gap < 0.0:
                    lower = middle
                else:
                    upper = middle
                step = middle - gap / slope
                if not lower < step < upper:
                    step = 0.5 * (lower + upper)
                done = abs(step - middle) <= 1e-13 * (1.0 + abs(middle))
                middle = step
                if done:
                    break
            if abs(middle) > 0.999 * WIDEST:
                continue
            z[i, j] = middle
            log_slope[i, j] = math.log(b) + math.log(slope)
    return z, log_slope


def log_likelihood(octiles: np.ndarray, theta: np.ndarray, m: int) -> np.ndarray:
    """Return the log density (n,) of octiles (7,) of 8m - 1 draws, at parameters (n, 4)."""
    z, log_slope = inverted(octiles, theta)
    lower, upper = np.full((len(z), 1), -np.inf), np.full((len(z), 1), np.inf)
    below, above = np.hstack([lower, z]), np.hstack([z, upper])
    # Using the smaller tail avoids cancellation.
    flip = below > 0.0
    high = log_ndtr(np.where(flip, -below, above))
    low = log_ndtr(np.where(flip, -above, below))
    with np.errstate(divide="ignore", invalid="ignore"):
        log_gaps = high + np.log1p(-np.exp(low - high))
        log_normal = -0.5 * z**2 - 0.5 * math.log(2.0 * math.pi)
        total = (m - 1) * log_gaps.sum(axis=1) + (log_normal - log_slope).sum(axis=1)
    total += gammaln(8 * m) - 8 * gammaln(m)
    return np.where(np.isnan(total), -np.inf, total)


def g_and_k(*, data_seed: int = 1) -> SimulatorExample:
    """Build the example: four parameters from the octiles of 8m - 1 = 255 draws, simulated by a seed."""
    m = 32

    def simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
        sums = rng.standard_gamma(m, (len(theta), 8)).cumsum(axis=1)
        return quantile_function(ndtri(sums[:, :7] / sums[:, 7:]), theta)

    observed = simulate(as_generator(data_seed), TRUTH[None])[0]
    scale = noise_scale(simulate, TRUTH)

    def log_density(theta: np.ndarray) -> np.ndarray:
        inside = ((theta > 0.0) & (theta < UPPER)).all(axis=1)
        out = np.full(len(theta), -np.inf)
        out[inside] = log_likelihood(observed, theta[inside], m)
        return out

    @functools.cache
    def sampler() -> RejectionSampler:
        start = UPPER * as_generator(0).random((20_000, 4))
        return RejectionSampler.fitted(log_density, start, as_generator(1))

    return SimulatorExample(
        name="g_and_k", prior=lambda: [pm.Uniform(name, 0.0, UPPER) for name in NAMES],
        simulate=simulate, cube=lambda u: UPPER * u, observed=observed, scale=scale, epsilon=3.0,
        shapes=dict.fromkeys(NAMES, ()), truth=TRUTH,
        reference=lambda rng, n: sampler().draw(rng, n),
    )  # fmt: skip
