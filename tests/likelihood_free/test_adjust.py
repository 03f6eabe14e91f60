import numpy as np
import pytest

from scipy.special import ndtr, ndtri

from amc_pymc.likelihood_free.adjust import adjusted_accepted, adjusted_mean, epanechnikov, regress

RNG = np.random.default_rng(1)


def normal_means(n, d=2):
    """Parameters N(0, 1), data N(parameter, 1): the posterior is N(data / 2, 1/2)."""
    x = RNG.normal(size=(n, d))
    return x, x + RNG.normal(size=(n, d))


def linear(x, gaps, weights, distance, tolerance):
    return regress(x, gaps, weights * epanechnikov(distance, tolerance), "linear").x


def test_the_posterior_of_normal_means_from_all_simulations():
    x, s = normal_means(40_000)
    data = np.array([1.0, -0.5])
    distance = np.sqrt(((s - data) ** 2).sum(axis=1))
    found = linear(x, s - data, np.ones(len(x)), distance, np.inf)
    error = np.sqrt(0.5 / len(x))
    np.testing.assert_allclose(found.mean(axis=0), data / 2, atol=6.0 * error)
    np.testing.assert_allclose(found.var(axis=0), 0.5, atol=4.0 * 0.5 * np.sqrt(2 / len(x)))


def test_weights_undo_a_proposal():
    x, s = normal_means(40_000, 1)
    keep = RNG.random(len(x)) < 1.0 / (1.0 + np.exp(2.0 * x[:, 0]))
    x, s = x[keep], s[keep]
    w = 1.0 + np.exp(2.0 * x[:, 0])
    data = np.array([0.8])
    found = linear(x, s - data, w, abs(s[:, 0] - 0.8), 1e9)
    mean = np.average(found[:, 0], weights=w)
    assert abs(mean - 0.4) < 4.0 * np.sqrt(0.5 / (w.sum() ** 2 / (w @ w)))


def test_what_the_regression_fits_of_noise_is_made_up_for():
    sds = []
    for _ in range(200):
        x, s = RNG.normal(size=(60, 1)), RNG.normal(size=(60, 20))
        sds.append(linear(x, s, np.ones(60), np.zeros(60), np.inf).std())
    assert abs(np.mean(sds) - 1.0) < 0.05  # plain residuals: 0.8


# --- priors that are not uniform in the cube ------------------------------------------------------

DATA = np.array([1.0, 0.2])


def in_order(x):
    return np.where(x[:, 0] < x[:, 1], 0.0, -np.inf)


def pulled(x):
    return -0.5 * ((x[:, 0] - 1.5) / 0.4) ** 2


def switched(x):
    return np.where(x[:, 0] < x[:, 1], 0.0, -2.0)


def quadrature(potential):
    """Means and standard deviations of the posterior of normal means, with the potential."""
    grid = np.linspace(-6.0, 6.0, 801)
    x = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1).reshape(-1, 2)
    p = np.exp(potential(x) - ((x - DATA / 2) ** 2).sum(axis=1))
    p /= p.sum()
    return p @ x, np.sqrt(p @ (x - p @ x) ** 2)


