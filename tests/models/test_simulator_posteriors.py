"""Reference posteriors against quadrature, rejection and importance sampling."""

import math

import numpy as np
import pytest

from scipy.optimize import approx_fprime
from scipy.stats import norm

from models import g_and_k as gk
from models import gaussian_mixtures as mixtures
from models import point_simulators as points
from models import process_simulators as processes
from models.point_simulators import acceptance, epsilon_moments, gaussian_known, two_scale_mixture


def assert_means(draws, expected, sds):
    """Means of the columns of draws (n, k) are what they should be."""
    errors = np.asarray(sds) / math.sqrt(len(draws))
    z = (draws.mean(axis=0) - expected) / errors
    assert np.abs(z).max() < 4.0, z


def assert_moments(draws, grid, weights):
    """Means of coordinates, their squares and products, against weights (n,) on points (n, D)."""

    def functions(x):
        pairs = [x[:, i] * x[:, j] for i in range(x.shape[1]) for j in range(i + 1)]
        return np.column_stack([x, *pairs])

    weights = weights / weights.sum()
    values = functions(grid)
    means = weights @ values
    sds = np.sqrt(weights @ np.square(values - means))
    assert_means(functions(draws), means, sds)


def square_grid(lower, upper, n):
    """Midpoints (n^2, 2)."""
    edge = lower + (upper - lower) * (np.arange(n) + 0.5) / n
    return np.stack(np.meshgrid(edge, edge, indexing="ij"), axis=-1).reshape(-1, 2)


def rejection(example, epsilon, n, seed):
    """Prior draws with a distance below the tolerance."""
    rng = np.random.default_rng(seed)
    theta = example.prior_sample(rng, n)
    return theta[example.distance(example.simulate(rng, theta)) < epsilon]


def assert_same_means(a, b):
    for f in (lambda x: x, np.square, lambda x: x[:, :1] * x):
        x, y = f(a), f(b)
        error = np.sqrt(x.var(axis=0) / len(x) + y.var(axis=0) / len(y))
        assert np.all(np.abs(x.mean(axis=0) - y.mean(axis=0)) < 4.0 * error + 1e-12)


# --- two moons -----------------------------------------------------------------------------------


@pytest.mark.parametrize("observed", [(0.0, 0.0), (-0.45, 0.5)])
def test_two_moons_reference_by_quadrature(observed):
    """The second pair has crescents that the square cuts off."""
    example = points.two_moons(observed)
    draws = example.reference(np.random.default_rng(2), 20_000)
    grid = square_grid(-1.0, 1.0, 1200)
    assert_moments(draws, grid, np.exp(points.moons_log_likelihood(example.observed, grid)))
    mass = (draws.sum(axis=1) > 0.0).mean()
    assert abs(mass - 0.5) < 4.0 * 0.5 / math.sqrt(20_000)


def test_two_moons_at_a_tolerance():
    example = points.two_moons((-0.45, 0.5))
    accepted = rejection(example, 0.15, 150_000, 3)
    assert len(accepted) > 1000
    assert_same_means(example.epsilon_reference(np.random.default_rng(4), 20_000, 0.15), accepted)


# --- normal mixtures ------------------------------------------------------------------------------


def test_two_scales_far_from_the_edge():
    example = two_scale_mixture()
    draws = example.reference(np.random.default_rng(5), 40_000) - example.observed
    variance = 0.5 * (1.0 + 0.01)
    fourth = 1.5 * (1.0 + 1e-4)
    assert_means(draws, 0.0, math.sqrt(variance))
    assert_means(draws**2, variance, math.sqrt(fourth - variance**2))
    assert_means(draws[:, :1] * draws[:, 1:], 0.0, math.sqrt(0.5 * (1.0 + 1e-4)))
    # In a disc each coordinate has variance epsilon^2 / 4.
    wide = example.epsilon_reference(np.random.default_rng(6), 40_000, 2.0) - example.observed
    assert_means(wide**2, variance + 1.0, (wide**2).std(axis=0))
    np.testing.assert_array_equal(example.mode, example.observed)


@pytest.mark.parametrize("observed", [50.0, 3.0])
def test_univariate_mixture(observed):
    example = mixtures.univariate_mixture(observed)
    grid = (np.arange(200_000)[:, None] + 0.5) / 200_000
    x = grid[:, 0] * 100.0
    density = 0.8 * norm.pdf(observed, x, math.sqrt(3.0)) + 0.2 * norm.pdf(observed, x + 5.0, 0.5)
    assert_moments(example.reference(np.random.default_rng(10), 20_000), grid, density)
    assert abs(example.mode[0] - grid[density.argmax(), 0]) < 1e-5
    chance = 0.0
    for weight, shift, sd in ((0.8, 0.0, math.sqrt(3.0)), (0.2, 5.0, 0.5)):
        ends = norm.cdf((observed + np.array([[3.0], [-3.0]]) - x - shift) / sd)
        chance = chance + weight * (ends[0] - ends[1])
    np.testing.assert_allclose(
        mixtures.acceptance(example.observed, 3.0, grid, mixtures.UNIVARIATE), chance, atol=1e-9
    )
    near = example.epsilon_reference(np.random.default_rng(11), 20_000, 3.0)
    assert_moments(near, grid, chance)


