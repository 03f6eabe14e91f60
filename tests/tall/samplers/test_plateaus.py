"""Expansions that are level where a standard deviation is small, on balanced Gaussian groups."""

from types import SimpleNamespace

import numpy as np
import pytest

from amc_pymc.tall.samplers.fit import find_plateaus
from amc_pymc.tall.surrogate import Surrogate

#: Numbers of groups, variances of their means given effects, and sums of squares of these means.
GROUPS, VARIANCE, SQUARES = 100, 0.09, 12.0
CENTRE = np.array([0.4, -1.5])


def log_likelihood(x, sign=1.0):
    """Of means with the variance a + exp(2 sign x1), which depends on x0, too."""
    total = VARIANCE + np.exp(2.0 * sign * x[1])
    rest = x[0] / (1.0 + total) - 30.0 * (x[0] - 0.5) ** 2
    return -0.5 * (GROUPS * np.log(total) + SQUARES / total) + rest


def expanded(f, x, step=1e-4):
    """Value, gradient and Hessian by central differences."""
    e = step * np.eye(x.size)
    gradient = np.array([(f(x + a) - f(x - a)) / (2 * step) for a in e])
    hessian = [[(f(x + a + b) - f(x + a - b) - f(x - a + b) + f(x - a - b)) for b in e] for a in e]
    return f(x), gradient, np.array(hessian) / (4 * step**2)


def found(f, centre, wide=(0, 1)):
    _, gradient, hessian = expanded(f, centre)
    raced = SimpleNamespace(expand=np.arange(2), all_values=lambda x: np.array([f(x)]))
    return find_plateaus(raced, np.array(wide), Surrogate(centre, gradient, hessian))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_limit_is_the_right_one_and_derivatives_are_those_at_the_centre(sign):
    centre = CENTRE * [1.0, sign]

    def f(x):
        return log_likelihood(x, sign)

    level = found(f, centre)
    assert level.coordinates.tolist() == [1] and level.signs.tolist() == [sign]
    value, gradient, hessian = expanded(level.total, centre)
    np.testing.assert_allclose(value, 0.0, atol=1e-12)
    for ours, theirs in zip((gradient, hessian), expanded(f, centre)[1:], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-4)
    far = centre - [0.0, 8.0 * sign]
    assert level.total(far) == pytest.approx(f(far) - f(centre), abs=1e-4)


def test_quadratics_stay():
    assert found(lambda x: -0.5 * (x - CENTRE) @ (x - CENTRE), CENTRE) is None
    assert found(log_likelihood, CENTRE, wide=(0,)) is None
