"""Estimators of one mean with known variances."""

import math

import numpy as np
import pytest

from scipy.integrate import quad
from scipy.stats import truncnorm

from models.scaled_bernoulli import Estimator, make_problem, truncated_variance

SHAPES = ("bernoulli", "uniform", "normal")


def test_bernoulli_is_two_points():
    values = Estimator(0.04).sample(1000, np.random.default_rng(1))
    assert set(np.round(values, 12)) == {0.3, 0.7}


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


@pytest.mark.parametrize("variance", [1e-6, 0.02, 0.08, 0.0833])
def test_truncated_normal_has_the_variance_asked_for(variance):
    scale = Estimator(variance, shape="normal").scale
    np.testing.assert_allclose(truncated_variance(scale), variance, rtol=1e-9)


def test_fourth_moments():
    values = Estimator(0.05, shape="uniform").sample(200_000, np.random.default_rng(3)) - 0.5
    error = (values**4).std() / math.sqrt(values.size)
    assert abs((values**4).mean() - Estimator(0.05, shape="uniform").fourth_moment) < 4.0 * error
    assert Estimator(0.05).fourth_moment == pytest.approx((0.5 * math.sqrt(0.2)) ** 4)


def test_problem():
    problem = make_problem([0.1, 0.02, 0.25])
    assert problem.best == 1 and problem.mean == 0.5
    np.testing.assert_allclose([arm.scale for arm in problem.arms], [0.4**0.5, 0.08**0.5, 1.0])
    assert problem.sample(7, np.random.default_rng(1)).shape == (3, 7)
    assert isinstance(problem.arms[0](np.random.default_rng(1)), float)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variances": []}, "variances must not be empty"),
        ({"variances": [0.0]}, "variance must be in"),
        ({"variances": [0.3]}, r"variance must be in \(0, 0.25\]"),
        ({"variances": [0.2], "shape": "uniform"}, r"\(0, 0.08333\] for shape 'uniform'"),
        ({"variances": [1.0 / 12.0], "shape": "normal"}, r"\(0, 0.08333\) for shape 'normal'"),
        ({"variances": [0.1], "shape": "square"}, "shape must be one of"),
        ({"variances": [0.1], "mean": math.nan}, "mean must be finite"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_problem(**arguments)