def with_potential(potential, n=8000):
    x, s = normal_means(n)
    distance = np.sqrt(((s - DATA) ** 2).sum(axis=1))

    def log_density(u):
        return potential(ndtri(u))

    smallest = float(np.sort(distance)[n // 20])
    found = adjusted_accepted(
        x, s - DATA, distance, np.zeros(n), 4.0 * smallest, "linear", log_density
    )
    return found, log_density


@pytest.mark.parametrize("potential", [in_order, pulled, switched])
def test_the_prior_counts_where_points_are_moved_to(potential):
    mean, sd = quadrature(potential)
    found, log_density = with_potential(potential)
    x, w = ndtri(found.u), found.accepted.weight
    assert len(x) == len(w) == len(found.accepted.index) and (w > 0.0).all()
    estimate, error = adjusted_mean(found, ndtri, log_density)
    np.testing.assert_allclose(estimate, w @ x)
    assert (abs(estimate - mean) < 4.0 * error).all() and (error < 0.06 * sd).all()
    spread = np.sqrt(w @ (x - estimate) ** 2)
    np.testing.assert_allclose(spread, sd, rtol=4.0 / np.sqrt(2.0 * found.accepted.effective))
    if potential is in_order:
        assert (x[:, 0] < x[:, 1]).all() and len(x) < len(found.log_weight)


def test_a_prior_that_allows_no_adjusted_point():
    found, _ = with_potential(lambda x: np.where(x[:, 0] > 7.0, 0.0, -np.inf), n=500)
    assert found is None


# --- other kinds ----------------------------------------------------------------------------------


def moments(x):
    return x.mean(), x.std()


def test_spread_that_depends_on_the_data():
    gap = RNG.uniform(-1.0, 1.0, (20_000, 1))
    x = 0.5 * gap + 0.4 * np.exp(gap) * RNG.normal(size=gap.shape)
    mean, sd = moments(regress(x, gap, np.ones(len(x)), "heteroscedastic").x)
    # Stretching divides squares by their geometric means, whose slope is exact here.
    assert abs(mean) < 4.0 * 0.8 / np.sqrt(len(x)) and abs(sd / 0.4 - 1.0) < 0.05
    assert moments(regress(x, gap, np.ones(len(x)), "linear").x)[1] > 0.5  # Of all spreads


def test_means_that_are_bent():
    gap = RNG.uniform(-1.0, 1.0, (20_000, 2))
    x = gap[:, :1] ** 2 + gap[:, :1] * gap[:, 1:] + 0.1 * RNG.normal(size=(20_000, 1))
    w = np.ones(20_000)
    mean, sd = moments(regress(x, gap, w, "quadratic").x)
    assert abs(mean) < 4.0 * 3.0 * 0.1 / np.sqrt(
        len(x)
    )  # an intercept has thrice the error of a mean
    assert abs(sd / 0.1 - 1.0) < 4.0 / np.sqrt(2.0 * len(x))
    assert moments(regress(x, gap, w, "linear").x)[1] > 0.3


def test_nothing_is_moved_without_a_regression_or_to_the_data_themselves():
    x, s = normal_means(100)
    u, w = ndtr(x), np.ones(100)
    np.testing.assert_array_equal(regress(x, s, w, "none").x, x)
    found = adjusted_accepted(x, s, np.zeros(100), np.zeros(100), 1.0, "none")
    np.testing.assert_allclose(found.u, u, rtol=1e-14)
    for kind in ("linear", "heteroscedastic", "quadratic"):
        found = regress(x, np.zeros((100, 2)), w, kind).x
        assert abs(found.mean() - x.mean()) < 1e-9


def test_useless_summaries():
    x, s = normal_means(500)
    flat = np.column_stack([s, np.ones(500), s[:, 0]])
    data = np.array([1.0, -0.5, 1.0, 1.0])
    plain = linear(x, s - data[:2], np.ones(500), np.zeros(500), 1.0)
    again = linear(x, flat - data, np.ones(500), np.zeros(500), 1.0)
    np.testing.assert_allclose(again, plain, atol=1e-9)


def test_two_modes_that_move_apart():
    gap = RNG.uniform(-0.5, 0.5, (5000, 1))
    sign = RNG.choice([-1.0, 1.0], (5000, 1))
    x = sign * (1.0 + gap) + 0.1 * RNG.normal(size=gap.shape)
    found = abs(regress(x, gap, np.ones(5000), "heteroscedastic").x)
    close = 4.0 * 0.1 / np.sqrt(5000)
    assert abs(found.mean() - 1.0) < close and abs(found.std() / 0.1 - 1.0) < 0.05
    assert abs(regress(x, gap, np.ones(5000), "linear").x).std() > 0.25


def test_marginal_regressions_need_few_simulations():
    """Ten parameters, each told by one of twenty statistics: as many coefficients as a joint regression has leave little."""
    truth, n = 0.5, 60
    sds = {"marginal": [], "linear": []}
    for _ in range(20):
        gaps = RNG.normal(size=(n, 20))
        x = gaps[:, :10] + truth * RNG.normal(size=(n, 10))
        means = {kind: regress(x, gaps, np.ones(n), kind).x.mean(axis=0) for kind in sds}
        for kind, mean in means.items():
            sds[kind].append(mean)
    error = {kind: np.std(found) for kind, found in sds.items()}
    ideal, close = truth / np.sqrt(n), 4.0 / np.sqrt(2.0 * 200)
    assert abs(error["marginal"] / ideal - 1.0) < close
    assert error["linear"] / ideal > 1.0 + 0.5 * close  # sqrt(n / (n - 21)) = 1.24
    spread = regress(x, gaps, np.ones(n), "marginal heteroscedastic").x.std(axis=0)
    assert (abs(spread / truth - 1.0) < 4.0 / np.sqrt(2.0 * n)).all()
