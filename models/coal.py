r"""Disasters in British coal mines, 1851-1962: a Poisson rate that changes in one year.

.. math:: \lambda_1, \lambda_2 \sim \text{Gamma}(2, 1), \quad s \sim \text{Uniform}\{1, \dots, 111\}, \qquad
          y_t \sim \text{Poisson}(\lambda_1) \text{ for the first } s \text{ years, then Poisson}(\lambda_2) .

The year is a discrete variable, or is summed out. Rates given the year integrate in closed form, so the evidence is
exact and the same for both. Counts of Jarrett (1979), *A note on the intervals between coal-mining disasters*,
Biometrika 66, 191-193.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.special import gammaln, logsumexp

from models.evidence_problem import EvidenceProblem
from models.normal_scores import NormalScores, gamma, scored_problem
from models.student_importance import Reference

COUNTS = np.array([
    4, 5, 4, 1, 0, 4, 3, 4, 0, 6, 3, 3, 4, 0, 2, 6, 3, 3, 5, 4, 5, 3, 1, 4, 4, 1, 5, 5, 3, 4, 2, 5,
    2, 2, 3, 4, 2, 1, 3, 2, 2, 1, 1, 1, 1, 3, 0, 0, 1, 0, 1, 1, 0, 0, 3, 1, 0, 3, 2, 2, 0, 1, 1, 1,
    0, 1, 0, 1, 0, 0, 0, 2, 1, 0, 0, 0, 1, 1, 0, 2, 3, 3, 1, 1, 2, 1, 1, 1, 1, 2, 4, 2, 0, 0, 0, 1,
    4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1,
])  # fmt: skip
RATE = np.float64(2.0), np.float64(1.0)


def log_evidence() -> float:
    """Return log Z from gamma integrals for every year of change, and their mean."""
    n = COUNTS.size
    before = np.cumsum(COUNTS)[:-1]
    years = np.arange(1, n)

    def part(total: np.ndarray, length: np.ndarray) -> np.ndarray:
        a, b = RATE
        whole = a + total
        return a * math.log(b) - gammaln(a) + gammaln(whole) - whole * np.log(b + length)

    logs = part(before, years) + part(COUNTS.sum() - before, n - years)
    return float(logsumexp(logs)) - math.log(n - 1) - gammaln(COUNTS + 1.0).sum()


def coal_discrete() -> EvidenceProblem:
    """Build the problem with the year of change as a discrete variable."""
    n = COUNTS.size

    def variables() -> None:
        year = pm.DiscreteUniform("year", 1, n - 1)
        rates = pm.Gamma("rates", *RATE, shape=2)
        rate = pt.where(np.arange(n) < year, rates[0], rates[1])
        pm.Poisson("disasters", rate, observed=COUNTS)

    return EvidenceProblem(
        name="coal_discrete", variables=variables, log_evidence=log_evidence(), n_dim=3, easy=True
    )


def coal() -> EvidenceProblem:
    """Build the problem with the year of change summed out, in two dimensions."""
    n = COUNTS.size
    before, years = np.cumsum(COUNTS)[:-1], np.arange(1, n)
    after = COUNTS.sum() - before
    constant = -math.log(n - 1) - gammaln(COUNTS + 1.0).sum()

    def variables() -> None:
        rates = pm.Gamma("rates", *RATE, shape=2)
        first = before * pt.log(rates[0]) - years * rates[0]
        second = after * pt.log(rates[1]) - (n - years) * rates[1]
        pm.Potential("disasters", pt.logsumexp(first + second) + constant)

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        rates = theta[:, :, None]
        with np.errstate(divide="ignore"):
            first = before * np.log(rates[:, 0]) - years * rates[:, 0]
            second = after * np.log(rates[:, 1]) - (n - years) * rates[:, 1]
        return logsumexp(first + second, axis=1) + constant

    scores = NormalScores(2, lambda z: gamma(z, *RATE), log_likelihood)
    return scored_problem("coal", variables, scores, Reference(log_evidence(), 0.0), "closed form")
