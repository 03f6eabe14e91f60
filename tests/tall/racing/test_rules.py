"""Rules of races against formulas worked out by hand, and the error they promise."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from compiled_calls import called_often, compiled_on_first_use
from numba import njit
from scipy.stats import norm

from amc_pymc.diagnostics import clopper_pearson
from amc_pymc.tall.racing import (
    DECIDED,
    REWARDS,
    bernstein_rule,
    exact_rule,
    make_population,
    normal_rule,
    race,
)
from amc_pymc.tall.racing.bernstein import bernstein_serfling
from amc_pymc.tall.racing.normal import b_normal
from amc_pymc.tall.racing.population import draw_rows, forget_rows

KAPPA = 7 / 3 + 3 / math.sqrt(2)


@compiled_on_first_use(REWARDS)
def from_table(points, centre, rows):
    """Rewards out of a table (K, N), flat, handed over as the centre: arm k is points[k, 0]."""
    n_rows = int(points[0, 1])
    out = np.empty((points.shape[0], rows.size))
    for a in range(points.shape[0]):
        start = int(points[a, 0]) * n_rows
        for j in range(rows.size):
            out[a, j] = centre[start + rows[j]]
    return out


@njit
def races(n, rewards, points, centre, bias, population, rule, rng, out):
    for k in range(n):
        r = race(rewards, points, centre, bias, population, rule, rng)
        out[k, 0], out[k, 1], out[k, 2], out[k, 3] = r.winner, r.rows, r.rewards, r.arms_left


_race = called_often(race)


def run(table, rule, rng, bias=None):
    n_arms, n_rows = table.shape
    points = np.column_stack([np.arange(n_arms), np.full(n_arms, n_rows)]).astype(float)
    bias = np.zeros(n_arms) if bias is None else np.asarray(bias, float)
    return _race(from_table(), points, table.ravel(), bias, make_population(n_rows), rule, rng)


def run_many(n, table, rule, rng, bias=None):
    """(n, 4): winner, rows, rewards, arms left."""
    n_arms, n_rows = table.shape
    points = np.column_stack([np.arange(n_arms), np.full(n_arms, n_rows)]).astype(float)
    bias = np.zeros(n_arms) if bias is None else np.asarray(bias, float)
    out = np.empty((n, 4), np.int64)
    population = make_population(n_rows)
    races(n, from_table(), points, table.ravel(), bias, population, rule, rng, out)
    return out


def normal_scores(n_arms, n_rows, rng):
    """Rewards with mean 0 and standard deviation 1 exactly, in random order."""
    values = norm.ppf((np.arange(n_rows) + 0.5) / n_rows)
    return rng.permuted(np.tile(values / values.std(), (n_arms, 1)), axis=1)


# --- factors --------------------------------------------------------------------------------------


def test_normal_factors():
    n, m = 1_000, 50
    for n_arms, variance, share, sides in (
        (2, "pairwise", 1, "two"),
        (2, "marginal", 2, "one"),
        (5, "pairwise", 4, "one"),
        (5, "marginal", 5, "one"),
    ):
        rule = normal_rule(n, n_arms, delta=0.1, batch_size=m, variance=variance)
        assert rule.sizes.tolist() == [50, 100, 200, 400, 800, 1_000]
        b = b_normal(0.1 / share, m / n, sides=sides)
        expected = [b * math.sqrt((1 - (size - 1) / (n - 1)) / size) for size in rule.sizes]
        np.testing.assert_allclose(rule.sd_factor, expected, atol=1e-15)
        assert not rule.range_factor.any()
        assert rule.marginal == (variance == "marginal") and rule.guarded


def test_bernstein_factors():
    n = 1_000
    rule = bernstein_rule(n, 4, delta=0.1, batch_size=2, reward_range=[1, 2, 3, 4])
    assert rule.sizes.tolist() == [2, 4, 8, 16, 32, 64, 128, 256, 512, 1_000]
    log = math.log(5 / (0.1 / 3 / 9))
    for size, sd, width in zip(rule.sizes[:-1], rule.sd_factor, rule.range_factor):
        rho = 1 - (size - 1) / n if size <= 500 else (1 - size / n) * (1 + 1 / size)
        # The engine's standard deviation has divisor T - 1, the bound's T.
        assert sd == pytest.approx(math.sqrt(2 * rho * log / size) * math.sqrt((size - 1) / size))
        assert width == pytest.approx(KAPPA * log / size)
    assert rule.ranges.tolist() == [1, 2, 3, 4]
    assert not rule.guarded


# --- the engine applies them ----------------------------------------------------------------------


@pytest.mark.parametrize("variance", ["pairwise", "marginal"])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("n_arms", [2, 3, 12])
def test_the_first_round_decides_at_the_half_width(n_arms, known, variance):
    """Batches of one round from NumPy's moments: last arm against the best, all others far off."""
    n_rows, m = 2_000, 60
    rng = np.random.default_rng([n_arms, known])
    table = rng.gamma(2.0, size=(n_arms, n_rows)) + 3.0 * rng.normal(size=n_rows)
    ranges = rng.uniform(5, 9, size=n_arms) if known else None
    rule = bernstein_rule(
        n_rows, n_arms, delta=0.2, batch_size=m, reward_range=ranges, variance=variance
    )
    looks = rule.sizes.size - 1
    share = 0.2 / (n_arms if variance == "marginal" else n_arms - 1) / looks
    sd, width = bernstein_serfling(share, m, n_rows)
    state = make_population(n_rows)
    for seed in range(10):
        rows = np.empty(m, np.int64)
        draw_rows(state.n_rows, state.marked, rows, np.random.default_rng(seed))
        forget_rows(state, rows)
        batch = table[:, rows]
        x, i = batch[0], batch[-1]
        if variance == "pairwise":
            c = ranges[0] + ranges[-1] if known else np.ptp(x - i)
            half = sd * np.std(x - i) + width * c
        else:
            cs = (ranges[0], ranges[-1]) if known else (np.ptp(x), np.ptp(i))
            half = sd * (np.std(x) + np.std(i)) + width * sum(cs)
        for factor, decided in ((1 - 1e-9, False), (1 + 1e-9, True)):
            bias = np.full(n_arms, -1e6)
            bias[0] = -x.mean()
            bias[-1] = -i.mean() - half * factor
            result = run(table, rule, np.random.default_rng(seed), bias)
            assert (result.rounds == 1) == decided
            if decided:
                assert (result.winner, result.rows, result.rewards) == (0, m, m * n_arms)
            assert result.arms_left == (1 if decided else 2)


