r"""Velocities of 82 galaxies: normal mixtures with exchangeable labels.

.. math:: w \sim \text{Dirichlet}(1, \ldots, 1), \quad \mu_k \sim N(20, 10^2), \quad
          \sigma_k^2 \sim \text{InvGamma}(3, 20), \quad
          y_i \sim \sum_{k=1}^{K} w_k N(\mu_k, \sigma_k^2)

with one variance for all components or one each. The allocations are summed out and the labels have no
order, so every mode of the posterior has K! copies. The data are those of Roeder (1990),
*Density estimation with confidence sets exemplified by superclusters and voids in the galaxies*, JASA 85,
617-624, in 1000 km/s, with 26.96 for the 78th smallest (some copies have 26.69). The model is from Chib
(1995), *Marginal likelihood from the Gibbs output*, JASA 90, 1313-1321
(doi:10.1080/01621459.1995.10476635). His log evidences of two and three components of equal variance,
-240.464 and -228.620, lack about log K!, for the copies that his sampler did not visit; that of three
components with separate variances, -224.138, is too large. Neal (1999), *Erroneous results in "Marginal
likelihood from the Gibbs output"*, gives -239.764, -226.803 and -226.791 by averaging the likelihood
over the prior, which agrees with the values here to a hundredth.

The references in ``FROZEN`` are by quadrature (:func:`log_evidence_of_two`) and by importance sampling over all
relabellings of a mixture fitted to Gibbs draws. Tests estimate them in another way, from particles in all modes.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.special import gammaln, logsumexp, ndtr

from models.evidence_problem import EvidenceProblem
from models.normal_scores import LOG_2PI, NormalScores, gamma, scored_problem
from models.student_importance import Reference

VELOCITIES = np.array([
    9.172, 9.350, 9.483, 9.558, 9.775, 10.227, 10.406, 16.084, 16.170, 18.419, 18.552, 18.600,
    18.927, 19.052, 19.070, 19.330, 19.343, 19.349, 19.440, 19.473, 19.529, 19.541, 19.547, 19.663,
    19.846, 19.856, 19.863, 19.914, 19.918, 19.973, 19.989, 20.166, 20.175, 20.179, 20.196, 20.215,
    20.221, 20.415, 20.629, 20.795, 20.821, 20.846, 20.875, 20.986, 21.137, 21.492, 21.701, 21.814,
    21.921, 21.960, 22.185, 22.209, 22.242, 22.249, 22.314, 22.374, 22.495, 22.746, 22.747, 22.888,
    22.914, 23.206, 23.241, 23.263, 23.484, 23.538, 23.542, 23.666, 23.706, 23.711, 24.129, 24.285,
    24.289, 24.366, 24.717, 24.990, 25.633, 26.960, 26.995, 32.065, 32.789, 34.279,
])  # fmt: skip

MEAN, SD = np.float64(20.0), np.float64(10.0)
SHAPE, SCALE = np.float64(3.0), np.float64(20.0)

FROZEN: dict[tuple[int, bool], Reference] = {
    (2, True): Reference(-239.76143, 0.00001),  # by quadrature
    (3, True): Reference(-226.81268, 0.00010),
    (3, False): Reference(-226.78838, 0.00028),
}


def galaxy_scores(k: int, equal: bool) -> NormalScores:
    """Return prior and likelihood of the first k - 1 weights, the means, and the variances."""

    def parameters(z: np.ndarray) -> np.ndarray:
        # Stick breaking: the remainder after j weights is beta distributed with parameters (k - 1 - j, 1).
        left = ndtr(-z[:, : k - 1]) ** (1.0 / np.arange(k - 1, 0, -1))
        before = np.column_stack([np.ones(len(z)), np.cumprod(left, axis=1)[:, :-1]])
        means = MEAN + SD * z[:, k - 1 : 2 * k - 1]
        return np.column_stack(
            [(1.0 - left) * before, means, 1.0 / gamma(-z[:, 2 * k - 1 :], SHAPE, SCALE)]
        )

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        shares = theta[:, : k - 1]
        shares = np.column_stack([shares, 1.0 - shares.sum(axis=1)])
        means, variances = theta[:, k - 1 : 2 * k - 1], theta[:, 2 * k - 1 :]
        with np.errstate(divide="ignore"):
            level = np.log(np.maximum(shares, 0.0)) - 0.5 * (LOG_2PI + np.log(variances))
        squares = (VELOCITIES[:, None] - means[:, None]) ** 2 / variances[:, None]
        return logsumexp(level[:, None] - 0.5 * squares, axis=2).sum(axis=1)

    return NormalScores(2 * k - 1 + (1 if equal else k), parameters, log_likelihood)


def log_evidence_of_two(*, panels: int = 20, order: int = 24) -> float:
    """Return log Z of two components of equal variance by Gauss-Legendre quadrature in four dimensions.

    The error is 2e-5 with the defaults, and 2e-6 with ``panels=32, order=30``.
    """
    y = VELOCITIES

    def rule(edges: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
        nodes, weights = np.polynomial.legendre.leggauss(order)
        centres, half = 0.5 * (edges[1:] + edges[:-1]), 0.5 * np.diff(edges)
        x = centres[:, None] + half[:, None] * nodes
        return x.ravel(), (half[:, None] * weights).ravel()

    mu, mu_weights = rule(np.r_[-45.0, -20.0, np.linspace(2.5, 42.5, panels + 1), 60.0, 85.0], 8)
    mu_weights *= np.exp(-0.5 * ((mu - MEAN) / SD) ** 2) / (SD * math.sqrt(2.0 * math.pi))
    log_s2, s2_weights = rule(np.array([1.0, 4.0]), order)
    s2_weights *= np.exp(SHAPE * math.log(SCALE / math.e) + SHAPE * (1.0 - log_s2))
    s2_weights *= np.exp(-SCALE * np.exp(-log_s2) - gammaln(SHAPE))
    # Swapping the components swaps the shares, so half of the unit interval is enough.
    share, share_weights = rule(np.array([0.0, 0.2, 0.5]), order // 2)
    shift = 100.0
    total = 0.0
    for t, s2_weight in zip(log_s2, s2_weights, strict=True):
        densities = np.exp(-0.5 * (y[:, None] - mu) ** 2 * math.exp(-t) - 0.5 * (t + LOG_2PI))
        densities *= math.exp(2.0 * shift / y.size)
        for w, share_weight in zip(share, share_weights, strict=True):
            product = np.ones((mu.size, mu.size))
            for row in densities:
                product *= (w * row)[:, None] + (1.0 - w) * row
            total += 2.0 * s2_weight * share_weight * (mu_weights @ product @ mu_weights)
    return math.log(total) - 2.0 * shift


def galaxies(k: int = 3, *, equal: bool = True) -> EvidenceProblem:
    """Build the problem of the velocities under a mixture of k normal distributions.

    Parameters
    ----------
    k : {2, 3}
        Number of components.
    equal : bool
        Whether they have one variance.
    """

    def variables() -> None:
        weights = pm.Dirichlet("weights", np.ones(k))
        mu = pm.Normal("mu", MEAN, SD, shape=k)
        variance = pm.InverseGamma("variance", SHAPE, SCALE, shape=() if equal else k)
        pm.NormalMixture("velocity", w=weights, mu=mu, sigma=pt.sqrt(variance), observed=VELOCITIES)

    name = f"galaxies_{k}" + ("" if equal else "_unequal")
    source = "quadrature" if (k, equal) == (2, True) else "quasi-random importance sampling"
    found = FROZEN[k, equal]
    return scored_problem(name, variables, galaxy_scores(k, equal), found, source, easy=False)
