"""Estimators of one mean with known variances."""

import math

import numpy as np
import pytest

from scipy.integrate import quad
from scipy.stats import truncnorm

from models.scaled_bernoulli import Estimator, truncated_variance

SHAPES = ("bernoulli", "uniform", "normal")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("variance", [1e-6, 0.01, 0.08])
def test_mean_and_variance(shape, variance):
    n = 100_000
    values = Estimator(variance, mean=0.5, shape=shape).sample(n, np.random.default_rng(2))
    squares = (values - 0.5) ** 2
    assert abs(values.mean() - 0.5) < 4.0 * math.sqrt(variance / n)
    error = squares.std() / math.sqrt(n) + 1e-12
    assert abs(squares.mean() - variance) < 4.0 * error
    assert np.all((values >= 0.0) & (values <= 1.0))


@pytest.mark.parametrize("sd", [0.05, 0.3, 2.0, 99.0, 101.0, 1e4])
def test_variance_of_the_truncated_normal(sd):
    if sd < 10.0:
        expected = truncnorm.var(-0.5 / sd, 0.5 / sd, scale=sd)
    else:  # SciPy cancels there
        top = quad(lambda x: x**2 * math.exp(-0.5 * (x / sd) ** 2), -0.5, 0.5, epsabs=1e-15)[0]
        expected = top / quad(lambda x: math.exp(-0.5 * (x / sd) ** 2), -0.5, 0.5)[0]
    np.testing.assert_allclose(truncated_variance(sd), expected, rtol=1e-9)
