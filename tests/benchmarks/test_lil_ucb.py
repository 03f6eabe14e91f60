"""lil'UCB, with which the paper of races compares them: small cases by hand."""

import numpy as np
import pytest

from tall.race_tables import from_table, points_of

from amc_pymc.tall.racing import make_population
from benchmarks.papers.lil_ucb import heuristic, lil_ucb

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("n_rows", [1, 2, 5, 30])
@pytest.mark.parametrize("n_arms", [2, 5])
@pytest.mark.parametrize("rows_per_pull", [1, 7])
def test_small_populations_are_read_and_decided_exactly(n_arms, n_rows, rows_per_pull):
    rng = np.random.default_rng([n_arms, n_rows])
    for _ in range(50):
        table = rng.normal(size=(n_arms, n_rows))
        bias = rng.normal(size=n_arms)
        args = bias, make_population(n_rows), heuristic(0.05, 100.0, rows_per_pull), rng
        result = lil_ucb(from_table(), points_of(table), table.ravel(), *args)
        assert result.winner == np.argmax(table.mean(axis=1) + bias)
        assert result.rows == n_rows
        assert result.rewards <= n_arms * n_rows
