"""Scales of summary statistics from a pilot."""

import numpy as np
import pytest

from amc_pymc.likelihood_free.scale import FEWEST_PILOTS, SummaryScale, pilot_scale
from amc_pymc.rng import as_generator

OBSERVED = np.array([1.0, -2.0, 0.5])


def correlated(n, seed=1):
    """Normal statistics with standard deviations 1, 10, 0.1 and a correlation of 0.8 of the first two."""
    rng = as_generator(seed)
    root = np.linalg.cholesky([[1.0, 0.8, 0.0], [0.8, 1.0, 0.0], [0.0, 0.0, 1.0]])
    return rng.standard_normal((n, 3)) @ root.T * [1.0, 10.0, 0.1]


def test_median_absolute_deviations_are_standard_deviations_of_normal_variables():
    n = 100_000
    spread = pilot_scale(correlated(n), OBSERVED).spread
    # The median absolute deviation of n normal variables has a relative standard error of 1.17 / sqrt(n).
    np.testing.assert_allclose(spread, [1.0, 10.0, 0.1], rtol=4.0 * 1.17 / np.sqrt(n))


def test_the_distance_is_that_of_scaled_differences():
    scale = SummaryScale(OBSERVED, np.array([2.0, 4.0, 0.5]))
    s = OBSERVED + np.array([[2.0, 0.0, 0.0], [2.0, -4.0, 0.5]])
    np.testing.assert_allclose(scale.distance(s), [1.0, np.sqrt(3.0)])


def test_what_does_not_vary_is_left_out():
    s = correlated(1000)
    s[:, 1] = 3.0
    scale = pilot_scale(s, OBSERVED)
    assert np.isinf(scale.spread[1]) and np.isfinite(scale.spread[[0, 2]]).all()
    moved = s.copy()
    moved[:, 1] += 1000.0
    np.testing.assert_array_equal(scale.distance(moved), scale.distance(s))


def test_what_is_mostly_equal_has_a_standard_deviation():
    s = correlated(1000)
    s[:, 0] = np.arange(1000) % 10 == 0
    assert pilot_scale(s, OBSERVED).spread[0] == pytest.approx(0.3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite(bad):
    s = correlated(1000)
    broken = s.copy()
    broken[0, 2] = bad
    scale = pilot_scale(broken, OBSERVED)
    without = pilot_scale(s[1:], OBSERVED)
    np.testing.assert_array_equal(scale.spread, without.spread)
    d = scale.distance(broken)
    assert d[0] == np.inf and np.isfinite(d[1:]).all()


def test_too_few_rows():
    with pytest.raises(
        ValueError, match=f"needs {FEWEST_PILOTS} simulations .* there are 29 of 40"
    ):
        s = correlated(40)
        s[29:, 0] = np.nan
        pilot_scale(s, OBSERVED)


def test_nothing_varies():
    with pytest.raises(ValueError, match="no summary statistic varies in 100 simulations"):
        pilot_scale(np.ones((100, 2)), np.ones(2))
