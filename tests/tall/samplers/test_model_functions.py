"""Functions that ask the model each point of a product space belongs to."""

import numpy as np

from compiled_calls import compiled_on_first_use
from numba import njit

from amc_pymc.tall.racing import REWARDS
from amc_pymc.tall.samplers.index import rewards_of_models

SIZES = [2, 3]
#: Points (K, 1 + D): the model's number, its parameters, and what is beyond them.
POINTS = np.array([[1.0, 0.5, -1.0, 2.0], [0.0, 3.0, 4.0, np.nan], [1.0, 1.0, 1.0, 1.0]])
CENTRES = np.array([10.0, 20.0, 0.1, 0.2, 0.3])
ROWS = np.array([4, 0])


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


@njit
def call_with_rows(function, points, centre, rows):
    return function(points, centre, rows)


def test_rewards():
    function = rewards_of_models([gaps(), negative_gaps()], SIZES, CENTRES)
    found = call_with_rows(function, POINTS, np.full(4, np.nan), ROWS)
    wanted = [[-4 * 0.9 - 3, -3], [4 * -23.0 + 2, 2], [-4 * 2.4 - 3, -3]]
    np.testing.assert_allclose(found, wanted)
