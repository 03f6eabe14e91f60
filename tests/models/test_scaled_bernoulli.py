"""Estimators of one mean with known variances."""

import math

import numpy as np
import pytest

from models.scaled_bernoulli import Estimator

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
