"""Draws of Thompson sampling follow the Beta posteriors of the arms."""

import numpy as np
import pytest

from scipy import stats

from amc_pymc.bandits.rewards import N_ROWS, WIDTH
from amc_pymc.bandits.thompson import FAILURES, SUCCESSES, choose_many


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
