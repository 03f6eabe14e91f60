"""Reference posteriors against quadrature, rejection and importance sampling."""

import math

import numpy as np
import pytest

from scipy.integrate import quad
from scipy.linalg import toeplitz
from scipy.optimize import approx_fprime
from scipy.stats import multivariate_normal, ncx2, norm

from models import g_and_k as gk
from models import gaussian_mixtures as mixtures
from models import ma2 as ma
from models import toy_points as toy
from models import two_moons as moons
from models.gaussian_known import acceptance, epsilon_moments, gaussian_known
from models.two_scale_mixture import two_scale_mixture


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


def test_two_moons_noise():
    x = moons.simulate(np.random.default_rng(1), np.tile([0.3, -0.5], (40_000, 1)))
    shift = np.array([-0.2, -0.8]) / math.sqrt(2.0)
    r2 = 0.1**2 + 0.01**2
    mean = np.array([0.2 / math.pi + 0.25, 0.0])
    sds = [math.sqrt(0.5 * r2 - (0.2 / math.pi) ** 2), math.sqrt(0.5 * r2)]
    assert_means(x, mean + shift, sds)
    assert_means(
        np.square(x - shift - mean), np.square(sds), np.square(x - shift - mean).std(axis=0)
    )


def test_two_moons_density_integrates_to_one():
    """Over either half of the square, as parameters are turned, mirrored and shifted noise."""
    grid = square_grid(-1.0, 1.0, 1200)
    density = np.exp(moons.log_likelihood(np.zeros(2), grid)) * (2.0 / 1200) ** 2
    assert density.sum() == pytest.approx(2.0, rel=5e-3)  # the grid cuts the crescents' ends


@pytest.mark.parametrize("observed", [(0.0, 0.0), (-0.45, 0.5)])
def test_two_moons_reference_by_quadrature(observed):
    """The second pair has crescents that the square cuts off."""
    example = moons.two_moons(observed)
    draws = example.reference(np.random.default_rng(2), 20_000)
    grid = square_grid(-1.0, 1.0, 1200)
    assert_moments(draws, grid, np.exp(moons.log_likelihood(example.observed, grid)))
    mass = (draws.sum(axis=1) > 0.0).mean()
    assert abs(mass - 0.5) < 4.0 * 0.5 / math.sqrt(20_000)


@pytest.mark.parametrize("observed", [(0.0, 0.0), (-0.45, 0.5)])
def test_two_moons_at_a_tolerance(observed):
    example = moons.two_moons(observed)
    accepted = rejection(example, 0.15, 150_000, 3)
    assert len(accepted) > 1000
    assert_same_means(example.epsilon_reference(np.random.default_rng(4), 20_000, 0.15), accepted)


@pytest.mark.slow
def test_two_moons_unreachable():
    """No parameter in the square explains the pair, and that is said."""
    with pytest.raises(RuntimeError, match="0 of 10 draws: the data may be out of reach"):
        moons.two_moons((3.0, 3.0)).reference(np.random.default_rng(1), 10)
    with pytest.raises(ValueError, match="observed must be 2 finite numbers"):
        moons.two_moons((0.0, math.nan))


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


def test_two_scales_at_the_edge():
    example = two_scale_mixture((9.5, -9.9))
    grid = np.array([5.0, -10.0]) + square_grid(0.0, 5.0, 1000)
    squares = np.square(grid - example.observed).sum(axis=1)
    weights = np.exp(-0.5 * squares) + 100.0 * np.exp(-50.0 * squares)
    assert_moments(example.reference(np.random.default_rng(7), 20_000), grid, weights)
    near = example.epsilon_reference(np.random.default_rng(8), 20_000, 1.0)
    assert_same_means(near, rejection(example, 1.0, 200_000, 9))
    with pytest.raises(ValueError, match="observed must lie between -10 and 10"):
        two_scale_mixture((10.0, 0.0))


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


