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

:func:`reference` draws from the posterior by Gibbs sampling, fits a mixture of Student distributions to
the draws with their components in order, and sums it over all relabellings for importance sampling. The
results are stored in ``FROZEN``; ``python -m models.galaxies`` computes them again.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.linalg import block_diag
from scipy.special import digamma, gammainccinv, gammaln, logsumexp, ndtri, polygamma

from amc_pymc.engine.jit import njit
from amc_pymc.rng import as_generator, spawn_generators
from models.evidence_problem import EvidenceProblem
from models.student_importance import Component, Reference, importance_evidence

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
LOG_2PI = math.log(2.0 * math.pi)

FROZEN: dict[tuple[int, bool], Reference] = {
    (2, True): Reference(-239.76143, 0.00001),  # by quadrature
    (3, True): Reference(-226.81268, 0.00010),
    (3, False): Reference(-226.78838, 0.00028),
}


# --- the posterior in unconstrained coordinates --------------------------------------------------

# These are the K means, the log variances (K or one), and the K - 1 log-ratios of weights to the last.


@njit(cache=True)
def mixture_log_likelihoods(log_weights, mu, variance, y):
    """Return the log likelihood (n,) of n mixtures, arguments (n, K)."""
    n, k = mu.shape
    out = np.empty(n)
    terms = np.empty(k)
    level = np.empty(k)
    for i in range(n):
        for j in range(k):
            level[j] = log_weights[i, j] - 0.5 * math.log(2.0 * math.pi * variance[i, j])
        total = 0.0
        for row in range(y.size):
            top = -np.inf
            for j in range(k):
                terms[j] = level[j] - 0.5 * (y[row] - mu[i, j]) ** 2 / variance[i, j]
                top = max(top, terms[j])
            summed = 0.0
            for j in range(k):
                summed += math.exp(terms[j] - top)
            total += top + math.log(summed)
        out[i] = total
    return out


