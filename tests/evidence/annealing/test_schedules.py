"""Inverse temperatures: formulas, ends, what is refused."""

import numpy as np
import pytest

from amc_pymc.evidence.annealing import Ladder, barrier_schedule, power_schedule

BETAS, HEIGHTS = np.array([0.0, 0.1, 0.3, 1.0]), np.array([0.0, 2.0, 2.5, 4.0])
LADDER = Ladder(BETAS, HEIGHTS, (), 0.0, None, np.zeros(2), 1.0, 1.0)


@pytest.mark.parametrize("power", [1, 2, 4.0, np.float64(0.5)])
def test_powers(power):
    expected = (np.arange(8) / 7) ** float(power)
    np.testing.assert_allclose(power_schedule(7, power), expected, rtol=1e-7)


@pytest.mark.parametrize("n_steps", [1, 2, 3, 400, np.int64(5)])
def test_from_zero_to_one(n_steps):
    for betas in (power_schedule(n_steps), barrier_schedule(n_steps, LADDER)):
        assert betas.shape == (n_steps + 1,)
        assert (betas[0], betas[-1]) == (0.0, 1.0)
        assert (np.diff(betas) > 0.0).all()


def test_steps_cross_equal_parts_of_the_barrier():
    betas = barrier_schedule(11, LADDER)
    np.testing.assert_allclose(np.diff(np.interp(betas, BETAS, HEIGHTS)), 4.0 / 11, rtol=1e-12)
    assert (betas < 0.1).sum() == 6  # half of the barrier is on the first tenth of the way


@pytest.mark.parametrize(
    ("n_steps", "error"), [(0, ValueError), (2.0, TypeError), (True, TypeError)]
)
def test_bad_numbers_of_steps(n_steps, error):
    with pytest.raises(error, match="n_steps must be"):
        power_schedule(n_steps)
