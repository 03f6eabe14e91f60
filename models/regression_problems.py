r"""Regressions of applied work and their evidence.

Regressions of counts with more zeros or a larger variance than Poisson counts
------------------------------------------------------------------------------
.. math:: b \sim N(0, I), \quad
          y_i \sim \text{NB}(\mu_i = e^{b_0 + b_1 x_i + b_2 v_i}, \alpha),\ \alpha \sim \text{Exp}(0.5)

with 60 rows, and

.. math:: \psi \sim U[0, 1], \quad b \sim N(0, I), \quad
          y_i \sim \psi\, \text{Poisson}(e^{b_0 + b_1 x_i}) + (1 - \psi) \delta_0

with 80 rows. Data are simulated.

Ordered logistic model of answers on a scale from 0 to 4 with two covariates
----------------------------------------------------------------------------
.. math:: b \sim N(0, I), \quad c_1 \sim N(-1.5, 1), \quad d_k \sim \text{Exp}(1), \quad
          c_{k+1} = c_k + d_k, \quad P(y_i \le k) = \text{expit}(c_{k+1} - x_i^\top b) .

The distances between cut points are the variables, so their prior is normalised. A prior of ordered cut
points with only a transform, as in many models, integrates to 1 / 4!. Sixty simulated answers.

Weeks of remission of leukaemia with and without a drug: a Weibull model with censored rows
-------------------------------------------------------------------------------------------
.. math:: k \sim \text{Gamma}(2, 1), \quad b_0 \sim N(3, 1), \quad b_1 \sim N(0, 1), \qquad
          T_i \sim \text{Weibull}(k, e^{b_0 + b_1 x_i}) .

Three dimensions. Data of Freireich et al. (1963), Blood 21, 699-716, as printed by Gehan (1965).

Regressions with Student errors: Newcomb's speed of light, and Brownlee's stack losses
--------------------------------------------------------------------------------------
.. math:: \nu - 1 \sim \text{Gamma}(2, 0.1), \quad \sigma \sim N^+(0, s^2), \quad y_i \sim t_\nu(x_i^\top b, \sigma) .

66 deviations of passage times from 24,800 nanoseconds, including two outliers, with a mean alone (three dimensions;
Newcomb 1882, in Stigler 1977, *Do robust estimators work with real data?*, Annals of Statistics 5, 1055-1098),
and losses of ammonia on 21 days by air flow, temperature and acid, standardised (six dimensions; Brownlee
1965, *Statistical Theory and Methodology in Science and Engineering*).

Velocity of a reaction against the concentration of its substrate: the Michaelis-Menten curve
---------------------------------------------------------------------------------------------
.. math:: V \sim N^+(0, 300^2), \quad K \sim N^+(0, 0.5^2), \quad \sigma \sim N^+(0, 30^2), \qquad
          v_i \sim N\left(\frac{V c_i}{K + c_i}, \sigma^2\right) .

Twelve runs with an enzyme treated with puromycin, three dimensions. Data of Treloar (1974), in Bates &
Watts (1988), *Nonlinear Regression Analysis and Its Applications*, Wiley.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from scipy.special import expit, gammaln, ndtr

from amc_pymc.rng import as_generator
from models.evidence_problem import EvidenceProblem
from models.normal_scores import (
    LOG_2PI,
    NormalScores,
    exponential,
    gamma,
    half_normal,
    scored_problem,
)
from models.student_importance import Reference

# --- count regression -------------------------------------------------------------------------------

RATE = np.float64(0.5)
COUNTS_FROZEN = {
    "negative_binomial": Reference(-127.856472, 0.00012),
    "zero_inflated": Reference(-133.524903, 1.4e-06),
}


def negative_binomial_data(n: int = 60, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Simulate covariates (n, 3) and counts (n,)."""
    rng = as_generator(seed)
    X = np.column_stack([np.ones(n), rng.standard_normal((n, 2))])
    mean = np.exp(X @ [1.0, 0.6, -0.4])
    return X, rng.poisson(mean * rng.gamma(2.0, 0.5, n))


