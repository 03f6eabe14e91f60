"""Reference posteriors of problems in five to twelve dimensions, against importance sampling with the likelihood."""

import math

import numpy as np

from scipy.stats import chi2, norm, truncnorm

from models import point_simulators as points
from models import process_simulators as processes
from models.point_simulators import NOISE_SD, gaussian_uniform


def assert_same_moments(draws, theta, log_weight):
    """Means of coordinates, absolute values, squares and products agree with weighted points (m, D)."""

    def functions(x):
        pairs = [x[:, i] * x[:, j] for i in range(x.shape[1]) for j in range(i + 1)]
        return np.column_stack([x, np.abs(x), *pairs])

    w = np.exp(log_weight - log_weight.max())
    w /= w.sum()
    some = w > 0.0
    w, values = w[some], functions(theta[some])
    mean = w @ values
    error = np.sqrt(np.square(w) @ np.square(values - mean))
    ours = functions(draws)
    both = np.sqrt(error**2 + ours.var(axis=0) / len(ours))
    z = (ours.mean(axis=0) - mean) / both
    assert 1.0 / np.square(w).sum() > 400.0
    assert np.abs(z).max() < 4.5, z


def test_slcp():
    example, rng = points.slcp(truth=[0.7, -2.9, -1.4, -1.3, 0.6]), np.random.default_rng(1)
    theta = example.prior_sample(rng, 400_000)
    log = points.slcp_log_likelihood(example.observed, theta)
    assert_same_moments(example.reference(rng, 20_000), theta, log)


def test_truncated_normal():
    example, rng = gaussian_uniform(), np.random.default_rng(5)
    draws, x = example.reference(rng, 40_000), example.observed
    known = truncnorm((-1.0 - x) / NOISE_SD, (1.0 - x) / NOISE_SD, loc=x, scale=NOISE_SD)
    assert np.abs((draws.mean(axis=0) - known.mean()) / known.std()).max() < 4.0 / 200.0
    assert np.abs(draws.std(axis=0) / known.std() - 1.0).max() < 4.0 / 200.0


def test_autoregression():
    truth = [0.3, 0.4, -0.2, 0.1, 0.0, 2.0]
    example, rng = processes.ar_series(20, truth=truth), np.random.default_rng(7)
    theta = example.prior_sample(rng, 300_000)
    y = processes.autoregressions(
        np.random.default_rng(1), np.array([0.3]),
        processes.coefficients(np.array([truth[1:-1]])), np.array([2.0]), 20,
    )[0]  # fmt: skip
    phi = processes.coefficients(2.0 * theta[:, 1:-1] - 1.0)
    log = np.zeros(len(theta))
    for t in range(len(y)):
        mean = theta[:, 0] + sum(phi[:, k] * y[t - 1 - k] for k in range(min(4, t)))
        log += -0.5 * ((y[t] - mean) / theta[:, -1]) ** 2 - np.log(theta[:, -1])
    assert_same_moments(example.reference(rng, 20_000), theta, log)


def test_group_means():
    truth = [0.0, 0.7, 0.8, -0.5, 0.6]
    example, rng = points.group_means(2, 3, truth=truth), np.random.default_rng(12)
    theta = example.prior_sample(rng, 400_000)
    sigma, s = theta[:, 2], example.observed
    log = norm.logpdf(s[:2], theta[:, 3:], sigma[:, None] / math.sqrt(3.0)).sum(axis=1)
    # The sum of squares over sigma^2 has four degrees of freedom.
    log += chi2.logpdf(4.0 * np.exp(2.0 * s[2]) / sigma**2, 4) - 2.0 * np.log(sigma)
    assert_same_moments(example.reference(rng, 20_000), theta, log)
