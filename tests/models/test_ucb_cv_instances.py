"""Means, variances and correlations of the instances against samples and the paper's numbers."""

import math

import numpy as np
import pytest

from models.ucb_cv_instances import make_instance

ALL = [(1, {}), (2, {}), (3, {}), (4, {}), (4, {"parameters": "log"}), (5, {"var_v": 2.0})]


@pytest.mark.parametrize(("number", "options"), ALL)
def test_moments(number, options):
    instance = make_instance(number, **options)
    n = 100_000
    rewards, controls = instance.sample(n, np.random.default_rng(number))
    assert rewards.shape == controls.shape == (10, n)
    for values, means, variances in (
        (rewards, instance.means, instance.variances),
        (controls, instance.control_means, instance.control_variances),
    ):
        error = np.sqrt(variances / n)
        assert np.all(np.abs(values.mean(1) - means) < 4.0 * error)
    # Second moments of log-normal variables are too noisy to tell anything.
    if instance.law != "lognormal":
        found = [np.corrcoef(x, w)[0, 1] for x, w in zip(rewards, controls, strict=True)]
        assert np.all(np.abs(found - instance.correlations) < 5.0 / math.sqrt(n))
        np.testing.assert_allclose(rewards.var(1), instance.variances, rtol=0.05)
    else:
        logs = np.log(controls)
        assert (
            np.ptp(logs.std(1) - np.sqrt(instance._of_log(np.array(instance.mu_w), 1.0)[1])) < 0.02
        )


def test_numbers_of_the_paper():
    first = make_instance(1)
    np.testing.assert_allclose(first.means, 0.9 - 0.05 * np.arange(10))
    np.testing.assert_allclose(first.gaps, 0.05 * np.arange(10), atol=1e-15)
    np.testing.assert_allclose(first.correlations, math.sqrt(0.5))
    np.testing.assert_allclose(make_instance(2).means, 1.4 - 0.1 * np.arange(10))
    np.testing.assert_allclose(make_instance(3).variances, make_instance(3).means)
    np.testing.assert_allclose(make_instance(4).variances, 2.0)
    of_log = make_instance(4, parameters="log")
    np.testing.assert_allclose(of_log.control_means[0], math.exp(0.8 + 0.5))
    falling = [make_instance(5, var_v=v).correlations[0] for v in (1.0, 1.5, 2.0, 2.5, 3.0)]
    np.testing.assert_allclose(falling, 1.0 / np.sqrt([2.0, 2.5, 3.0, 3.5, 4.0]))
