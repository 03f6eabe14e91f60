"""Races: rows are drawn without replacement, and decided as rows and bounds say."""

import functools
import itertools
import math

import numpy as np
import pytest

from compiled_calls import compiled_on_first_use
from scipy.stats import chi2
from tall.race_tables import normal_scores, run

from amc_pymc.tall.racing import (
    DECIDED,
    NOT_FINITE,
    REWARDS,
    ExactRace,
    NormalRace,
    b_normal,
    crossing_probability,
    draw_rows,
    forget_rows,
    make_population,
    race,
    schedule,
)


def with_bound(b, batch_size, n_rows, zero_sd_decides=False):
    """Rule that drops an arm as soon as it is b standard errors behind."""
    sizes = schedule(n_rows, batch_size)
    errors = np.sqrt((1 - (sizes - 1) / max(1, n_rows - 1)) / np.maximum(1, sizes))
    factors = min(b, 1e300) * errors
    return (
        ExactRace()
        .rule(n_rows, 2)
        ._replace(
            sizes=sizes,
            sd_factor=factors,
            offset=np.zeros(sizes.size),
            guarded=True,
            zero_sd_decides=zero_sd_decides,
        )
    )


def first_error(n_rows, batch_size):
    """Standard error of the first batch's mean where rows have standard deviation 1 (divisor N)."""
    return math.sqrt((n_rows - batch_size) / ((n_rows - 1) * batch_size))


