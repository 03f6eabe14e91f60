"""Draws of Thompson sampling follow the Beta posteriors of the arms."""

import numpy as np
import pytest

from scipy import stats

from amc_pymc.bandits.rewards import LOW, N_ROWS, WIDTH
from amc_pymc.bandits.thompson import FAILURES, SUCCESSES, choose_many, learn, rescale


@pytest.mark.parametrize("alpha, beta", [(3.0, 1.0), (0.5, 2.0)])
@pytest.mark.parametrize("successes, failures", [(0.0, 0.0), (2.0, 1.0)])
def test_an_arm_beside_a_known_one(alpha, beta, successes, failures):
    """One arm is known to give 0.6; the other is chosen as often as its Beta draw is larger."""
    table = np.zeros((N_ROWS + 2, 2))
    table[WIDTH] = 1.0
    table[[SUCCESSES, FAILURES], 0] = 6e9, 4e9
    table[[SUCCESSES, FAILURES], 1] = successes, failures
    number = 20_000
    share = np.mean(choose_many(table, alpha, beta, 0.3, number))
    expected = stats.beta.sf(0.6, alpha + successes, beta + failures)
    assert abs(share - expected) < 4.0 * np.sqrt(expected * (1.0 - expected) / number)


def test_arms_with_ranges_of_their_own():
    """A draw theta of the arm between -1 and 1 is better than 0.6 if theta is above 0.8."""
    table = np.zeros((N_ROWS + 2, 2))
    table[WIDTH] = 1.0, 2.0
    table[LOW] = 0.0, -1.0
    table[[SUCCESSES, FAILURES], 0] = 6e9, 4e9
    share = np.mean(choose_many(table, 3.0, 1.0, 0.3, 20_000))
    expected = stats.beta.sf(0.8, 3.0, 1.0)
    assert abs(share - expected) < 4.0 * np.sqrt(expected * (1.0 - expected) / 20_000)


def test_counts_after_the_range_has_changed():
    """All pulls count, as if each had given the mean on the new scale."""
    table = np.zeros((N_ROWS + 2, 1))
    table[WIDTH] = 1.0
    for reward in (0.2, 0.5, 0.5):
        learn(table, 0, reward, np.nan)
    np.testing.assert_allclose(table[[SUCCESSES, FAILURES], 0], [1.2, 1.8])
    table[LOW], table[WIDTH] = -1.0, 2.0
    rescale(table)
    np.testing.assert_allclose(table[[SUCCESSES, FAILURES], 0], [2.1, 0.9])
