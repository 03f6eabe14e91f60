r"""Simulators of series and processes.

Autoregression of order four with its least-squares estimates as summaries
--------------------------------------------------------------------------
.. math:: y_t = c + \sum_{k=1}^4 \phi_k y_{t-k} + \sigma e_t, \qquad e_t \sim N(0, 1), \qquad
          y_0 = \dots = y_{-3} = 0, \qquad t = 1, \ldots, n

Parameters are the intercept :math:`c \sim U(-2, 2)`, partial autocorrelations :math:`r_1, \ldots, r_4` in (-1, 1) and
:math:`\sigma \sim U(0.1, 3)`. With the priors of Jones (1987), *Randomly choosing parameters from the stationarity and
invertibility region of autoregressive-moving average models*, Applied Statistics 36, 134-138 (doi:10.2307/2347544),

.. math:: \tfrac12 (1 + r_k) \sim \mathrm{Beta}\bigl(\lfloor (k + 1) / 2 \rfloor, \lfloor k / 2 \rfloor + 1\bigr),

coefficients :math:`\phi` are uniform where the series is stationary. Summaries are least-squares estimates of c and
:math:`\phi` and the logarithm of the residuals' standard deviation.

Draws of the reference are exact and come from the posterior given the whole series. With the flat prior, this is
the posterior of a linear regression, an inverse gamma times a normal distribution; draws outside the prior are
rejected. It is a little narrower than the posterior given the summaries, which lack the regression's cross products.

Moving average of order two, from two autocovariances
-----------------------------------------------------
.. math:: x_t = e_t + \theta_1 e_{t-1} + \theta_2 e_{t-2}, \qquad e_t \sim N(0, 1), \qquad
          t = 1, \ldots, n

with the parameters uniform on the triangle where they are identified,

.. math:: -2 < \theta_1 < 2, \qquad \theta_1 + \theta_2 > -1, \qquad \theta_1 - \theta_2 < 1,
          \qquad \theta_2 < 1.

Marin, Pudlo, Robert & Ryder (2012), *Approximate Bayesian computational methods*, Statistics and
Computing 22, 1167-1180 (doi:10.1007/s11222-011-9288-2). Summaries are theirs, :math:`\sum_t x_t
x_{t-1}` and :math:`\sum_t x_t x_{t-2}`, here divided by n.

The triangle's slice at :math:`\theta_1` is :math:`|\theta_1| - 1 < \theta_2 < 1`, of length
:math:`2 - |\theta_1|`. So the product of a triangular distribution of :math:`\theta_1` on (-2, 2) with its peak
at 0, density :math:`(2 - |\theta_1|) / 4`, and a uniform one of :math:`\theta_2` on the slice
is the constant 1/4 on the triangle, and both have quantile functions.

The reference is the posterior given the whole series, whose normal likelihood is known: draws from
the prior are accepted with probability likelihood over its maximum. It is narrower than the
posterior given the summaries, which a sampler without a likelihood approaches at a small
tolerance.

Heston's stochastic volatility model from seven summaries of daily returns
--------------------------------------------------------------------------
.. math:: dS_t = \mu S_t dt + \sqrt{\nu_t} S_t dW^1_t, \qquad
          d\nu_t = \kappa (\xi - \nu_t) dt + \sigma \sqrt{\nu_t} dW^2_t, \qquad
          \operatorname{corr}(dW^1_t, dW^2_t) = \rho

.. math:: \kappa \sim U(0, 10), \quad \xi \sim U(0, 1), \quad \nu_0 \sim U(0, 1), \quad
          \rho \sim U(-1, 1), \quad \sigma \sim U(0, 1)

O'Hagan, Kim & Rockova, *Tree bandits for generative Bayes*, appendix C.1, figure 11, with
:math:`\mu = 0.02` and 2000 steps. The paper does not give the length of a step, the scheme, the
true parameters or the scaling of the summaries. Here a step is a day, 1/252 of a year. The
log price is simulated by Euler steps, the variance by Euler steps with full truncation (Lord, Koekkoek & van Dijk
2010, doi:10.1080/14697680802392496): it may become negative, but counts as zero then. The true
parameters are (3, 0.3, 0.2, -0.6, 0.6). The initial price of 100 cancels from the returns. There is no
reference, because the likelihood of the summaries is not known.

Predators and prey as a Markov jump process
-------------------------------------------
One of x prey and y predators is born or dies at a time, at the rates

.. math:: x \to x + 1 : \theta_1 x, \qquad x \to x - 1 : \theta_2 x y, \qquad
          y \to y + 1 : \theta_3 x y, \qquad y \to y - 1 : \theta_4 y

O'Hagan, Kim & Rockova, *Tree bandits for generative Bayes*, appendix C.2, figure 12. Their
parameters lie in [0, 1]^4. They do not give the initial populations, the duration, the recording times,
the summaries or the true parameters. All of these
follow Papamakarios & Murray (2016), *Fast epsilon-free inference of simulation models with
Bayesian conditional density estimation* (arXiv:1605.06376), after Wilkinson (2011), *Stochastic
modelling for systems biology*: 100 prey and 50 predators, numbers recorded every 0.2 units of time
until 30, and nine summaries, see :func:`summarise`. Their true prey birth rate lies at the edge of
the prior of O'Hagan et al.; the one here does not.

In most of [0, 1]^4 predation exceeds 0.1 and the prey die within a few units of time. Therefore the
default prior is uniform for the logarithms of the rates, over :math:`[\log 0.001, \log 1]^4`;
``prior="unit"`` is the paper's. If predators die out, prey multiply without limit: a run of more
than 10,000 events gives NaN.
"""

