"""Jump processes, stochastic volatility: moments in closed form, caps, bad parameters."""

import math

import numpy as np

from models import process_simulators as processes


def assert_means(draws, expected):
    """Means of the columns of draws (n, k), by their own standard errors."""
    errors = draws.std(axis=0) / math.sqrt(len(draws))
    z = (draws.mean(axis=0) - expected) / np.maximum(errors, 1e-15)
    assert np.abs(z).max() < 4.0, z


# --- predators and prey ---------------------------------------------------------------------------


def test_balance_of_births_and_deaths():
    """Changes minus the integrals of their rates have mean zero."""
    rates = np.array([0.7, 0.01, 0.005, 0.4])
    n_times, duration = 401, 4.0
    rng, paths = np.random.default_rng(2), np.empty((2000, n_times, 2))
    for path in paths:
        processes.gillespie(rng, rates, *processes.RATES_START, duration, n_times, 10_000, path)
    x, y = paths[:, :, 0], paths[:, :, 1]
    step = duration / (n_times - 1)

    def integral(f):
        return step * (f.sum(axis=1) - 0.5 * (f[:, 0] + f[:, -1]))

    prey = x[:, -1] - x[:, 0] - integral(rates[0] * x - rates[1] * x * y)
    predators = y[:, -1] - y[:, 0] - integral(rates[2] * x * y - rates[3] * y)
    assert_means(np.column_stack([prey, predators]), 0.0)
    assert np.abs(np.diff(x, axis=1)).max() > 0 and x.min() >= 0 and y.min() >= 0
    # The variance of such a martingale is the mean number of events.
    events = integral(rates[0] * x + rates[1] * x * y)
    assert_means((prey**2 - events)[:, None], 0.0)


# --- volatility -----------------------------------------------------------------------------------


def returns(theta, n, n_steps, dt, seed):
    rng, out = np.random.default_rng(seed), np.empty((n, n_steps))
    for i in range(n):
        processes.log_returns(rng, np.asarray(theta), dt, out[i])
    return out


def test_variance_reverts_and_correlates():
    dt, (kappa, xi, nu0, rho, sigma) = 0.01, (4.0, 0.5, 0.2, -0.7, 0.5)
    r = returns([kappa, xi, nu0, rho, sigma], 20_000, 40, dt, 18)
    variance = xi + (nu0 - xi) * (1.0 - kappa * dt) ** np.arange(40)
    noise = r - 0.02 * dt + 0.5 * variance * dt
    assert_means(noise[:, ::8] ** 2, variance[::8] * dt)
    # A return moves the next variance by rho sigma times itself.
    products = noise[:, :1] * noise[:, 1:2] ** 2
    assert_means(products, rho * sigma * nu0 * dt * dt)
