import numpy as np

from scipy.special import ndtr

from amc_pymc.likelihood_free.learned import (
    cross_fitted,
    exchangeable_features,
    learn_summaries,
    learned_distance,
)


def scales(n, rng, m=6):
    """A log scale with a standard normal prior, and m normal observations."""
    x = rng.normal(size=(n, 1))
    return x, np.exp(0.5 * x) * rng.normal(size=(n, m))


def test_the_order_of_observations_does_not_matter():
    rng = np.random.default_rng(1)
    for m, d in ((4, 2), (30, 1), (12, 5)):
        x = rng.normal(size=(7, m, d)).round(1)  # with ties
        other = np.stack([rng.permutation(row) for row in x])
        features = exchangeable_features((m, d))
        found = features(x.reshape(7, -1))
        np.testing.assert_array_equal(found, features(other.reshape(7, -1)))
        np.testing.assert_allclose(found[:, :d], x.mean(axis=1))
        np.testing.assert_allclose(np.exp(found[:, d : 2 * d]), x.std(axis=1))


def test_features_hold_extremes_signs_and_absolute_values():
    x = np.random.default_rng(2).normal(0.3, 1.0, (5, 40))
    found = exchangeable_features((40,))(x)
    sizes = np.abs(x)
    for wanted in (x.min(1), x.max(1), sizes.min(1), np.median(sizes, axis=1), np.sign(x).mean(1)):
        assert (np.abs(found - wanted[:, None]).max(axis=0) < 1e-12).any()


def test_scales_are_learnt_from_exchangeable_observations_and_not_by_a_line():
    rng = np.random.default_rng(2)
    x, data = scales(3000, rng)
    line = learn_summaries(data, x, rng, names=["ridge"])
    assert 1.0 - line.sigma[0] ** 2 / x.var() < 0.02
    data = exchangeable_features((6,))(data)
    found = learn_summaries(data, x, rng)
    # The logarithm of the standard deviation of 6 numbers has variance 0.10 given x: a line in it explains
    # 1 / (1 + 0.1 / 0.25) = 0.71.
    skill = 1.0 - found.sigma[0] ** 2 / x.var()
    assert 0.65 < skill < 0.8
    # Units are posterior standard deviations.
    t = cross_fitted(data, x, found, data[:1], rng)[1][:, 0]
    assert abs(t.var() - skill / (1.0 - skill)) < 0.4


def test_what_is_learnt_knows_nothing_of_the_simulation_itself():
    """Data that tell nothing: summaries of a forest that has seen a simulation are like its parameters."""
    rng = np.random.default_rng(3)
    x, data = rng.normal(size=(2000, 1)), rng.normal(size=(2000, 2))
    learned = learn_summaries(data, x, rng, names=["forest"])
    fold, found, of_data = cross_fitted(data, x, learned, data, rng)
    seen = np.corrcoef(of_data[0, fold != 0, 0], x[fold != 0, 0])[0, 1]
    correlations = [np.corrcoef(found[fold == k, 0], x[fold == k, 0])[0, 1] for k in range(5)]
    assert seen > 0.3 and abs(np.mean(correlations)) < 4.0 / np.sqrt(2000)
    assert of_data.shape == (5, 2000, 2)


def test_the_regression_is_the_best_one_near_the_data():
    """A line, but for a tenth of the data, which are near those observed."""
    rng = np.random.default_rng(7)
    data = rng.random((2000, 1))
    line, wave = data - 0.5, np.sin(100.0 * data)
    x = np.where(data < 0.9, line, 0.3 * wave) + 0.01 * rng.normal(size=data.shape)
    near, names = np.flatnonzero(data[:, 0] > 0.9), ["ridge", "forest"]
    found = learn_summaries(data, x, rng, names=names, near=near)
    assert found.name == "forest"
    assert (
        found.sigma[0] < 0.15 < learn_summaries(data, x, rng, names=["ridge"], near=near).sigma[0]
    )


def test_what_is_simple_near_the_data_is_learned_there():
    """A quadratic function for the closest third of the simulations, and a wave for the others."""
    rng = np.random.default_rng(8)
    data = rng.random((2000, 5))
    distance, a, b, c, d = data.T
    x = np.where(distance < 1 / 3, a * b + c - d, np.sin(20.0 * a + 20.0 * c))
    near = np.flatnonzero(distance < 0.1)
    given = data, (x + 0.02 * rng.normal(size=2000))[:, None], rng
    whole, local = (learn_summaries(*given, near=near, distance=g) for g in (None, distance))
    assert local.name == "local quadratic ridge"
    assert 0.016 < local.sigma[0] < 0.024 and local.sigma[0] < 0.3 * whole.sigma[0]
    assert set(local.learners) == set(np.argsort(distance)[:600])
    _, found, of_data = cross_fitted(data, given[1], local, data[near], rng)
    for learned in (found[near], of_data[0]):
        error = learned[:, 0] * local.sigma[0] - x[near]
        assert np.sqrt(np.square(error).mean()) < 0.008  # 0.02 (21 / 480)^(1/2) is 0.004


def test_failed_simulations_are_infinitely_far():
    rng = np.random.default_rng(4)
    x, data = scales(300, rng)
    data[7] = np.nan
    found = learned_distance(ndtr(x), data, np.ones(6), rng)
    assert np.isinf(found[7]) and np.isfinite(np.delete(found, 7)).all()


def test_the_same_seed_learns_the_same():
    x, data = scales(250, np.random.default_rng(5))
    found = [
        learned_distance(ndtr(x), data, np.ones(6), np.random.default_rng(seed), thorough=False)
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_each_regression_target_and_fold_is_reported():
    x, data = scales(250, np.random.default_rng(6))
    x, calls = np.hstack([x, -x]), []
    rng = np.random.default_rng(1)
    found = learn_summaries(data, x, rng, each=lambda: calls.append(0))
    assert len(calls) == 3 + 4  # boosting: two targets of each parameter
    cross_fitted(data, x, found, data[:1], rng, each=lambda: calls.append(0))
    assert len(calls) == 7 + 5