@pytest.mark.parametrize("n_arms", [9, 30])
def test_many_arms_by_matrix_product_agree_with_numpy(n_arms):
    rng = np.random.default_rng(n_arms)
    n_rows, m = 9_000, 5_000  # two chunks
    common = 1e6 * rng.normal(size=n_rows)
    table = rng.normal(size=(n_arms, n_rows)) + common
    rule = normal_rule(n_rows, n_arms, batch_size=m)
    state, rows = make_population(n_rows), np.empty(m, np.int64)
    draw_rows(state.n_rows, state.marked, rows, np.random.default_rng(1))
    forget_rows(state, rows)
    d = table[3, rows] - table[7, rows]
    half = rule.sd_factor[0] * np.std(d, ddof=1)
    for factor, decided in ((1 - 1e-6, False), (1 + 1e-6, True)):
        bias = np.full(n_arms, -1e9)
        bias[3], bias[7] = 0.0, d.mean() - half * factor
        result = run(table, rule, np.random.default_rng(1), bias)
        assert (result.rounds == 1) == decided


def test_a_known_range_lets_a_batch_without_spread_decide():
    table = np.stack([np.zeros(1_000), np.full(1_000, 5.0)])
    known = bernstein_rule(1_000, 2, reward_range=0.1)
    running = bernstein_rule(1_000, 2)
    assert run(table, known, np.random.default_rng(1)).rows < 100
    assert run(table, running, np.random.default_rng(1)).rows == 1_000
    easy = bernstein_rule(1_000, 2, zero_sd_decides=True)
    assert run(table, easy, np.random.default_rng(1)).rows == 2


def test_a_guarded_marginal_race_looks_at_each_arm():
    table = 0.01 * np.random.default_rng(1).normal(size=(2, 1_000))
    table[1] += 5.0
    rule = normal_rule(1_000, 2, variance="marginal")
    assert run(table, rule, np.random.default_rng(3)).rounds == 1
    table[0] = 0.0
    table[0, 7] = 1.0
    seen = [run(table, rule, np.random.default_rng(k)) for k in range(40)]
    dominated = [r.rounds > 1 for r in seen]
    assert 0 < sum(dominated) < 40 and all(r.winner == 1 for r in seen)


# --- promises -------------------------------------------------------------------------------------


@functools.cache
def wrong_at_the_worst_case(n_arms, delta, variance="pairwise", sides=None, n=6_000):
    """Wrong verdicts with all arms equal but for a hair: the error is that of a gap of zero."""
    n_rows, m = 3_000, 150
    rng = np.random.default_rng([n_arms, int(1e3 * delta), n])
    table = normal_scores(n_arms, n_rows, rng)
    rule = normal_rule(n_rows, n_arms, delta=delta, batch_size=m, variance=variance)
    if sides == "two":
        share = delta / (n_arms - 1)
        ratio = b_normal(share, m / n_rows) / b_normal(share, m / n_rows, sides="one")
        rule = rule._replace(sd_factor=rule.sd_factor * ratio)
    bias = np.zeros(n_arms)
    bias[-1] = 1e-12
    found = run_many(n, table, rule, rng, bias)
    return int(np.sum(found[:, 0] != n_arms - 1)), int(found[:, 2].sum())


