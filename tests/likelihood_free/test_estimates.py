"""What results say of posterior means: errors that know of the tolerance, and the flag."""

import math
import warnings

import numpy as np
import pytest

from scipy import stats

import amc_pymc as amc

from amc_pymc.likelihood_free.tolerance_bias import Estimates, ToleranceBias, tolerance_doubt

NAMES = [f"theta[{k}]" for k in range(10)]


def doubt(bias, error, mcse=0.1, sd=1.0):
    k = np.size(bias)
    shift = ToleranceBias(np.asarray(bias, float), np.broadcast_to(error, k).astype(float))
    shift = shift._replace(bias=sd * shift.bias, error=sd * shift.error)
    unknown = np.full(k, np.nan)
    found = Estimates(np.zeros(k), np.full(k, sd * mcse), shift, np.full(k, sd), unknown, unknown)
    return tolerance_doubt(found, NAMES[:k], 0.5)


def test_flag():
    many = np.full(10, 0.3)
    assert doubt(many, 0.1)
    assert not doubt(many, 0.3)  # may be chance
    assert not doubt(many, 0.1, mcse=0.5)  # chance is more
    assert not doubt(np.full(10, 0.2), 0.02)  # small
    assert doubt(np.zeros(10), 0.6)  # unknown, and may be large
    one = np.zeros(10)
    one[4] = -0.7
    (found,) = doubt(one, 0.15)
    assert "theta[4] by 0.72" in found.happened and "tolerance 0.5" in found.happened
    assert doubt(one, 0.15, sd=1e-6) == [found]
    assert not doubt([0.3], 0.2)
    assert doubt([0.3], 0.1)


def normal(rng, theta):
    return theta + math.sqrt(0.1) * rng.standard_normal(theta.shape)


def problem(d, data):
    prior = {"theta": (stats.norm(0.0, math.sqrt(0.1)), d)}
    return amc.SimulatorProblem(prior, normal, np.full(d, data))


def test_a_problem_without_tolerance_is_flagged():
    """In eight dimensions nobody comes near the data; the mean given the data is half of them."""
    given = problem(8, 0.6)
    with pytest.warns(UserWarning, match="may shift posterior means"):
        found = amc.sample_abc_tree(
            model=given, max_simulations=8000, adjust="none", batched=True, random_seed=1,
            progressbar=False,
        )  # fmt: skip
    mean, mcse, bias, _, error, *_ = found["estimates"]["theta"].values
    assert np.mean(np.abs(mean - 0.3) < 1.96 * mcse) < 0.5
    assert np.mean(np.abs(mean - 0.3) < 1.96 * error) > 0.8
    assert bias.mean() < -0.3 * math.sqrt(0.05)
    assert "may shift" in found["abc"].attrs["flags"]


def test_no_flag_where_the_tolerance_is_small():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = amc.sample_abc_tree(
            model=problem(1, 0.6),
            max_simulations=8000,
            adjust="none",
            batched=True,
            random_seed=1,
            progressbar=False,
        )
    mean, mcse, bias, bias_error, error, *_ = found["estimates"]["theta"].values[:, 0]
    assert abs(mean - 0.3) < 3.0 * mcse and abs(bias) < 3.0 * bias_error
    assert error < 3.0 * mcse


def test_no_flag_without_knowledge():
    assert not doubt(np.full(3, np.nan), np.nan)
    found = doubt([np.nan, 0.9], [np.nan, 0.1])
    assert "theta[1]" in found[0].happened
