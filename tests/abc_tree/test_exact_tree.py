import numpy as np
import pytest

from sklearn.tree import DecisionTreeRegressor

from amc_pymc.abc_tree import fit_cart
from amc_pymc.abc_tree.exact_tree import exact_tree
from amc_pymc.rng import as_generator


def simulated(rng, n=3000, n_dim=3):
    """Points of the cube, and values that depend on the first two coordinates."""
    u = rng.random((n, n_dim))
    return u, np.exp(-20.0 * ((u[:, :2] - 0.4) ** 2).sum(axis=1)) * rng.random(n)


def assert_same_as_scikit_learn(u, values, weights, max_leaves, min_samples):
    found = exact_tree(
        u, values, weights, as_generator(7), max_leaves=max_leaves, min_samples=min_samples
    )
    known = DecisionTreeRegressor(
        max_leaf_nodes=max_leaves, min_samples_leaf=min_samples, random_state=1
    )
    tree = known.fit(u, values, sample_weight=weights).tree_
    inner = tree.children_left >= 0
    assert len(found[0]) == len(inner)
    np.testing.assert_array_equal(found[0][inner], tree.feature[inner])
    np.testing.assert_array_equal(found[1][inner], tree.threshold[inner])
    np.testing.assert_array_equal(found[2], tree.children_left)
    np.testing.assert_array_equal(found[3], tree.children_right)
    assert (found[0][~inner] == -1).all()


@pytest.mark.parametrize("n_dim", [1, 2, 7])
@pytest.mark.parametrize("max_leaves, min_samples", [(1000, 15), (40, 5), (2, 20)])
@pytest.mark.parametrize("weighted", [False, True])
def test_same_tree_as_scikit_learn(n_dim, max_leaves, min_samples, weighted):
    rng = as_generator([n_dim, max_leaves])
    u, values = simulated(rng, n_dim=max(n_dim, 2))
    weights = rng.choice([1.0, 4.5], len(u)) if weighted else None
    assert_same_as_scikit_learn(u[:, :n_dim], values, weights, max_leaves, min_samples)


def test_same_tree_where_coordinates_are_equal_or_close():
    rng = as_generator(5)
    u, values = simulated(rng)
    u[:, 0] = np.round(u[:, 0], 2)  # many equal values
    u[:, 1] = 0.5 + 1e-6 * u[:, 1]  # gaps below the resolution
    u[:, 2] = 0.25
    values += 0.3 * u[:, 0]
    assert_same_as_scikit_learn(u, values, None, 200, 10)


def test_equal_values_and_few_points_are_not_cut():
    u = as_generator(2).random((100, 2))
    for values, min_samples in ((np.full(100, 0.3), 5), (u[:, 0], 51)):
        feature, *_ = exact_tree(
            u, values, None, as_generator(7), max_leaves=10, min_samples=min_samples
        )
        assert feature.tolist() == [-1]


def test_points_and_values_are_left_as_they_are():
    rng = as_generator(3)
    u, values = simulated(rng, 500)
    weights = rng.random(500)
    copies = [a.copy() for a in (u, values, weights)]
    exact_tree(u, values, weights, as_generator(7), max_leaves=50, min_samples=5)
    for a, b in zip((u, values, weights), copies, strict=True):
        np.testing.assert_array_equal(a, b)


def test_unpruned_cart_has_these_cuts():
    u, values = simulated(as_generator(4))
    cart = fit_cart(u, values, as_generator(1), max_leaves=80, min_samples=15)
    tree = exact_tree(u, np.sqrt(values), None, as_generator(7), max_leaves=80, min_samples=15)
    found, known = ([*zip(t[0], t[1], strict=True)] for t in ((cart.feature, cart.threshold), tree))
    assert sorted(found) == sorted(known)
    assert cart.boxes == 80


def test_equally_good_cuts_are_chosen_at_random():
    rng = as_generator(8)
    u = np.repeat(rng.random((200, 1)), 3, axis=1)
    values = (u[:, 0] < 0.4) * 1.0
    first = [exact_tree(u, values, None, rng, max_leaves=2, min_samples=5)[0][0] for _ in range(60)]
    # Each count is binomial with mean 20 and standard deviation 3.7.
    assert (np.abs(np.bincount(first, minlength=3) - 20) < 4 * 3.7).all()