@pytest.mark.slow
def test_bivariate_mixture():
    example = mixtures.bivariate_mixture()
    grid = square_grid(-5.0, 5.0, 1001)
    density = 0.3 * multivariate_normal([2.0, 2.0]).pdf(grid)
    density += 0.7 * multivariate_normal([-1.0, -1.0], 0.25).pdf(grid)
    assert_moments(example.reference(np.random.default_rng(12), 20_000), grid, density)
    assert np.abs(example.mode - grid[density.argmax()]).max() < 0.011
    assert np.abs(example.mode - example.truth).max() < 1e-4
    chance = mixtures.acceptance(example.observed, 1.5, grid, mixtures.BIVARIATE)
    near = example.epsilon_reference(np.random.default_rng(13), 20_000, 1.5)
    assert_moments(near, grid, chance)
    assert_same_means(near, rejection(example, 1.5, 100_000, 14))


def test_mixture_data_outside():
    with pytest.raises(ValueError, match=r"observed must lie between 0.0 and 100.0, got \[101.\]"):
        mixtures.univariate_mixture(101.0)
    with pytest.raises(ValueError, match="observed must be 2 finite numbers"):
        mixtures.bivariate_mixture([1.0])


# --- points --------------------------------------------------------------------------------------


def test_points_by_quadrature():
    sd = math.sqrt(5.0)
    chances = toy.acceptance(49.5, 2.0)
    assert chances.shape == (100,)
    for j in (1, 40, 50, 53):
        expected, _ = quad(
            lambda u: norm.cdf((51.5 - u) / sd) - norm.cdf((47.5 - u) / sd), j - 1, j, epsabs=1e-13
        )
        assert chances[j - 1] == pytest.approx(expected, abs=1e-12)
        expected, _ = quad(lambda u: norm.pdf(49.5, u, sd), j - 1, j, epsabs=1e-13)
        assert toy.density(49.5)[j - 1] == pytest.approx(expected, abs=1e-12)


def test_points_simulated():
    example = toy.toy_points()
    rng, n = np.random.default_rng(15), 20_000
    for j in (44, 50, 52):
        accepted = example.distance(example.simulate(rng, np.full((n, 1), float(j)))) < 2.0
        chance = toy.acceptance(49.5, 2.0)[j - 1]
        assert abs(accepted.mean() - chance) < 4.0 * math.sqrt(chance * (1.0 - chance) / n)
    point = np.arange(1.0, 101.0)[:, None]
    assert_moments(example.reference(rng, n), point, toy.density(49.5))
    assert_moments(example.epsilon_reference(rng, n, 6.0), point, toy.acceptance(49.5, 6.0))
    assert example.mode == [50.0]
    edges = example.cube(np.array([[0.0], [0.0099], [0.01], [1.0 - 2**-53], [1.0]]))
    np.testing.assert_array_equal(edges, [[1.0], [1.0], [2.0], [100.0], [100.0]])
    with pytest.raises(ValueError, match=r"epsilon must be positive and finite, got -1\.0"):
        toy.acceptance(49.5, -1.0)
    with pytest.raises(TypeError, match="n_points must be an integer"):
        toy.toy_points(2.5)


# --- normal mean ---------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.05, 0.6, 3.0])
def test_one_normal_by_quadrature(epsilon):
    observed = np.array([0.7])
    grid = np.linspace(-2.5, 2.5, 20_001)
    chance = norm.cdf((0.7 + epsilon - grid) / math.sqrt(0.1))
    chance -= norm.cdf((0.7 - epsilon - grid) / math.sqrt(0.1))
    np.testing.assert_allclose(acceptance(observed, epsilon, grid[:, None]), chance, atol=1e-9)
    weights = chance * norm.pdf(grid, 0.0, math.sqrt(0.1)) * (grid[1] - grid[0])
    found = epsilon_moments(observed, epsilon)
    mean = weights @ grid / weights.sum()
    assert found.acceptance == pytest.approx(weights.sum(), rel=1e-6)
    assert found.mean[0] == pytest.approx(mean, rel=1e-6)
    variance = weights @ (grid - mean) ** 2 / weights.sum()
    assert found.covariance[0, 0] == pytest.approx(variance, rel=1e-6)


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


