"""Rules of races against formulas worked out by hand and the paper's table, and the error they promise."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from scipy.stats import multivariate_normal, norm
from tall.race_tables import normal_scores, run

from amc_pymc.results import clopper_pearson
from amc_pymc.tall.racing import (
    DECIDED,
    ExactRace,
    NormalRace,
    as_race,
    b_normal,
    crossing_probability,
    draw_rows,
    make_population,
)

# --- factors --------------------------------------------------------------------------------------


def test_normal_factors():
    n, m = 1_000, 50
    for n_arms, share, sides in ((2, 1, "two"), (5, 4, "one")):
        rule = NormalRace(delta=0.1, batch_size=m).rule(n, n_arms)
        assert rule.sizes.tolist() == [50, 100, 200, 400, 800, 1_000]
        b = b_normal(0.1 / share, m / n, sides=sides)
        expected = [b * math.sqrt((1 - (size - 1) / (n - 1)) / size) for size in rule.sizes]
        np.testing.assert_allclose(rule.sd_factor, expected, atol=1e-15)
        assert not rule.offset.any()
        assert rule.guarded


# --- the engine applies them ----------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 0.3])
@pytest.mark.parametrize("n_arms", [2, 12])
def test_the_first_round_decides_at_the_half_width(n_arms, offset):
    """Batches of one round from NumPy's moments: last arm against the best, all others far off."""
    n_rows, m = 2_000, 60
    rng = np.random.default_rng([n_arms, int(10 * offset)])
    table = rng.gamma(2.0, size=(n_arms, n_rows)) + 3.0 * rng.normal(size=n_rows)
    rule = NormalRace(delta=0.2, batch_size=m).rule(n_rows, n_arms)
    rule = rule._replace(offset=np.full(rule.sizes.size, offset))
    for seed in range(10):
        rows = np.empty(m, np.int64)
        draw_rows(n_rows, make_population(n_rows).marked, rows, np.random.default_rng(seed))
        batch = table[:, rows]
        x, i = batch[0], batch[-1]
        half = rule.sd_factor[0] * np.std(x - i, ddof=1) + offset
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
    rule = NormalRace(batch_size=m).rule(n_rows, n_arms)
    rows = np.empty(m, np.int64)
    draw_rows(n_rows, make_population(n_rows).marked, rows, np.random.default_rng(1))
    d = table[3, rows] - table[7, rows]
    half = rule.sd_factor[0] * np.std(d, ddof=1)
    for factor, decided in ((1 - 1e-6, False), (1 + 1e-6, True)):
        bias = np.full(n_arms, -1e9)
        bias[3], bias[7] = 0.0, d.mean() - half * factor
        result = run(table, rule, np.random.default_rng(1), bias)
        assert (result.rounds == 1) == decided


# --- limits ---------------------------------------------------------------------------------------


def test_impossible_and_lone_arms():
    rng = np.random.default_rng(2)
    table = rng.normal(size=(4, 1_000))
    table[1, ::3] = -np.inf
    table[3, ::2] = -np.inf
    rule = NormalRace().rule(1_000, 4)
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
    assert run(np.ones((1, 1_000)), NormalRace().rule(1_000, 1), rng).winner == 0


def test_a_rule_for_other_rows_is_refused():
    table = np.zeros((2, 100))
    with pytest.raises(ValueError, match="another number of rows"):
        run(table, ExactRace().rule(99, 2), np.random.default_rng(1))


# --- the bounds -----------------------------------------------------------------------------------


