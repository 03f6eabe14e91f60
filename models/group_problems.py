r"""Small models of groups and their evidence.

Eight schools: effects of coaching with known standard errors, centred or not
-----------------------------------------------------------------------------
.. math:: \mu \sim N(0, 5^2), \quad \tau \sim C^+(0, 5), \quad \theta_j \sim N(\mu, \tau^2), \quad
          y_j \sim N(\theta_j, s_j^2) .

Given tau everything is normal. Data from Rubin (1981), *Estimation in parallel randomized experiments*, Journal of
Educational Statistics 6, 377-401. The centred posterior has a funnel-shaped neck at small tau.

Tumours of rats in 71 experiments, whose probabilities are drawn from one beta distribution
-------------------------------------------------------------------------------------------
.. math:: m \sim U[0, 1], \quad \kappa = e^v,\ v \sim N(3, 1), \quad
          \theta_j \sim \text{Beta}(m \kappa, (1 - m) \kappa), \quad y_j \sim \text{Binomial}(n_j, \theta_j) .

Probabilities are integrated out to beta-binomial counts, which leaves two of 73 dimensions. Data from Tarone (1982),
*The use of historical control information in testing for a trend in proportions*, Biometrics 38, 215-220, by way of
Gelman et al., *Bayesian Data Analysis*, section 5.1.

Multinomial counts of four categories in six groups with a common Dirichlet prior
---------------------------------------------------------------------------------
.. math:: \kappa \sim \text{Gamma}(2, 0.1), \quad \theta_j \sim \text{Dirichlet}(\kappa m), \quad
          y_j \sim \text{Multinomial}(n_j, \theta_j), \qquad m = (0.4, 0.3, 0.2, 0.1) .

Shares are integrated out, which gives Dirichlet-multinomial counts; kappa is integrated by quadrature.

Small test of thirty persons and six items, by the one- and the two-parameter logistic model
--------------------------------------------------------------------------------------------
.. math:: y_{pi} \sim \text{Bernoulli}(\text{expit}(a_i (\theta_p - b_i))), \qquad
          \theta_p \sim N(0, 1), \quad b_i \sim N(0, 2^2), \quad \log a_i \sim N(0, 0.5^2)

with one discrimination a for all items, or one each. Abilities are integrated out one at a time by the
trapezoidal rule, which leaves 7 of 37 or 12 of 42 dimensions.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.special import betaincinv, betaln, gammaincinv, gammaln, logsumexp, ndtr, xlogy

from amc_pymc.rng import as_generator
from models.evidence_problem import EvidenceProblem
from models.item_response import simulate_responses
from models.normal_scores import (
    LOG_2PI,
    NormalScores,
    half_cauchy,
    scored_problem,
)
from models.student_importance import Reference

# --- eight schools ----------------------------------------------------------------------------------

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
SCALE = np.float64(5.0)


def eight_schools_log_evidence(n: int = 20_001) -> float:
    """Return log Z by the trapezoidal rule over log tau."""
    u = np.linspace(-25.0, 25.0, n)
    tau = np.exp(u)
    variance = np.square(tau)[:, None] + np.square(ERRORS)
    precision = (1.0 / variance).sum(axis=1) + SCALE**-2.0
    shift = (EFFECTS / variance).sum(axis=1)
    squares = (np.square(EFFECTS) / variance).sum(axis=1) - np.square(shift) / precision
    log_det = np.log(variance).sum(axis=1) + np.log(precision) + 2.0 * math.log(SCALE)
    logs = -0.5 * (squares + log_det + EFFECTS.size * LOG_2PI)
    logs += math.log(2.0 / math.pi / SCALE) - np.log1p(np.square(tau / SCALE)) + u
    return float(logsumexp(logs)) + math.log(u[1] - u[0])


def school_scores(centred: bool) -> NormalScores:
    """Return prior and likelihood of mu, tau, and effects or their standardised form."""

    def parameters(z: np.ndarray) -> np.ndarray:
        mu, tau = SCALE * z[:, :1], half_cauchy(z[:, 1:2], SCALE)
        return np.column_stack([mu, tau, mu + tau * z[:, 2:] if centred else z[:, 2:]])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        effects = theta[:, 2:] if centred else theta[:, :1] + theta[:, 1:2] * theta[:, 2:]
        squares = np.square((EFFECTS - effects) / ERRORS).sum(axis=1)
        return -0.5 * (squares + EFFECTS.size * LOG_2PI) - np.log(ERRORS).sum()

    return NormalScores(2 + EFFECTS.size, parameters, log_likelihood)


def eight_schools(centred: bool = False) -> EvidenceProblem:
    """Build the problem in ten dimensions.

    Parameters
    ----------
    centred : bool
        Whether the variables are the effects themselves or standardised effects.
    """

    def variables() -> None:
        mu = pm.Normal("mu", 0.0, SCALE)
        tau = pm.HalfCauchy("tau", SCALE)
        if centred:
            theta = pm.Normal("theta", mu, tau, shape=EFFECTS.size)
        else:
            theta = mu + tau * pm.Normal("theta_tilde", 0.0, 1.0, shape=EFFECTS.size)
        pm.Normal("y", theta, ERRORS, observed=EFFECTS)

    name = "eight_schools_centred" if centred else "eight_schools"
    source = "closed form given tau, one-dimensional quadrature"
    found = Reference(eight_schools_log_evidence(), 0.0)
    return scored_problem(name, variables, school_scores(centred), found, source, easy=not centred)


# --- rat tumours ------------------------------------------------------------------------------------

TUMOURS = np.array([
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1,
    5, 2, 5, 3, 2, 7, 7, 3, 3, 2, 9, 10, 4, 4, 4, 4, 4, 4, 4, 10, 4, 4, 4, 5, 11, 12, 5, 5, 6, 5, 6,
    6, 6, 6, 16, 15, 15, 9, 4,
])  # fmt: skip
RATS = np.array([
    20, 20, 20, 20, 20, 20, 20, 19, 19, 19, 19, 18, 18, 17, 20, 20, 20, 20, 19, 19, 18, 18, 25, 24,
    23, 20, 20, 20, 20, 20, 20, 10, 49, 19, 46, 27, 17, 49, 47, 20, 20, 13, 48, 50, 20, 20, 20, 20,
    20, 20, 20, 48, 19, 19, 19, 22, 46, 49, 20, 20, 23, 19, 22, 20, 20, 20, 52, 46, 47, 24, 14,
])  # fmt: skip
PLACE = np.float64(3.0)
RAT_TUMOURS_FROZEN = Reference(-161.144277, 1e-06)


def log_binomials() -> float:
    """Return the log of the product of binomial coefficients."""
    return float((gammaln(RATS + 1) - gammaln(TUMOURS + 1) - gammaln(RATS - TUMOURS + 1)).sum())


def population(z: np.ndarray) -> np.ndarray:
    """Return the mean m and v (n, 2) from normal scores."""
    return np.column_stack([ndtr(z[:, 0]), PLACE + z[:, 1]])


def log_given_population(theta: np.ndarray) -> np.ndarray:
    """Return the log probability (n,) of the counts for m and v, with the experiments integrated out."""
    kappa = np.exp(theta[:, 1:])
    a, b = theta[:, :1] * kappa, (1.0 - theta[:, :1]) * kappa
    terms = betaln(a + TUMOURS, b + RATS - TUMOURS) - betaln(a, b)
    return terms.sum(axis=1) + log_binomials()


def population_scores() -> NormalScores:
    """Return prior and likelihood of the mean and v, with the experiments integrated out."""
    return NormalScores(2, population, log_given_population)


def rat_tumours() -> EvidenceProblem:
    """Build the problem of the hierarchical model with a variable for each experiment."""

    def variables() -> None:
        m = pm.Uniform("m", np.float64(0.0), np.float64(1.0))
        kappa = pt.exp(pm.Normal("v", PLACE, 1.0))
        theta = pm.Beta("theta", m * kappa, (1.0 - m) * kappa, shape=RATS.size)
        pm.Binomial("y", n=RATS, p=theta, observed=TUMOURS)

    def parameters(z: np.ndarray) -> np.ndarray:
        top = population(z)
        kappa = np.exp(top[:, 1:])
        theta = betaincinv(top[:, :1] * kappa, (1.0 - top[:, :1]) * kappa, ndtr(z[:, 2:]))
        return np.column_stack([top, theta])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        p = theta[:, 2:]
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.where(TUMOURS > 0, TUMOURS * np.log(p), 0.0)
            return (found + (RATS - TUMOURS) * np.log1p(-p)).sum(axis=1) + log_binomials()

    scores = NormalScores(2 + RATS.size, parameters, log_likelihood)
    source = "beta-binomial counts, two-dimensional quadrature"
    return scored_problem("rat_tumours", variables, scores, RAT_TUMOURS_FROZEN, source)


# --- dirichlet groups -------------------------------------------------------------------------------

GROUPS = 6
MEAN = np.array([0.4, 0.3, 0.2, 0.1])
KAPPA = np.float64(2.0), np.float64(0.1)


def dirichlet_simulate(seed: int = 1) -> np.ndarray:
    """Simulate counts (6, 4)."""
    rng = as_generator(seed)
    shares = rng.dirichlet(15.0 * MEAN, GROUPS)
    return np.array([rng.multinomial(30, share) for share in shares])


def log_coefficients(y: np.ndarray) -> float:
    """Return the log of the product of multinomial coefficients."""
    return float((gammaln(y.sum(axis=1) + 1.0) - gammaln(y + 1.0).sum(axis=1)).sum())


def log_given_kappa(log_kappa: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the log probability (n,) of counts (J, K) for log kappa (n,), with shares integrated out."""
    kappa = np.exp(log_kappa)[:, None, None]
    totals = y.sum(axis=1)[:, None]
    terms = (gammaln(kappa * MEAN + y) - gammaln(kappa * MEAN)).sum(axis=(1, 2))
    return terms - (gammaln(kappa + totals) - gammaln(kappa)).sum(axis=(1, 2)) + log_coefficients(y)


