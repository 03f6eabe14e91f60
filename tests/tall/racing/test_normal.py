import itertools
import math

import numpy as np
import pytest

from scipy.stats import multivariate_normal, norm

from amc_pymc.tall.racing import normal as normal_module
from amc_pymc.tall.racing.normal import (
    b_normal,
    crossing_probability,
    expected_rows,
    race_cost_bound,
)

# Chen & Ghahramani (2016), table 1: delta, then B_Normal for each share of the first batch.
TABLE_FRACTIONS = (5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2)
TABLE = [
    (1.0e-06, 5.27250, 5.25978, 5.21523, 5.19704, 5.15638, 5.12982),
    (3.0e-06, 5.06504, 5.05294, 5.00570, 4.98839, 4.94490, 4.91964),
    (5.0e-06, 4.96669, 4.95260, 4.90571, 4.88735, 4.84311, 4.81818),
    (7.0e-06, 4.89969, 4.88715, 4.83793, 4.82079, 4.77535, 4.75037),
    (9.0e-06, 4.85078, 4.83613, 4.78840, 4.76941, 4.72447, 4.69877),
    (1.0e-05, 4.82952, 4.81667, 4.76734, 4.74894, 4.70377, 4.67696),
    (3.0e-05, 4.60397, 4.58943, 4.53827, 4.51911, 4.47119, 4.44485),
    (5.0e-05, 4.49660, 4.48108, 4.42961, 4.40734, 4.36137, 4.33158),
    (7.0e-05, 4.42331, 4.40694, 4.35512, 4.33353, 4.28573, 4.25692),
    (9.0e-05, 4.36853, 4.35265, 4.29963, 4.27682, 4.22961, 4.19891),
    (1.0e-04, 4.34343, 4.32914, 4.27380, 4.25455, 4.20386, 4.17608),
    (3.0e-04, 4.09380, 4.07655, 4.02027, 3.99632, 3.94601, 3.91438),
    (5.0e-04, 3.97189, 3.95539, 3.89641, 3.87263, 3.82038, 3.78605),
    (7.0e-04, 3.88945, 3.87195, 3.81223, 3.78698, 3.73467, 3.70026),
    (9.0e-04, 3.82665, 3.80955, 3.74833, 3.72365, 3.66977, 3.63422),
    (1.0e-03, 3.79932, 3.78066, 3.72003, 3.69596, 3.64066, 3.60812),
    (3.0e-03, 3.51044, 3.49128, 3.42498, 3.39721, 3.34023, 3.30253),
    (5.0e-03, 3.36685, 3.34814, 3.27812, 3.25096, 3.19048, 3.15168),
    (7.0e-03, 3.26922, 3.24913, 3.17763, 3.14844, 3.08769, 3.04691),
    (9.0e-03, 3.19383, 3.17396, 3.10034, 3.07142, 3.00871, 2.96758),
    (1.0e-02, 3.16117, 3.13913, 3.06612, 3.03755, 2.97349, 2.93484),
    (3.0e-02, 2.80261, 2.77885, 2.69625, 2.66350, 2.59450, 2.55058),
    (5.0e-02, 2.61646, 2.59217, 2.50369, 2.46819, 2.39672, 2.34862),
    (7.0e-02, 2.48285, 2.45761, 2.36449, 2.33100, 2.25369, 2.20744),
    (9.0e-02, 2.37768, 2.35127, 2.25533, 2.22026, 2.14145, 2.09317),
    (1.0e-01, 2.33161, 2.30704, 2.20851, 2.17274, 2.09292, 2.04351),
    (1.3e-01, 2.21073, 2.18499, 2.08270, 2.04536, 1.96346, 1.91214),
    (1.6e-01, 2.10639, 2.08030, 1.97430, 1.93665, 1.85177, 1.80027),
    (1.9e-01, 2.01355, 1.98592, 1.87702, 1.83878, 1.75267, 1.69949),
    (2.2e-01, 1.92898, 1.90035, 1.78969, 1.74854, 1.66259, 1.60660),
    (2.5e-01, 1.84734, 1.81893, 1.70515, 1.66472, 1.57552, 1.52056),
    (2.8e-01, 1.76920, 1.73957, 1.62421, 1.58220, 1.49310, 1.43584),
    (3.1e-01, 1.69110, 1.66145, 1.54360, 1.50171, 1.41066, 1.35354),
    (3.4e-01, 1.61302, 1.58274, 1.46319, 1.42011, 1.32819, 1.27094),
    (3.7e-01, 1.52953, 1.49919, 1.37749, 1.33482, 1.24221, 1.18303),
    (4.0e-01, 1.44411, 1.41048, 1.28960, 1.24393, 1.15002, 1.09455),
    (4.3e-01, 1.33819, 1.30896, 1.18163, 1.14025, 1.04396, 0.98381),
    (4.6e-01, 1.20662, 1.17447, 1.05191, 1.00383, 0.91939, 0.85273),
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


def test_table_1_is_not_one_sided():
    assert b_normal(0.49, 5e-5, sides="one") == pytest.approx(1.4351, abs=1e-4)
    assert TABLE[-1][1] == 0.97014


@pytest.mark.parametrize(
    ("delta", "error"), [(0.05, 0.0504), (0.1, 0.1021), (0.25, 0.2702), (0.4, 0.4846)]
)
def test_error_of_the_two_sided_constant_without_the_other_side(delta, error):
    b = b_normal(delta, 5e-5)
    assert crossing_probability(b, 5e-5, sides="one") == pytest.approx(error, abs=5e-5)


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("first_fraction", [1e-9, 5e-5, 0.01, 0.1, 0.3, 0.4999])
@pytest.mark.parametrize("delta", [1e-8, 1e-3, 0.05, 0.3, 0.49])
def test_inverse_and_converged(monkeypatch, delta, first_fraction, sides):
    b = b_normal(delta, first_fraction, sides=sides)
    assert crossing_probability(b, first_fraction, sides=sides) == pytest.approx(delta, rel=1e-9)
    monkeypatch.setattr(normal_module, "_NODES", 48)
    monkeypatch.setattr(normal_module, "_NODES_PER_SD", 8)
    monkeypatch.setattr(normal_module, "_LOG_NEGLIGIBLE", 80.0)
    assert crossing_probability(b, first_fraction, sides=sides) == pytest.approx(delta, rel=1e-9)


@pytest.mark.parametrize("gap", [0.0, 0.3, -0.3])
@pytest.mark.parametrize("first_fraction", [0.25, 0.3, 0.45])
def test_two_rounds_in_closed_form(first_fraction, gap):
    b = 1.3
    shares = np.array([first_fraction, 2 * first_fraction])
    information = shares / (1 - shares)
    correlation = math.sqrt(information[0] / information[1])
    means = -gap * np.sqrt(information / information[0])
    walk = multivariate_normal(means, [[1, correlation], [correlation, 1]])
    first = norm.sf(b, means[0])
    for sides, low in (("one", -40), ("two", -b)):
        second = walk.cdf([b, 40], lower_limit=[low, b], rng=np.random.default_rng(1))
        found = crossing_probability(b, first_fraction, sides=sides, gap=gap)
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


@pytest.mark.parametrize("gap", [0.0, 0.1, 0.4, -0.2])
@pytest.mark.parametrize("b", [0.9, 1.6, 2.2])
def test_forward_map_against_sampling_without_replacement(errors_of_means, b, gap):
    shift = gap * standard_errors(1.0)[0] / standard_errors(1.0)
    walk = errors_of_means - shift
    up, down = first_true(walk >= b), first_true(walk <= -b)
    fraction = BATCH_SIZE / N_ROWS
    assert_binomial(up < walk.shape[1], crossing_probability(b, fraction, sides="one", gap=gap))
    assert_binomial(up < down, crossing_probability(b, fraction, gap=gap))
    assert_binomial(down < up, crossing_probability(b, fraction, gap=-gap))


@pytest.mark.parametrize("gap", [0.0, 0.05, -0.2, 0.5])
@pytest.mark.parametrize("b", [1.0, 2.0])
def test_expected_rows_against_sampling_without_replacement(errors_of_means, b, gap):
    walk = errors_of_means + gap / standard_errors(1.0)
    rows = np.append(rows_read(), N_ROWS)[first_true(np.abs(walk) >= b)]
    allowed = 4 * rows.std() / math.sqrt(rows.size) + 1e-9
    assert abs(rows.mean() - expected_rows(gap, N_ROWS, BATCH_SIZE, b)) < allowed


@pytest.mark.parametrize("sides", SIDES)
def test_b_falls_with_delta(sides):
    deltas = [1e-8, 1e-6, 1e-3, 0.05, 0.3, 0.49]
    for fraction in (1e-6, 0.01, 0.3, 0.7):
        assert np.all(np.diff([b_normal(delta, fraction, sides=sides) for delta in deltas]) < 0)


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("delta", [1e-6, 0.05, 0.4])
def test_b_falls_when_a_round_goes_and_rises_between(delta, sides):
    by_round = [b_normal(delta, 2.0**-k, sides=sides) for k in range(1, 20)]
    assert np.all(np.diff(by_round) > 0)
    within = [b_normal(delta, f, sides=sides) for f in (0.0625, 0.08, 0.1, 0.12, 0.1249)]
    assert np.all(np.diff(within) > 0)
    assert b_normal(delta, 0.125, sides=sides) < within[0]


@pytest.mark.parametrize("delta", [1e-6, 0.05, 0.4])
@pytest.mark.parametrize("first_fraction", [1e-6, 0.01, 0.3])
def test_one_side_asks_for_more(delta, first_fraction):
    two, one = (b_normal(delta, first_fraction, sides=sides) for sides in SIDES)
    # the two differ by paths that visit both sides, which nobody can tell at delta = 1e-6
    assert one > two if delta > 1e-6 else one == pytest.approx(two, abs=1e-7)
    rounds = math.ceil(-math.log2(first_fraction))
    assert norm.isf(delta) < two < norm.isf(delta / rounds)


@pytest.mark.parametrize("sides", SIDES)
def test_error_at_a_gap_is_below_delta(sides):
    b = b_normal(0.1, 1e-3, sides=sides)
    gaps = [0.0, 1e-3, 0.01, 0.1, 0.5, 1.0, 5.0, 30.0]
    errors = [crossing_probability(b, 1e-3, sides=sides, gap=gap) for gap in gaps]
    assert errors[0] == pytest.approx(0.1)
    assert np.all(np.diff(errors) < 0)
    assert errors[-1] > 0  # tails keep their relative accuracy
    assert errors[-1] == pytest.approx(norm.sf(b + 30.0))
    assert crossing_probability(b, 1e-3, sides=sides, gap=1e6) == 0.0
    assert crossing_probability(b, 1e-3, sides=sides, gap=-30.0) == pytest.approx(1.0)
    assert crossing_probability(b, 1e-3, sides=sides, gap=-1e6) == 1.0


@pytest.mark.parametrize("sides", SIDES)
def test_one_check_or_none(sides):
    for fraction in (0.5, 0.75, 1 - 1e-12):
        assert b_normal(0.05, fraction, sides=sides) == pytest.approx(norm.isf(0.05), abs=1e-12)
        found = crossing_probability(1.0, fraction, sides=sides, gap=0.5)
        assert found == pytest.approx(norm.sf(1.5))
    for fraction in (1, 1.0, 3.0):
        assert b_normal(0.05, fraction, sides=sides) == 0.0
        assert crossing_probability(1.0, fraction, sides=sides) == 0.0


def test_a_constant_of_zero_decides_at_the_first_check():
    assert crossing_probability(0.0, 1e-3) == pytest.approx(0.5)
    assert crossing_probability(0.0, 1e-3, gap=1.0) == pytest.approx(norm.sf(1.0))
    assert expected_rows(0.0, 1000, 10, 0.0) == pytest.approx(10)


def test_extreme_but_legal():
    assert norm.isf(1e-300) < b_normal(1e-300, 1e-12, sides="one") < norm.isf(1e-302)
    assert b_normal(np.float64(0.05), np.float64(0.01)) == b_normal(0.05, 0.01)
    assert type(b_normal(np.float64(0.05), np.float64(0.75))) is float


@pytest.mark.parametrize("delta", [0.0, 0.5, -0.1, 1.0, math.nan, math.inf])
def test_bad_delta(delta):
    with pytest.raises(ValueError, match=f"delta .*got {delta!r}"):
        b_normal(delta, 0.01)
    with pytest.raises(ValueError, match=f"delta .*got {delta!r}"):
        race_cost_bound(0.1, 100, 100, delta)


@pytest.mark.parametrize("fraction", [0.0, -0.1, math.nan, math.inf])
def test_bad_first_fraction(fraction):
    for call in (b_normal, crossing_probability):
        with pytest.raises(ValueError, match=f"first_fraction .*got {fraction!r}"):
            call(0.1, fraction)


def test_bad_sides():
    for call in (b_normal, crossing_probability):
        with pytest.raises(ValueError, match=r"sides .*'two', 'one'.*got 'both'"):
            call(0.1, 0.1, sides="both")


@pytest.mark.parametrize("b", [-1.0, math.nan, math.inf])
def test_bad_bound(b):
    for call in (
        lambda: crossing_probability(b, 0.1),
        lambda: expected_rows(0.1, 100, 10, b),
    ):
        with pytest.raises(ValueError, match=f"b must .*got {b!r}"):
            call()


def test_bad_gap():
    for call in (
        lambda: crossing_probability(1.0, 0.1, gap=math.nan),
        lambda: race_cost_bound(math.nan, 100, 10, 0.05),
        lambda: expected_rows(math.nan, 100, 10, 1.0),
    ):
        with pytest.raises(ValueError, match=r"gap .*got nan"):
            call()
    with pytest.raises(ValueError, match=r"gap .*got -0\.1"):
        race_cost_bound(-0.1, 100, 10, 0.05)


@pytest.mark.parametrize("name", ["n_rows", "batch_size"])
def test_bad_sizes(name):
    for size, error in ((0, ValueError), (-3, ValueError), (2.5, TypeError), ("9", TypeError)):
        sizes = {"n_rows": 100, "batch_size": 10, name: size}
        with pytest.raises(error, match=f"{name} .*got {size!r}"):
            race_cost_bound(0.1, delta=0.05, **sizes)
        with pytest.raises(error, match=f"{name} .*got {size!r}"):
            expected_rows(0.1, b=1.0, **sizes)


def test_bad_arms_or_variance():
    with pytest.raises(ValueError, match=r"n_arms .*got 1"):
        race_cost_bound(0.1, 100, 10, 0.05, 1)
    with pytest.raises(ValueError, match=r"variance .*'pairwise', 'marginal'.*got 'both'"):
        race_cost_bound(0.1, 100, 10, 0.05, variance="both")


def test_cost_bound_by_hand():
    # Table 1: B(0.05, 0.01) = 2.34862, so 1000/(999 * 0.09/(4 * 5.516) + 1) = 197.05 -> 320 rows.
    assert race_cost_bound(0.3, 1000, 10, 0.05) == 2 * 320
    # One check: B = 1.6449. 100/(99 * 0.09/10.822 + 1) = 54.8 -> 100; 0.16 for 0.09: 40.6 -> 50.
    assert race_cost_bound(0.3, 100, 50, 0.05) == 200
    assert race_cost_bound(0.4, 100, 50, 0.05) == 100
    # delta/D' decides: 0.1/2 pairwise with three arms, 0.1/2 marginal with two.
    assert race_cost_bound(0.3, 100, 50, 0.1, 3) == 300
    assert race_cost_bound(0.4, 100, 50, 0.1, 3) == 150
    assert race_cost_bound(0.4, 100, 50, 0.1, variance="marginal") == 100
    # B(0.025) = 1.96: 100/(99 * 0.1225/15.366 + 1) = 55.9, while B(0.05) gives 47.2.
    assert race_cost_bound(0.35, 100, 50, 0.05) == 100
    assert race_cost_bound(0.35, 100, 50, 0.05, variance="marginal") == 200
    assert race_cost_bound(0.35, 100, 50, 0.05, 3) == 300


def test_cost_bound_takes_the_constant_that_applies(monkeypatch):
    asked = []
    monkeypatch.setattr(
        normal_module,
        "b_normal",
        lambda delta, fraction, *, sides: asked.append((delta, sides)) or 2.0,
    )
    for n_arms, variance in itertools.product((2, 3), ("pairwise", "marginal")):
        race_cost_bound(0.1, 100, 10, 0.3, n_arms, variance=variance)
    assert asked == [(0.3, "two"), (0.15, "one"), (0.15, "one"), (0.3 / 3, "one")]


def test_cost_bound_limits():
    n_rows, batch_size = 10_000, 50
    enough = (
        2
        * b_normal(0.05, batch_size / n_rows)
        * math.sqrt((n_rows / batch_size - 1) / (n_rows - 1))
    )
    assert race_cost_bound(0.0, n_rows, batch_size, 0.05) == 2 * n_rows
    assert race_cost_bound(enough * 1.0001, n_rows, batch_size, 0.05) == 2 * batch_size
    assert race_cost_bound(enough * 0.9999, n_rows, batch_size, 0.05) == 4 * batch_size
    assert race_cost_bound(1e3, n_rows, batch_size, 0.05) == 2 * batch_size
    assert race_cost_bound(1e-3, 40, 50, 0.05, 4) == 160
    assert race_cost_bound(0.0, 1, 1, 0.05) == 2


def test_expected_rows_is_below_the_bound_and_vectorised():
    n_rows, batch_size, delta = 100_000, 50, 0.05
    gaps = np.array([[0.0, 0.01, 0.03], [0.1, 0.3, 3.0]])
    b = b_normal(delta, batch_size / n_rows)
    rows = expected_rows(gaps, n_rows, batch_size, b)
    assert rows.shape == gaps.shape
    assert np.all(np.diff(rows.ravel()) < 0)
    assert expected_rows(0.03, n_rows, batch_size, b) == rows[0, 2]
    np.testing.assert_allclose(expected_rows(-gaps, n_rows, batch_size, b), rows)
    bounds = [race_cost_bound(gap, n_rows, batch_size, delta) / 2 for gap in gaps.ravel()]
    assert np.all(rows.ravel() <= bounds)
    assert rows[1, 2] == pytest.approx(batch_size)


def test_expected_rows_with_a_large_constant():
    gaps = np.array([0.0, 1e-4, 0.01, 0.1, 1.0, 10.0])
    rows = expected_rows(gaps, 10**6, 50, 37.0)
    # The walk stays near its drift, which reaches 37 at 37^2 (N - T)/((N - 1) gap^2) = T.
    np.testing.assert_allclose(rows[[0, 1, 2]], 10**6)
    assert 50 * 2**11 <= rows[3] <= 50 * 2**13
    assert 50 * 2**4 <= rows[4] <= 50 * 2**6
    assert rows[5] == pytest.approx(50)
    with pytest.raises(ValueError, match=r"b must be at most 37.*got 50"):
        expected_rows(gaps, 10**6, 50, 50)


@pytest.mark.parametrize("gap", [1e200, np.float64(1e306), math.inf])
def test_a_gap_without_noise(gap):
    assert expected_rows(gap, 10**6, 50, 2.5) == 50
    np.testing.assert_array_equal(expected_rows([-gap, gap], 10**6, 50, 2.5), [50, 50])
    assert race_cost_bound(gap, 10**6, 50, 0.05) == 100
    for sides in SIDES:
        assert crossing_probability(2.5, 1e-5, sides=sides, gap=gap) == 0.0
        assert crossing_probability(2.5, 1e-5, sides=sides, gap=-gap) == 1.0


def test_expected_rows_by_hand():
    # Two rows of four, mean with variance 1/2 (4 - 2)/(4 - 1) = 1/3; then all four.
    mean, b = 0.5 * math.sqrt(3), 0.8
    racing = norm.cdf(b, mean) - norm.cdf(-b, mean)
    assert expected_rows(0.5, 4, 2, b) == pytest.approx(2 + 2 * racing)


def test_expected_rows_when_the_first_batch_is_everything():
    assert expected_rows(0.3, 40, 50, 1.0) == 40
    np.testing.assert_array_equal(expected_rows([0.0, 1.0], 40, 40, 1.0), [40, 40])
    assert expected_rows(0.0, 1, 1, 1.0) == 1
