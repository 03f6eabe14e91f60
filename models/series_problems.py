r"""Models of time series and their evidence.

Autoregression of order two
---------------------------
.. math:: c, \phi_1, \phi_2 \sim N(0, 1), \quad \sigma \sim N^+(0, 1), \qquad
          y_t \sim N(c + \phi_1 y_{t-1} + \phi_2 y_{t-2}, \sigma^2), \quad y_1, y_2 \sim N(0, 2^2) .

Given sigma it is a conjugate regression; the integral over sigma is a one-dimensional quadrature.

Number of major earthquakes per year, 1900-2006: a hidden Markov chain of two states with Poisson counts
--------------------------------------------------------------------------------------------------------
.. math:: \lambda_k \sim \text{Gamma}(4, 0.2), \quad p_k \sim \text{Beta}(9, 1), \qquad
          P(s_{t+1} = k | s_t = k) = p_k, \quad y_t \sim \text{Poisson}(\lambda_{s_t}) .

The first state is either with probability a half, so the labels of the states are exchangeable. States are
summed out by the forward algorithm. Counts of magnitude 7 and above are those of Zucchini & MacDonald (2009),
*Hidden Markov Models for Time Series*, from the catalogue of the US Geological Survey.

GARCH(1, 1), a volatility that depends on the previous day
----------------------------------------------------------
.. math:: \mu \sim N(0, 1), \quad \omega \sim N^+(0, 1), \quad \alpha \sim \text{Beta}(2, 8), \quad
          b \sim \text{Beta}(8, 2), \\
          \sigma_1^2 = 1, \quad
          \sigma_t^2 = \omega + \alpha (y_{t-1} - \mu)^2 + (1 - \alpha) b\, \sigma_{t-1}^2, \quad
          y_t \sim N(\mu, \sigma_t^2) .

Four dimensions; the returns of 80 days are simulated.

Flow of the Nile at Aswan, 1871-1970: a level that follows a random walk
------------------------------------------------------------------------
.. math:: \sigma \sim N^+(0, 2^2), \quad \tau \sim N^+(0, 1), \quad l_1 \sim N(0, 10^2), \quad
          l_{t+1} = l_t + \tau \epsilon_t, \quad y_t \sim N(l_t, \sigma^2)

in units of 100 million cubic metres, less 900. The level is a variable for every year, not centred, or is
integrated out; the evidence is the same, from the Kalman filter and quadrature over sigma and tau. Data from
Cobb (1978), *The problem of the Nile*, Biometrika 65, 243-251, and Durbin & Koopman (2012).

Disasters in British coal mines, 1851-1962: a Poisson rate that changes in one year
-----------------------------------------------------------------------------------
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

from amc_pymc.rng import as_generator
from models.evidence_problem import EvidenceProblem
from models.normal_scores import (
    LOG_2PI,
    NormalScores,
    beta,
    gamma,
    half_normal,
    scored_problem,
)
from models.student_importance import Reference

# --- autoregression ---------------------------------------------------------------------------------

START_SD = np.float64(2.0)


def autoregression_simulate(n: int = 120, seed: int = 1) -> np.ndarray:
    """Simulate a series (n,)."""
    rng = as_generator(seed)
    y = np.zeros(n + 50)
    for t in range(2, y.size):
        y[t] = 0.2 + 1.1 * y[t - 1] - 0.5 * y[t - 2] + 0.7 * rng.standard_normal()
    return y[50:]


def lags(y: np.ndarray) -> np.ndarray:
    """Return columns for the constant and the two lags (n - 2, 3)."""
    return np.column_stack([np.ones(y.size - 2), y[1:-1], y[:-2]])


def log_start(y: np.ndarray) -> float:
    """Return the log density of the first two values."""
    return float(-np.log(2.0 * np.pi * START_SD**2) - 0.5 * np.square(y[:2] / START_SD).sum())


def autoregression_log_evidence(y: np.ndarray, n: int = 4_001) -> float:
    """Return log Z by the trapezoidal rule over log sigma."""
    X, rest = lags(y), y[2:]
    u = np.linspace(-4.0, 3.0, n)
    gram, projected = X.T @ X, X.T @ rest
    logs = np.empty(n)
    for i, sigma in enumerate(np.exp(u)):
        precision = np.eye(3) + gram / sigma**2
        shift = projected / sigma**2
        squares = rest @ rest / sigma**2 - shift @ np.linalg.solve(precision, shift)
        log_det = 2.0 * rest.size * math.log(sigma) + np.linalg.slogdet(precision)[1]
        logs[i] = -0.5 * (squares + log_det + rest.size * LOG_2PI)
    logs += math.log(2.0) - 0.5 * (np.exp(2.0 * u) + LOG_2PI) + u
    return float(logsumexp(logs)) + math.log(u[1] - u[0]) + log_start(y)


def autoregression_scores(y: np.ndarray) -> NormalScores:
    """Return prior and likelihood of the constant, two coefficients and sigma."""

    def parameters(z: np.ndarray) -> np.ndarray:
        return np.column_stack([z[:, :3], half_normal(z[:, 3], 1.0)])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        squares = np.square((y[2:] - theta[:, :3] @ lags(y).T) / theta[:, 3:]).sum(axis=1)
        n = y.size - 2
        return -0.5 * (squares + n * LOG_2PI) - n * np.log(theta[:, 3]) + log_start(y)

    return NormalScores(4, parameters, log_likelihood)


def autoregression() -> EvidenceProblem:
    """Build the problem with the series as ``pm.AR``."""
    y = autoregression_simulate()

    def variables() -> None:
        rho = pm.Normal("rho", 0.0, 1.0, shape=3)
        sigma = pm.HalfNormal("sigma", 1.0)
        start = pm.Normal.dist(0.0, START_SD, shape=2)
        pm.AR("y", rho, sigma=sigma, init_dist=start, constant=True, ar_order=2, observed=y)

    source = "closed form given sigma, one-dimensional quadrature"
    found = Reference(autoregression_log_evidence(y), 0.0)
    return scored_problem("autoregression_2", variables, autoregression_scores(y), found, source)


# --- earthquakes ------------------------------------------------------------------------------------

EARTHQUAKES_COUNTS = np.array([
    13, 14, 8, 10, 16, 26, 32, 27, 18, 32, 36, 24, 22, 23, 22, 18, 25, 21, 21, 14, 8, 11, 14, 23,
    18, 17, 19, 20, 22, 19, 13, 26, 13, 14, 22, 24, 21, 22, 26, 21, 23, 24, 27, 41, 31, 27, 35, 26,
    28, 36, 39, 21, 17, 22, 17, 19, 15, 34, 10, 15, 22, 18, 15, 20, 15, 22, 19, 16, 30, 27, 29, 23,
    20, 16, 21, 21, 25, 16, 18, 15, 18, 14, 10, 15, 8, 15, 6, 11, 8, 7, 18, 16, 13, 12, 13, 20, 15,
    16, 12, 18, 15, 16, 13, 15, 16, 11, 11,
])  # fmt: skip
EARTHQUAKES_RATE = np.float64(4.0), np.float64(0.2)
STAY = np.float64(9.0), np.float64(1.0)
EARTHQUAKES_FROZEN = Reference(-348.552781, 0.00024)


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
    log_counts = (
        EARTHQUAKES_COUNTS[:, None] * pt.log(rates)
        - rates
        - gammaln(EARTHQUAKES_COUNTS + 1.0)[:, None]
    )
    log_stay, log_leave = pt.log(stay), pt.log1p(-stay)
    alpha = log_counts[0] - math.log(2.0)
    for t in range(1, EARTHQUAKES_COUNTS.size):
        arrive = (alpha + log_leave)[::-1]
        alpha = pt.logaddexp(alpha + log_stay, arrive) + log_counts[t]
    return pt.logaddexp(alpha[0], alpha[1])


def earthquake_scores() -> NormalScores:
    """Return prior and likelihood of two rates and two probabilities of staying."""

    def parameters(z: np.ndarray) -> np.ndarray:
        return np.column_stack([gamma(z[:, :2], *EARTHQUAKES_RATE), beta(z[:, 2:], *STAY)])

    return NormalScores(4, parameters, lambda theta: forward(theta, EARTHQUAKES_COUNTS))


def earthquakes() -> EvidenceProblem:
    """Build the problem with the states summed out in a potential."""

    def variables() -> None:
        rates = pm.Gamma("rates", *EARTHQUAKES_RATE, shape=2)
        stay = pm.Beta("stay", *STAY, shape=2)
        pm.Potential("counts", forward_of_symbols(rates, stay))

    source = "forward algorithm, quasi-random importance sampling"
    return scored_problem(
        "earthquakes", variables, earthquake_scores(), EARTHQUAKES_FROZEN, source, easy=False
    )


# --- garch ------------------------------------------------------------------------------------------

ARCH, PERSISTENCE = (np.float64(2.0), np.float64(8.0)), (np.float64(8.0), np.float64(2.0))
GARCH_FROZEN = Reference(-83.228735, 0.00016)


def garch_simulate(n: int = 80, seed: int = 1) -> np.ndarray:
    """Simulate returns (n,)."""
    rng = as_generator(seed)
    y, variance = np.empty(n), 1.0
    for t in range(n):
        y[t] = 0.1 + np.sqrt(variance) * rng.standard_normal()
        variance = 0.1 + 0.25 * (y[t] - 0.1) ** 2 + 0.65 * variance
    return y


def garch_scores() -> NormalScores:
    """Return prior and likelihood of mu, omega, alpha and b."""
    y = garch_simulate()

    def parameters(z: np.ndarray) -> np.ndarray:
        omega = half_normal(z[:, 1], 1.0)
        return np.column_stack([z[:, 0], omega, beta(z[:, 2], *ARCH), beta(z[:, 3], *PERSISTENCE)])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        mu, omega, alpha, b = theta.T
        variance, total = np.ones(len(theta)), np.zeros(len(theta))
        for value in y:
            squares = np.square(value - mu)
            total -= 0.5 * (LOG_2PI + np.log(variance) + squares / variance)
            variance = omega + alpha * squares + (1.0 - alpha) * b * variance
        return total

    return NormalScores(4, parameters, log_likelihood)


def garch() -> EvidenceProblem:
    """Build the problem with the recursion written out for every day."""
    y = garch_simulate()

    def variables() -> None:
        mu = pm.Normal("mu", 0.0, 1.0)
        omega = pm.HalfNormal("omega", 1.0)
        alpha = pm.Beta("alpha", *ARCH)
        b = pm.Beta("b", *PERSISTENCE)
        variance = [pt.ones(())]
        for value in y[:-1]:
            fresh = omega + alpha * pt.sqr(value - mu)
            variance.append(fresh + (1.0 - alpha) * b * variance[-1])
        pm.Normal("y", mu, pt.sqrt(pt.stack(variance)), observed=y)

    source = "quasi-random importance sampling"
    return scored_problem("garch", variables, garch_scores(), GARCH_FROZEN, source)


# --- nile -------------------------------------------------------------------------------------------

FLOW = np.array([
    1120, 1160, 963, 1210, 1160, 1160, 813, 1230, 1370, 1140, 995, 935, 1110, 994, 1020, 960, 1180,
    799, 958, 1140, 1100, 1210, 1150, 1250, 1260, 1220, 1030, 1100, 774, 840, 874, 694, 940, 833,
    701, 916, 692, 1020, 1050, 969, 831, 726, 456, 824, 702, 1120, 1100, 832, 764, 821, 768, 845,
    864, 862, 698, 845, 744, 796, 1040, 759, 781, 865, 845, 944, 984, 897, 822, 1010, 771, 676, 649,
    846, 812, 742, 801, 1040, 860, 874, 848, 890, 744, 749, 838, 1050, 918, 986, 797, 923, 975, 815,
    1020, 906, 901, 1170, 912, 746, 919, 718, 714, 740,
])  # fmt: skip
NOISE, WALK, START = np.float64(2.0), np.float64(1.0), np.float64(10.0)
NILE_FROZEN = Reference(-183.593889, 1e-06)


def series() -> np.ndarray:
    """Return the outcomes (100,)."""
    return (FLOW - 900.0) / 100.0


def scales(z: np.ndarray) -> np.ndarray:
    """Return sigma and tau (n, 2) from normal scores."""
    return np.column_stack([half_normal(z[:, 0], NOISE), half_normal(z[:, 1], WALK)])


def kalman(theta: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the log density (n,) of a series for sigma and tau (n, 2), with the level integrated out."""
    noise, walk = np.square(theta).T
    level, variance = np.zeros(len(theta)), np.full(len(theta), START**2)
    total = np.zeros(len(theta))
    for value in y:
        spread = variance + noise
        off = value - level
        total -= 0.5 * (LOG_2PI + np.log(spread) + np.square(off) / spread)
        gain = variance / spread
        level = level + gain * off
        variance = variance * (1.0 - gain) + walk
    return total