def dirichlet_log_evidence(y: np.ndarray, n: int = 4_001) -> float:
    """Return log Z by the trapezoidal rule over log kappa."""
    u = np.linspace(-10.0, 8.0, n)
    a, b = KAPPA
    log_prior = a * math.log(b) - gammaln(a) + a * u - b * np.exp(u)
    return float(logsumexp(log_given_kappa(u, y) + log_prior)) + math.log(u[1] - u[0])


def dirichlet_groups() -> EvidenceProblem:
    """Build the problem with kappa and a simplex for each group, in nineteen dimensions."""
    y = dirichlet_simulate()
    k = MEAN.size

    def variables() -> None:
        kappa = pm.Gamma("kappa", *KAPPA)
        theta = pm.Dirichlet("theta", kappa * MEAN, shape=(GROUPS, k))
        pm.Multinomial("y", n=y.sum(axis=1), p=theta, observed=y)

    def prior_transform(u: np.ndarray) -> np.ndarray:
        kappa = gammaincinv(KAPPA[0], u[0]) / KAPPA[1]
        concentration = kappa * MEAN
        rest = np.cumsum(concentration[::-1])[::-1]
        # Stick breaking: each category takes a beta distributed share of the remainder.
        sticks = betaincinv(concentration[:-1], rest[1:], u[1:].reshape(GROUPS, k - 1))
        left = np.cumprod(np.column_stack([np.ones(GROUPS), 1.0 - sticks]), axis=1)[:, :-1]
        return np.append(kappa, (sticks * left).ravel())

    def log_likelihood(parameters: np.ndarray) -> float:
        theta = parameters[1:].reshape(GROUPS, k - 1)
        theta = np.column_stack([theta, np.maximum(1.0 - theta.sum(axis=1), 0.0)])
        return float(xlogy(y, theta).sum()) + log_coefficients(y)

    return EvidenceProblem(
        name="dirichlet_groups", variables=variables, log_evidence=dirichlet_log_evidence(y),
        source="closed form given kappa, one-dimensional quadrature", n_dim=1 + GROUPS * (k - 1),
        easy=True, prior_transform=prior_transform, log_likelihood=log_likelihood,
    )  # fmt: skip


