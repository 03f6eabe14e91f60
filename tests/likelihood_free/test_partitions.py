"""Boxes fill the cube without overlap, points drawn in a box are found there, rates follow counts."""

import numpy as np
import pytest

from sklearn.tree import DecisionTreeRegressor

from amc_pymc.likelihood_free import cart as cart_module
from amc_pymc.likelihood_free import halve
from amc_pymc.likelihood_free.partition import shrunk_rates, whole_cube
from amc_pymc.likelihood_free.trees import fit_cart
from amc_pymc.likelihood_free.partition import from_cuts
from amc_pymc.likelihood_free.rates import drawn_rates
from amc_pymc.rng import as_generator


def crescent(n, d, seed=1):
    rng = np.random.default_rng(seed)
    u = rng.random((n, d))
    return u, (np.abs(np.linalg.norm(u[:, :2], axis=1) - 0.8) < 0.05).astype(float)


def cart(d=2, **settings):
    u, near = crescent(4000, d)
    return fit_cart(u, near, np.random.default_rng(2), **settings)


def dyadic(d=2, *, separated=False):
    u, near = crescent(4000, d)
    found = whole_cube(d)
    for _ in range(7):
        worth = found.volumes * shrunk_rates(found, u, near)
        told = {"kernel_values": near, "u": u} if separated else {}
        found = halve(found, worth, n_cuts=5, **told)
    return found


PARTITIONS = {
    "cube": lambda d: whole_cube(d),
    "cart": lambda d: cart(d),
    "random cuts": lambda d: cart(d, random_cuts=True),
    "dyadic": lambda d: dyadic(d),
    "dyadic, best separation": lambda d: dyadic(d, separated=True),
}


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("kind", PARTITIONS)
def test_boxes_fill_the_cube(kind, d):
    if d == 1 and kind != "cube":
        u = np.random.default_rng(1).random((500, 1))
        found = fit_cart(u, (u[:, 0] > 0.5).astype(float), np.random.default_rng(2))
    else:
        found = PARTITIONS[kind](d)
    assert found.volumes.sum() == pytest.approx(1.0, abs=1e-12)
    assert (found.upper - found.lower > 0.0).all()
    rng = np.random.default_rng(3)
    u = rng.random((500, d))
    inside = ((found.lower <= u[:, None]) & (u[:, None] < found.upper)).all(axis=2)
    assert (inside.sum(axis=1) == 1).all()
    np.testing.assert_array_equal(inside.argmax(axis=1), found.find(u))
    boxes = np.repeat(np.arange(found.boxes), 50)
    np.testing.assert_array_equal(found.find(found.draw(boxes, rng)), boxes)
    corners = np.vstack([found.lower, np.ones((1, d))])
    np.testing.assert_array_equal(found.find(corners)[:-1], np.arange(found.boxes))


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 1000])
def test_any_number_of_points_descends(n):
    # Leaves are at unequal depths, so that points arrive at different times.
    found = from_cuts([(0, 0, 0.5), (2, 0, 0.75), (4, 0, 0.875), (6, 0, 0.9)], 1)
    u = np.random.default_rng(5).random((n, 1))
    wanted = np.searchsorted([0.5, 0.75, 0.875, 0.9], u[:, 0], side="right")
    np.testing.assert_array_equal(
        found.lower[found.find(u), 0], np.r_[0.0, 0.5, 0.75, 0.875, 0.9][wanted]
    )


def test_draws_are_uniform_in_their_box():
    found = from_cuts([(0, 1, 0.25), (2, 0, 0.5)], 2)
    u = found.draw(np.full(20_000, 2), np.random.default_rng(4))
    lower, upper = found.lower[2], found.upper[2]
    z = (u.mean(axis=0) - 0.5 * (lower + upper)) / ((upper - lower) / np.sqrt(12 * 20_000))
    assert (np.abs(z) < 4.0).all()


def test_draws_stay_below_the_upper_edge():
    class Top:
        def random(self, shape):
            return np.full(shape, np.nextafter(1.0, 0.0))

    found = from_cuts([(0, 0, 0.1), (2, 0, np.nextafter(0.1, 1.0))], 1)
    boxes = np.arange(3)
    np.testing.assert_array_equal(found.find(found.draw(boxes, Top())), boxes)


def test_boxes_are_those_of_scikit_learn():
    u, near = crescent(3000, 3)
    rng = np.random.default_rng(5)
    near = near + 0.1 * rng.random(3000)  # of equally good cuts each may choose another
    found = fit_cart(u, near, rng, max_leaves=50, min_samples=5)
    theirs = DecisionTreeRegressor(max_leaf_nodes=50, min_samples_leaf=5, random_state=1).fit(
        u, np.sqrt(near)
    )
    assert found.boxes == theirs.get_n_leaves()
    other = np.random.default_rng(6).random((2000, 3)).astype(np.float32).astype(float)
    pairs = {*zip(found.find(other).tolist(), theirs.apply(other).tolist(), strict=True)}
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def test_boxes_hold_enough_simulations():
    u, near = crescent(2000, 2)
    for random_cuts in (False, True):
        found = fit_cart(u, near, np.random.default_rng(1), min_samples=40, random_cuts=random_cuts)
        assert np.bincount(found.find(u)).min() >= 39  # one may lie on a cut in single precision
        assert found.boxes > 5
    assert fit_cart(u[:10], near[:10], np.random.default_rng(1), min_samples=40).boxes == 1
    assert fit_cart(u, np.zeros(2000), np.random.default_rng(1)).boxes == 1


