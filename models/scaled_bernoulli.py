r"""Unbiased estimators of one number that differ only in variance.

Section 6.1 and appendix E of Neufeld, György, Schuurmans & Szepesvári (2014), *Adaptive Monte Carlo
via Bandit Allocation*, ICML, PMLR 32(2):1944-1952. Arm k gives

.. math:: X_k = \mu + s_k (Z - \tfrac12), \qquad Z \sim \text{Bernoulli}(\tfrac12), \qquad
          V_k = s_k^2 / 4 ,

which has the largest variance of all distributions on an interval of length :math:`s_k`; or a
uniform, or a normal truncated to :math:`\mu \pm \tfrac12`, of the same variance. Their variances are at most
1/12, that of the Bernoulli 1/4. In the paper :math:`\mu = \tfrac12`, so values lie in [0, 1], and so do
rewards :math:`1 - X^2`.
"""

from __future__ import annotations

import math

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

Shape = Literal["bernoulli", "uniform", "normal"]


@dataclass(frozen=True)
class Estimator:
    """Estimator with one variance: call it with a generator for one value, or draw n values at once.

    Parameters
    ----------
    variance : float
        Variance, in (0, 1/4] for the Bernoulli, (0, 1/12] for the uniform, (0, 1/12) for the truncated normal.
    mean : float
    shape : {"bernoulli", "uniform", "normal"}

    Examples
    --------
    >>> import numpy as np
    >>> arm = Estimator(0.04)
    >>> values = arm.sample(1000, np.random.default_rng(1))
    >>> float(values.min()), float(values.max())
    (0.3, 0.7)
    """

    variance: float
    mean: float = 0.5
    shape: Shape = "bernoulli"

    @property
    def scale(self) -> float:
        """Scale s of the Bernoulli, width of the uniform, sd of the normal before its truncation."""
        if self.shape == "bernoulli":
            return 2.0 * math.sqrt(self.variance)
        if self.shape == "uniform":
            return math.sqrt(12.0 * self.variance)
        return self._sd

    @cached_property
    def _sd(self) -> float:
        def excess(log_sd):
            return truncated_variance(math.exp(log_sd)) - self.variance

        # Truncation reduces the variance, so the sd is at least this.
        return math.exp(brentq(excess, 0.5 * math.log(self.variance) - 1e-9, 20.0, xtol=1e-14))

    def __call__(self, rng: np.random.Generator) -> float:
        """Draw one value."""
        return float(self.sample(1, rng)[0])

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw independent values (n,)."""
        if self.shape == "bernoulli":
            return self.mean + self.scale * (rng.integers(0, 2, n) - 0.5)
        u = rng.random(n)
        if self.shape == "uniform":
            return self.mean + self.scale * (u - 0.5)
        edge = ndtr(-0.5 / self.scale)
        return self.mean + self.scale * ndtri(edge + (1.0 - 2.0 * edge) * u)


def truncated_variance(sd: float) -> float:
    """Return the variance of a centred normal of standard deviation `sd`, truncated to (-1/2, 1/2)."""
    a = 0.5 / sd
    if a < 0.05:  # the closed form cancels; next is a term of order a^6
        return 1.0 / 12.0 - a**2 / 90.0 + a**4 / 1890.0
    density = math.exp(-0.5 * a * a) / math.sqrt(2.0 * math.pi)
    return sd**2 * (1.0 - 2.0 * a * density / (1.0 - 2.0 * float(ndtr(-a))))


@dataclass(frozen=True)
class Problem:
    """Estimators with the same mean.

    Examples
    --------
    >>> problem = make_problem([0.03, 0.06])
    >>> problem.mean, problem.variances, problem.best
    (0.5, array([0.03, 0.06]), 0)
    """

    arms: tuple[Estimator, ...]

    @property
    def mean(self) -> float:
        """Mean of all estimators."""
        return self.arms[0].mean

    @property
    def variances(self) -> np.ndarray:
        """Variances V_k, (K,)."""
        return np.array([arm.variance for arm in self.arms])

    @property
    def best(self) -> int:
        """Index of the estimator with the smallest variance."""
        return int(np.argmin(self.variances))

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw values (K, n) of all estimators."""
        return np.array([arm.sample(n, rng) for arm in self.arms])


def make_problem(
    variances: Sequence[float], *, mean: float = 0.5, shape: Shape = "bernoulli"
) -> Problem:
    """Build estimators of `mean` with given variances.

    Parameters
    ----------
    variances : sequence of float (K,)
    mean : float, default 0.5
        Common mean; with 0.5, values lie in [0, 1].
    shape : {"bernoulli", "uniform", "normal"}
    """
    return Problem(tuple(Estimator(float(v), float(mean), shape) for v in variances))
