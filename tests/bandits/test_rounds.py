"""Budgets of rounds."""

import itertools

import numpy as np
import pytest

from amc_pymc.bandits.combination import plan_rounds


@pytest.mark.parametrize("total", [1, 2, 5, 12, 13, 36, 100, 1000, 12345])
@pytest.mark.parametrize("first", [1, 3, 12])
def test_doubling(total, first):
    first = min(first, total)
    sizes = plan_rounds(total, first, "draws", "doubling").sizes
    assert sum(sizes) == total
    assert sizes[0] == first
    assert all(b == 2 * a for a, b in itertools.pairwise(sizes[:-1]))
    if len(sizes) > 2:
        assert sizes[-1] >= total / 3 - first


@pytest.mark.parametrize("each", [1, 7])
def test_equal_rounds(each):
    sizes = plan_rounds(50, 4, "draws", each).sizes
    assert sum(sizes) == 50
    assert set(sizes[1:-1]) <= {each}


def test_costs_need_not_be_whole():
    sizes = plan_rounds(10.5, 1.5, "cost", "doubling").sizes
    assert np.sum(sizes) == pytest.approx(10.5)