def test_no_box_is_too_narrow():
    u = np.vstack([np.full((50, 1), 1e-12), np.full((50, 1), 3e-12), np.full((50, 1), 1.0)])
    near = np.repeat([1.0, 0.0, 1.0], 50)
    found = fit_cart(u, near, np.random.default_rng(1))
    assert (found.upper - found.lower).min() >= 1e-9


def test_the_best_separating_side_is_halved():
    u = np.random.default_rng(7).random((1000, 3))
    near = (u[:, 2] > 0.5).astype(float)
    found = halve(whole_cube(3), np.ones(1), n_cuts=1, kernel_values=near, u=u)
    assert found.feature[0] == 2
    assert halve(whole_cube(3), np.ones(1), n_cuts=1).feature[0] == 0
    again = halve(found, np.array([0.0, 1.0]), n_cuts=5)
    np.testing.assert_allclose(again.volumes, [0.5, 0.25, 0.25])
    assert halve(found, np.zeros(2), n_cuts=5).boxes == 2


def test_rates_of_a_chain_of_boxes():
    found = from_cuts([(0, 0, 0.5), (2, 0, 0.75)], 1)
    u = np.array([[0.1], [0.2], [0.6], [0.8], [0.9]])
    near = np.array([0, 0, 1, 1, 0])
    root = 2 / 5
    low, high = (0 + 3 * root) / (2 + 3), (2 + 3 * root) / (3 + 3)
    wanted = [low, (1 + 3 * high) / (1 + 3), (1 + 3 * high) / (2 + 3)]
    np.testing.assert_allclose(shrunk_rates(found, u, near, strength=3.0), wanted)
    with pytest.raises(ValueError, match="strength must be positive, got 0"):
        shrunk_rates(found, u, near, strength=0)


def test_empty_boxes_do_not_hold_the_posterior():
    """Flat priors in each of a thousand boxes would put nine tenths of the mass where there is none."""
    found = whole_cube(1)
    for _ in range(10):
        found = halve(found, np.ones(found.boxes), n_cuts=found.boxes)
    assert found.boxes == 1024
    u = np.random.default_rng(8).random((20_000, 1))
    near = (u[:, 0] < 5 / 1024) & (np.random.default_rng(9).random(20_000) < 0.2)
    p = found.volumes * shrunk_rates(found, u, near)
    assert p[found.upper[:, 0] > 5 / 1024].sum() < 0.1 * p.sum()


def test_drawn_rates_have_the_beta_distribution():
    u = np.linspace(0.0, 0.999, 40)[:, None]
    near = (u[:, 0] < 0.25).astype(float)
    rng = np.random.default_rng(1)
    found = np.array([drawn_rates(whole_cube(1), u, near, rng)[0] for _ in range(4000)])
    mean, n = shrunk_rates(whole_cube(1), u, near)[0], 41.0
    sd = np.sqrt(mean * (1.0 - mean) / (n + 1.0))
    assert abs(found.mean() - mean) < 4.0 * sd / np.sqrt(4000)
    assert abs(found.std() / sd - 1.0) < 4.0 / np.sqrt(8000)
    assert drawn_rates(whole_cube(1), u, 0.0 * near, rng)[0] == 0.0


def test_the_prior_counts_in_the_spread_of_drawn_rates():
    """Half of four points, and a prior of eight: Beta(6, 6), with a relative error of its sd below 1 %."""
    u, near, rng = np.array([[0.1], [0.2], [0.7], [0.9]]), np.array([0, 0, 1, 1]), as_generator(1)
    found = [drawn_rates(whole_cube(1), u, near, rng, strength=8.0)[0] for _ in range(8000)]
    assert abs(np.std(found) / np.sqrt(0.25 / 13.0) - 1.0) < 4.0 / np.sqrt(16_000)


def test_pruning_removes_cuts_in_noise():
    rng = np.random.default_rng(1)
    u = rng.random((2000, 2))
    near = ((u[:, 0] < 0.3) ^ (rng.random(2000) < 0.2)).astype(float)
    full, pruned = (fit_cart(u, near, np.random.default_rng(2), prune=p) for p in (False, True))
    assert 2 <= pruned.boxes < 0.2 * full.boxes
    rates = shrunk_rates(pruned, u, near)[pruned.find(np.array([[0.1, 0.5], [0.6, 0.5]]))]
    np.testing.assert_allclose(rates, [0.8, 0.2], atol=0.06)


@pytest.mark.parametrize("power", [3, 60])
def test_many_simulations_are_represented_by_few(power):
    rng = np.random.default_rng(12)
    values = rng.random(5000) ** power
    near = values >= 0.01
    kept, weights = cart_module._thinned(values, 400, rng)
    # With 3,900 near ones half of the places are for the closest, with 370 all of these are used.
    closest = np.argsort(-values)[:200] if power == 3 else np.flatnonzero(near)
    assert len(np.unique(kept)) == len(kept) == len(closest) + (200 if power == 3 else 400)
    assert set(closest) == set(kept[weights == 1.0]) and weights.sum() == pytest.approx(5000.0)
    others = np.delete(values, closest)
    error = others.std() * len(others) / np.sqrt(len(kept) - len(closest))
    assert abs(weights @ values[kept] - values.sum()) < 4.0 * error
    assert cart_module._thinned(values, 5000, rng) == (slice(None), None)