@functools.cache
def error_of_two_arms(delta, batch_size, gap, halved=False, races=6_000, n_rows=5_000):
    """Share of wrong verdicts and mean of the rows read, at a gap in first-batch errors."""
    rng = np.random.default_rng([7, batch_size])
    population = make_population(n_rows)
    b = b_normal(delta, batch_size / n_rows) / (2.0 if halved else 1.0)
    rule = with_bound(b, batch_size, n_rows)
    table = np.stack([np.zeros(n_rows), normal_scores(n_rows, rng)])
    lead = gap * first_error(n_rows, batch_size) + 1e-13
    results = [
        run(table, rule, rng, bias=[0.0, sign * lead], population=population)
        for sign in (1.0, -1.0)
        for _ in range(races // 2)
    ]
    winners = np.array([r.winner for r in results])
    truth = np.repeat([1, 0], races // 2)
    return np.mean(winners != truth), np.mean([r.rows for r in results])


def standard_error(p, n=6_000):
    return math.sqrt(p * (1.0 - p) / n)


# --- decision errors ------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.01, 0.2])
def test_error_of_two_arms_that_are_equal_is_delta(delta):
    """The worst case is where the promise is exact: no more wrong verdicts, and not far fewer."""
    error, _ = error_of_two_arms(delta, 200, 0.0)
    assert error <= delta + 4 * standard_error(delta)
    assert error >= delta - 4 * standard_error(delta)


def test_half_the_bound_breaks_the_promise():
    delta = 0.05
    error, _ = error_of_two_arms(delta, 200, 0.0, halved=True)
    assert error > delta + 20 * standard_error(delta)
    expected = crossing_probability(b_normal(delta, 0.04) / 2.0, 0.04)
    assert abs(error - expected) < 5 * standard_error(expected)


def test_a_hopeless_arm_never_takes_the_place_of_arm_0():
    """Looks that err do so towards arm 0 only, as long as half-widths are not safe."""
    n_rows, delta, lead = 5_000, 0.4, -60.0
    rng = np.random.default_rng(11)
    table = np.stack([np.zeros(n_rows), normal_scores(n_rows, rng)])
    rule = with_bound(b_normal(delta, 50 / n_rows), 50, n_rows)
    cautious = rule._replace(safe_width=5.0 / n_rows)
    population = make_population(n_rows)

    def share_won(rule, bias):
        races = [run(table, rule, rng, bias=bias, population=population) for _ in range(2_000)]
        return np.mean([r.winner == 1 for r in races])

    assert share_won(rule, [0.0, lead / n_rows]) > 0.02
    assert share_won(cautious, [0.0, lead / n_rows]) == 0.0
    # the other way round nothing has changed: a firm lead decides at once
    assert share_won(cautious, [0.0, 5_000.0 / n_rows]) == 1.0
    firm = run(table, cautious, rng, bias=[0.0, 5.0], population=population)
    assert firm.rows == 50


@pytest.mark.parametrize(("gap", "expected"), [(0.25, 0.029537), (1.5, 0.000333)])
def test_error_and_rows_at_a_gap(gap, expected):
    delta, n_rows, batch_size = 0.1, 5_000, 200
    error, rows = error_of_two_arms(delta, batch_size, gap)
    assert abs(error - expected) < 4 * standard_error(expected) + 1e-3
    sd_gap = gap * first_error(n_rows, batch_size)
    assert rows == pytest.approx(
        NormalRace(delta, batch_size).expected_rows(sd_gap, n_rows), rel=0.03
    )


@pytest.mark.parametrize("arrangement", ["all equal", "one behind", "correlated"])
def test_error_of_more_arms_is_at_most_delta(arrangement):
    n_arms, delta, n_rows, batch_size, races = 3, 0.1, 4_000, 200, 4_000
    rng = np.random.default_rng([n_arms, len(arrangement)])
    table = np.stack([normal_scores(n_rows, rng) for _ in range(n_arms)])
    if arrangement == "correlated":
        table += 3.0 * normal_scores(n_rows, rng)
    table -= table[0].copy()
    table -= table.mean(axis=1, keepdims=True)
    bias = np.zeros(n_arms)
    if arrangement == "one behind":
        bias[-1] = -3.0 * first_error(n_rows, batch_size)
    bias[1] += 1e-13
    b = b_normal(delta / (n_arms - 1), batch_size / n_rows, sides="one")
    population = make_population(n_rows)
    rule = with_bound(b, batch_size, n_rows)
    wrong = [
        run(table, rule, rng, bias=bias, population=population).winner != 1 for _ in range(races)
    ]
    assert np.mean(wrong) <= delta + 3 * standard_error(delta, races)
    assert np.mean(wrong) > delta / 20
    loose = with_bound(b / 2, batch_size, n_rows)
    wrong = [
        run(table, loose, rng, bias=bias, population=population).winner != 1
        for _ in range(races // 4)
    ]
    assert np.mean(wrong) > delta + 4 * standard_error(delta, races // 4)


@pytest.mark.parametrize("batch_size", [1_000, 5_000])
@pytest.mark.parametrize("n_arms", [2, 5])
def test_all_rows_in_the_first_batch_decide_exactly(batch_size, n_arms):
    rng = np.random.default_rng(n_arms)
    for _ in range(200):
        table = rng.standard_t(3, size=(n_arms, 1_000)) * 1e3
        table[0] = 0.0
        bias = rng.normal(size=n_arms) * 30
        result = run(table, with_bound(1e-9, batch_size, 1_000), rng, bias=bias)
        assert result.winner == np.argmax(table.mean(axis=1) + bias)
        assert (result.rows, result.rounds, result.status) == (1_000, 1, DECIDED)


@pytest.mark.parametrize("exact", [(), (3, 999, 500)])
def test_a_bound_never_reached_ends_with_all_rows_and_the_exact_verdict(exact):
    rng = np.random.default_rng(11)
    left = np.setdiff1d(np.arange(1_000), exact)
    for _ in range(200):
        table = np.stack([np.zeros(1_000), rng.normal(size=1_000)])
        table[1, list(exact)] = 1e9
        bias = np.array([0.0, -table[1, left].mean() + rng.choice([-1e-9, 1e-9])])
        result = run(table, with_bound(np.inf, 10, left.size), rng, bias=bias, exact=exact)
        assert result.winner == int(table[1, left].mean() + bias[1] > 0)
        assert result.rows == left.size
        assert result.margin == pytest.approx(table[1, left].mean() + bias[1], abs=1e-14)


# --- the rule, row by row -------------------------------------------------------------------------


def same_batch(n_rows, batch_size, seed, exact=()):
    """The rows that a race with a generator of this seed reads first."""
    rows = np.empty(batch_size, np.int64)
    population = make_population(n_rows, exact)
    draw_rows(population.n_rows, population.marked, rows, np.random.default_rng(seed))
    forget_rows(population, rows)
    return rows


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("batch_size", [10, 4_096, 4_097, 9_000])
def test_the_first_batch_decides_at_b_standard_errors(batch_size, offset):
    """Eq. 4 of the paper from numpy's moments, also over several chunks and far from zero."""
    n_rows, b, exact = 20_000, 3.0, (0, 77)
    rng = np.random.default_rng(batch_size)
    table = np.stack([np.zeros(n_rows), offset + rng.gamma(2.0, size=n_rows)])
    n_raced = n_rows - len(exact)
    for seed in range(5):
        batch = table[1, same_batch(n_rows, batch_size, seed, exact)]
        error = np.std(batch, ddof=1) * math.sqrt(
            (1 - (batch_size - 1) / (n_raced - 1)) / batch_size
        )
        for side in (1.0, -1.0):
            for z, decided in ((b * (1 - 1e-5), False), (b * (1 + 1e-5), True)):
                bias = [0.0, side * z * error - batch.mean()]
                rule = with_bound(b, batch_size, n_raced)
                result = run(table, rule, np.random.default_rng(seed), bias=bias, exact=exact)
                assert (result.rounds == 1) == decided
                if decided:
                    assert result.winner == (side > 0)
                    assert result.rows == batch_size
                    assert result.margin == pytest.approx(side * z * error, rel=1e-3)


def test_batches_double_and_all_rows_come_last():
    for n_rows, batch_size, sizes in (
        (1_000, 50, [50, 100, 200, 400, 800, 1_000]),
        (1_000, 499, [499, 1_000]),  # 998 would be nearly all: reads all
        (1_000, 470, [470, 940, 1_000]),
        (1_000, 500, [500, 1_000]),
        (20_000, 3_000, [3_000, 6_000, 12_000, 20_000]),
        (7, 2, [2, 4, 7]),
    ):
        seen = []

        # A race that never decides reads everything; one that decides in round t reads sizes[t].
        rng = np.random.default_rng(n_rows)
        table = np.stack([np.zeros(n_rows), rng.normal(size=n_rows)])
        result = run(table, with_bound(np.inf, batch_size, n_rows), rng)
        assert (result.rows, result.rounds) == (n_rows, len(sizes))
        for lead in np.geomspace(1e-4, 30, 400):
            result = run(table, with_bound(2.5, batch_size, n_rows), rng, bias=[0.0, lead])
            assert result.rows == sizes[result.rounds - 1]
            seen.append(result.rows)
        assert set(seen) >= set(sizes[:-1]) - {2}


# --- special values -------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [5, 400])
def test_impossible_arms_are_dropped_at_once(batch_size):
    rng = np.random.default_rng(1)
    table = np.stack([np.zeros(400), np.full(400, -np.inf)])
    rule = with_bound(2.5, batch_size, 400)
    result = run(table, rule, rng, bias=[0.0, 1e6])
    assert (result.winner, result.rows, result.rounds) == (0, batch_size, 1)
    assert (result.status, result.margin) == (DECIDED, -np.inf)


@pytest.mark.parametrize("impossible", [0, 1, 2])
@pytest.mark.parametrize("batch_size", [20, 10_000])
def test_the_other_arms_race_on(impossible, batch_size):
    rng = np.random.default_rng(3)
    table = rng.normal(size=(3, 6_000)) + np.array([[0.0], [0.3], [0.31]])
    table[impossible, rng.integers(0, 6_000, size=100)] = -np.inf
    means = table.mean(axis=1)
    result = run(table, with_bound(12.0, batch_size, 6_000), rng)
    assert (result.winner, result.status) == (np.argmax(means), DECIDED)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("batch_size", [10, 1_000])
def test_rows_that_are_not_finite_end_the_race_and_are_named(value, batch_size):
    table = np.stack([np.zeros(1_000), np.random.default_rng(4).normal(size=1_000)])
    table[1, 700] = value
    for seed in range(10):
        result = run(table, with_bound(np.inf, batch_size, 1_000), np.random.default_rng(seed))
        assert (result.status, result.row) == (NOT_FINITE, 700)
        assert result.rows <= 1_000


@pytest.mark.parametrize("zero_sd_decides", [False, True])
def test_rows_without_spread(zero_sd_decides):
    """A few rows carry the sum: a batch that misses them must not decide."""
    table = np.zeros((2, 1_000))
    table[1, [5, 500]] = -100.0
    rule = with_bound(2.5, 10, 1_000, zero_sd_decides)
    winners, rows = [], []
    for seed in range(100):
        result = run(table, rule, np.random.default_rng(seed), bias=[0.0, 0.1])
        winners.append(result.winner)
        rows.append(result.rows)
    if zero_sd_decides:
        assert np.median(rows) == 10
        assert np.mean(winners) > 0.9
    else:
        assert not any(winners)
        assert min(rows) == 1_000


def test_a_batch_that_one_row_dominates_decides_nothing():
    n_rows, batch_size, seed = 1_000, 50, 6
    rows = same_batch(n_rows, batch_size, seed)
    rng = np.random.default_rng(9)
    for size, decides in ((2.0, True), (20.0, False)):
        table = np.stack([np.zeros(n_rows), 0.5 * rng.normal(size=n_rows)])
        table[1, rows[7]] = size
        rule = with_bound(2.5, batch_size, n_rows)
        result = run(table, rule, np.random.default_rng(seed), bias=[0.0, 100.0])
        assert (result.rounds == 1) == decides
        assert result.winner == 1


# --- no memory ------------------------------------------------------------------------------------


def test_equal_seeds_give_equal_races_whatever_came_before():
    n_rows = 12_000
    table = np.stack([np.zeros(n_rows), np.random.default_rng(1).normal(size=n_rows)])
    population = make_population(n_rows, [3, 4])
    rules = [with_bound(2.5, m, n_rows - 2) for m in (10, 3_000, 5_000, 20_000)]
    fresh = [
        run(table, rule, np.random.default_rng(99), bias=[0.0, 0.03], exact=[3, 4])
        for rule in rules
    ]
    rng = np.random.default_rng(0)
    for _ in range(20):
        other = rules[rng.integers(4)]
        run(table, other, rng, bias=[0.0, rng.normal(0, 0.1)], population=population)
        again = [
            run(table, rule, np.random.default_rng(99), bias=[0.0, 0.03], population=population)
            for rule in rules
        ]
        assert again == fresh


# --- populations ----------------------------------------------------------------------------------


def draw(population, size, rng):
    """A sample of rows, after which the population is as before."""
    rows = np.empty(size, np.int64)
    draw_rows(population.n_rows, population.marked, rows, rng)
    forget_rows(population, rows)
    return rows


def chi_square_level(counts, probabilities):
    expected = counts.sum() * probabilities
    return chi2.sf(np.sum((counts - expected) ** 2 / expected), counts.size - 1)


@compiled_on_first_use(REWARDS)
def alternating(points, centre, rows):
    """Row n is worth points[1, 0] plus or minus one, -inf if its number is points[1, 1]."""
    out = np.zeros((points.shape[0], rows.size))
    for a in range(1, points.shape[0]):
        for j in range(rows.size):
            if rows[j] == points[a, 1]:
                out[a, j] = points[a, 2]
            else:
                out[a, j] = points[a, 0] + 1.0 - 2.0 * (rows[j] % 2)
    return out


@pytest.mark.parametrize(
    ("n_rows", "exact", "size"),
    [(7, (), 3), (9, (0, 4), 2), (66, tuple(range(5, 64)), 3), (6, (), 6), (5, (1, 2, 3), 1)],
)
def test_every_ordered_sample_is_equally_likely(n_rows, exact, size):
    rng = np.random.default_rng(20161)
    population = make_population(n_rows, exact)
    left = [n for n in range(n_rows) if n not in exact]
    index = {rows: k for k, rows in enumerate(itertools.permutations(left, size))}
    counts = np.zeros(len(index))
    for _ in range(60 * len(index)):
        counts[index[tuple(draw(population, size, rng).tolist())]] += 1
    assert chi_square_level(counts, np.full(counts.size, 1.0 / counts.size)) > 1e-4


@pytest.mark.slow
def test_a_second_batch_is_uniform_over_what_is_left():
    rng = np.random.default_rng(3)
    population = make_population(8, [7])
    index = {rows: k for k, rows in enumerate(itertools.permutations(range(7), 4))}
    counts = np.zeros(len(index))
    for _ in range(60 * len(index)):
        rows = np.empty(4, np.int64)
        draw_rows(population.n_rows, population.marked, rows[:2], rng)
        draw_rows(population.n_rows, population.marked, rows[2:], rng)
        forget_rows(population, rows)
        counts[index[tuple(rows.tolist())]] += 1
    assert chi_square_level(counts, np.full(counts.size, 1.0 / counts.size)) > 1e-4


@pytest.mark.parametrize("n_rows", [1, 63, 64, 65, 128, 1000])
def test_rows_are_distinct_and_never_exact(n_rows):
    rng = np.random.default_rng(n_rows)
    exact = np.unique(rng.integers(0, n_rows, size=n_rows // 5))
    population = make_population(n_rows, exact)
    assert population.n_raced == n_rows - exact.size
    base = population.marked.copy()
    for size in sorted({0, 1, population.n_raced // 2, population.n_raced}):
        rows = draw(population, size, rng)
        assert np.unique(rows).size == size
        assert not np.isin(rows, exact).any()
        assert np.all((rows >= 0) & (rows < n_rows))
        np.testing.assert_array_equal(population.marked, base)


def test_exact_rows_may_be_unsorted_and_repeated():
    population = make_population(10, [5, 2, 5])
    assert population.n_raced == 8
    np.testing.assert_array_equal(population.exact, [2, 5])


def test_arguments_out_of_range():
    with pytest.raises(ValueError, match="n_rows must be at least 1, got 0"):
        make_population(0)
    with pytest.raises(ValueError, match=r"exact must lie in \[0, 10\)"):
        make_population(10, [10])
    with pytest.raises(ValueError, match=r"exact must lie in \[0, 10\)"):
        make_population(10, [-1, 3])


def test_everything_may_be_taken_out():
    population = make_population(3, [0, 1, 2])
    assert population.n_raced == 0
    points = np.array([[0.0, 0.0, 0.0], [1.0, -1.0, 0.0]])
    for bias, winner in ((0.1, 1), (-0.1, 0)):
        result = race(
            alternating(),
            points,
            np.zeros(1),
            np.array([0.0, bias]),
            population,
            NormalRace().rule(0, 2),
            np.random.default_rng(1),
        )
        assert (result.winner, result.rows, result.rounds) == (winner, 0, 0)


def test_arms_are_compared_by_the_variance_of_their_difference():
    n_rows, batch_size, b = 5_000, 100, 2.5
    rng = np.random.default_rng(8)
    common = 10.0 * rng.normal(size=n_rows)
    table = np.stack([np.zeros(n_rows), common, common + 0.1 * rng.normal(size=n_rows)])
    finite = (1 - (batch_size - 1) / (n_rows - 1)) / batch_size
    for seed in range(20):
        batch = table[:, same_batch(n_rows, batch_size, seed)]
        error = np.std(batch[2] - batch[1], ddof=1) * math.sqrt(finite)
        for z, decided in ((b * (1 - 1e-6), False), (b * (1 + 1e-6), True)):
            bias = [-1e3, 0.0, z * error - (batch[2] - batch[1]).mean()]
            rule = with_bound(b, batch_size, n_rows)
            result = run(table, rule, np.random.default_rng(seed), bias=bias)
            assert (result.rounds == 1) == decided


def test_one_impossible_row_is_found_when_it_is_read():
    table = np.stack([np.zeros(1_000), np.random.default_rng(2).normal(size=1_000)])
    table[1] -= table[1].mean()
    table[1, 321] = -np.inf
    for seed in range(30):
        rng = np.random.default_rng(seed)
        result = run(table, with_bound(np.inf, 10, 1_000), rng, bias=[0.0, 1e-9])
        assert (result.winner, result.status) == (0, DECIDED)
        if result.rows < 1_000:
            assert 321 in same_batch(1_000, result.rows, seed)
