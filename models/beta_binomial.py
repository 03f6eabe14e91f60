r"""Beta-binomial model of k successes in n trials, the simplest evidence problem.

.. math:: \theta \sim \text{Beta}(a, b), \quad k \sim \text{Binomial}(n, \theta), \qquad
          Z = \binom{n}{k} \frac{B(a + k, b + n - k)}{B(a, b)} .

Under the uniform prior, 0, ..., n successes are all equally likely and Z = 1 / (n + 1). It is the
example of Gronau et al. (2017), *A tutorial on bridge sampling*, Journal of Mathematical Psychology
81, 80-97 (doi:10.1016/j.jmp.2017.09.005), with k = 2 and n = 10.
"""

from __future__ import annotations

import numpy as np
import pymc as pm

from scipy.special import betaincinv, betaln, gammaln, xlog1py, xlogy

from models.evidence_problem import EvidenceProblem


def log_choose(n: int, k: int) -> float:
    """Return the log of the binomial coefficient."""
    return float(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def log_evidence(successes: int, trials: int, a: float, b: float) -> float:
    """Return log Z in closed form."""
    coefficient = log_choose(trials, successes)
    return float(coefficient + betaln(a + successes, b + trials - successes) - betaln(a, b))


def beta_binomial(
    successes: int = 2, trials: int = 10, *, a: float = 1.0, b: float = 1.0
) -> EvidenceProblem:
    """Build the problem of one probability and one count.

    Parameters
    ----------
    successes, trials : int
        k and n.
    a, b : float
        Parameters of the beta prior.

    Examples
    --------
    >>> import math
    >>> bool(abs(beta_binomial().log_evidence + math.log(11)) < 1e-12)
    True
    """
    a, b = np.float64(a), np.float64(b)
    coefficient = log_choose(trials, successes)

    def variables() -> None:
        theta = pm.Beta("theta", a, b)
        pm.Binomial("successes", n=trials, p=theta, observed=successes)

    def log_likelihood(theta: np.ndarray) -> float:
        failures = trials - successes
        return float(coefficient + xlogy(successes, theta[0]) + xlog1py(failures, -theta[0]))

    return EvidenceProblem(
        name="beta_binomial", variables=variables,
        log_evidence=log_evidence(successes, trials, a, b), n_dim=1, easy=True,
        prior_transform=lambda u: betaincinv(a, b, u), log_likelihood=log_likelihood,
    )  # fmt: skip
