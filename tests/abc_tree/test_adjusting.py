import numpy as np
import pytest

from scipy.special import ndtr, ndtri
from scipy.stats import multivariate_normal

from amc_pymc.abc_tree import choose
from amc_pymc.abc_tree.accepted import accept
from amc_pymc.abc_tree.adjusting import adjust_run, distance_root
from amc_pymc.abc_tree.choose import Space, kernel_score
from amc_pymc.abc_tree.features import exchangeable_features


def fitted(x, s, data, adjust, **options):
    distance = np.sqrt(((s - data) ** 2).sum(axis=1))
    log_weight = np.zeros(len(x))
    plain = accept(distance, log_weight, float(np.sort(distance)[len(x) // 50]))
    rng = np.random.default_rng(11)
    found = adjust_run(ndtr(x), s, data, distance, log_weight, plain, adjust, rng, **options)
    return plain, found


def test_the_score_is_the_density_of_a_normal_sample():
    rng = np.random.default_rng(1)
    x = rng.multivariate_normal([0.5, -1.0], [[1.0, 0.6], [0.6, 0.5]], 200_000)
    at = np.array([1.0, -0.8])
    found = kernel_score(x, np.ones(len(x)), at, np.array([1.0]))
    normal = multivariate_normal.pdf(at, [0.5, -1.0], [[1.0, 0.6], [0.6, 0.5]])
    prior = multivariate_normal.pdf(at, cov=np.eye(2))
    wanted = np.log(2.0 * np.pi * (0.98 * normal + 0.02 * prior))
    # A mixture of a thousand kernels of half the variance.
    assert abs(found[0] - wanted) < 0.1
    nothing = kernel_score(x, np.zeros(len(x)), at, np.array([0.5, 1.0]))
    np.testing.assert_allclose(nothing, np.log(2.0 * np.pi * 0.02 * prior))


def test_auto_regresses_where_that_is_exact():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(1000, 3))
    data = np.array([1.0, -1.0, 0.5])
    _, found = fitted(x, x + 0.7 * rng.normal(size=x.shape), data, "auto")
    assert found.choice.candidate.kind in ("linear", "heteroscedastic")
    assert found.choice.gain > 2.0 * found.choice.error > 0.0
    shrinkage = 1.0 / 1.49
    points, n = ndtri(found.draws.u), found.draws.accepted.effective
    sd = np.sqrt(0.49 * shrinkage)
    error = 4.0 * sd * np.sqrt((1.0 + (data @ data) / 1.49) / n)  # with that of slopes
    assert (abs(found.draws.accepted.weight @ points - shrinkage * data) < error).all()


def test_auto_regresses_by_mode():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(1500, 2))
    s = np.abs(x) + 0.1 * rng.normal(size=x.shape)
    _, found = fitted(x, s, np.ones(2), "auto")
    assert found.choice.candidate.kind == "modes"
    grid = np.linspace(-5.0, 5.0, 20_001)
    p = np.exp(-0.5 * grid**2 - 0.5 * ((1.0 - np.abs(grid)) / 0.1) ** 2)
    exact = (p @ np.abs(grid)) / p.sum()
    sd = np.sqrt(p @ (np.abs(grid) - exact) ** 2 / p.sum())
    points, w = np.abs(ndtri(found.draws.u)), found.draws.accepted.weight
    n = found.draws.accepted.effective
    assert (abs(w @ points - exact) < 4.0 * sd / np.sqrt(n)).all()


def test_learned_summaries_of_scales():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(2000, 1))
    s = np.exp(0.5 * x) * rng.normal(size=(2000, 8))
    data = 1.5 * np.linspace(-1.5, 1.5, 8)
    grid = np.linspace(-5.0, 5.0, 20_001)
    p = np.exp(-0.5 * grid**2 - 4.0 * grid - 0.5 * (data @ data) * np.exp(-grid))
    exact = (p @ grid) / p.sum()
    sd = np.sqrt(p @ (grid - exact) ** 2 / p.sum())
    _, found = fitted(x, s, data, "learned", features=exchangeable_features((8,)))
    w, points = found.draws.accepted.weight, ndtri(found.draws.u[:, 0])
    assert found.regression and found.skill[0] > 0.5
    # Scores do not see a bias of half of their standard error: b^2 / (2 sd^2) < 0.05 nats.
    assert abs(w @ points - exact) < 0.32 * sd
    assert abs(np.sqrt(w @ (points - w @ points) ** 2) / sd - 1.0) < 0.2
    assert found.distance.shape == (2000,)
    np.testing.assert_array_less(
        found.distance[found.draws.accepted.index], found.draws.accepted.tolerance * (1.0 + 1e-12)
    )


def test_a_distance_that_is_not_euclidean_is_made_like_one():
    rng = np.random.default_rng(5)
    s = rng.normal(size=(500, 3)) * [1.0, 5.0, 0.1]
    gaps = s - 0.1
    found = distance_root(s, np.full(3, 0.1), np.abs(gaps / [1.0, 5.0, 0.1]).sum(axis=1))
    scaled = np.diag(found) * [1.0, 5.0, 0.1]
    assert scaled.max() < 1.6 * scaled.min()


@pytest.mark.parametrize("most", [3.0, 40.0, 1e9])
def test_few_sorted_simulations_are_the_closest_of_all(most):
    rng = np.random.default_rng(6)
    s, log_weight = np.round(rng.normal(size=(3000, 1)), 2), rng.normal(size=3000)
    log_weight[::7] = -np.inf
    space = Space("raw", s, np.zeros(3000, int), s[None, :5], np.eye(1))
    near = choose._Near(space, 2, 2, log_weight, most)
    possible = np.setdiff1d(np.flatnonzero(log_weight > -np.inf), [2])
    distance = abs(s - s[2])[possible, 0]
    order = possible[np.argsort(distance, kind="stable")]
    np.testing.assert_array_equal(near.order, order[: len(near.order)])
    w = np.exp(log_weight[near.order])
    assert w.sum() ** 2 / (w @ w) >= most or len(near.order) == len(order)
    assert most > 100.0 or len(near.order) < 1000
