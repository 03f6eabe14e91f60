"""Races over tables of rewards."""

from __future__ import annotations

import numpy as np

from compiled_calls import called_often, compiled_on_first_use
from scipy.stats import norm

from amc_pymc.tall.racing import REWARDS, RaceResult, make_population, race

_race = called_often(race)


@compiled_on_first_use(REWARDS)
def from_table(points, centre, rows):
    """Rewards out of a table (K, N) that is handed over, flat, as the centre: arm k is points[k, 0]."""
    n_rows = int(points[0, 1])
    out = np.empty((points.shape[0], rows.size))
    for a in range(points.shape[0]):
        start = int(points[a, 0]) * n_rows
        for j in range(rows.size):
            out[a, j] = centre[start + rows[j]]
    return out


def points_of(table):
    n_arms, n_rows = table.shape
    return np.column_stack([np.arange(n_arms), np.full(n_arms, n_rows)]).astype(float)


def run(table, rule, rng, bias=None, exact=(), population=None) -> RaceResult:
    """Race over a table (K, N) of rewards."""
    bias = np.zeros(len(table)) if bias is None else np.asarray(bias, float)
    population = population or make_population(table.shape[1], exact)
    return _race(from_table(), points_of(table), table.ravel(), bias, population, rule, rng)


def normal_scores(shape, rng):
    """Populations with mean 0, standard deviation 1 and the shape of a normal, in random order."""
    n_rows = np.atleast_1d(shape)[-1]
    values = norm.ppf((np.arange(n_rows) + 0.5) / n_rows)
    return rng.permuted(np.broadcast_to(values / values.std(), shape), axis=-1)
