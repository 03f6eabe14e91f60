"""Boxes of a common refinement are intersections of boxes, the most important cuts first."""

import numpy as np
import pytest

from amc_pymc.abc_tree.common_refinement import common_refinement
from amc_pymc.abc_tree.partition import from_cuts, whole_cube


def random_partition(rng, n_cuts, d):
    """Cuts of random leaves at random places inside of them."""
    cuts, boxes = [], {0: (np.zeros(d), np.ones(d))}
    for i in range(n_cuts):
        node, along = int(rng.choice([*boxes])), int(rng.integers(d))
        lower, upper = boxes.pop(node)
        at = float(rng.uniform(lower[along], upper[along]))
        below, above = upper.copy(), lower.copy()
        below[along] = above[along] = at
        boxes[2 * i + 1], boxes[2 * i + 2] = (lower, below), (above, upper)
        cuts.append((node, along, at))
    return from_cuts(cuts, d)


def test_boxes_are_intersections():
    rng = np.random.default_rng(1)
    u, other = rng.random((5000, 3)), rng.random((5000, 3))
    partitions = [random_partition(rng, n, 3) for n in (5, 6, 7)]
    found = common_refinement(partitions, u, rng.random(len(u)))
    assert found.volumes.sum() == pytest.approx(1.0, abs=1e-12)
    theirs = np.stack([p.find(u) for p in partitions], axis=1)
    boxes = found.find(u)
    together = np.unique(np.column_stack([theirs, boxes]), axis=0)
    assert len(together) == len(np.unique(theirs, axis=0)) == found.boxes > 20
    lower = np.stack([p.lower[p.find(other)] for p in partitions]).max(axis=0)
    upper = np.stack([p.upper[p.find(other)] for p in partitions]).min(axis=0)
    mine = found.find(other)
    smaller = np.prod(upper - lower, axis=1) < found.volumes[mine] * (1.0 - 1e-9)
    assert smaller.mean() < 0.01  # intersections without a point are not cut off
    np.testing.assert_array_equal(lower[~smaller], found.lower[mine][~smaller])
    np.testing.assert_array_equal(upper[~smaller], found.upper[mine][~smaller])


def test_a_single_partition_comes_back():
    rng = np.random.default_rng(2)
    partition = random_partition(rng, 12, 2)
    u = np.vstack([partition.draw(np.full(5, k), rng) for k in range(partition.boxes)])
    found = common_refinement([partition], u, partition.find(u).astype(float))
    assert found.boxes == partition.boxes
    order = found.find(0.5 * (partition.lower + partition.upper))
    np.testing.assert_array_equal(found.lower[order], partition.lower)
    np.testing.assert_array_equal(found.upper[order], partition.upper)


def test_important_cuts_come_first():
    u = np.random.default_rng(3).random((2000, 3))
    heights = 1.0 * (u[:, 0] > 0.5) + 3.0 * (u[:, 1] > 0.5) + 0.1 * (u[:, 2] > 0.5)
    partitions = [from_cuts([(0, along, 0.5)], 3) for along in range(3)]
    for leaves, used in ((1, set()), (2, {1}), (4, {0, 1}), (8, {0, 1, 2}), (99, {0, 1, 2})):
        found = common_refinement(partitions, u, heights, max_leaves=leaves)
        assert found.boxes == min(leaves, 8)
        assert set(found.feature[found.feature >= 0].tolist()) == used


def test_small_boxes_stay_in_their_parent():
    """A cut with few points on one side is left out; those below it on the other side are not."""
    u = ((np.arange(100) + 0.5) / 100)[:, None]
    partition = from_cuts([(0, 0, 0.05), (2, 0, 0.5), (4, 0, 0.98)], 1)
    found = common_refinement([partition], u, u[:, 0], min_samples=10)
    np.testing.assert_allclose(found.upper[:, 0], [0.5, 1.0])
    assert common_refinement([partition], u, u[:, 0], min_samples=5).boxes == 3
    assert common_refinement([partition], u, u[:, 0], min_samples=51).boxes == 1


def test_nothing_to_cut():
    assert common_refinement([whole_cube(2)], np.full((9, 2), 0.5), np.ones(9)).boxes == 1
    halves = from_cuts([(0, 0, 0.5)], 2)
    assert common_refinement([halves], np.empty((0, 2)), np.empty(0)).boxes == 1
    assert (
        common_refinement([halves, halves], np.array([[0.1, 0.0], [0.9, 0.0]]), np.ones(2)).boxes
        == 2
    )


def test_no_box_is_too_narrow():
    u = np.array([[0.2], [0.5], [0.5 + 1e-12], [0.7]])
    close = [from_cuts([(0, 0, at)], 1) for at in (0.5, 0.5 + 1e-12, 1e-12, 1.0 - 1e-12)]
    found = common_refinement(close, u, u[:, 0])
    assert found.boxes == 2
    assert (found.upper - found.lower).min() > 1e-9
