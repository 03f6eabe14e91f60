"""Boxes fill the cube without overlap, points drawn in a box are found there, rates follow counts."""

import numpy as np
import pytest

from amc_pymc.likelihood_free.partition import cut_boxes, shrunk_rates, whole_cube
from amc_pymc.likelihood_free.trees import Cart, Dyadic
from tests.likelihood_free.problems import from_cuts


def crescent(n, d, seed=1):
    rng = np.random.default_rng(seed)
    u = rng.random((n, d))
    return u, (np.abs(np.linalg.norm(u[:, :2], axis=1) - 0.8) < 0.05).astype(float)


def cart(d=2, **settings):
    u, near = crescent(4000, d)
    return Cart(**{"min_samples": 10} | settings)(u, near, None, np.random.default_rng(2))


def by(partitioner, d):
    u, near = crescent(4000, d)
    return partitioner(u, near, None, np.random.default_rng(2))


PARTITIONS = {
    "cube": lambda d: whole_cube(d),
    "cart": lambda d: cart(d),
    "random cuts": lambda d: cart(d, random_beyond=0),
    "dyadic": lambda d: by(Dyadic(cuts=35), d),
}


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("kind", PARTITIONS)
def test_boxes_fill_the_cube(kind, d):
    if d == 1 and kind != "cube":
        u = np.random.default_rng(1).random((500, 1))
        found = Cart()(u, (u[:, 0] > 0.5).astype(float), None, np.random.default_rng(2))
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


def test_draws_stay_below_the_upper_edge():
    class Top:
        def random(self, shape):
            return np.full(shape, np.nextafter(1.0, 0.0))

    found = from_cuts([(0, 0, 0.1), (2, 0, np.nextafter(0.1, 1.0))], 1)
    boxes = np.arange(3)
    np.testing.assert_array_equal(found.find(found.draw(boxes, Top())), boxes)


def test_boxes_hold_enough_simulations():
    u, near = crescent(2000, 2)
    for beyond in (None, 0):
        found = Cart(min_samples=40, random_beyond=beyond)(u, near, None, np.random.default_rng(1))
        assert np.bincount(found.find(u)).min() >= 39  # one may lie on a cut in single precision
        assert found.boxes > 5
    few = Cart(min_samples=40)(u[:10], near[:10], None, np.random.default_rng(1))
    assert few.boxes == 1
    assert Cart()(u, np.zeros(2000), None, np.random.default_rng(1)).boxes == 1


def test_rates_of_a_chain_of_boxes():
    found = from_cuts([(0, 0, 0.5), (2, 0, 0.75)], 1)
    u = np.array([[0.1], [0.2], [0.6], [0.8], [0.9]])
    near = np.array([0, 0, 1, 1, 0])
    root = 2 / 5
    low, high = (0 + 3 * root) / (2 + 3), (2 + 3 * root) / (3 + 3)
    wanted = [low, (1 + 3 * high) / (1 + 3), (1 + 3 * high) / (2 + 3)]
    np.testing.assert_allclose(shrunk_rates(found, u, near, strength=3.0), wanted)


def test_empty_boxes_do_not_hold_the_posterior():
    """Flat priors in each of a thousand boxes would put nine tenths of the mass where there is none."""
    found = whole_cube(1)
    for _ in range(10):
        found = cut_boxes(found, np.arange(found.boxes), np.zeros(found.boxes, int))
    assert found.boxes == 1024
    u = np.random.default_rng(8).random((20_000, 1))
    near = (u[:, 0] < 5 / 1024) & (np.random.default_rng(9).random(20_000) < 0.2)
    p = found.volumes * shrunk_rates(found, u, near)
    assert p[found.upper[:, 0] > 5 / 1024].sum() < 0.1 * p.sum()


def test_draws_are_uniform_in_their_box():
    found = from_cuts([(0, 1, 0.25), (2, 0, 0.5)], 2)
    u = found.draw(np.full(20_000, 2), np.random.default_rng(4))
    lower, upper = found.lower[2], found.upper[2]
    z = (u.mean(axis=0) - 0.5 * (lower + upper)) / ((upper - lower) / np.sqrt(12 * 20_000))
    assert (np.abs(z) < 4.0).all()
