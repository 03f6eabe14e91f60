"""Scrambled Sobol' points."""

import math

import numpy as np
import pytest

from scipy import stats

from amc_pymc.evidence.arms import scrambled_points


def smooth(u):
    """Mean one."""
    return np.prod(1.0 + 0.8 * (u - 0.5) + 0.5 * (3.0 * u**2 - 1.0), axis=-1)


def cells(u, parts):
    """Numbers of points in the boxes with sides 1 / parts."""
    index = np.floor(u * parts).astype(int)
    return np.unique(index, axis=0, return_counts=True)[1]


def test_first_two_coordinates_are_a_net():
    """A (0, 8, 2)-net: each box of volume 1/256 with sides that are powers of two holds one point."""
    u = scrambled_points(256, 2, np.random.default_rng(1))
    for k in range(9):
        counts = cells(u, np.array([2**k, 2 ** (8 - k)]))
        assert counts.size == 256 and (counts == 1).all()


def test_each_point_is_uniform():
    rng = np.random.default_rng(2)
    u = np.array([scrambled_points(4, 3, rng) for _ in range(2000)])
    for i in range(4):
        for j in range(3):
            assert stats.kstest(u[:, i, j], "uniform").pvalue > 1e-4
    # Coordinates of one point are independent.
    assert abs(np.corrcoef(u[:, 3].T)[np.triu_indices(3, 1)]).max() < 4.0 / math.sqrt(2000)


def test_much_less_variance():
    rng = np.random.default_rng(4)
    sd = {
        n: np.std([smooth(scrambled_points(n, 3, rng)).mean() for _ in range(60)])
        for n in (64, 1024)
    }
    plain = smooth(rng.random((100_000, 3))).std()
    assert (plain / math.sqrt(64) / sd[64]) ** 2 > 10.0
    assert (plain / math.sqrt(1024) / sd[1024]) ** 2 > 300.0
    # The rate is better than that of a digital shift alone, 1/n: a factor of 16 and more.
    assert sd[64] / sd[1024] > 20.0


class Extreme:
    """A generator whose integers are all as small or as large as they can be."""

    def __init__(self, largest):
        self.largest = largest

    def integers(self, low, high, size, dtype=np.int64):
        return np.full(size, high - 1 if self.largest else low, dtype)


@pytest.mark.parametrize("largest", [False, True])
def test_never_zero_or_one(largest):
    u = scrambled_points(1024, 3, Extreme(largest))
    assert u.min() > 0.0
    assert u.max() < 1.0
    assert min(u.min(), 1.0 - u.max()) == 2.0**-53


@pytest.mark.parametrize("n", [0, 3, 1000, 2**31])
def test_only_powers_of_two(n):
    with pytest.raises(ValueError, match="n must be"):
        scrambled_points(n, 2, np.random.default_rng(1))


def test_bad_dimensions():
    with pytest.raises(ValueError, match="d must be at most"):
        scrambled_points(4, 10**6, np.random.default_rng(1))
    with pytest.raises(TypeError, match="d must be an integer"):
        scrambled_points(4, 2.0, np.random.default_rng(1))
