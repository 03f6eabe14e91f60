"""Effect of rounded rows on a decision, in closed form."""

import numpy as np
import pytest

from amc_pymc.samplers.rounding import rounding_effect

MOVES = [np.zeros((2, 1))]


def test_a_sample_of_all_rows_has_no_error():
    errors = np.random.default_rng(1).normal(1e-4, 1e-3, 500)
    found = rounding_effect(lambda points: errors, MOVES, 500)
    assert found == pytest.approx(abs(errors.sum()))


def test_two_standard_errors_of_a_mean_without_replacement():
    errors = np.tile([3e-3, -3e-3], 50)
    found = rounding_effect(lambda points: errors, MOVES, 400)
    assert found == pytest.approx(400 * 2 * 3e-3 * np.sqrt(1 / 100 - 1 / 400))