# Chen & Ghahramani (2016), table 1: delta, then B_Normal for each share of the first batch.
TABLE_FRACTIONS = (5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2)
TABLE = [
    (1.0e-06, 5.27250, 5.25978, 5.21523, 5.19704, 5.15638, 5.12982),
    (9.0e-06, 4.85078, 4.83613, 4.78840, 4.76941, 4.72447, 4.69877),
    (7.0e-05, 4.42331, 4.40694, 4.35512, 4.33353, 4.28573, 4.25692),
    (5.0e-04, 3.97189, 3.95539, 3.89641, 3.87263, 3.82038, 3.78605),
    (3.0e-03, 3.51044, 3.49128, 3.42498, 3.39721, 3.34023, 3.30253),
    (1.0e-02, 3.16117, 3.13913, 3.06612, 3.03755, 2.97349, 2.93484),
    (9.0e-02, 2.37768, 2.35127, 2.25533, 2.22026, 2.14145, 2.09317),
    (1.9e-01, 2.01355, 1.98592, 1.87702, 1.83878, 1.75267, 1.69949),
    (3.1e-01, 1.69110, 1.66145, 1.54360, 1.50171, 1.41066, 1.35354),
    (4.3e-01, 1.33819, 1.30896, 1.18163, 1.14025, 1.04396, 0.98381),
    (4.9e-01, 0.97014, 0.94399, 0.81030, 0.76485, 0.69587, 0.61783),
]
SIDES = ("two", "one")


def table_tolerance(delta):
    """The paper's grid is coarse where B is small."""
    return 0.004 if delta <= 0.40 else 0.015 if delta <= 0.46 else 0.04


@pytest.mark.parametrize("line", TABLE, ids=lambda line: str(line[0]))
def test_table_1_of_the_paper(line):
    delta, *expected = line
    found = [b_normal(delta, fraction) for fraction in TABLE_FRACTIONS]
    np.testing.assert_allclose(found, expected, rtol=0, atol=table_tolerance(delta))


@pytest.mark.parametrize(
    ("delta", "error"), [(0.05, 0.0504), (0.1, 0.1021), (0.25, 0.2702), (0.4, 0.4846)]
)
def test_error_of_the_two_sided_constant_without_the_other_side(delta, error):
    b = b_normal(delta, 5e-5)
    assert crossing_probability(b, 5e-5, sides="one") == pytest.approx(error, abs=5e-5)


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("first_fraction", [1e-9, 0.01, 0.4999])
@pytest.mark.parametrize("delta", [1e-8, 0.05, 0.49])
def test_the_bound_is_crossed_with_probability_delta(delta, first_fraction, sides):
    b = b_normal(delta, first_fraction, sides=sides)
    assert crossing_probability(b, first_fraction, sides=sides) == pytest.approx(delta, rel=1e-9)


@pytest.mark.parametrize("first_fraction", [0.25, 0.3, 0.45])
def test_two_rounds_in_closed_form(first_fraction):
    b = 1.3
    shares = np.array([first_fraction, 2 * first_fraction])
    information = shares / (1 - shares)
    correlation = math.sqrt(information[0] / information[1])
    walk = multivariate_normal([0, 0], [[1, correlation], [correlation, 1]])
    first = norm.sf(b)
    for sides, low in (("one", -40), ("two", -b)):
        second = walk.cdf([b, 40], lower_limit=[low, b], rng=np.random.default_rng(1))
        found = crossing_probability(b, first_fraction, sides=sides)
        assert found == pytest.approx(first + second, abs=1e-9)


N_ROWS, BATCH_SIZE, REPEATS = 512, 16, 20_000