from __future__ import annotations

import math

import numpy as np
import pymc as pm

from scipy.optimize import minimize
from scipy.special import betaincinv

from amc_pymc.engine.jit import njit
from amc_pymc.rng import as_generator
from models.simulator_example import SimulatorExample, accepted_draws, noise_scale

# --- ar series --------------------------------------------------------------------------------------

ORDER = 4
AR_TRUTH = np.array([0.5, 0.6, -0.4, 0.3, -0.2, 1.0])
#: Half width of the prior of the intercept, and bounds of the prior of sigma.
INTERCEPT, LEAST_SD, LARGEST_SD = 2.0, 0.1, 3.0
#: Shapes of the Beta priors of partial autocorrelations.
BETA_A = np.array([(k + 1) // 2 for k in range(1, ORDER + 1)], dtype=float)
BETA_B = np.array([k // 2 + 1 for k in range(1, ORDER + 1)], dtype=float)


def coefficients(partial: np.ndarray) -> np.ndarray:
    """Return coefficients (n, p) of autoregressions from partial autocorrelations (n, p) (Durbin and Levinson)."""
    phi = np.empty((len(partial), 0))
    for r in partial.T:
        phi = np.column_stack([phi - r[:, None] * phi[:, ::-1], r])
    return phi


def partial_autocorrelations(phi: np.ndarray) -> np.ndarray:
    """Invert :func:`coefficients`; values are outside (-1, 1) or nan if the series is not stationary."""
    found = np.empty_like(phi)
    for k in range(phi.shape[1] - 1, -1, -1):
        r = phi[:, k]
        found[:, k] = r
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            phi = (phi[:, :k] + r[:, None] * phi[:, :k][:, ::-1]) / (1.0 - r**2)[:, None]
    return found


@njit(cache=True)
def autoregressions(rng, intercept, phi, sigma, n):
    """Simulate series (m, n) for m intercepts, coefficients (m, p) and standard deviations."""
    m, p = phi.shape
    out = np.empty((m, n))
    for i in range(m):
        for t in range(n):
            value = intercept[i] + sigma[i] * rng.standard_normal()
            for k in range(min(p, t)):
                value += phi[i, k] * out[i, t - 1 - k]
            out[i, t] = value
    return out


@njit(cache=True)
def estimates(y, order):
    """Return least-squares coefficients (m, p + 1), sums of squares (m,) and X'X (m, p + 1, p + 1) of series (m, n)."""
    m, n = y.shape
    k = order + 1
    beta, squares, inner = np.empty((m, k)), np.empty(m), np.zeros((m, k, k))
    row = np.empty(k)
    for i in range(m):
        cross, total = np.zeros(k), 0.0
        for t in range(n):
            row[0] = 1.0
            for lag in range(1, k):
                row[lag] = y[i, t - lag] if t >= lag else 0.0
            for a in range(k):
                cross[a] += row[a] * y[i, t]
                for b in range(a + 1):
                    inner[i, a, b] += row[a] * row[b]
            total += y[i, t] * y[i, t]
        for a in range(k):
            for b in range(a):
                inner[i, b, a] = inner[i, a, b]
        beta[i] = np.linalg.solve(inner[i], cross)
        squares[i] = total - beta[i] @ cross
    return beta, squares, inner


def ar_cube(u: np.ndarray) -> np.ndarray:
    """Map points (n, 6), uniform in the unit cube, to parameters (n, 6) with the prior distribution."""
    partial = 2.0 * betaincinv(BETA_A, BETA_B, u[:, 1:-1]) - 1.0
    sigma = LEAST_SD + (LARGEST_SD - LEAST_SD) * u[:, -1]
    return np.column_stack([INTERCEPT * (2.0 * u[:, 0] - 1.0), partial, sigma])


def ar_exact(y: np.ndarray, rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw from the posterior (n, 6) given a series (T,)."""
    beta, squares, inner = (part[0] for part in estimates(y[None], ORDER))
    root = np.linalg.inv(np.linalg.cholesky(inner))
    free = len(y) - len(beta)

    def propose(rng, m):
        # With a flat prior of sigma, the shape is half of the degrees of freedom minus one.
        sigma = np.sqrt(0.5 * squares / rng.gamma(0.5 * (free - 1), size=m))
        z = sigma[:, None] * rng.standard_normal((m, len(beta))) @ root
        partial = partial_autocorrelations((beta + z)[:, 1:])
        theta = np.column_stack([beta[0] + z[:, 0], partial, sigma])
        inside = (np.abs(partial) < 1.0).all(axis=1) & (np.abs(theta[:, 0]) < INTERCEPT)
        return theta, inside & (sigma > LEAST_SD) & (sigma < LARGEST_SD)

    return accepted_draws(propose, rng, n)


def ar_series(n: int = 200, *, truth=AR_TRUTH, data_seed: int = 1) -> SimulatorExample:
    """Build the example: six parameters of a simulated series.

    Parameters
    ----------
    n : int
        Length of the series, at least 20.
    truth : sequence of 6 floats
        Intercept, partial autocorrelations and standard deviation of the simulated data.
    data_seed : int
        Seed of that simulation.
    """
    truth = np.array(truth, float)

    def many(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
        return autoregressions(
            rng, theta[:, 0].copy(), coefficients(theta[:, 1:-1]), theta[:, -1].copy(), n
        )

    def simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
        y = many(rng, theta)
        out, good = np.full((len(y), ORDER + 2), np.nan), np.isfinite(y).all(axis=1)
        beta, squares, _ = estimates(y[good], ORDER)
        out[good] = np.column_stack([beta, 0.5 * np.log(squares / (n - ORDER - 1))])
        return out

    y = many(as_generator(data_seed), truth[None])[0]
    observed = simulate(as_generator(data_seed), truth[None])[0]
    scale = noise_scale(simulate, truth)

    def prior() -> list:
        intercept = pm.Uniform("intercept", -INTERCEPT, INTERCEPT)
        level = pm.Beta("level", BETA_A, BETA_B)
        return [intercept, level, pm.Uniform("sigma", LEAST_SD, LARGEST_SD)]

    return SimulatorExample(
        name="ar_series", prior=prior, simulate=lambda rng, x: simulate(rng, _from_levels(x)),
        cube=lambda u: _to_levels(ar_cube(u)), observed=observed, scale=scale, epsilon=1.0,
        shapes={"intercept": (), "level": (ORDER,), "sigma": ()}, truth=_to_levels(truth[None])[0],
        reference=lambda rng, n: _to_levels(ar_exact(y, rng, n)),
    )  # fmt: skip


def _from_levels(x: np.ndarray) -> np.ndarray:
    """Convert parameters (n, 6) from (1 + r) / 2, the scale of PyMC's prior, to partial autocorrelations r."""
    x = np.array(x)
    x[:, 1:-1] = 2.0 * x[:, 1:-1] - 1.0
    return x


def _to_levels(theta: np.ndarray) -> np.ndarray:
    theta = np.array(theta)
    theta[:, 1:-1] = 0.5 * (1.0 + theta[:, 1:-1])
    return theta


# --- ma2 --------------------------------------------------------------------------------------------

MA2_TRUTH = np.array([0.6, 0.2])


@njit(cache=True)
def ma2_series(rng, theta, n):
    """Simulate series (m, n) for parameters (m, 2)."""
    out = np.empty((theta.shape[0], n))
    for i in range(theta.shape[0]):
        last, before = rng.standard_normal(), rng.standard_normal()
        for t in range(n):
            e = rng.standard_normal()
            out[i, t] = e + theta[i, 0] * last + theta[i, 1] * before
            last, before = e, last
    return out


@njit(cache=True)
def autocovariances(x):
    """Return sums (2,) of products one and two steps apart, divided by the length, of one series (n,)."""
    out = np.zeros(2)
    for t in range(1, x.size):
        out[0] += x[t] * x[t - 1]
        if t >= 2:
            out[1] += x[t] * x[t - 2]
    return out / x.size


@njit(cache=True)
def summaries_of_series(rng, theta, n):
    out = np.empty((theta.shape[0], 2))
    for i in range(theta.shape[0]):
        out[i] = autocovariances(ma2_series(rng, theta[i : i + 1], n)[0])
    return out


@njit(cache=True)
def ma2_log_likelihood(x, theta):
    """Return the log density (m,) of a series x (n,) at parameters (m, 2), by a banded Cholesky factor."""
    n = x.size
    out = np.empty(theta.shape[0])
    z = np.empty(n)
    for i in range(theta.shape[0]):
        a, b = theta[i, 0], theta[i, 1]
        c0, c1, c2 = 1.0 + a * a + b * b, a + a * b, b
        # Row t of the factor: d on the diagonal, preceded by l1 and l2.
        d1, d2, l1_last = 1.0, 1.0, 0.0
        total = -0.5 * n * math.log(2.0 * math.pi)
        for t in range(n):
            l2 = c2 / d2 if t >= 2 else 0.0
            l1 = (c1 - l2 * l1_last) / d1 if t >= 1 else 0.0
            d = math.sqrt(max(c0 - l1 * l1 - l2 * l2, 1e-300))
            z[t] = x[t]
            if t >= 1:
                z[t] -= l1 * z[t - 1]
            if t >= 2:
                z[t] -= l2 * z[t - 2]
            z[t] /= d
            total -= 0.5 * z[t] * z[t] + math.log(d)
            d2, d1, l1_last = d1, d, l1
        out[i] = total
    return out


def ma2_cube(u: np.ndarray) -> np.ndarray:
    """Map points (n, 2), uniform in the unit square, to parameters (n, 2) uniform on the triangle."""
    half = np.minimum(u[:, 0], 1.0 - u[:, 0])
    theta1 = np.sign(u[:, 0] - 0.5) * (2.0 - np.sqrt(8.0 * half))
    theta2 = np.abs(theta1) - 1.0 + u[:, 1] * (2.0 - np.abs(theta1))
    return np.column_stack([theta1, theta2])


def inside(theta: np.ndarray) -> np.ndarray:
    """Whether parameters (n, 2) lie in the triangle."""
    return (np.abs(theta[:, 0]) < theta[:, 1] + 1.0) & (theta[:, 1] < 1.0)


def most_likely(x: np.ndarray) -> tuple[np.ndarray, float]:
    """Find the parameters (2,) of the highest likelihood in the triangle, and its logarithm."""
    start = ma2_cube(as_generator(0).random((4000, 2)))
    first = start[ma2_log_likelihood(x, start).argmax()]

    def loss(theta: np.ndarray) -> float:
        return -float(ma2_log_likelihood(x, theta[None])[0]) if inside(theta[None])[0] else math.inf

    found = minimize(loss, first, method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10})
    return found.x, -float(found.fun)


def ma2(*, data_seed: int = 1) -> SimulatorExample:
    """Build the example: two parameters from the autocovariances of a series of length 100, simulated by a seed."""
    n, truth = 100, MA2_TRUTH

    def simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
        return summaries_of_series(rng, theta, n)

    x = ma2_series(as_generator(data_seed), truth[None], n)[0]
    observed = autocovariances(x)
    scale = noise_scale(simulate, truth)
    mode, top = most_likely(x)

    def prior() -> list:
        theta1 = pm.Triangular("theta1", lower=-2.0, c=0.0, upper=2.0)
        theta2 = pm.Uniform("theta2", pm.math.abs(theta1) - 1.0, 1.0)
        return [theta1, theta2]

    def reference(rng: np.random.Generator, n: int) -> np.ndarray:
        def propose(rng, m):
            theta = ma2_cube(rng.random((m, 2)))
            return theta, np.log(rng.random(m)) < ma2_log_likelihood(x, theta) - top

        return accepted_draws(propose, rng, n)

    return SimulatorExample(
        name="ma2", prior=prior, simulate=simulate, cube=ma2_cube, observed=observed, scale=scale,
        epsilon=0.3, shapes={"theta1": (), "theta2": ()}, truth=truth, reference=reference,
        mode=mode,
    )  # fmt: skip


# --- heston -----------------------------------------------------------------------------------------

DRIFT = 0.02
HESTON_TRUTH = np.array([3.0, 0.3, 0.2, -0.6, 0.6])
HESTON_NAMES = ("kappa", "xi", "nu0", "rho", "sigma")
HESTON_LOWER = np.array([0.0, 0.0, 0.0, -1.0, 0.0])
HESTON_UPPER = np.array([10.0, 1.0, 1.0, 1.0, 1.0])


@njit(cache=True)
def log_returns(rng, theta, dt, out):
    """Simulate log returns into `out` (n,), for parameters (5,)."""
    kappa, xi, variance, rho, sigma = theta
    across = math.sqrt(max(1.0 - rho * rho, 0.0))
    for t in range(out.size):
        z1, z2 = rng.standard_normal(), rng.standard_normal()
        v = max(variance, 0.0)
        root = math.sqrt(v * dt)
        out[t] = (DRIFT - 0.5 * v) * dt + root * z1
        variance += kappa * (xi - v) * dt + sigma * root * (rho * z1 + across * z2)


@njit(cache=True)
def heston_summarise(r, out):
    """Compute seven summaries of returns (n,).

    Mean, mean square, log sd of returns and of their squares, autocorrelations of squares at lags 1 and 2, and the
    correlation of returns and their squares.
    """
    n = r.size
    mean, square = 0.0, 0.0
    for value in r:
        mean += value / n
        square += value * value / n
    var, var2, cross, lag1, lag2 = 0.0, 0.0, 0.0, 0.0, 0.0
    last, before = 0.0, 0.0
    for value in r:
        gap, gap2 = value - mean, value * value - square
        var += gap * gap
        var2 += gap2 * gap2
        cross += gap * gap2
        lag1 += gap2 * last
        lag2 += gap2 * before
        last, before = gap2, last
    # Constant returns differ only by rounding errors, and a summary is not a number.
    if not (var > 1e-20 * n * square and var2 > 1e-20 * n * square * square):
        out[:] = np.nan
        return
    out[0] = mean
    out[1] = square
    out[2] = 0.5 * math.log(var / n)
    out[3] = 0.5 * math.log(var2 / n)
    out[4] = lag1 / var2
    out[5] = lag2 / var2
    out[6] = cross / math.sqrt(var * var2)


@njit(cache=True)
def summaries_of_paths(rng, theta, n_steps, dt):
    out = np.empty((theta.shape[0], 7))
    r = np.empty(n_steps)
    for i in range(theta.shape[0]):
        log_returns(rng, theta[i], dt, r)
        heston_summarise(r, out[i])
    return out


def heston(n_steps: int = 2000, *, data_seed: int = 1) -> SimulatorExample:
    """Build the example: five parameters from summaries of a path of so many days, at least three, simulated by a seed."""

    def simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
        return summaries_of_paths(rng, theta, n_steps, 1.0 / 252.0)

    observed = simulate(as_generator(data_seed), HESTON_TRUTH[None])[0]
    scale = noise_scale(simulate, HESTON_TRUTH, 500)

    def prior() -> list:
        return [
            pm.Uniform(*args) for args in zip(HESTON_NAMES, HESTON_LOWER, HESTON_UPPER, strict=True)
        ]

    return SimulatorExample(
        name="heston", prior=prior, simulate=simulate, cube=lambda u: HESTON_LOWER + (HESTON_UPPER - HESTON_LOWER) * u,
        observed=observed, scale=scale, epsilon=2.0, shapes=dict.fromkeys(HESTON_NAMES, ()),
        truth=HESTON_TRUTH,
    )  # fmt: skip


# --- lotka volterra ---------------------------------------------------------------------------------

RATES_START = (100, 50)
DURATION, N_TIMES, MOST_EVENTS = 30.0, 151, 10_000
RATES_TRUTH = np.array([0.7, 0.01, 0.005, 0.4])
LOWEST = 1e-3


@njit(cache=True)
def gillespie(rng, rates, prey, predators, duration, n_times, max_events, out):
    """Simulate the process; numbers (n_times, 2) are written to `out`, beginning with the start.

    Returns the number of events, or -1 if there were more than `max_events` or a rate is not a
    number or negative.
    """
    for rate in rates:
        if not (0.0 <= rate < np.inf):
            return -1
    x, y = prey, predators
    step = duration / (n_times - 1)
    time, row = 0.0, 0
    for event in range(max_events + 1):
        birth = rates[0] * x
        death = rates[1] * x * y
        growth = rates[2] * x * y
        decline = rates[3] * y
        total = birth + death + growth + decline
        time = np.inf if total == 0.0 else time + rng.standard_exponential() / total
        while row < n_times and row * step <= time:
            out[row, 0] = x
            out[row, 1] = y
            row += 1
        if row == n_times:
            return event
        u = rng.random() * total
        if u < birth:
            x += 1
        elif u < birth + death:
            x -= 1
        elif u < birth + death + growth:
            y += 1
        else:
            y -= 1
    return -1


@njit(cache=True)
def rates_summarise(path, out):
    """Compute nine summaries of numbers (n_times, 2) of prey and predators.

    Means, log variances, autocorrelations at lags 1 and 2 of prey and then of predators, and the cross-correlation.
    The variance is increased by one before taking its logarithm, and correlations with a constant are 0.
    """
    n = path.shape[0]
    mean = np.zeros(2)
    for t in range(n):
        mean[0] += path[t, 0] / n
        mean[1] += path[t, 1] / n
    lag0, lag1, lag2, cross = np.zeros(2), np.zeros(2), np.zeros(2), 0.0
    for t in range(n):
        for k in range(2):
            here = path[t, k] - mean[k]
            lag0[k] += here * here
            if t >= 1:
                lag1[k] += here * (path[t - 1, k] - mean[k])
            if t >= 2:
                lag2[k] += here * (path[t - 2, k] - mean[k])
        cross += (path[t, 0] - mean[0]) * (path[t, 1] - mean[1])
    for k in range(2):
        out[k] = mean[k]
        out[2 + k] = math.log1p(lag0[k] / n)
        varies = lag0[k] > 1e-9
        out[4 + 2 * k] = lag1[k] / lag0[k] if varies else 0.0
        out[5 + 2 * k] = lag2[k] / lag0[k] if varies else 0.0
    varies = lag0[0] > 1e-9 and lag0[1] > 1e-9
    out[8] = cross / math.sqrt(lag0[0] * lag0[1]) if varies else 0.0


@njit(cache=True)
def summaries_of_runs(rng, rates):
    out = np.full((rates.shape[0], 9), np.nan)
    path = np.empty((N_TIMES, 2))
    for i in range(rates.shape[0]):
        events = gillespie(rng, rates[i], *RATES_START, DURATION, N_TIMES, MOST_EVENTS, path)
        if events >= 0:
            rates_summarise(path, out[i])
    return out


def lotka_volterra(*, prior: str = "log", data_seed: int = 1) -> SimulatorExample:
    """Build the example: rates of the jump process from nine summaries of one run.

    Parameters
    ----------
    prior : {"log", "unit"}
        Logarithms of the rates uniform on [log 0.001, 0], or rates uniform on [0, 1].
    data_seed : int
        Seed of the simulated data.
    """
    log = prior == "log"

    def simulate(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
        return summaries_of_runs(rng, np.exp(theta) if log else theta)

    def cube(u: np.ndarray) -> np.ndarray:
        return math.log(LOWEST) * (1.0 - u) if log else u.copy()

    theta = np.log(RATES_TRUTH) if log else RATES_TRUTH
    observed = simulate(as_generator(data_seed), theta[None])[0]
    scale = noise_scale(simulate, theta, 1000)
    names = [f"log_theta{i}" if log else f"theta{i}" for i in range(1, 5)]

    bounds = (math.log(LOWEST), 0.0) if log else (0.0, 1.0)
    return SimulatorExample(
        name="lotka_volterra" if log else "lotka_volterra_unit",
        prior=lambda: [pm.Uniform(name, *bounds) for name in names], simulate=simulate,
        cube=cube, observed=observed, scale=scale, epsilon=4.0, shapes=dict.fromkeys(names, ()),
        truth=theta,
    )  # fmt: skip