@pytest.mark.parametrize("d", [1, 2, 3, 10])
def test_acceptance_of_the_prior(d):
    """Squared distances of marginal data are noncentral chi-square."""
    observed = np.linspace(-0.75, 0.75, d)
    for epsilon in (0.3, 1.0, 4.0):
        expected = ncx2.cdf(epsilon**2 / 0.2, d, (observed**2).sum() / 0.2)
        found = epsilon_moments(observed, epsilon).acceptance
        assert found == pytest.approx(expected, rel=1e-7)
    zero = epsilon_moments(np.zeros(d), 1.0)
    np.testing.assert_allclose(zero.mean, 0.0, atol=1e-12)
    np.testing.assert_allclose(zero.covariance, zero.covariance[0, 0] * np.eye(d), atol=1e-12)
    tiny = epsilon_moments(observed, 1e-4)
    np.testing.assert_allclose(tiny.mean, 0.5 * observed, atol=1e-6)
    np.testing.assert_allclose(tiny.covariance, 0.05 * np.eye(d), atol=1e-6)


@pytest.mark.parametrize("d", [1, 2, pytest.param(10, marks=pytest.mark.slow)])
def test_normal_references(d):
    example = gaussian_known(d)
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


def test_normal_arguments():
    with pytest.raises(ValueError, match="observed must be 3 finite numbers"):
        gaussian_known(3, observed=[1.0, 2.0])
    with pytest.raises(ValueError, match="d must be at least 1"):
        gaussian_known(0)
    with pytest.raises(ValueError, match=r"epsilon must be positive and finite, got 0\.0"):
        epsilon_moments(np.zeros(2), 0.0)


# --- g and k -------------------------------------------------------------------------------------


def test_quantile_function_by_hand():
    """With g = k = 0 it is a normal; the paper's formula elsewhere."""
    z = np.array([[-1.5, 0.0, 2.0]])
    np.testing.assert_allclose(gk.quantile_function(z, np.array([[3.0, 2.0, 0.0, 0.0]])), 3 + 2 * z)
    g, k = 2.0, 0.5
    skewed = 1.0 + 0.8 * (1.0 - np.exp(-g * z)) / (1.0 + np.exp(-g * z))
    expected = 3.0 + 1.0 * skewed * (1.0 + z**2) ** k * z
    np.testing.assert_allclose(gk.quantile_function(z, np.array([[3.0, 1.0, g, k]])), expected)


@pytest.mark.slow
def test_inversion():
    rng = np.random.default_rng(19)
    theta = 10.0 * rng.random((200, 4))
    z = np.sort(2.0 * rng.standard_normal(7))
    x = gk.quantile_function(z[None], theta)
    for i in range(len(theta)):
        found, log_slope = gk.inverted(x[i], theta[i : i + 1])
        np.testing.assert_allclose(found[0], z, rtol=1e-9, atol=1e-11)
        ends = [gk.quantile_function(z[None] + h, theta[i : i + 1])[0] for h in (1e-6, -1e-6)]
        np.testing.assert_allclose(np.exp(log_slope[0]), (ends[0] - ends[1]) / 2e-6, rtol=1e-5)
    far = gk.inverted(np.array([1e6]), np.array([[0.0, 1.0, 0.0, 0.0], [0.0, -1.0, 0.0, 0.0]]))
    assert np.isnan(far).all()


def test_octiles_of_raw_draws():
    """Eight gamma draws do what sorting 255 normals does."""
    example, rng, n = gk.g_and_k(), np.random.default_rng(20), 4000
    theta = np.tile(example.truth, (n, 1))
    raw = np.sort(gk.quantile_function(rng.standard_normal((n, 255)), theta), axis=1)[:, 31:-1:32]
    fast = example.simulate(rng, theta)
    assert raw.shape == fast.shape == (n, 7)
    assert_same_means(raw, fast)
    middle = raw[:, 3] * raw[:, 4], fast[:, 3] * fast[:, 4]
    error = math.sqrt(middle[0].var() / n + middle[1].var() / n)
    assert abs(middle[0].mean() - middle[1].mean()) < 4.0 * error


