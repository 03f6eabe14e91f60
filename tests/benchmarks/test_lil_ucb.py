"""lil'UCB, with which the paper of races compares them: small cases by hand."""

import math

import numpy as np
import pytest

from tall.racing.tables import from_table, points_of

from amc_pymc.results import clopper_pearson
from amc_pymc.tall.racing import DECIDED, NOT_FINITE, make_population
from benchmarks.papers.lil_ucb import LilParameters, heuristic, lil_ucb, upper_half_width


def run_lil(table, rng, bias=None, exact=(), population=None, delta=0.05, **settings):
    population = population or make_population(table.shape[1], exact)
    bias = np.zeros(len(table)) if bias is None else np.asarray(bias, float)
    args = bias, population, heuristic(delta, **settings), rng
    return lil_ucb(from_table(), points_of(table), table.ravel(), *args)


def test_half_width_by_hand():
    lil = LilParameters(0.01, 2.0, 0.5, 0.1, 1)
    expected = (
        1.5 * (1 + math.sqrt(0.1)) * 2 * math.sqrt(2.2 * math.log(math.log(110) / 0.01) / 100)
    )
    assert upper_half_width(100, 2.0, lil) == pytest.approx(expected)
    # Few rows: the iterated logarithm is that of e.
    usual = heuristic(0.05, 4.0)
    assert usual == (0.01, 2.0, 0.5, 0.0, 1)
    for pulls in (1, 2):
        expected = 1.5 * 2 * math.sqrt(2 * math.log(100) / pulls)
        assert upper_half_width(pulls, 2.0, usual) == pytest.approx(expected)


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


def test_equal_arms_are_read_to_the_end_and_the_better_one_wins():
    table = np.tile(np.random.default_rng(1).random(500), (3, 1))
    result = run_lil(table, np.random.default_rng(2), [0.0, 1e-9, 0.0], reward_range=1.0)
    assert (result.winner, result.rows) == (1, 500)
    assert result.rewards <= 1_500


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


def test_one_arm_far_ahead_stops_it_by_the_count():
    """Stops when the best has been pulled 1 + (1 + 10/K) times as often as the others together."""
    table = np.stack([np.full(10_000, 1.0), np.full(10_000, -1e6)])
    result = run_lil(table, np.random.default_rng(1), reward_range=1e-3)
    assert (result.winner, result.rows, result.rewards) == (0, 7, 8)
    assert result.margin == pytest.approx(-1e6 - 1)
    assert result.arms_left == 2


def test_equal_seeds_give_equal_races():
    rng = np.random.default_rng(1)
    table = rng.random((4, 2_000)) + np.arange(4)[:, None] * 0.1
    a, b, c = (run_lil(table, np.random.default_rng(s), reward_range=1.0) for s in (7, 7, 8))
    assert a == b
    assert a != c


def test_rows_taken_out_are_not_read():
    table = np.zeros((2, 40))
    table[:, [3, 30]] = np.nan
    table[1] += 0.1
    result = run_lil(table, np.random.default_rng(1), exact=[3, 30], reward_range=9.0)
    assert (result.winner, result.status, result.rows) == (1, DECIDED, 38)


def test_impossible_arms_are_dropped_and_bad_rows_named():
    rng = np.random.default_rng(5)
    table = rng.random((3, 200))
    table[0] += 5.0
    table[0, ::4] = -np.inf
    result = run_lil(table, rng, reward_range=1e3)
    assert result.winner == 1 + np.argmax(table[1:].mean(axis=1))
    table[:] = -np.inf
    assert run_lil(table, rng, reward_range=1e3).winner == -1
    assert run_lil(table, rng, [-np.inf, -np.inf, 0.0], reward_range=1.0).rewards == 0
    for value in (np.nan, np.inf):
        table = rng.random((3, 200))
        table[2, 77] = value
        result = run_lil(table, rng, reward_range=1e3)
        assert (result.status, result.row) == (NOT_FINITE, 77)
