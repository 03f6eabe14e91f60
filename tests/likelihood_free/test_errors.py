"""Standard errors of posterior means, against how much means differ from run to run."""

import numpy as np
import pytest

from scipy.special import ndtri

from amc_pymc.likelihood_free.adjust import (
    adjusted_accepted,
    adjusted_effective,
    adjusted_mean,
)
from amc_pymc.logweights import weighted_mean

RUNS = 200
#: Within four standard errors of a standard deviation of so many.
CLOSE = 4.0 / np.sqrt(2.0 * RUNS)


def by_hand(x):
    """What is estimated of draws (n, 2): numbers, what jumps, and what is far from linear."""
    a, b = x[:, 0], x[:, 1]
    return np.stack([a, b, np.floor(2.0 * a), a > 0.5, np.exp(b), a * b], axis=1)


def ratios(means, errors):
    """Standard deviations of means from run to run over the errors that they were given."""
    means, errors = np.array(means), np.array(errors)
    return means.std(axis=0, ddof=1) / np.sqrt((errors**2).mean(axis=0))


def test_weights_that_go_with_the_values():
    rng = np.random.default_rng(1)
    means, errors, kish = [], [], []
    for _ in range(RUNS):
        x = rng.normal(size=(400, 2)) * 0.8
        w = np.exp(-0.5 * (x**2).sum(axis=1) * (1.0 - 1.0 / 0.8**2))
        w /= w.sum()
        values = by_hand(x) ** 2
        mean, error = weighted_mean(w, values)
        means.append(mean)
        errors.append(error)
        kish.append(np.sqrt(w @ (values - mean) ** 2 * (w @ w)))
    assert abs(np.median(ratios(means, errors)) - 1.0) < CLOSE
    assert (ratios(means, kish)[:2] > 1.4).all()  # what effective draws of Kish would say


def test_one_draw_and_equal_ones():
    mean, error = weighted_mean(np.ones(1), np.array([[3.0, -1.0]]))
    np.testing.assert_array_equal([mean, error], [[3.0, -1.0], [0.0, 0.0]])
    _, error = weighted_mean(np.full(100, 0.01), np.repeat([[0.0], [2.0]], 50, axis=0))
    np.testing.assert_allclose(error, 0.1)


def linear(rng, x):
    return x + 0.3 * rng.normal(size=x.shape)


def bent(rng, x):
    return x + 0.1 * x**2 + 0.3 * rng.normal(size=x.shape)


@pytest.mark.parametrize("simulate", [linear, bent])
@pytest.mark.parametrize("in_order", [False, True])
def test_errors_and_effective_draws_of_adjusted_means(simulate, in_order):
    """At one tolerance, for one that differs from run to run would mix errors of all sizes."""
    rng, data = np.random.default_rng(3), np.array([1.2, 1.5])
    means, errors, xs, effective, kish = [], [], [], [], []

    def log_density(u):
        x = ndtri(u)
        return np.where(x[:, 0] < x[:, 1], 0.0, -np.inf) if in_order else None

    for _ in range(RUNS):
        x = rng.normal(size=(500, 2))
        s = simulate(rng, x)
        distance = np.sqrt(((s - data) ** 2).sum(axis=1))
        distance[distance > 2.0] = np.inf
        found = adjusted_accepted(
            x, s - data, distance, np.zeros(500), 2.0, "linear",
            log_density if in_order else None,
        )  # fmt: skip
        of_x, x_error = adjusted_mean(found, ndtri, log_density)
        mean, error = adjusted_mean(found, lambda u: by_hand(ndtri(u)), log_density)
        means.append(mean)
        errors.append(error)
        x, w = ndtri(found.u), found.accepted.weight
        xs.append((of_x, w @ (x - of_x) ** 2))
        effective.append(adjusted_effective(found, x_error))
        kish.append(found.accepted.effective)
    found = ratios(means, errors)
    assert ((found > 1.0 - CLOSE) & (found < 1.0 + CLOSE)).all(), found
    of_x, variance = (np.array(v) for v in zip(*xs, strict=True))
    variance, of_x = variance.mean(axis=0), of_x.var(axis=0, ddof=1)
    honest = (of_x / variance).max() / np.mean(1.0 / np.array(effective))
    assert 0.6 < honest < 1.6
    assert (of_x / variance).max() / np.mean(1.0 / np.array(kish)) > 1.6
    assert (np.array(effective) <= np.array(kish)).all()


@pytest.mark.parametrize("two_modes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_errors_where_residuals_are_stretched(two_modes):
    rng, data = np.random.default_rng(4), np.array([1.2])
    means, errors = [], []
    for _ in range(100):
        sign = rng.choice([-1.0, 1.0], (400, 1)) if two_modes else 1.0
        s = rng.uniform(-1.0, 1.0, (400, 1))
        x = 0.2 * (sign * (3.0 + s) + np.exp(0.5 * s) * rng.normal(size=s.shape))
        distance = abs(s - data)[:, 0]
        found = adjusted_accepted(x, s - data, distance, np.zeros(400), 2.5, "heteroscedastic")
        mean, error = adjusted_mean(found, ndtri)
        means.append(mean)
        errors.append(error)
    found = np.std(means) / np.sqrt(np.mean(np.square(errors)))
    assert abs(found - 1.0) < 4.0 / np.sqrt(2.0 * len(means))
