"""Means, variances and correlations of the instances against samples and the paper's numbers."""

import math

import numpy as np
import pytest

from models.ucb_cv_instances import make_instance

ALL = [(1, {}), (2, {}), (3, {}), (4, {}), (5, {"var_v": 2.0})]


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
        of_logs = np.sqrt(np.log1p(np.array(instance.mu_w) ** -2.0))
        assert np.ptp(np.log(controls).std(1) - of_logs) < 0.02
