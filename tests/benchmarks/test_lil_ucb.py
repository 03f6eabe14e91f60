"""lil'UCB, with which the paper of races compares them: small cases by hand."""

import numpy as np
import pytest

from tall.racing.tables import from_table, points_of

from amc_pymc.results import clopper_pearson
from amc_pymc.tall.racing import make_population
from benchmarks.papers.lil_ucb import heuristic, lil_ucb

pytestmark = pytest.mark.slow


def run_lil(table, rng, bias=None, exact=(), population=None, delta=0.05, **settings):
    population = population or make_population(table.shape[1], exact)
    bias = np.zeros(len(table)) if bias is None else np.asarray(bias, float)
    args = bias, population, heuristic(delta, **settings), rng
    return lil_ucb(from_table(), points_of(table), table.ravel(), *args)


@pytest.mark.parametrize("n_rows", [1, 2, 5, 30])
@pytest.mark.parametrize("n_arms", [2, 5])
@pytest.mark.parametrize("rows_per_pull", [1, 7])
def test_small_populations_are_read_and_decided_exactly(n_arms, n_rows, rows_per_pull):
    rng = np.random.default_rng([n_arms, n_rows])
    for _ in range(50):
        table = rng.normal(size=(n_arms, n_rows))
        bias = rng.normal(size=n_arms)
        result = run_lil(table, rng, bias, reward_range=100.0, rows_per_pull=rows_per_pull)
        assert result.winner == np.argmax(table.mean(axis=1) + bias)
        assert result.rows == n_rows
        assert result.rewards <= n_arms * n_rows


@pytest.mark.parametrize("known", [True, False])
def test_easy_populations_are_decided_rightly_and_cheaply(known):
    n_rows, n_arms, n = 5_000, 10, 400
    rng = np.random.default_rng(3)
    table = rng.random((n_arms, n_rows))
    table[4] += 0.5
    population = make_population(n_rows)
    settings = {"delta": 0.05, "reward_range": 1.5 if known else None, "population": population}
    results = [run_lil(table, rng, **settings) for _ in range(n)]
    wrong = sum(r.winner != 4 for r in results)
    assert clopper_pearson(wrong, n, 0.999)[0] <= 0.05
    assert max(r.rows for r in results) <= n_rows
    assert np.mean([r.rewards for r in results]) < 0.2 * n_rows * n_arms
    assert not population.marked.any()
