r"""Normal mixtures around a parameter, with a broad and a narrow component.

.. math:: x \sim 0.8 N(100 \theta, 3) + 0.2 N(100 \theta + 5, 0.25), \qquad \theta \sim U(0, 1)

.. math:: x \sim 0.3 N(\theta, I) + 0.7 N(\theta + (3, 3), \tfrac14 I), \qquad
          \theta \sim U(-5, 5)^2

O'Hagan, Kim & Rockova, *Tree bandits for generative Bayes*, examples 2 and 3, figures 4, 5, 7 and
16. The second arguments are interpreted as variances in both. The
paper does not print the data. Here x = 50 for the first, and x = (2, 2) for the second: a single
pair, for which the highest mode is near the parameter of the paper's simulation, (-1, -1).

The prior is uniform and x is a shifted parameter plus noise. So x minus noise, rejected outside the
box, is an exact draw from the posterior; with x uniform in a ball it is a draw from the posterior at that
tolerance.
"""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np
import pymc as pm

from scipy.special import logsumexp
from scipy.stats import ncx2

from models.simulator_example import SimulatorExample, accepted_draws, in_ball


class Mixture(NamedTuple):
    """Mixture in which data are `factor` times the parameter plus the noise of one of K components.

    Attributes
    ----------
    weights, shifts, sds : array (K,)
        Parameters of the components, the same for all coordinates.
    factor : float
    lower, upper : float
        Bounds of each parameter.
    """

    weights: np.ndarray
    shifts: np.ndarray
    sds: np.ndarray
    factor: float
    lower: float
    upper: float


UNIVARIATE = Mixture(
    weights=np.array([0.8, 0.2]), shifts=np.array([0.0, 5.0]), sds=np.array([math.sqrt(3.0), 0.5]),
    factor=100.0, lower=0.0, upper=1.0,
)  # fmt: skip
BIVARIATE = Mixture(
    weights=np.array([0.3, 0.7]), shifts=np.array([0.0, 3.0]), sds=np.array([1.0, 0.5]), factor=1.0,
    lower=-5.0, upper=5.0,
)  # fmt: skip


def noise(rng: np.random.Generator, n: int, d: int, mixture: Mixture) -> np.ndarray:
    """Draw data minus `factor` times the parameter (n, d)."""
    component = rng.choice(len(mixture.weights), n, p=mixture.weights)
    spread = mixture.sds[component, None] * rng.standard_normal((n, d))
    return mixture.shifts[component, None] + spread


def log_terms(x: np.ndarray, theta: np.ndarray, mixture: Mixture) -> np.ndarray:
    """Return the log of weight times density (n, K) of each component for data x (d,) at parameters (n, d)."""
    d = len(x)
    gap = (x - mixture.factor * theta)[:, :, None] - mixture.shifts
    log_density = -0.5 * np.square(gap / mixture.sds).sum(axis=1)
    log_density -= d * np.log(mixture.sds * math.sqrt(2.0 * math.pi))
    return np.log(mixture.weights) + log_density


def acceptance(x: np.ndarray, epsilon: float, theta: np.ndarray, mixture: Mixture) -> np.ndarray:
    """Return the probability (n,) of data within a distance of x (d,), at parameters (n, d)."""
    gap = (x - mixture.factor * theta)[:, :, None] - mixture.shifts
    squares = np.square(gap / mixture.sds).sum(axis=1)
    return ncx2.cdf(np.square(epsilon / mixture.sds), len(x), squares) @ mixture.weights


def highest_mode(x: np.ndarray, mixture: Mixture) -> np.ndarray:
    """Find the mode (d,) of the posterior, by mean shift from the peak of each component."""
    best, height = None, -np.inf
    for shift in mixture.shifts:
        theta = (x - shift)[None] / mixture.factor
        for _ in range(1000):
            terms = log_terms(x, theta, mixture)
            pull = np.exp(terms - terms.max()) / np.square(mixture.sds)
            centre = (x[:, None] - mixture.shifts) @ pull[0] / pull.sum()
            theta = np.clip(centre / mixture.factor, mixture.lower, mixture.upper)[None]
        level = logsumexp(log_terms(x, theta, mixture))
        if level > height:
            best, height = theta[0], level
    return best


def example(
    name: str, mixture: Mixture, observed: np.ndarray, truth: np.ndarray | None = None
) -> SimulatorExample:
    """Build the example: a mixture with one observation and its exact posterior."""
    d = len(observed)
    factor, lower, upper = mixture.factor, mixture.lower, mixture.upper
    names = ["theta"] if d == 1 else [f"theta{i}" for i in range(1, d + 1)]

    def simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
        return factor * theta + noise(rng, len(theta), d, mixture)

    def epsilon_reference(rng: np.random.Generator, n: int, epsilon: float) -> np.ndarray:
        def propose(rng, m):
            x = observed + in_ball(rng, m, d, epsilon)
            theta = (x - noise(rng, m, d, mixture)) / factor
            return theta, ((lower < theta) & (theta < upper)).all(axis=1)

        return accepted_draws(propose, rng, n)

    return SimulatorExample(
        name=name, prior=lambda: [pm.Uniform(name, lower, upper) for name in names],
        simulate=simulate, cube=lambda u: lower + (upper - lower) * u, observed=observed,
        epsilon=0.5, shapes=dict.fromkeys(names, ()), truth=truth,
        reference=lambda rng, n: epsilon_reference(rng, n, 0.0),
        epsilon_reference=epsilon_reference, mode=highest_mode(observed, mixture),
    )  # fmt: skip


def univariate_mixture(observed: float = 50.0) -> SimulatorExample:
    """Build example 2: one parameter in the unit interval, data between 0 and 100."""
    return example("univariate_mixture", UNIVARIATE, np.array([observed], float))


def bivariate_mixture() -> SimulatorExample:
    """Build example 3: two parameters; figure 7 uses hierarchical optimisation at a tolerance of 6."""
    observed, truth = np.array([2.0, 2.0]), np.array([-1.0, -1.0])
    return example("bivariate_mixture", BIVARIATE, observed, truth)
