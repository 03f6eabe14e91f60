import math

import numpy as np
import pytest

from amc_pymc.likelihood_free.history import batch_sizes, next_tolerance

DISTANCE = np.arange(100) / 100


@pytest.mark.parametrize("n", [1, 3, 99, 100, 101, 149, 150, 999, 100_000])
def test_budgets_are_spent(n):
    sizes = batch_sizes(n)
    assert sum(sizes) == n and min(sizes) > 0
    assert sum(batch_sizes(n, 64)) == n
    assert min(sizes) >= 0.5 * sizes[0]


def test_there_is_something_to_learn_from():
    sizes = batch_sizes(1_000_000)
    before = np.cumsum(sizes)[:-1]
    assert (np.array(sizes[1:]) <= 0.6 * before).sum() >= len(before) - 3
    assert len(sizes) < 20


@pytest.mark.parametrize(
    ("distance", "last", "options", "wanted"),
    [
        (DISTANCE, math.inf, {"accepts": 5, "lowest": 0.02}, 0.04),
        (DISTANCE, 0.03, {"accepts": 5, "lowest": 0.02}, 0.03),
        (DISTANCE / 10, math.inf, {"accepts": 5, "lowest": 0.02}, 0.02),
        (np.full(50, np.inf), math.inf, {"accepts": 5}, math.inf),
        (np.repeat(DISTANCE, 50), math.inf, {"accepts": 60}, 0.01),  # ties
        (np.zeros(100), math.inf, {"accepts": 5}, 0.0),
        (np.arange(3.0), math.inf, {"accepts": 5}, 2.0),
        (np.arange(10_000.0), math.inf, {"accepts": 1000}, 299.0),
    ],
)
def test_tolerances_fall_and_stop(distance, last, options, wanted):
    assert next_tolerance(distance, last, **options) == wanted
    for constant in (-1e5, 0.0, 1e5):
        log_density = np.full(len(distance), constant)
        assert next_tolerance(distance, last, log_density=log_density, **options) == wanted


#: Effective draws are (sum k)^2 / sum k^2 = 75.4 for k = 1 to 100, of which k (k + 1) / 10100 up to k: 30 at 63.
FAR = np.where(np.arange(100) >= 50, 0.0, -np.inf)  # no prior density where distances are below 0.5
ONE = np.where(np.arange(100) == 70, 1000.0, 0.0)


@pytest.mark.parametrize(
    ("log_density", "last", "options", "wanted"),
    [
        (FAR, math.inf, {"accepts": 5}, 0.54),
        (FAR, math.inf, {"accepts": 1000}, 0.79),  # thirty of those with a density
        (np.maximum(FAR, -40.0), math.inf, {"accepts": 5}, 0.54),
        (np.full(100, -np.inf), math.inf, {"accepts": 5}, math.inf),
        (np.full(100, -np.inf), math.inf, {"accepts": 5, "lowest": 0.1}, math.inf),
        (np.where(np.arange(100) == 70, 0.0, -np.inf), 0.9, {"accepts": 5}, 0.9),
        (ONE, math.inf, {"accepts": 5}, math.inf),  # one has all the weight, wherever it is
        (ONE[::-1], 0.6, {"accepts": 5}, 0.6),
        (np.log(np.arange(1.0, 101.0)), math.inf, {"accepts": 1000}, 0.62),
    ],
)
def test_tolerances_go_by_the_prior_density(log_density, last, options, wanted):
    found = next_tolerance(DISTANCE, last, log_density=log_density, **options)
    assert found == pytest.approx(wanted)