def split(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return means, log variances and log weights, each (n, K), of points x (n, D)."""
    mu, rest = x[:, :k], x[:, k:]
    n_variances = rest.shape[1] - (k - 1)
    log_variance = np.broadcast_to(rest[:, :n_variances], mu.shape)
    ratios = np.column_stack([rest[:, n_variances:], np.zeros(len(x))])
    return mu, log_variance, ratios - logsumexp(ratios, axis=1, keepdims=True)


def log_joint(x: np.ndarray, k: int) -> np.ndarray:
    """Return the log of prior times likelihood (n,) in the unconstrained coordinates of points x (n, D)."""
    mu, log_variance, log_weights = split(x, k)
    equal = x.shape[1] == 2 * k
    free = log_variance[:, :1] if equal else log_variance
    log_prior = -0.5 * (((mu - MEAN) / SD) ** 2 + LOG_2PI).sum(axis=1) - k * math.log(SD)
    log_prior += (
        SHAPE * math.log(SCALE) - gammaln(SHAPE) - SHAPE * free - SCALE * np.exp(-free)
    ).sum(axis=1)
    log_prior += gammaln(k) + log_weights.sum(axis=1)
    mu, log_weights = np.ascontiguousarray(mu), np.ascontiguousarray(log_weights)
    return log_prior + mixture_log_likelihoods(log_weights, mu, np.exp(log_variance), VELOCITIES)


def relabelled(x: np.ndarray, k: int) -> list[np.ndarray]:
    """Return points x (n, D) under all permutations of the components."""
    n_variances = x.shape[1] - 2 * k + 1
    ratios = np.column_stack([x[:, k + n_variances :], np.zeros(len(x))])
    images = []
    for order in itertools.permutations(range(k)):
        p = list(order)
        log_variance = x[:, k : k + n_variances]
        moved = ratios[:, p]
        spread = log_variance if n_variances == 1 else log_variance[:, p]
        images.append(np.column_stack([x[:, :k][:, p], spread, moved[:, :-1] - moved[:, -1:]]))
    return images


# --- references ----------------------------------------------------------------------------------


def gibbs(
    k: int, equal: bool, *, chains: int, sweeps: int, rng: np.random.Generator, keep: int = 5
) -> np.ndarray:
    """Draw points (n, D) with the components in order of their means, by chains started from the prior.

    The first half of each chain is dropped; `keep` evenly spaced draws of the rest are kept.
    """
    y = VELOCITIES
    mu = MEAN + SD * rng.standard_normal((chains, k))
    variance = SCALE / rng.gamma(SHAPE, size=(chains, 1 if equal else k))
    variance = np.broadcast_to(variance, (chains, k))
    weights = rng.dirichlet(np.ones(k), chains)
    kept = set(np.linspace(sweeps // 2, sweeps - 1, keep).astype(int))
    draws = []
    for sweep in range(sweeps):
        logs = np.log(weights / np.sqrt(variance))[:, None, :]
        logs = logs - 0.5 * (y[:, None] - mu[:, None, :]) ** 2 / variance[:, None, :]
        probability = np.exp(logs - logs.max(axis=2, keepdims=True))
        cumulated = probability.cumsum(axis=2)
        u = rng.random((chains, y.size, 1)) * cumulated[:, :, -1:]
        z = (u > cumulated).sum(axis=2)
        member = z[:, :, None] == np.arange(k)
        counts = member.sum(axis=1)
        precision = SD**-2 + counts / variance
        centre = (MEAN * SD**-2 + (member * y[:, None]).sum(axis=1) / variance) / precision
        mu = centre + rng.standard_normal((chains, k)) / np.sqrt(precision)
        squares = (member * (y[:, None] - mu[:, None, :]) ** 2).sum(axis=1)
        if equal:
            n, squares = np.full((chains, 1), y.size), squares.sum(axis=1, keepdims=True)
        else:
            n = counts
        drawn = (SCALE + 0.5 * squares) / rng.gamma(SHAPE + 0.5 * n)
        variance = np.broadcast_to(drawn, (chains, k))
        gammas = rng.gamma(1.0 + counts)
        weights = gammas / gammas.sum(axis=1, keepdims=True)
        if sweep in kept:
            order = np.argsort(mu, axis=1)
            means = np.take_along_axis(mu, order, axis=1)
            spread = np.log(drawn if equal else np.take_along_axis(drawn, order, axis=1))
            logs = np.take_along_axis(np.log(weights), order, axis=1)
            draws.append(np.column_stack([means, spread, logs[:, :-1] - logs[:, -1:]]))
    return np.concatenate(draws)


def prior_component(k: int, equal: bool, share: float) -> Component:
    """Return a Student distribution as wide as the prior, which keeps modes from being missed."""
    n_variances = 1 if equal else k
    log_variance = np.full(n_variances, math.log(SCALE) - digamma(SHAPE))
    mean = np.concatenate([np.full(k, MEAN), log_variance, np.zeros(k - 1)])
    # The log-ratios of Dirichlet weights all contain the logarithm of the last weight.
    ratios = polygamma(1, 1.0) * (np.eye(k - 1) + 1.0)
    spread = polygamma(1, SHAPE) * np.eye(n_variances)
    return Component(share, mean, block_diag(SD**2 * np.eye(k), spread, ratios))


def reference(
    k: int,
    equal: bool,
    *,
    chains: int = 1000,
    sweeps: int = 400,
    n_components: int = 12,
    log2_points: int = 13,
    replicates: int = 16,
    seed: int = 0,
) -> Reference:
    """Estimate the log evidence by importance sampling from a mixture fitted to Gibbs draws.

    Parameters
    ----------
    k : int
        Number of components of the model.
    equal : bool
        Whether all components have the same variance.
    chains, sweeps : int
        Numbers of chains and sweeps of the Gibbs sampler.
    n_components : int
        Number of components of the proposal, in addition to one as wide as the prior with a share of a tenth.
    log2_points, replicates, seed : int
        See :func:`models.student_importance.importance_evidence`.
    """
    from sklearn.mixture import GaussianMixture

    chain_rng, sampling_rng = spawn_generators(as_generator(seed), 2)
    draws = gibbs(k, equal, chains=chains, sweeps=sweeps, rng=chain_rng)
    fit = GaussianMixture(n_components, random_state=0, reg_covar=1e-4).fit(draws)
    components = [
        Component(0.9 * w, m, c)
        for w, m, c in zip(fit.weights_, fit.means_, fit.covariances_, strict=True)
    ]
    return importance_evidence(
        lambda x: log_joint(x, k),
        [*components, prior_component(k, equal, 0.1)],
        log2_points=log2_points,
        replicates=replicates,
        seed=int(sampling_rng.integers(2**31)),
        images=lambda x: relabelled(x, k),
    )


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


# --- problem -------------------------------------------------------------------------------------


def galaxies(k: int = 3, *, equal: bool = True) -> EvidenceProblem:
    """Build the problem of the velocities under a mixture of k normal distributions.

    Parameters
    ----------
    k : int
        Number of components, at least two. The reference for more than three, or for two with separate variances,
        is computed on request, which takes a while; check the problem's `error`.
    equal : bool
        Whether all components have the same variance.
    """
    n_variances = 1 if equal else k
    found = FROZEN.get((k, bool(equal))) or reference(k, equal)

    def variables() -> None:
        weights = pm.Dirichlet("weights", np.ones(k))
        mu = pm.Normal("mu", MEAN, SD, shape=k)
        variance = pm.InverseGamma("variance", SHAPE, SCALE, shape=() if equal else k)
        pm.NormalMixture("velocity", w=weights, mu=mu, sigma=pt.sqrt(variance), observed=VELOCITIES)

    def prior_transform(u: np.ndarray) -> np.ndarray:
        # Stick breaking: the remainder after j weights is beta distributed with parameters (k - 1 - j, 1).
        left = (1.0 - u[: k - 1]) ** (1.0 / np.arange(k - 1, 0, -1))
        weights = (1.0 - left) * np.append(1.0, np.cumprod(left)[:-1])
        mu = MEAN + SD * ndtri(u[k - 1 : 2 * k - 1])
        return np.concatenate([weights, mu, SCALE / gammainccinv(SHAPE, u[2 * k - 1 :])])

    def log_likelihood(parameters: np.ndarray) -> float:
        weights = np.append(parameters[: k - 1], 1.0 - parameters[: k - 1].sum())
        mu, variance = parameters[k - 1 : 2 * k - 1], parameters[2 * k - 1 :]
        with np.errstate(divide="ignore"):
            level = np.log(np.maximum(weights, 0.0)) - 0.5 * (LOG_2PI + np.log(variance))
        terms = level - 0.5 * (VELOCITIES[:, None] - mu) ** 2 / variance
        top = terms.max(axis=1)
        return float((top + np.log(np.exp(terms - top[:, None]).sum(axis=1))).sum())

    return EvidenceProblem(
        name=f"galaxies_{k}" + ("" if equal else "_unequal"),
        variables=variables,
        log_evidence=found.log_evidence,
        error=found.error,
        source="quadrature" if (k, equal) == (2, True) else "quasi-random importance sampling",
        n_dim=2 * k - 1 + n_variances,
        easy=False,
        prior_transform=prior_transform,
        log_likelihood=log_likelihood,
    )


def main() -> None:
    """Compute the frozen references again, in a few minutes."""
    for k, equal in ((2, True), (3, True), (3, False)):
        print(k, equal, reference(k, equal, n_components=16, log2_points=12, replicates=32))
    print("two components by quadrature", log_evidence_of_two(panels=32, order=30))


if __name__ == "__main__":
    main()
