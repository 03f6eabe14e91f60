import math

import numpy as np
import pytest

from scipy.special import expit
from scipy.stats import norm

from benchmarks.evidence import from_draws as bench


@pytest.mark.slow
def test_logistic_regression():
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((20, 1)), (rng.random(20) < 0.5).astype(float)
    beta = np.linspace(-8.0, 8.0, 4001)
    p = expit(X * beta)
    likelihood = np.prod(np.where(y[:, None] > 0.0, p, 1.0 - p), axis=0)
    exact = math.log(np.sum(likelihood * norm.pdf(beta)) * (beta[1] - beta[0]))
    found, error = bench.logistic_log_evidence(X, y)
    assert 0.0 < error < 0.01
    assert abs(found - exact) < 4.0 * error
