import math

import numpy as np
import pytest

from sklearn.tree import ExtraTreeRegressor

from amc_pymc.abc_tree import fit_cart
from amc_pymc.abc_tree import random_tree as module
from amc_pymc.abc_tree.random_tree import random_tree
from amc_pymc.rng import as_generator

SETTINGS = {"max_leaves": 60, "min_samples": 15}


def simulated(rng, n=4000, n_dim=3):
    """Points of the cube, and values that depend on the first two coordinates."""
    u = rng.random((n, n_dim))
    return u, np.exp(-20.0 * ((u[:, :2] - 0.4) ** 2).sum(axis=1)) * (rng.random(n) < 0.5)


def predicted(tree, at, u, values, weights=None):
    """Means of values in the leaves that points are in."""
    feature, threshold, left, right = tree

    def leaves(points):
        node = np.zeros(len(points), int)
        while (feature[node] >= 0).any():
            below = points[np.arange(len(points)), feature[node]] < threshold[node]
            node = np.where(feature[node] < 0, node, np.where(below, left[node], right[node]))
        return node

    own = leaves(u)
    w = np.ones(len(u)) if weights is None else weights
    total, mass = np.bincount(own, w * values), np.bincount(own, w)
    return (total / np.maximum(mass, 1e-300))[leaves(at)], own


def test_leaves_hold_enough_points():
    rng = as_generator(1)
    u, values = simulated(rng)
    tree = random_tree(u, values, None, rng, **SETTINGS)
    leaves = np.flatnonzero(tree[0] < 0)
    _, own = predicted(tree, u, u, values)
    counts = np.bincount(own, minlength=len(tree[0]))
    assert len(leaves) == SETTINGS["max_leaves"]
    assert (counts[leaves] >= SETTINGS["min_samples"]).all() and counts[leaves].sum() == len(u)
    assert (tree[2][leaves] < 0).all() and (tree[3][leaves] < 0).all()


def test_points_and_values_are_left_as_they_are():
    rng = as_generator(2)
    u, values = simulated(rng, 500)
    weights = rng.random(500)
    copies = [a.copy() for a in (u, values, weights)]
    random_tree(u, values, weights, rng, **SETTINGS)
    for a, b in zip((u, values, weights), copies, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_same_generator_gives_the_same_tree():
    u, values = simulated(as_generator(3))
    trees = [random_tree(u, values, None, as_generator(seed), **SETTINGS) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(trees[0][1], trees[1][1])
    assert not np.array_equal(trees[0][1], trees[2][1])


def test_first_cut_is_the_best_of_one_random_cut_per_coordinate():
    rng = as_generator(4)
    u, values = simulated(rng, 300)
    weights = rng.random(300) + 0.5
    for seed in range(20):
        tree = random_tree(u, values, weights, as_generator(seed), max_leaves=2, min_samples=15)
        low, high = u.min(axis=0), u.max(axis=0)
        cuts = low + as_generator(seed).random((4, 3))[0] * (high - low)
        errors = []
        for j, cut in enumerate(cuts):
            below = u[:, j] < cut
            if min(below.sum(), (~below).sum()) < 15:
                errors.append(math.inf)
                continue
            means = [np.average(values[s], weights=weights[s]) for s in (below, ~below)]
            errors.append(weights @ (values - np.where(below, *means)) ** 2)
        best = int(np.argmin(errors))
        assert tree[0][0] == best and tree[1][0] == pytest.approx(cuts[best], rel=1e-12)


def test_the_box_with_the_largest_gain_is_cut_next():
    rng = as_generator(5)
    u, values = simulated(rng)
    feature, threshold, left, right = random_tree(u, values, None, rng, **SETTINGS)
    points, gain = {0: np.arange(len(u))}, {}
    for node in np.flatnonzero(feature >= 0):  # parents come first
        own = points[node]
        below = u[own, feature[node]] < threshold[node]
        parts = points[left[node]], points[right[node]] = own[below], own[~below]
        gain[node] = len(own) * values[own].var() - sum(len(p) * values[p].var() for p in parts)
    in_turn = sorted(gain, key=lambda node: left[node])
    for turn, node in enumerate(in_turn):
        waiting = [gain[other] for other in in_turn[turn + 1 :] if other < left[node]]
        assert gain[node] >= max(waiting, default=0.0) - 1e-9


def test_equal_values_are_not_cut():
    u = as_generator(6).random((500, 2))
    feature, _, _, _ = random_tree(u, np.ones(500), None, as_generator(7), **SETTINGS)
    np.testing.assert_array_equal(feature, [-1])
    feature, _, _, _ = random_tree(
        np.full((500, 2), 0.5), u[:, 0], None, as_generator(7), **SETTINGS
    )
    np.testing.assert_array_equal(feature, [-1])


def test_predicts_as_well_as_scikit_learn():
    # Differences of held-out squared errors over 40 trees on the same simulations.
    differences, rng = [], as_generator(8)
    for seed in range(40):
        u, values = simulated(rng)
        at, truth = simulated(rng)
        weights = np.where(values > 0.01, 1.0, 3.0)
        found, _ = predicted(
            random_tree(u, values, weights, rng, **SETTINGS), at, u, values, weights
        )
        peer = ExtraTreeRegressor(
            max_leaf_nodes=60, min_samples_leaf=15, max_features=None, random_state=seed
        ).fit(u, values, sample_weight=weights)
        differences.append(((found - truth) ** 2 - (peer.predict(at) - truth) ** 2).mean())
    assert abs(np.mean(differences)) < 4.0 * np.std(differences) / math.sqrt(40)


def test_is_what_random_cuts_of_a_forest_are(monkeypatch):
    called = []

    def spied(*arguments, **settings):
        called.append(settings)
        return module.random_tree(*arguments, **settings)

    monkeypatch.setattr("amc_pymc.abc_tree.cart.random_tree", spied)
    u, values = simulated(as_generator(9))
    found = fit_cart(u, values, as_generator(10), max_leaves=30, min_samples=20, random_cuts=True)
    assert called == [{"max_leaves": 30, "min_samples": 20}] and found.boxes == 30