@pytest.mark.parametrize("delta", [0.05, 0.3])
@pytest.mark.parametrize("n_arms", [2, 3, pytest.param(10, marks=pytest.mark.slow)])
def test_error_is_at_most_delta(n_arms, delta):
    wrong, _ = wrong_at_the_worst_case(n_arms, delta)
    low, high = clopper_pearson(wrong, 6_000, 0.999)
    assert low <= delta
    if n_arms == 2:
        assert high >= delta  # and it is delta there


def test_the_one_sided_constant_matters():
    """Two arms judged by one side only: the two-sided constant errs more than delta = 0.4."""
    n_rows, m, delta, n = 6_400, 100, 0.4, 20_000
    rng = np.random.default_rng(5)
    arm = normal_scores(1, n_rows, rng)[0]
    sums = np.empty((n, 6))
    sizes = m * 2 ** np.arange(6)
    for k in range(n):
        sums[k] = np.cumsum(rng.permutation(arm)[: sizes[-1]])[sizes - 1]
    z = sums / sizes / np.sqrt((1 - (sizes - 1) / (n_rows - 1)) / sizes)
    for sides, within in (("one", True), ("two", False)):
        crossed = np.sum(np.any(z >= b_normal(delta, m / n_rows, sides=sides), axis=1))
        low, _ = clopper_pearson(int(crossed), n, 0.999)
        assert (low <= delta) == within


@pytest.mark.parametrize("n_arms", [2, 3, pytest.param(10, marks=pytest.mark.slow)])
def test_marginal_reads_no_less(n_arms):
    _, pairwise = wrong_at_the_worst_case(n_arms, 0.3)
    wrong, marginal = wrong_at_the_worst_case(n_arms, 0.3, "marginal")
    assert marginal >= pairwise
    assert clopper_pearson(wrong, 6_000, 0.999)[0] <= 0.3


@pytest.mark.parametrize("variance", ["pairwise", "marginal"])
def test_bernstein_hardly_errs(variance):
    n_rows = 2_000
    rng = np.random.default_rng(4)
    table = (rng.random((3, n_rows)) < 0.1).astype(float)
    table -= table.mean(axis=1, keepdims=True)
    rule = bernstein_rule(n_rows, 3, delta=0.2, reward_range=1.0, variance=variance)
    found = run_many(2_000, table, rule, rng, [0.0, 0.0, 1e-9])
    assert clopper_pearson(int(np.sum(found[:, 0] != 2)), 2_000, 0.999)[0] <= 0.2
    assert found[:, 1].mean() > 1_900


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build",
    [
        normal_rule,
        functools.partial(bernstein_rule, reward_range=100.0),
    ],
)
@pytest.mark.parametrize("n_rows", [1, 2, 3])
def test_very_few_rows_are_all_read(build, n_rows):
    rng = np.random.default_rng(n_rows)
    for _ in range(50):
        table = rng.normal(size=(3, n_rows))
        result = run(table, build(n_rows, 3), rng)
        assert result.winner == np.argmax(table.mean(axis=1))
        assert result.rows == n_rows


@pytest.mark.parametrize("variance", ["pairwise", "marginal"])
def test_impossible_and_lone_arms(variance):
    rng = np.random.default_rng(2)
    table = rng.normal(size=(4, 1_000))
    table[1, ::3] = -np.inf
    table[3, ::2] = -np.inf
    rule = normal_rule(1_000, 4, variance=variance)
    result = run(table, rule, rng)
    finite = table[[0, 2]].mean(axis=1)
    assert result.status == DECIDED
    assert result.winner == (0, 2)[np.argmax(finite)]
    # A bias of -inf takes an arm out before a row is read.
    result = run(table, rule, rng, [-np.inf, -np.inf, 0.0, -np.inf])
    assert (result.winner, result.rows, result.rewards, result.arms_left) == (2, 0, 0, 1)
    table[:] = -np.inf
    assert run(table, rule, rng).winner == -1
    assert run(table, rule, rng, np.full(4, -np.inf)).winner == -1
    assert run(np.ones((1, 1_000)), normal_rule(1_000, 1), rng).winner == 0


def test_a_rule_for_other_rows_is_refused():
    table = np.zeros((2, 100))
    with pytest.raises(ValueError, match="another number of rows"):
        run(table, exact_rule(99), np.random.default_rng(1))
