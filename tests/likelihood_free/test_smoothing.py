"""Kernel densities of weighted points."""

import math

import numpy as np
import pytest

from scipy import stats
from scipy.special import logsumexp, ndtr, ndtri

from amc_pymc.likelihood_free.smoothing import fit_smoothing, left_out_densities, smooth_draws

N = 200


def equal(n):
    return np.full(n, 1.0 / n)


def correlated(n, rng):
    z = rng.normal(size=(n, 3))
    return np.stack([z[:, 0], z[:, 0] + 0.3 * z[:, 1], np.exp(z[:, 2])], axis=1)


def moments(kernel, x, weight):
    """Mean and covariance of the mixture, from its definition."""
    centres, covariance = parts(kernel, x)
    mean = weight @ centres
    return mean, ((centres - mean) * weight[:, None]).T @ (centres - mean) + covariance


def parts(kernel, x):
    """Centres and covariance of the kernels."""
    shrink = (1.0 + kernel.bandwidth**2) ** -0.5
    factor = shrink * kernel.bandwidth * kernel.root
    return kernel.mean + shrink * (x - kernel.mean), factor @ factor.T


def test_mean_and_covariance_stay():
    rng = np.random.default_rng(1)
    x, weight = correlated(N, rng), rng.dirichlet(np.ones(N))
    kernel = fit_smoothing(x, weight, rng, bandwidth=0.7)
    mean, covariance = moments(kernel, x, weight)
    found = np.cov(x.T, aweights=weight, ddof=0)
    np.testing.assert_allclose(mean, weight @ x, rtol=1e-9)
    np.testing.assert_allclose(np.diag(covariance), np.diag(found), rtol=0.01)
    # Correlations are shrunk by their own errors.
    np.testing.assert_allclose(covariance, found, atol=0.1 * np.diag(found).max())
    draws = kernel.sample(x, rng.choice(N, 40_000, p=weight), rng)
    assert len(np.unique(draws, axis=0)) == len(draws)
    errors = np.sqrt(np.diag(covariance) / len(draws))
    assert (np.abs(draws.mean(axis=0) - mean) < 4.0 * errors).all()
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.05 * np.diag(covariance).max())


def test_left_out_densities():
    rng = np.random.default_rng(2)
    x, weight = rng.normal(size=(12, 2)), rng.dirichlet(np.ones(12))
    bandwidths = (0.4, 1.0)
    found = left_out_densities(x, weight, np.array([3, 7]), bandwidths)
    for h, densities in zip(bandwidths, found, strict=True):
        kernel = fit_smoothing(x, weight, rng, bandwidth=h)
        # The constant of the density is the same for all bandwidths, and left out.
        constant = math.log(2.0 * math.pi) + np.log(np.diag(kernel.root)).sum()
        expected = by_definition(kernel, x, weight, (3, 7))
        np.testing.assert_allclose(densities - constant, expected, rtol=1e-9)


def by_definition(kernel, x, weight, compared):
    """Leave-one-out log densities."""
    centres, covariance = parts(kernel, x)
    out = []
    for i in compared:
        others = np.delete(np.arange(len(x)), i)
        log_f = [stats.multivariate_normal(centres[j], covariance).logpdf(x[i]) for j in others]
        out.append(logsumexp(log_f, b=weight[others]) - math.log(weight[others].sum()))
    return out


def test_few_points_in_ten_dimensions():
    """Their kernel density is nearly the distribution they come from; copies have no density at all."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(150, 10))
    kernel = fit_smoothing(x, equal(150), rng)
    assert kernel.bandwidth > 0.9
    fresh = rng.normal(size=(2000, 10))
    centres, covariance = parts(kernel, x)
    log_f = np.stack([stats.multivariate_normal(c, covariance).logpdf(fresh) for c in centres])
    lost = stats.multivariate_normal(np.zeros(10)).logpdf(fresh) - logsumexp(
        log_f - math.log(150), axis=0
    )
    # Twenty means and variances estimated from 150 points cost half of 20 / 150 nats; all 65 moments 0.22.
    assert 0.05 < lost.mean() < 0.2


def test_separate_modes_keep_their_mean_and_covariance():
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.normal(-4.0, 0.5, (300, 2)), rng.normal(4.0, 0.05, (300, 2))])
    parents = rng.integers(600, size=20_000)
    draws, kernels = smooth_draws(ndtr(x), equal(600), parents, rng)
    draws = ndtri(draws)
    assert len(kernels) == 2
    for near, own in ((draws[:, 0] < 0.0, parents < 300), (draws[:, 0] > 0.0, parents >= 300)):
        assert (near == own).all()
        points = x[np.unique(parents[own])]
        np.testing.assert_allclose(draws[own].std(axis=0), points.std(axis=0), rtol=0.04)
        error = points.std(axis=0) / np.sqrt(own.sum())
        assert (np.abs(draws[own].mean(axis=0) - points.mean(axis=0)) < 4.0 * error).all()


def test_modes_of_hardly_any_width():
    rng = np.random.default_rng(5)
    x = np.concatenate([rng.normal(-1.0, 1e-6, (300, 1)), rng.normal(1.0, 1e-6, (300, 1))])
    draws, kernels = smooth_draws(ndtr(x), equal(600), rng.integers(600, size=100), rng)
    assert len(kernels) == 2
    assert (np.abs(np.abs(ndtri(draws)) - 1.0) < 1e-5).all()


@pytest.mark.parametrize(("n", "bandwidth"), [(900, 0.3), (4000, 0.3 * (1000 / 4000) ** 0.2)])
def test_bandwidth_for_as_many_points_as_are_worth_it(n, bandwidth):
    """4,000 points, of which n share the weight."""
    weight = np.where(np.arange(4000) < n, 1.0 / n, 0.0)
    x = np.random.default_rng(1).normal(size=(4000, 1))
    found = fit_smoothing(x, weight, np.random.default_rng(2), bandwidth=0.3)
    assert found.bandwidth == pytest.approx(bandwidth)


def test_no_draws_where_the_prior_is_zero():
    rng = np.random.default_rng(6)
    u = ndtr(rng.normal(size=(300, 2)))
    u = u[u[:, 0] < 0.5]

    def log_density(u):
        return np.where(u[:, 0] < 0.5, 0.0, -math.inf)

    parents = rng.integers(len(u), size=5000)
    draws, kernels = smooth_draws(u, equal(len(u)), parents, rng, log_density)
    assert kernels and (draws[:, 0] < 0.5).all() and (draws > 0.0).all()
    assert (smooth_draws(u, equal(len(u)), parents, rng)[0][:, 0] > 0.5).any()
    nowhere, _ = smooth_draws(u, equal(len(u)), parents, rng, lambda u: np.full(len(u), -math.inf))
    np.testing.assert_array_equal(nowhere, u[parents])


@pytest.mark.parametrize("u", [np.array([[0.2], [0.7]]), np.full((50, 2), 0.3)])
def test_too_few_points_are_copied(u):
    rng = np.random.default_rng(7)
    parents = rng.integers(len(u), size=20)
    draws, kernels = smooth_draws(u, equal(len(u)), parents, rng)
    assert not kernels
    np.testing.assert_array_equal(draws, u[parents])
