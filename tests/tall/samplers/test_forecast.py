"""What is predicted before anything is sampled."""

import numpy as np
import pytest

from amc_pymc.tall.samplers.fit import expected_acceptance


@pytest.mark.parametrize("sd", [0.1, 1.0, 4.0])
def test_acceptance_of_normal_log_ratios(sd):
    """Log ratios at stationarity are normal with mean -sd^2 / 2."""
    ratios = np.random.default_rng(1).normal(-0.5 * sd**2, sd, size=40_000)
    accepted = np.minimum(1.0, np.exp(ratios))
    error = accepted.std() / np.sqrt(accepted.size)
    totals = np.array([sd, -sd])  # moves between draws of the fit itself have mean zero
    assert abs(expected_acceptance(totals) - accepted.mean()) < 4 * error


def test_acceptance_where_the_control_variate_is_exact():
    assert expected_acceptance(np.zeros(4)) == 1.0
