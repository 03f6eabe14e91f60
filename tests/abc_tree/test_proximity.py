import numpy as np
import pytest

from scipy.special import ndtr, ndtri

from amc_pymc.abc_tree import proximity
from amc_pymc.abc_tree.accepted import accept, effective
from amc_pymc.abc_tree.adjust import epanechnikov
from amc_pymc.abc_tree.adjusting import adjust_run
from amc_pymc.abc_tree.proximity import Shared, shared_leaves

#: Standard deviation of the noise of the data, and the data.
NOISE, DATA = 1.5, np.array([1.0, 0.0, 0.0, 0.0])


def simulated(n, rng, mean=0.0):
    """Parameters from N(mean, 1), data of which the first is informative, and weights for the prior N(0, 1)."""
    x = mean + rng.normal(size=(n, 1))
    s = rng.normal(size=(n, 4))
    s[:, 0] = x[:, 0] + NOISE * s[:, 0]
    return x, s, 0.5 * (x[:, 0] - mean) ** 2 - 0.5 * x[:, 0] ** 2


def adjusted(x, s, log_weight, seed=3):
    distance = np.abs(s - DATA).sum(axis=1)
    plain = accept(distance, log_weight, float(np.sort(distance)[len(x) // 50]))
    rng = np.random.default_rng(seed)
    return adjust_run(ndtr(x), s, DATA, distance, log_weight, plain, "forest", rng)


def test_proximities_by_their_definition():
    rng = np.random.default_rng(1)
    leaves, unseen = rng.integers(4, size=(50, 7)), rng.random((50, 7)) < 0.4
    target = leaves[0]
    unseen[leaves[:, 3] == target[3], 3] = False  # a leaf that all were used for
    same = (unseen & (leaves == target)) * 1.0
    wanted = np.delete(same / np.maximum(same.sum(axis=0), 1.0), 3, axis=1).mean(axis=1)
    np.testing.assert_allclose(proximity.proximities(leaves, unseen, target), wanted)


def test_leaves_are_not_chosen_by_the_simulations_that_count():
    """Where data have no information, parameters in a leaf vary as much as all do."""
    rng = np.random.default_rng(6)
    squares, free = 0.0, 0.0
    for _ in range(60):
        x, s = rng.normal(size=(2, 2000, 1))
        for near in shared_leaves(s, x, np.arange(2000), s[:500], rng, trees=1):
            p, own = near.proximity, x[near.index, 0]
            squares += len(p) * (p @ (own - p @ own) ** 2) if len(p) else 0.0
            free += max(len(p) - 1, 0)
    # Of each tree 700 simulations count, those of large leaves several times; they are taken for half as many.
    # If only the others counted, the ratio would be 0.84, and if all did, 0.956.
    assert abs(squares / free - 1.0) < 3.0 * np.sqrt(2.0 / 21_000)


def test_only_the_trained_have_proximities():
    x, s, _ = simulated(600, np.random.default_rng(2))
    train = np.arange(0, 600, 2)
    found = shared_leaves(s, x, train, s[:3], np.random.default_rng(3))
    assert len(found) == 3
    for near in found:
        assert np.isin(near.index, train).all() and (near.proximity > 0.0).all()
        assert near.proximity.sum() == pytest.approx(1.0)
    again = shared_leaves(s, x, train, s[:3], np.random.default_rng(3))
    np.testing.assert_array_equal(found[2].proximity, again[2].proximity)


def test_the_kernel_of_the_distance_is_the_proximity():
    near = Shared(np.array([1, 4, 5]), np.array([0.2, 0.5, 0.3]))
    distance = near.distance(7)
    assert np.isinf(distance[[0, 2, 3, 6]]).all()
    np.testing.assert_allclose(epanechnikov(distance, 1.0)[near.index], [0.4, 1.0, 0.6])


def test_forest_weights_and_regression_give_the_posterior():
    """The posterior is normal; simulations come from another prior, for which weights correct."""
    x, s, log_weight = simulated(3000, np.random.default_rng(4), mean=0.8)
    found = adjusted(x, s, log_weight)
    assert found.choice.candidate.space == "forest"
    draws = found.draws.accepted
    points, w = ndtri(found.draws.u[:, 0]), draws.weight
    shrinkage = 1.0 / (1.0 + NOISE**2)
    sd = NOISE * np.sqrt(shrinkage)
    error = sd / np.sqrt(effective(draws.log_weight))
    assert 4.0 * error < 0.8 * (1.0 - shrinkage)  # what ignored weights would give
    assert abs(w @ points - shrinkage * DATA[0]) < 4.0 * error
    # The variance of a normal sample has the relative error sqrt(2 / n).
    variance = w @ (points - w @ points) ** 2
    assert abs(variance / sd**2 - 1.0) < 4.0 * np.sqrt(2.0) * error / sd
    assert draws.tolerance == 1.0 and (found.distance[draws.index] < 1.0).all()
    # Pseudo-observed data sets, which are among the closest simulations, are used as well.
    closest = np.argsort(np.abs(s - DATA).sum(axis=1))[:50]
    assert np.isin(closest, draws.index).mean() > 0.5


def test_few_simulations_are_regressed_without_a_forest():
    found = adjusted(*simulated(150, np.random.default_rng(5)))
    assert found.choice.candidate[:2] == ("raw", "linear")