# --- normal mean ---------------------------------------------------------------------------------


def test_two_normals_by_quadrature():
    observed, epsilon = np.array([0.5, -0.2]), 0.7
    grid = square_grid(-2.5, 2.5, 401)
    weights = acceptance(observed, epsilon, grid)
    weights *= np.exp(-5.0 * np.square(grid).sum(axis=1))
    found = epsilon_moments(observed, epsilon)
    mean = weights @ grid / weights.sum()
    np.testing.assert_allclose(found.mean, mean, rtol=1e-6)
    covariance = np.cov(grid.T, aweights=weights, ddof=0)
    np.testing.assert_allclose(found.covariance, covariance, rtol=1e-5, atol=1e-9)


def test_normal_references():
    example = gaussian_known(2)
    draws = example.reference(np.random.default_rng(16), 20_000)
    assert_means(draws, 0.5 * example.observed, math.sqrt(0.05))
    assert_means((draws - 0.5 * example.observed) ** 2, 0.05, 0.05 * math.sqrt(2.0))
    moments = epsilon_moments(example.observed, 1.2)
    near = example.epsilon_reference(np.random.default_rng(17), 20_000, 1.2)
    assert_means(near, moments.mean, np.sqrt(np.diag(moments.covariance)))
    gap = near - moments.mean
    products = np.einsum("ni,nj->nij", gap, gap).reshape(len(gap), -1)
    assert_means(products, moments.covariance.ravel(), products.std(axis=0))
    accepted = rejection(example, 1.2, 50_000, 18)
    share = moments.acceptance
    assert abs(len(accepted) / 5e4 - share) < 4.0 * math.sqrt(share * (1.0 - share) / 5e4)
    assert_same_means(near, accepted)


# --- g and k -------------------------------------------------------------------------------------


def test_octiles_of_normal_draws_have_a_known_density():
    """Seven draws of a normal: 7! times the product of densities; and another count by formula."""
    theta = np.array([[1.0, 2.0, 0.0, 0.0]])
    x = np.array([-3.0, -1.0, 0.5, 1.0, 1.5, 3.0, 4.0])
    expected = math.lgamma(8) + norm.logpdf(x, 1.0, 2.0).sum()
    assert gk.log_likelihood(x, theta, 1)[0] == pytest.approx(expected, rel=1e-12)
    gaps = np.diff(norm.cdf(np.r_[-np.inf, x, np.inf], 1.0, 2.0))
    expected = math.lgamma(40) - 8 * math.lgamma(5) + 4 * np.log(gaps).sum()
    expected += norm.logpdf(x, 1.0, 2.0).sum()
    assert gk.log_likelihood(x, theta, 5)[0] == pytest.approx(expected, rel=1e-12)
    assert gk.log_likelihood(x[::-1], theta, 5)[0] == -np.inf
    far = gk.log_likelihood(x, np.array([[25.0, 1.0, 0.0, 0.0]]), 5)[0]
    assert np.isfinite(far) and far < -1000.0


@pytest.mark.slow
def test_g_and_k_reference_by_importance_sampling():
    """Weighted uniform points of a box around the posterior."""
    example, n = gk.g_and_k(), 150_000
    draws = example.reference(np.random.default_rng(21), 4000)
    lower, upper = np.array([2.7, 0.4, 1.0, 0.0]), np.array([3.5, 2.2, 3.8, 1.2])
    assert ((lower < draws) & (draws < upper)).mean() > 0.999
    box = lower + (upper - lower) * np.random.default_rng(22).random((n, 4))
    log_w = gk.log_likelihood(example.observed, box, 32)
    weights = np.exp(log_w - log_w.max())
    weights /= weights.sum()
    assert 1.0 / np.square(weights).sum() > 300.0
    for f in (lambda x: x, np.square, lambda x: x[:, [0, 2]] * x[:, [1, 3]]):
        values, ours = f(box), f(draws)
        mean = weights @ values
        variance = np.square(weights) @ np.square(values - mean) + ours.var(axis=0) / len(ours)
        assert np.all(np.abs(ours.mean(axis=0) - mean) < 4.0 * np.sqrt(variance))


@pytest.mark.slow
def test_moving_average_reference_by_quadrature():
    example = processes.ma2()
    x = processes.ma2_series(np.random.default_rng(1), example.truth[None], 100)[0]
    np.testing.assert_allclose(processes.autocovariances(x), example.observed, rtol=1e-12)
    grid = square_grid(-2.0, 2.0, 500)
    grid = grid[processes.inside(grid)]
    level = processes.ma2_log_likelihood(x, grid)
    draws = example.reference(np.random.default_rng(27), 10_000)
    assert_moments(draws, grid, np.exp(level - level.max()))
    assert np.abs(example.mode - grid[level.argmax()]).max() < 0.008
    slope = approx_fprime(
        example.mode, lambda theta: processes.ma2_log_likelihood(x, theta[None])[0], 1e-6
    )
    assert np.abs(slope).max() < 1e-2