def zero_inflated_data(n: int = 80, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Simulate covariates (n, 2) and counts (n,)."""
    rng = as_generator(seed)
    X = np.column_stack([np.ones(n), rng.standard_normal(n)])
    return X, rng.poisson(np.exp(X @ [0.8, 0.5])) * (rng.random(n) < 0.7)


def negative_binomial_scores() -> NormalScores:
    """Return prior and likelihood of three coefficients and alpha."""
    X, y = negative_binomial_data()

    def parameters(z: np.ndarray) -> np.ndarray:
        return np.column_stack([z[:, :3], exponential(z[:, 3], RATE)])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        eta, alpha = theta[:, :3] @ X.T, theta[:, 3:]
        both = np.logaddexp(eta, np.log(alpha))
        terms = gammaln(y + alpha) - gammaln(alpha) + alpha * (np.log(alpha) - both)
        return (terms + y * (eta - both) - gammaln(y + 1.0)).sum(axis=1)

    return NormalScores(4, parameters, log_likelihood)


def zero_inflated_scores() -> NormalScores:
    """Return prior and likelihood of psi and two coefficients."""
    X, y = zero_inflated_data()

    def parameters(z: np.ndarray) -> np.ndarray:
        return np.column_stack([ndtr(z[:, 0]), z[:, 1:]])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        eta, psi = theta[:, 1:] @ X.T, theta[:, :1]
        with np.errstate(over="ignore", divide="ignore"):
            counted = np.log(psi) + y * eta - np.exp(eta) - gammaln(y + 1.0)
            none = np.logaddexp(np.log1p(-psi), counted)
        return np.where(y > 0, counted, none).sum(axis=1)

    return NormalScores(3, parameters, log_likelihood)


def negative_binomial() -> EvidenceProblem:
    """Build the problem of the negative-binomial regression, in four dimensions."""
    X, y = negative_binomial_data()

    def variables() -> None:
        b = pm.Normal("b", 0.0, 1.0, shape=3)
        alpha = pm.Exponential("alpha", RATE)
        pm.NegativeBinomial("y", mu=pt.exp(X @ b), alpha=alpha, observed=y)

    name, source = "negative_binomial", "quasi-random importance sampling"
    return scored_problem(name, variables, negative_binomial_scores(), COUNTS_FROZEN[name], source)


def zero_inflated() -> EvidenceProblem:
    """Build the problem of the zero-inflated regression, in three dimensions."""
    X, y = zero_inflated_data()

    def variables() -> None:
        psi = pm.Uniform("psi", np.float64(0.0), np.float64(1.0))
        b = pm.Normal("b", 0.0, 1.0, shape=2)
        pm.ZeroInflatedPoisson("y", psi=psi, mu=pt.exp(X @ b), observed=y)

    name, source = "zero_inflated", "three-dimensional quadrature"
    return scored_problem(name, variables, zero_inflated_scores(), COUNTS_FROZEN[name], source)


# --- ordered answers --------------------------------------------------------------------------------

FIRST = np.float64(-1.5)
ORDERED_FROZEN = Reference(-97.665756, 0.00022)


def ordered_simulate(n: int = 60, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Simulate covariates (n, 2) and answers (n,)."""
    rng = as_generator(seed)
    X = rng.standard_normal((n, 2))
    latent = X @ [1.0, -0.5] + rng.logistic(size=n)
    return X, np.searchsorted([-1.5, -0.5, 0.5, 2.0], latent)


def answer_scores() -> NormalScores:
    """Return prior and likelihood of two coefficients, the first cut point and three distances."""
    X, y = ordered_simulate()

    def parameters(z: np.ndarray) -> np.ndarray:
        return np.column_stack([z[:, :2], FIRST + z[:, 2], exponential(z[:, 3:], 1.0)])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        cuts = np.cumsum(theta[:, 2:], axis=1)
        below = expit(cuts[:, None] - (theta[:, :2] @ X.T)[:, :, None])
        ends = np.concatenate(
            [np.zeros_like(below[..., :1]), below, np.ones_like(below[..., :1])], 2
        )
        chance = np.take_along_axis(np.diff(ends, axis=2), y[None, :, None], axis=2)[..., 0]
        with np.errstate(divide="ignore"):
            return np.log(chance).sum(axis=1)

    return NormalScores(6, parameters, log_likelihood)


def ordered_answers() -> EvidenceProblem:
    """Build the problem with answers as ``pm.OrderedLogistic``, in six dimensions."""
    X, y = ordered_simulate()

    def variables() -> None:
        b = pm.Normal("b", 0.0, 1.0, shape=2)
        first = pm.Normal("first", FIRST, 1.0)
        apart = pm.Exponential("apart", 1.0, shape=3)
        cuts = pt.concatenate([first[None], first + pt.cumsum(apart)])
        pm.OrderedLogistic("y", eta=X @ b, cutpoints=cuts, observed=y)

    source = "quasi-random importance sampling"
    return scored_problem("ordered_answers", variables, answer_scores(), ORDERED_FROZEN, source)


# --- leukaemia --------------------------------------------------------------------------------------

WEEKS = np.array([
    6, 6, 6, 6, 7, 9, 10, 10, 11, 13, 16, 17, 19, 20, 22, 23, 25, 32, 32, 34, 35,
    1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23,
], dtype=float)  # fmt: skip
RELAPSED = np.array([1, 1, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0] + [1] * 21)
DRUG = np.repeat([1.0, 0.0], 21)
SHAPE, LEVEL = (np.float64(2.0), np.float64(1.0)), np.float64(3.0)
LEUKAEMIA_FROZEN = Reference(-112.622330, 1e-06)


def remission_scores() -> NormalScores:
    """Return prior and likelihood of the shape, the level and the effect of the drug."""

    def parameters(z: np.ndarray) -> np.ndarray:
        return np.column_stack([gamma(z[:, 0], *SHAPE), LEVEL + z[:, 1], z[:, 2]])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        k, log_scale = theta[:, :1], theta[:, 1:2] + theta[:, 2:] * DRUG
        log_ratio = np.log(WEEKS) - log_scale
        with np.errstate(over="ignore"):
            terms = RELAPSED * (np.log(k) - log_scale + (k - 1.0) * log_ratio)
            return (terms - np.exp(k * log_ratio)).sum(axis=1)

    return NormalScores(3, parameters, log_likelihood)


def leukaemia() -> EvidenceProblem:
    """Build the problem with times as ``pm.Censored``; in censored rows, no relapse was observed."""
    ends = np.where(RELAPSED > 0, np.inf, WEEKS)

    def variables() -> None:
        k = pm.Gamma("k", *SHAPE)
        level = pm.Normal("level", LEVEL, 1.0)
        drug = pm.Normal("drug", 0.0, 1.0)
        times = pm.Weibull.dist(alpha=k, beta=pt.exp(level + drug * DRUG))
        pm.Censored("weeks", times, lower=None, upper=ends, observed=WEEKS)

    source = "three-dimensional quadrature"
    return scored_problem("leukaemia", variables, remission_scores(), LEUKAEMIA_FROZEN, source)


# --- robust regression ------------------------------------------------------------------------------

PASSAGE = np.array([
    28.0, 26.0, 33.0, 24.0, 34.0, -44.0, 27.0, 16.0, 40.0, -2.0, 29.0, 22.0, 24.0, 21.0, 25.0, 30.0,
    23.0, 29.0, 31.0, 19.0, 24.0, 20.0, 36.0, 32.0, 36.0, 28.0, 25.0, 21.0, 28.0, 29.0, 37.0, 25.0,
    28.0, 26.0, 30.0, 32.0, 36.0, 26.0, 30.0, 22.0, 36.0, 23.0, 27.0, 27.0, 28.0, 27.0, 31.0, 27.0,
    26.0, 33.0, 26.0, 32.0, 32.0, 24.0, 39.0, 28.0, 24.0, 25.0, 32.0, 25.0, 29.0, 27.0, 28.0, 29.0,
    16.0, 23.0,
])  # fmt: skip
AIR = np.array([80, 80, 75, 62, 62, 62, 62, 62, 58, 58, 58, 58, 58, 58, 50, 50, 50, 50, 50, 56, 70])
WATER = np.array(
    [27, 27, 25, 24, 22, 23, 24, 24, 23, 18, 18, 17, 18, 19, 18, 18, 19, 19, 20, 20, 20]
)
ACID = np.array(
    [89, 88, 90, 87, 87, 87, 93, 93, 87, 80, 89, 88, 82, 93, 89, 86, 72, 79, 80, 82, 91]
)
LOSS = np.array([42, 37, 37, 28, 18, 18, 19, 20, 15, 14, 14, 13, 11, 12, 8, 7, 8, 8, 9, 15, 15])
TAIL = np.float64(2.0), np.float64(0.1)
ROBUST_FROZEN = {
    "speed_of_light": Reference(-224.943915, 1e-06),
    "stack_loss": Reference(-65.439327, 0.00023),
}


def data(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.float64]:
    """Return covariates (N, P), outcomes (N,), prior means and sds of coefficients (P,), and the scale of sigma."""
    if name == "speed_of_light":
        ones = np.ones((PASSAGE.size, 1))
        return ones, PASSAGE, np.array([25.0]), np.array([20.0]), np.float64(10.0)
    X = np.column_stack([AIR, WATER, ACID]).astype(float)
    X = np.column_stack([np.ones(LOSS.size), (X - X.mean(axis=0)) / X.std(axis=0)])
    sds = np.array([20.0, 10.0, 10.0, 10.0])
    return X, LOSS.astype(float), np.zeros(4), sds, np.float64(5.0)


def robust_scores(name: str) -> NormalScores:
    """Return prior and likelihood of coefficients, sigma and nu - 1."""
    X, y, means, sds, scale = data(name)
    p = means.size

    def parameters(z: np.ndarray) -> np.ndarray:
        sigma = half_normal(z[:, p], scale)
        return np.column_stack([means + sds * z[:, :p], sigma, gamma(z[:, p + 1], *TAIL)])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        sigma, nu = theta[:, p : p + 1], 1.0 + theta[:, p + 1 :]
        squares = np.square((y - theta[:, :p] @ X.T) / sigma)
        terms = gammaln(0.5 * nu + 0.5) - gammaln(0.5 * nu) - 0.5 * np.log(nu * np.pi)
        terms = terms - np.log(sigma) - 0.5 * (nu + 1.0) * np.log1p(squares / nu)
        return terms.sum(axis=1)

    return NormalScores(p + 2, parameters, log_likelihood)


def robust_regression(name: str) -> EvidenceProblem:
    """Build the problem of one of the two models.

    Parameters
    ----------
    name : {'speed_of_light', 'stack_loss'}
    """
    X, y, means, sds, scale = data(name)

    def variables() -> None:
        b = pm.Normal("b", means, sds)
        sigma = pm.HalfNormal("sigma", scale)
        tail = pm.Gamma("tail", *TAIL)
        pm.StudentT("y", nu=1.0 + tail, mu=X @ b, sigma=sigma, observed=y)

    source = "three-dimensional quadrature"
    if name == "stack_loss":
        source = "quasi-random importance sampling"
    return scored_problem(name, variables, robust_scores(name), ROBUST_FROZEN[name], source)


# --- puromycin --------------------------------------------------------------------------------------

CONCENTRATION = np.repeat([0.02, 0.06, 0.11, 0.22, 0.56, 1.10], 2)
VELOCITY = np.array(
    [76.0, 47.0, 97.0, 107.0, 123.0, 139.0, 159.0, 152.0, 191.0, 201.0, 207.0, 200.0]
)
FASTEST, HALFWAY, NOISE = np.float64(300.0), np.float64(0.5), np.float64(30.0)
PUROMYCIN_FROZEN = Reference(-53.658330, 1.4e-06)


def reaction_scores() -> NormalScores:
    """Return prior and likelihood of V, K and sigma."""

    def parameters(z: np.ndarray) -> np.ndarray:
        return half_normal(z, 1.0) * [FASTEST, HALFWAY, NOISE]

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        mean = theta[:, :1] * CONCENTRATION / (theta[:, 1:2] + CONCENTRATION)
        squares = np.square((VELOCITY - mean) / theta[:, 2:]).sum(axis=1)
        n = VELOCITY.size
        return -0.5 * (squares + n * LOG_2PI) - n * np.log(theta[:, 2])

    return NormalScores(3, parameters, log_likelihood)


def puromycin() -> EvidenceProblem:
    """Build the problem of the curve with normal errors."""

    def variables() -> None:
        fastest = pm.HalfNormal("V", FASTEST)
        halfway = pm.HalfNormal("K", HALFWAY)
        sigma = pm.HalfNormal("sigma", NOISE)
        mean = fastest * CONCENTRATION / (halfway + CONCENTRATION)
        pm.Normal("velocity", mean, sigma, observed=VELOCITY)

    source = "three-dimensional quadrature"
    return scored_problem("puromycin", variables, reaction_scores(), PUROMYCIN_FROZEN, source)
