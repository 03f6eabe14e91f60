import functools
import itertools

import numpy as np
import pytest

from compiled_calls import compiled_on_first_use
from numba import types
from scipy.stats import binom, norm

from models.race_sums import SumsRule, _variance, make_arms, race_sums

CONTEXT = types.UniTuple(types.float64[::1], 2)
DELTA = 0.05
EVERYTHING = SumsRule(DELTA, first=10**9)


@compiled_on_first_use(types.float64[::1](types.int64, types.int64[::1], CONTEXT))
def from_table(arm, rows, context):
    """Rewards out of a table by label; the second array counts what has been read."""
    table, reads = context
    out = np.empty(rows.size)
    for j in range(rows.size):
        out[j] = table[rows[j]]
        reads[rows[j]] += 1.0
    return out


def run(tables, bias, rule=None, seed=0, arms=None, rng=None):
    """Race over one array of rewards per arm; returns the result and how often rows were read."""
    tables = [np.asarray(table, float) for table in tables]
    arms = arms or make_arms([table.size for table in tables])
    flat = np.concatenate([*tables, [0.0]])
    reads = np.zeros(flat.size)
    rng = rng or np.random.default_rng(seed)
    rule = rule or SumsRule(DELTA)
    found = race_sums(from_table(), (flat, reads), arms, np.asarray(bias, float), rule, rng)
    return found, reads[:-1]


def scores(n, kind="normal"):
    """Rewards with sum zero and standard deviation one."""
    if n < 2:
        return np.zeros(n)
    u = (np.arange(n) + 0.5) / n
    values = norm.ppf(u) if kind == "normal" else u
    return (values - values.mean()) / values.std()


@functools.cache
def error_at_equal_sums(sizes, first, kind="normal", races=4000):
    """Wrong verdicts among races in which all sums are equal but for a negligible lead."""
    rule = SumsRule(DELTA, first=first)
    rng = np.random.default_rng([first, len(sizes)])
    arms = make_arms(sizes)
    flat = np.concatenate([rng.permutation(scores(n, kind)) for n in sizes])
    context = (flat, np.zeros(flat.size))
    wrong = 0
    for r in range(races):
        bias = np.zeros(len(sizes))
        bias[r % len(sizes)] = 1e-9
        found = race_sums(from_table(), context, arms, bias, rule, rng)
        wrong += found.winner != r % len(sizes)
    return wrong, races


# --- exactness ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_all_rows_give_the_largest_sum(seed):
    rng = np.random.default_rng(seed)
    sizes = np.append(rng.integers(0, 12, size=rng.integers(1, 9)), [0, 1, 2000])
    tables = [rng.normal(size=n) for n in sizes]
    bias = 3.0 * rng.normal(size=sizes.size)
    found, reads = run(tables, bias, EVERYTHING)
    assert found.winner == np.argmax([t.sum() + b for t, b in zip(tables, bias)])
    assert found.rounds == 1
    assert found.rows == reads.sum() == sizes.sum()


def test_clear_sums_are_decided_by_few_rows():
    """Sums of 2,000 rewards, means 1 and -1: a tenth decides."""
    tables = [scores(2000) + 1.0, scores(2000) - 1.0, scores(700) - 1.0]
    found, reads = run(tables, [0.0, 0.0, 0.0])
    assert found.winner == 0
    assert found.rows == reads.sum() <= 0.15 * reads.size
    assert reads.max() == 1.0


# --- decision errors ------------------------------------------------------------------------------

TWO = (2000, 2000)
ONE_SMALL = (2000, 100)
MANY = (2000, 500, 200, 60, 20, 5, 2, 1, 1, 0)


@pytest.mark.parametrize(
    ("sizes", "kind", "first"),
    [(TWO, "normal", 3), (MANY, "normal", 3), (ONE_SMALL, "uniform", 50), (MANY, "normal", 50)],
)
def test_error_with_equal_sums_is_within_delta(sizes, kind, first):
    """At a gap of zero, the worst case, at most delta."""
    wrong, races = error_at_equal_sums(sizes, first, kind)
    assert wrong <= binom.isf(1e-3, races, DELTA)


# --- parts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seen", [2, 3, 4, 6])
def test_variance_of_an_estimated_sum_is_unbiased(seen):
    """Over all subsets: mean of V equals the variance of N times the mean."""
    rewards = np.array([0.3, -1.2, 2.0, 4.5, -0.7, 0.1])
    n = rewards.size
    subsets = [np.array(s) for s in itertools.combinations(rewards, seen)]
    estimates = np.array([n * s.mean() for s in subsets])
    variances = [_variance(s.size * s.var(), seen, n) for s in subsets]
    assert np.mean(variances) == pytest.approx(estimates.var(), abs=1e-12)
    assert estimates.mean() == pytest.approx(rewards.sum())