def marginal_scores() -> NormalScores:
    """Return prior and likelihood of sigma and tau."""
    y = series()
    return NormalScores(2, scales, lambda theta: kalman(theta, y))


def nile() -> EvidenceProblem:
    """Build the problem with a hundred levels, in 102 dimensions."""
    y = series()

    def variables() -> None:
        sigma = pm.HalfNormal("sigma", NOISE)
        tau = pm.HalfNormal("tau", WALK)
        start = pm.Normal("start", 0.0, START)
        steps = pm.Normal("steps", 0.0, 1.0, shape=y.size - 1)
        walk = pt.concatenate([pt.zeros(1), pt.cumsum(tau * steps)])
        pm.Normal("y", start + walk, sigma, observed=y)

    def parameters(z: np.ndarray) -> np.ndarray:
        return np.column_stack([scales(z[:, :2]), START * z[:, 2], z[:, 3:]])

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        walk = np.cumsum(theta[:, 1:2] * theta[:, 3:], axis=1)
        levels = theta[:, 2:3] + np.column_stack([np.zeros(len(theta)), walk])
        squares = np.square((y - levels) / theta[:, :1]).sum(axis=1)
        return -0.5 * (squares + y.size * LOG_2PI) - y.size * np.log(theta[:, 0])

    scores = NormalScores(y.size + 2, parameters, log_likelihood)
    source = "Kalman filter, two-dimensional quadrature"
    return scored_problem("nile", variables, scores, NILE_FROZEN, source)