@pytest.fixture(scope="module")
def errors_of_means():
    """Mean of the rows read minus population mean, in standard errors: (repeats, rounds < last).

    Real sampling without replacement from one finite population.
    """
    rng = np.random.default_rng(20160619)
    population = rng.normal(3.0, 2.0, N_ROWS)
    centred = population - population.mean()
    batches = []
    for _ in range(REPEATS // 1000):
        order = rng.permuted(np.tile(centred, (1000, 1)), axis=1)
        batches.append(np.cumsum(order, axis=1)[:, rows_read() - 1])
    means = np.concatenate(batches) / rows_read()
    return means / standard_errors(population.std())


def rows_read():
    return BATCH_SIZE * 2 ** np.arange(int(math.log2(N_ROWS / BATCH_SIZE)))


def standard_errors(sd):
    rows = rows_read()
    return sd * np.sqrt((1 - (rows - 1) / (N_ROWS - 1)) / rows)


def first_true(crossed):
    return np.where(crossed.any(axis=1), crossed.argmax(axis=1), crossed.shape[1])


def assert_binomial(hits, probability, z=4):
    allowed = z * math.sqrt(probability * (1 - probability) / hits.size)
    assert abs(hits.mean() - probability) < allowed


@pytest.mark.parametrize("b", [0.9, 2.2])
def test_forward_map_against_sampling_without_replacement(errors_of_means, b):
    walk, fraction = errors_of_means, BATCH_SIZE / N_ROWS
    up, down = first_true(walk >= b), first_true(walk <= -b)
    assert_binomial(up < walk.shape[1], crossing_probability(b, fraction, sides="one"))
    assert_binomial(up < down, crossing_probability(b, fraction))


@pytest.mark.parametrize("gap", [0.0, -0.2, 0.5])
@pytest.mark.parametrize("b", [1.0, 2.0])
def test_expected_rows_against_sampling_without_replacement(errors_of_means, b, gap):
    walk = errors_of_means + gap / standard_errors(1.0)
    rows = np.append(rows_read(), N_ROWS)[first_true(np.abs(walk) >= b)]
    allowed = 4 * rows.std() / math.sqrt(rows.size) + 1e-9
    assert abs(rows.mean() - NormalRace(0.05, BATCH_SIZE).expected_rows(gap, N_ROWS, b)) < allowed


@pytest.mark.parametrize("sides", SIDES)
def test_one_check_or_none(sides):
    for fraction in (0.5, 0.75, 1 - 1e-12):
        assert b_normal(0.05, fraction, sides=sides) == pytest.approx(norm.isf(0.05), abs=1e-12)
        assert crossing_probability(1.0, fraction, sides=sides) == pytest.approx(norm.sf(1.0))
    for fraction in (1, 1.0, 3.0):
        assert b_normal(0.05, fraction, sides=sides) == 0.0
        assert crossing_probability(1.0, fraction, sides=sides) == 0.0


@pytest.mark.parametrize("gap", [1e200, np.float64(1e306), math.inf])
def test_a_gap_without_noise(gap):
    found = NormalRace().expected_rows([gap, -gap, gap], 10**6, 2.5)
    np.testing.assert_array_equal(found, [50, 50, 50])


def test_expected_rows_by_hand():
    # Two rows of four, mean with variance 1/2 (4 - 2)/(4 - 1) = 1/3; then all four.
    mean, b = 0.5 * math.sqrt(3), 0.8
    racing = norm.cdf(b, mean) - norm.cdf(-b, mean)
    assert NormalRace(0.05, 2).expected_rows(0.5, 4, b) == pytest.approx(2 + 2 * racing)


# --- settings -------------------------------------------------------------------------------------

RACES = [NormalRace, ExactRace]


@pytest.mark.parametrize("kind", RACES)
def test_any_number_of_rows_and_arms(kind):
    assert kind().delta == (0.0 if kind is ExactRace else 0.05)
    for n_raced, n_arms in itertools.product([0, 1, 2, 49, 50, 51, 10**6], [1, 2, 100]):
        rule = kind().rule(n_raced, n_arms)
        assert rule.sizes[-1] == n_raced
        assert np.all(np.diff(rule.sizes) > 0)
        assert rule.sizes.shape == rule.sd_factor.shape == rule.offset.shape
        assert np.all(np.isfinite(rule.sd_factor[:-1]))
    assert ExactRace().rule(10**7, 2).sizes.tolist() == [10**7]


@pytest.mark.parametrize("kind", RACES)
def test_expected_rows_fall_with_the_gap_and_stay_within_the_rows(kind):
    gaps = np.array([0.0, 1e-3, 0.1, 3.0, -3.0])
    for n_raced in (1, 40, 100_000):
        rows = kind().expected_rows(gaps, n_raced)
        assert rows.shape == gaps.shape
        assert np.all((rows > 0) & (rows <= n_raced))
        assert np.all(np.diff(rows[:4]) <= 0)
        assert rows[4] == rows[3]
    assert np.shape(kind().expected_rows(0.1, 100)) == ()


NO_DELTA = [0, 0.5, 1, -1, np.nan, np.inf, True, False, "0.05", None, 0.1j, [0.1]]
NO_SIZE = [0, 1, -1, 2.5, True, "50", None, np.nan, np.inf, [50], np.array([50, 60])]


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("delta", NO_DELTA, r"delta must lie in \(0, 0.5\), got"),
        ("batch_size", NO_SIZE, "batch_size must be .*got"),
    ],
)
def test_settings_out_of_range(name, values, message):
    for value in values:
        with pytest.raises((ValueError, TypeError), match=message):
            NormalRace(**{name: value})


