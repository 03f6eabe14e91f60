r"""Autoregression of order four with its least-squares estimates as summaries.

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
"""

from __future__ import annotations

import numpy as np
import pymc as pm

from scipy.special import betaincinv

from amc_pymc.engine.jit import njit
from amc_pymc.rng import as_generator
from models.simulator_example import SimulatorExample, accepted_draws, noise_scale

ORDER = 4
TRUTH = np.array([0.5, 0.6, -0.4, 0.3, -0.2, 1.0])
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
def series(rng, intercept, phi, sigma, n):
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


def cube(u: np.ndarray) -> np.ndarray:
    """Map points (n, 6), uniform in the unit cube, to parameters (n, 6) with the prior distribution."""
    partial = 2.0 * betaincinv(BETA_A, BETA_B, u[:, 1:-1]) - 1.0
    sigma = LEAST_SD + (LARGEST_SD - LEAST_SD) * u[:, -1]
    return np.column_stack([INTERCEPT * (2.0 * u[:, 0] - 1.0), partial, sigma])


def exact(y: np.ndarray, rng: np.random.Generator, n: int) -> np.ndarray:
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


def ar_series(
    n: int = 200, *, truth=TRUTH, data_seed: int = 1, epsilon: float = 1.0
) -> SimulatorExample:
    """Build the example: six parameters of a simulated series.

    Parameters
    ----------
    n : int
        Length of the series, at least 20.
    truth : sequence of 6 floats
        Intercept, partial autocorrelations and standard deviation of the simulated data.
    data_seed : int
        Seed of that simulation.
    epsilon : float
        Tolerance of the Euclidean distance between estimates, each divided by its standard deviation at
        the true parameters.
    """
    truth = np.array(truth, float)

    def many(rng: np.random.Generator, theta: np.ndarray) -> np.ndarray:
        return series(rng, theta[:, 0].copy(), coefficients(theta[:, 1:-1]), theta[:, -1].copy(), n)

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
        cube=lambda u: _to_levels(cube(u)), observed=observed, scale=scale, epsilon=epsilon,
        shapes={"intercept": (), "level": (ORDER,), "sigma": ()}, truth=_to_levels(truth[None])[0],
        reference=lambda rng, n: _to_levels(exact(y, rng, n)),
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
