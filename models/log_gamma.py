r"""Log-gamma and normal factors: skewed tails and four modes in a product over coordinates.

.. math:: x \sim U[-30, 30]^d, \qquad L(x) = \prod_i g_i(x_i), \qquad
          \text{LG}(x | l) = \exp(x - l - e^{x - l}), \\
          g_1 = \tfrac12 \text{LG}(10) + \tfrac12 \text{LG}(-10), \quad
          g_2 = \tfrac12 N(10, 1) + \tfrac12 N(-10, 1), \\
          g_i = \text{LG}(10) \text{ for } 3 \le i \le (d + 2) / 2, \quad
          g_i = N(10, 1) \text{ after that} .

The logarithm of a standard exponential variable has the density LG(0), with a heavy tail on the left. Every
factor integrates to one except for the mass outside the box, :math:`10^{-9}` of :math:`g_1`, so
:math:`Z = 60^{-d}`. Beaujean & Caldwell (2013), *Initializing adaptive importance sampling with Markov
chains*, arXiv:1304.7808.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.special import ndtr

from models.evidence_problem import EvidenceProblem

BOX = np.float64(30.0)
PLACE = np.float64(10.0)
LOG_2PI = math.log(2.0 * math.pi)


def n_skewed(d: int) -> int:
    """Return the number of log-gamma coordinates after the second."""
    return (d + 2) // 2 - 2


def log_evidence(d: int) -> float:
    """Return log Z, corrected for the mass outside the box."""

    def skewed(place: float) -> float:
        return math.exp(-math.exp(-BOX - place)) - math.exp(-math.exp(BOX - place))

    def normal(place: float) -> float:
        return float(ndtr(BOX - place) - ndtr(-BOX - place))

    factors = [
        0.5 * (skewed(PLACE) + skewed(-PLACE)),
        0.5 * (normal(PLACE) + normal(-PLACE)),
        *[skewed(PLACE)] * n_skewed(d),
        *[normal(PLACE)] * (d - 2 - n_skewed(d)),
    ]
    return sum(map(math.log, factors)) - d * math.log(2.0 * BOX)


def log_likelihood(x: np.ndarray) -> float:
    """Return the log of L at x (d,)."""
    first, second, rest = x[0], x[1], x[2:] - PLACE
    with np.errstate(over="ignore"):
        ends = np.array([first - PLACE, first + PLACE])
        total = np.logaddexp(*(ends - np.exp(ends))) - 2.0 * math.log(2.0)
        squares = np.array([second - PLACE, second + PLACE]) ** 2
        total += np.logaddexp(*(-0.5 * squares)) - 0.5 * LOG_2PI
        k = n_skewed(x.size)
        total += (rest[:k] - np.exp(rest[:k])).sum()
        total -= 0.5 * (np.square(rest[k:]).sum() + rest[k:].size * LOG_2PI)
    return float(total)


def log_gamma(d: int = 10) -> EvidenceProblem:
    """Build the problem: a uniform prior, and the likelihood as a custom distribution.

    Parameters
    ----------
    d : int
        Number of coordinates, at least two.
    """
    k = 2 + n_skewed(d)

    def log_density(value, x):
        def skewed(place, t):
            return t - place - pt.exp(t - place)

        def normal(place, t):
            return pm.logp(pm.Normal.dist(place, 1.0), t)

        def either(law, t):
            return pt.logaddexp(law(PLACE, t), law(-PLACE, t)) - math.log(2.0)

        total = either(skewed, x[0]) + either(normal, x[1])
        return total + skewed(PLACE, x[2:k]).sum() + normal(PLACE, x[k:]).sum()

    def variables() -> None:
        x = pm.Uniform("x", -BOX, BOX, shape=d)
        pm.CustomDist("likelihood", x, logp=log_density, signature="(d)->()", observed=0.0)

    return EvidenceProblem(
        name=f"log_gamma_{d}", variables=variables, log_evidence=log_evidence(d), n_dim=d,
        easy=False, prior_transform=lambda u: BOX * (2.0 * u - 1.0), log_likelihood=log_likelihood,
    )  # fmt: skip
