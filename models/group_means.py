r"""Means of groups from one population.

.. math:: \mu \sim N(0, 2^2), \qquad \tau \sim N^+(0, 1), \qquad \sigma \sim N^+(0, 1), \qquad
          \alpha_j \sim N(\mu, \tau^2), \qquad y_{ij} \sim N(\alpha_j, \sigma^2)

for j = 1, ..., J groups and i = 1, ..., n observations in each, as in Gelman & Hill (2007), *Data Analysis Using
Regression and Multilevel/Hierarchical Models*, section 12.5. The means of groups and the logarithm of the
standard deviation within groups are sufficient summaries, and are simulated directly.

Given :math:`\tau` and :math:`\sigma` everything else is normal. With :math:`v = \tau^2 + \sigma^2 / n` and
:math:`\bar y` the mean of group means, these two have the density

.. math:: p(\tau, \sigma \mid y) \propto p(\tau) p(\sigma)\, \sigma^{-J(n-1)} e^{-S / 2\sigma^2}
          \prod_j N(\bar y_j; \bar y, v) \, v^{1/2} N(\bar y; 0, 4 + v / J),

where S is the sum of squares within groups. The reference draws them from a fine grid, uniformly within cells.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm

from scipy.special import ndtri

from amc_pymc.rng import as_generator
from models.simulator_example import SimulatorExample, noise_scale

PRIOR_SD = 2.0
#: Number of cells of the grid on each side.
_CELLS = 800


def log_density(
    tau: np.ndarray, sigma: np.ndarray, means: np.ndarray, within: float, n: int
) -> np.ndarray:
    """Return the log density of standard deviations between and within groups, up to a constant.

    Parameters
    ----------
    tau, sigma : arrays of one shape
    means : array (J,)
        Means of the groups.
    within : float
        Standard deviation within groups.
    n : int
        Number of observations in each group.
    """
    j, centre = len(means), means.mean()
    free = j * (n - 1)
    v = tau**2 + sigma**2 / n
    whole = PRIOR_SD**2 + v / j
    return (
        -0.5 * (tau**2 + sigma**2)
        - free * (np.log(sigma) + 0.5 * (within / sigma) ** 2)
        - 0.5 * (j - 1) * np.log(v)
        - 0.5 * np.square(means - centre).sum() / v
        - 0.5 * (np.log(whole) + centre**2 / whole)
    )


def exact(
    means: np.ndarray, within: float, n: int, rng: np.random.Generator, draws: int
) -> np.ndarray:
    """Draw from the posterior (draws, J + 3): mu, tau, sigma and the effects."""
    j = len(means)
    spread = within / math.sqrt(2.0 * j * (n - 1))
    tau = 5.0 * (np.arange(_CELLS) + 0.5) / _CELLS
    least, most = max(1e-3, within - 7.0 * spread), within + 9.0 * spread
    sigma = least + (most - least) * (np.arange(_CELLS) + 0.5) / _CELLS
    log = log_density(tau[:, None], sigma[None], means, within, n)
    p = np.exp(log - log.max()).ravel()
    at = rng.choice(p.size, draws, p=p / p.sum())
    tau = tau[at // _CELLS] + 5.0 / _CELLS * (rng.random(draws) - 0.5)
    sigma = sigma[at % _CELLS] + (most - least) / _CELLS * (rng.random(draws) - 0.5)
    v = tau**2 + sigma**2 / n
    precision = 1.0 / PRIOR_SD**2 + j / v
    mu = (j * means.mean() / v) / precision + rng.standard_normal(draws) / np.sqrt(precision)
    share = (tau**2 / v)[:, None]
    effect = share * means + (1.0 - share) * mu[:, None]
    effect = effect + np.sqrt(share * (sigma**2 / n)[:, None]) * rng.standard_normal((draws, j))
    return np.column_stack([mu, tau, sigma, effect])


def group_means(
    groups: int = 9, n: int = 10, *, truth=None, data_seed: int = 1, epsilon: float = 1.0
) -> SimulatorExample:
    """Build the example: a hierarchical model with as many parameters as groups, and three more.

    Parameters
    ----------
    groups : int
        Number of groups J, at least two.
    n : int
        Number of observations in each group, at least two.
    truth : sequence of J + 3 floats or None
        mu, tau, sigma and effects of the simulated data; 0.5, 0.7, 1 and normal quantiles if not given.
    data_seed : int
        Seed of that simulation.
    epsilon : float
        Tolerance of the Euclidean distance between summaries, each divided by its standard deviation at
        the true parameters.
    """
    if truth is None:
        effects = 0.5 + 0.7 * ndtri((np.arange(groups) + 0.5) / groups)
        truth = np.concatenate([[0.5, 0.7, 1.0], effects])
    truth = np.array(truth, float)
    free = groups * (n - 1)

    def simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
        sigma = theta[:, 2:3]
        means = theta[:, 3:] + sigma / math.sqrt(n) * rng.standard_normal((len(theta), groups))
        squares = rng.chisquare(free, (len(theta), 1)) / free
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.column_stack([means, np.log(sigma) + 0.5 * np.log(squares)])

    def cube(u: np.ndarray) -> np.ndarray:
        z = ndtri(u)
        tau, sigma = ndtri(0.5 + 0.5 * u[:, 1:3]).T
        mu = PRIOR_SD * z[:, 0]
        return np.column_stack([mu, tau, sigma, mu[:, None] + tau[:, None] * z[:, 3:]])

    observed = simulate(as_generator(data_seed), truth[None])[0]
    scale = noise_scale(simulate, truth)

    def prior() -> list:
        mu = pm.Normal("mu", 0.0, PRIOR_SD)
        tau, sigma = pm.HalfNormal("tau", 1.0), pm.HalfNormal("sigma", 1.0)
        effect = pm.Normal("effect", mu, tau, shape=groups)
        return [mu, tau, sigma, effect]

    def reference(rng: np.random.Generator, draws: int) -> np.ndarray:
        return exact(observed[:-1], math.exp(observed[-1]), n, rng, draws)

    return SimulatorExample(
        name=f"group_means_{groups}", prior=prior, simulate=simulate, cube=cube, observed=observed,
        scale=scale, epsilon=epsilon,
        shapes={"mu": (), "tau": (), "sigma": (), "effect": (groups,)}, truth=truth,
        reference=reference,
    )  # fmt: skip