def nile_marginal() -> EvidenceProblem:
    """Build the problem with the level integrated out: a multivariate normal series, in two dimensions."""
    y = series()
    times = np.arange(y.size)
    together = np.minimum(times[:, None], times).astype(float)

    def variables() -> None:
        sigma = pm.HalfNormal("sigma", NOISE)
        tau = pm.HalfNormal("tau", WALK)
        spread = START**2 + pt.sqr(tau) * together + pt.sqr(sigma) * np.eye(y.size)
        pm.MvNormal("y", np.zeros(y.size), cov=spread, observed=y)

    source = "Kalman filter, two-dimensional quadrature"
    return scored_problem("nile_marginal", variables, marginal_scores(), NILE_FROZEN, source)


# --- coal -------------------------------------------------------------------------------------------

COAL_COUNTS = np.array([
    4, 5, 4, 1, 0, 4, 3, 4, 0, 6, 3, 3, 4, 0, 2, 6, 3, 3, 5, 4, 5, 3, 1, 4, 4, 1, 5, 5, 3, 4, 2, 5,
    2, 2, 3, 4, 2, 1, 3, 2, 2, 1, 1, 1, 1, 3, 0, 0, 1, 0, 1, 1, 0, 0, 3, 1, 0, 3, 2, 2, 0, 1, 1, 1,
    0, 1, 0, 1, 0, 0, 0, 2, 1, 0, 0, 0, 1, 1, 0, 2, 3, 3, 1, 1, 2, 1, 1, 1, 1, 2, 4, 2, 0, 0, 0, 1,
    4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1,
])  # fmt: skip
COAL_RATE = np.float64(2.0), np.float64(1.0)