def test_octiles_of_normal_draws_are_beta():
    """Distribution functions at order statistics; together they have a known covariance."""
    normal = np.tile([1.0, 2.0, 0.0, 0.0], (40_000, 1))
    x = norm.cdf(gk.g_and_k().simulate(np.random.default_rng(28), normal), 1.0, 2.0)
    mean = np.arange(1, 8) / 8.0
    assert_means(x, mean, x.std(axis=0))
    products = ((x - mean)[:, :, None] * (x - mean)[:, None, :]).reshape(len(x), -1)
    covariance = np.minimum.outer(mean, mean) * (1.0 - np.maximum.outer(mean, mean)) / 257.0
    assert_means(products, covariance.ravel(), products.std(axis=0))


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


def test_g_and_k_arguments():
    with pytest.raises(ValueError, match="truth must lie between 0 and 10"):
        gk.g_and_k(truth=[3.0, -1.0, 2.0, 0.5])
    with pytest.raises(ValueError, match="m must be at least 1"):
        gk.g_and_k(0)


# --- moving average ------------------------------------------------------------------------------


def test_triangle():
    theta = ma.cube(np.random.default_rng(23).random((40_000, 2)))
    assert ma.inside(theta).all()
    # Mean (0, 1/3) and variances 2/3 and 2/9 of a triangle with corners (-2, 1), (2, 1), (0, -1).
    assert_means(theta, [0.0, 1.0 / 3.0], [math.sqrt(2.0 / 3.0), math.sqrt(2.0 / 9.0)])
    squares = np.square(theta - [0.0, 1.0 / 3.0])
    assert_means(squares, [2.0 / 3.0, 2.0 / 9.0], squares.std(axis=0))
    share = (theta[:, 1] < 0.0).mean()  # a quarter of the area
    assert abs(share - 0.25) < 4.0 * math.sqrt(0.1875 / 40_000)
    corners = ma.cube(np.array([[0.0, 0.5], [0.5, 0.0], [0.5, 1.0], [1.0, 0.5]]))
    np.testing.assert_allclose(corners, [[-2.0, 1.0], [0.0, -1.0], [0.0, 1.0], [2.0, 1.0]])


def test_moving_average_likelihood():
    rng = np.random.default_rng(24)
    theta = ma.cube(rng.random((20, 2)))
    x = rng.standard_normal(30)
    expected = []
    for a, b in theta:
        row = np.r_[1.0 + a * a + b * b, a + a * b, b, np.zeros(27)]
        expected.append(multivariate_normal(cov=toeplitz(row)).logpdf(x))
    np.testing.assert_allclose(ma.log_likelihood(x, theta), expected, rtol=1e-10)


def test_autocovariances():
    x = np.random.default_rng(25).standard_normal(50)
    expected = [(x[1:] * x[:-1]).sum() / 50, (x[2:] * x[:-2]).sum() / 50]
    np.testing.assert_allclose(ma.autocovariances(x), expected, rtol=1e-12)
    example, n = ma.ma2(), 20_000
    a, b = 0.6, 0.2
    summaries = example.simulate(np.random.default_rng(26), np.tile([a, b], (n, 1)))
    assert_means(summaries, [0.99 * (a + a * b), 0.98 * b], summaries.std(axis=0))


@pytest.mark.slow
def test_moving_average_reference_by_quadrature():
    example = ma.ma2()
    x = ma.series(np.random.default_rng(1), example.truth[None], 100)[0]
    np.testing.assert_allclose(ma.autocovariances(x), example.observed, rtol=1e-12)
    grid = square_grid(-2.0, 2.0, 500)
    grid = grid[ma.inside(grid)]
    level = ma.log_likelihood(x, grid)
    draws = example.reference(np.random.default_rng(27), 10_000)
    assert_moments(draws, grid, np.exp(level - level.max()))
    assert np.abs(example.mode - grid[level.argmax()]).max() < 0.008
    slope = approx_fprime(example.mode, lambda theta: ma.log_likelihood(x, theta[None])[0], 1e-6)
    assert np.abs(slope).max() < 1e-2


def test_moving_average_arguments():
    with pytest.raises(ValueError, match="truth must lie in the triangle"):
        ma.ma2(truth=[0.0, 1.5])
    with pytest.raises(ValueError, match="n must be at least 3, got 2"):
        ma.ma2(2)
