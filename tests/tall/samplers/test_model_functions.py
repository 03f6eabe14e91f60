"""Functions that ask the model each point of a product space belongs to."""

import numpy as np

from compiled_calls import compiled_on_first_use
from numba import njit

from amc_pymc.tall.racing import REWARDS
from amc_pymc.tall.samplers.compiled import GRADIENT, LOGP
from amc_pymc.tall.samplers.index import (
    parameters_of_models,
    rewards_of_models,
    values_of_models,
)

SIZES = [2, 3]
#: Points (K, 1 + D): the model's number, its parameters, and what is beyond them.
POINTS = np.array([[1.0, 0.5, -1.0, 2.0], [0.0, 3.0, 4.0, np.nan], [1.0, 1.0, 1.0, 1.0]])
CENTRES = np.array([10.0, 20.0, 0.1, 0.2, 0.3])
ROWS = np.array([4, 0])


@compiled_on_first_use(LOGP)
def total(theta):
    return theta.sum() + 100.0 * theta.size


@compiled_on_first_use(LOGP)
def product(theta):
    return theta.prod() + 100.0 * theta.size


@compiled_on_first_use(REWARDS)
def gaps(points, centre, rows):
    """The gap from the centre, times the row's number."""
    out = np.empty((points.shape[0], rows.size))
    for a in range(points.shape[0]):
        for j in range(rows.size):
            out[a, j] = rows[j] * (points[a] - centre).sum() + points.shape[1]
    return out


@compiled_on_first_use(REWARDS)
def negative_gaps(points, centre, rows):
    out = np.empty((points.shape[0], rows.size))
    for a in range(points.shape[0]):
        for j in range(rows.size):
            out[a, j] = -rows[j] * (points[a] - centre).sum() - points.shape[1]
    return out


@compiled_on_first_use(GRADIENT)
def total_alone(theta):
    return np.array([theta.sum()])


@compiled_on_first_use(GRADIENT)
def doubled_and_total(theta):
    return np.append(2.0 * theta, theta.sum())


@njit
def call(function, points):
    return function(points)


@njit
def call_with_rows(function, points, centre, rows):
    return function(points, centre, rows)


def test_values():
    found = call(values_of_models([total(), product()], SIZES), POINTS)
    np.testing.assert_allclose(found, [-1.0 + 300.0, 7.0 + 200.0, 1.0 + 300.0])


def test_parameters():
    function = parameters_of_models([total_alone(), doubled_and_total()], SIZES, [1, 4])
    wanted = [[1.0, 1.0, -2.0, 4.0, 1.5], [0.0, 7.0, 0.0, 0.0, 0.0], [1.0, 2.0, 2.0, 2.0, 3.0]]
    np.testing.assert_array_equal(call(function, POINTS), wanted)


def test_rewards():
    function = rewards_of_models([gaps(), negative_gaps()], SIZES, CENTRES)
    found = call_with_rows(function, POINTS, np.full(4, np.nan), ROWS)
    wanted = [[-4 * 0.9 - 3, -3], [4 * -23.0 + 2, 2], [-4 * 2.4 - 3, -3]]
    np.testing.assert_allclose(found, wanted)