@pytest.mark.parametrize(
    ("given", "race"),
    [
        (("normal", 0.1, 60), NormalRace(0.1, 60)),
        (("normal", None, 60), NormalRace(batch_size=60)),
        (("exact",), ExactRace()),
    ],
)
def test_races_by_name(given, race):
    assert as_race(*given) == race
    assert as_race(race) is race


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        *((r, ValueError, "race must be 'auto', 'normal'.*got") for r in ["nrmal", 3, None, True, NormalRace, ["normal"]]),
        *(
            ({"race": race, name: value}, ValueError, rf"{name}={value!r} has no meaning for race={type(race).__name__}\(")
            for race in (NormalRace(0.2, 60), ExactRace())
            for name, value in {"delta": 0.05, "batch_size": 50}.items()
        ),
        ({"race": "exact", "delta": 0.7}, ValueError, "delta=0.7 has no meaning for race='exact'"),
        ({"race": "normal", "batch_size": 2.5}, TypeError, "batch_size"),
    ],
)  # fmt: skip
def test_races_that_are_refused(given, error, message):
    with pytest.raises(error, match=message):
        as_race(**given) if isinstance(given, dict) else as_race(given)


def test_b_normal_refuses_what_is_no_probability():
    for delta in (0.0, 0.5, -0.1, 1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"delta .*got {delta!r}"):
            b_normal(delta, 0.01)
    for fraction in (0.0, -0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"first_fraction .*got {fraction!r}"):
            b_normal(0.1, fraction)


def test_the_one_sided_constant_matters():
    """Two arms judged by one side only: the two-sided constant errs more than delta = 0.4."""
    n_rows, m, delta, n = 6_400, 100, 0.4, 20_000
    rng = np.random.default_rng(5)
    arm = normal_scores(n_rows, rng)
    sums = np.empty((n, 6))
    sizes = m * 2 ** np.arange(6)
    for k in range(n):
        sums[k] = np.cumsum(rng.permutation(arm)[: sizes[-1]])[sizes - 1]
    z = sums / sizes / np.sqrt((1 - (sizes - 1) / (n_rows - 1)) / sizes)
    for sides, within in (("one", True), ("two", False)):
        crossed = np.sum(np.any(z >= b_normal(delta, m / n_rows, sides=sides), axis=1))
        low, _ = clopper_pearson(int(crossed), n, 0.999)
        assert (low <= delta) == within


def test_expected_rows_of_a_normal_race_are_those_of_the_bound():
    gaps = np.array([[0.0, 0.01], [0.1, math.inf]])
    race = NormalRace(0.01, 100)
    expected = race.expected_rows(gaps, 50_000, b_normal(0.01, 100 / 50_000))
    np.testing.assert_array_equal(race.expected_rows(gaps, 50_000), expected)