def coal_log_evidence() -> float:
    """Return log Z from gamma integrals for every year of change, and their mean."""
    n = COAL_COUNTS.size
    before = np.cumsum(COAL_COUNTS)[:-1]
    years = np.arange(1, n)

    def part(total: np.ndarray, length: np.ndarray) -> np.ndarray:
        a, b = COAL_RATE
        whole = a + total
        return a * math.log(b) - gammaln(a) + gammaln(whole) - whole * np.log(b + length)

    logs = part(before, years) + part(COAL_COUNTS.sum() - before, n - years)
    return float(logsumexp(logs)) - math.log(n - 1) - gammaln(COAL_COUNTS + 1.0).sum()


def coal_discrete() -> EvidenceProblem:
    """Build the problem with the year of change as a discrete variable."""
    n = COAL_COUNTS.size

    def variables() -> None:
        year = pm.DiscreteUniform("year", 1, n - 1)
        rates = pm.Gamma("rates", *COAL_RATE, shape=2)
        rate = pt.where(np.arange(n) < year, rates[0], rates[1])
        pm.Poisson("disasters", rate, observed=COAL_COUNTS)

    return EvidenceProblem(
        name="coal_discrete", variables=variables, log_evidence=coal_log_evidence(), n_dim=3,
        easy=True,
    )  # fmt: skip


def coal() -> EvidenceProblem:
    """Build the problem with the year of change summed out, in two dimensions."""
    n = COAL_COUNTS.size
    before, years = np.cumsum(COAL_COUNTS)[:-1], np.arange(1, n)
    after = COAL_COUNTS.sum() - before
    constant = -math.log(n - 1) - gammaln(COAL_COUNTS + 1.0).sum()

    def variables() -> None:
        rates = pm.Gamma("rates", *COAL_RATE, shape=2)
        first = before * pt.log(rates[0]) - years * rates[0]
        second = after * pt.log(rates[1]) - (n - years) * rates[1]
        pm.Potential("disasters", pt.logsumexp(first + second) + constant)

    def log_likelihood(theta: np.ndarray) -> np.ndarray:
        rates = theta[:, :, None]
        with np.errstate(divide="ignore"):
            first = before * np.log(rates[:, 0]) - years * rates[:, 0]
            second = after * np.log(rates[:, 1]) - (n - years) * rates[:, 1]
        return logsumexp(first + second, axis=1) + constant

    scores = NormalScores(2, lambda z: gamma(z, *COAL_RATE), log_likelihood)
    return scored_problem(
        "coal", variables, scores, Reference(coal_log_evidence(), 0.0), "closed form"
    )