# --- item response evidence -------------------------------------------------------------------------

PERSONS, ITEMS = 30, 6
DIFFICULTY_SD, DISCRIMINATION_SD = np.float64(2.0), np.float64(0.5)
ITEM_RESPONSE_FROZEN = {
    False: Reference(-112.044303, 0.00047),
    True: Reference(-112.213084, 0.0022),
}


def answers() -> np.ndarray:
    """Simulate answers (30, 6), 1 if right."""
    return simulate_responses(PERSONS, ITEMS, seed=2).y.reshape(PERSONS, ITEMS).astype(np.int64)


def items(z: np.ndarray, each: bool) -> np.ndarray:
    """Return discriminations and difficulties from normal scores."""
    k = ITEMS if each else 1
    return np.column_stack([np.exp(DISCRIMINATION_SD * z[:, :k]), DIFFICULTY_SD * z[:, k:]])


def log_given_items(theta: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return log probabilities (n,) of answers given discriminations and difficulties, abilities integrated out."""
    ability = np.linspace(-8.0, 8.0, 65)
    log_prior = -0.5 * (np.square(ability) + LOG_2PI) + np.log(ability[1] - ability[0])
    a, b = theta[:, :-ITEMS], theta[:, -ITEMS:]
    values = np.empty(len(theta))
    for part in np.array_split(np.arange(len(theta)), -(-len(theta) // 2_000)):
        logits = a[part, None] * (ability[:, None] - b[part, None])
        wrong = -np.logaddexp(0.0, logits).sum(axis=2) + log_prior
        values[part] = logsumexp(logits @ y.T + wrong[:, :, None], axis=1).sum(axis=1)
    return values


def item_scores(each: bool) -> NormalScores:
    """Return prior and likelihood of the items, with one discrimination for all or one each."""
    y = answers()
    n_dim = ITEMS + (ITEMS if each else 1)
    return NormalScores(n_dim, lambda z: items(z, each), lambda t: log_given_items(t, y))


def small_test(each: bool = False) -> EvidenceProblem:
    """Build the problem with all abilities as variables.

    Parameters
    ----------
    each : bool
        Whether each item has its own discrimination (two-parameter model), or all have the same (one-parameter model).
    """
    y = answers()
    k = ITEMS if each else 1

    def variables() -> None:
        a = pm.LogNormal("a", 0.0, DISCRIMINATION_SD, shape=k)
        b = pm.Normal("b", 0.0, DIFFICULTY_SD, shape=ITEMS)
        theta = pm.Normal("theta", 0.0, 1.0, shape=PERSONS)
        pm.Bernoulli("y", logit_p=a * (theta[:, None] - b), observed=y)

    def parameters(z: np.ndarray) -> np.ndarray:
        return np.column_stack([items(z[:, : k + ITEMS], each), z[:, k + ITEMS :]])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        a, b = theta[:, None, :k], theta[:, None, k : k + ITEMS]
        logits = a * (theta[:, k + ITEMS :, None] - b)
        return (y * logits - np.logaddexp(0.0, logits)).sum(axis=(1, 2))

    scores = NormalScores(k + ITEMS + PERSONS, parameters, log_likelihood)
    source = "abilities by quadrature each, the others by quasi-random importance sampling"
    name = f"item_response_{2 if each else 1}pl"
    return scored_problem(name, variables, scores, ITEM_RESPONSE_FROZEN[each], source)
