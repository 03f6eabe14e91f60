r"""Number of major earthquakes per year, 1900-2006: a hidden Markov chain of two states with Poisson counts.

.. math:: \lambda_k \sim \text{Gamma}(4, 0.2), \quad p_k \sim \text{Beta}(9, 1), \qquad
          P(s_{t+1} = k | s_t = k) = p_k, \quad y_t \sim \text{Poisson}(\lambda_{s_t}) .

The first state is either with probability a half, so the labels of the states are exchangeable. States are
summed out by the forward algorithm. Counts of magnitude 7 and above are those of Zucchini & MacDonald (2009),
*Hidden Markov Models for Time Series*, from the catalogue of the US Geological Survey.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.special import gammaln

from models.evidence_problem import EvidenceProblem
from models.normal_scores import NormalScores, beta, gamma, sampled_evidence, scored_problem
from models.student_importance import Reference

COUNTS = np.array([
    13, 14, 8, 10, 16, 26, 32, 27, 18, 32, 36, 24, 22, 23, 22, 18, 25, 21, 21, 14, 8, 11, 14, 23,
    18, 17, 19, 20, 22, 19, 13, 26, 13, 14, 22, 24, 21, 22, 26, 21, 23, 24, 27, 41, 31, 27, 35, 26,
    28, 36, 39, 21, 17, 22, 17, 19, 15, 34, 10, 15, 22, 18, 15, 20, 15, 22, 19, 16, 30, 27, 29, 23,
    20, 16, 21, 21, 25, 16, 18, 15, 18, 14, 10, 15, 8, 15, 6, 11, 8, 7, 18, 16, 13, 12, 13, 20, 15,
    16, 12, 18, 15, 16, 13, 15, 16, 11, 11,
])  # fmt: skip
RATE = np.float64(4.0), np.float64(0.2)
STAY = np.float64(9.0), np.float64(1.0)
FROZEN = Reference(-348.552781, 0.00024)


def forward(theta: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the log probability (n,) of counts for rates and probabilities of staying (n, 4)."""
    rates, stay = theta[:, :2], theta[:, 2:]
    with np.errstate(divide="ignore"):
        log_stay, log_leave = np.log(stay), np.log1p(-stay)
        log_rates = np.log(rates)
    alpha = np.full(rates.shape, -math.log(2.0))
    for t, count in enumerate(y):
        if t:
            alpha = np.stack([
                np.logaddexp(alpha[:, k] + log_stay[:, k], alpha[:, 1 - k] + log_leave[:, 1 - k])
                for k in range(2)
            ], axis=1)  # fmt: skip
        alpha = alpha + count * log_rates - rates - gammaln(count + 1.0)
    return np.logaddexp(alpha[:, 0], alpha[:, 1])


def forward_of_symbols(rates, stay):
    """Return the same log probability as a PyTensor expression."""
    log_counts = COUNTS[:, None] * pt.log(rates) - rates - gammaln(COUNTS + 1.0)[:, None]
    log_stay, log_leave = pt.log(stay), pt.log1p(-stay)
    alpha = log_counts[0] - math.log(2.0)
    for t in range(1, COUNTS.size):
        arrive = (alpha + log_leave)[::-1]
        alpha = pt.logaddexp(alpha + log_stay, arrive) + log_counts[t]
    return pt.logaddexp(alpha[0], alpha[1])


def earthquake_scores() -> NormalScores:
    """Return prior and likelihood of two rates and two probabilities of staying."""

    def parameters(z: np.ndarray) -> np.ndarray:
        return np.column_stack([gamma(z[:, :2], *RATE), beta(z[:, 2:], *STAY)])

    return NormalScores(4, parameters, lambda theta: forward(theta, COUNTS))


def reference(**options: int) -> Reference:
    """Return log Z, computed again."""
    return sampled_evidence(earthquake_scores(), **options)


def earthquakes() -> EvidenceProblem:
    """Build the problem with the states summed out in a potential."""

    def variables() -> None:
        rates = pm.Gamma("rates", *RATE, shape=2)
        stay = pm.Beta("stay", *STAY, shape=2)
        pm.Potential("counts", forward_of_symbols(rates, stay))

    source = "forward algorithm, quasi-random importance sampling"
    return scored_problem("earthquakes", variables, earthquake_scores(), FROZEN, source, easy=False)
