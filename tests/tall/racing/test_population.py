import itertools

import numpy as np
import pytest

from compiled_calls import compiled_on_first_use
from scipy.stats import chi2

from amc_pymc.tall.racing import REWARDS, make_population, normal_rule, race
from amc_pymc.tall.racing.population import draw_rows, forget_all, forget_rows, sweep_rows


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


def test_bits_are_set_where_rows_are_taken_out():
    exact = [0, 5, 63, 64, 100]
    population = make_population(130, exact)
    assert population.marked.size == 3
    bits = np.unpackbits(population.marked.view(np.uint8), bitorder="little")
    np.testing.assert_array_equal(np.flatnonzero(bits), exact)
    np.testing.assert_array_equal(population.exact, exact)


def test_exact_rows_may_be_unsorted_and_repeated():
    population = make_population(10, [5, 2, 5])
    assert population.n_raced == 8
    np.testing.assert_array_equal(population.exact, [2, 5])


def test_sweep_gives_what_is_left_in_order_and_marks_nothing():
    rng = np.random.default_rng(1)
    population = make_population(200, [0, 3, 64, 199])
    drawn = np.empty(90, np.int64)
    draw_rows(population.n_rows, population.marked, drawn, rng)
    marked = population.marked.copy()
    left = np.setdiff1d(np.arange(200), np.concatenate([drawn, population.exact]))
    swept, start = [], 0
    buffer = np.empty(7, np.int64)
    while True:
        m, start = sweep_rows(population.n_rows, population.marked, start, buffer)
        swept.extend(buffer[:m].tolist())
        if m < buffer.size:
            break
    np.testing.assert_array_equal(swept, left)
    assert start == 200
    np.testing.assert_array_equal(population.marked, marked)


def test_forgetting_all_leaves_the_exact_rows_taken_out():
    population = make_population(300, [7, 290])
    base = population.marked.copy()
    draw_rows(
        population.n_rows, population.marked, np.empty(250, np.int64), np.random.default_rng(2)
    )
    forget_all(population)
    np.testing.assert_array_equal(population.marked, base)


@pytest.mark.parametrize("batch_size", [2, 50, 700, 3000, 4500, 8999, 10_000, 20_000])
@pytest.mark.parametrize("special", [0.0, -np.inf, np.nan], ids=["ordinary", "impossible", "nan"])
def test_the_bitmap_is_put_back_after_a_race(batch_size, special):
    rng = np.random.default_rng(batch_size)
    population = make_population(10_000, [0, 17, 9_999])
    base = population.marked.copy()
    for lead in (0.0, 0.01, 0.05, -0.3, 2.0):
        points = np.array([[0.0, 0.0, 0.0], [lead, rng.integers(1, 9_000), special]])
        rule = normal_rule(9_997, 2, batch_size=batch_size)
        race(alternating(), points, np.zeros(1), np.zeros(2), population, rule, rng)
        np.testing.assert_array_equal(population.marked, base)


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
            normal_rule(0, 2),
            np.random.default_rng(1),
        )
        assert (result.winner, result.rows, result.rounds) == (winner, 0, 0)
