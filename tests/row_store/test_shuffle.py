"""The order of rows in a store is uniformly random, and memory does not grow with their number."""

import tracemalloc

import numpy as np
import pytest

from row_store.packings import Copies, make_data, make_store, table_of
from scipy import stats

from amc_pymc.row_store.shuffle import Dealer, bucket_bounds


def dealt(n, bucket, chunk, rng):
    """The order that dealing leaves, before buckets are shuffled."""
    out, dealer = np.full(n, -1), Dealer(bucket_bounds(n, bucket), rng)

    def put(place, rows):
        assert np.all(out[place : place + len(rows)] == -1)
        out[place : place + len(rows)] = rows

    for start in range(0, n, chunk):
        dealer.deal(np.arange(start, min(start + chunk, n)), put)
    return out


def test_every_row_is_equally_likely_in_every_bucket():
    rng, n = np.random.default_rng(1), 10
    counts, runs = np.zeros((n, 3)), 6_000
    pairs = np.zeros((3, 3))
    for _ in range(runs):
        bucket = np.empty(n, int)
        bucket[dealt(n, 4, 3, rng)] = np.arange(n) // 4
        counts[np.arange(n), bucket] += 1
        pairs[bucket[0], bucket[9]] += 1
    expected = runs * np.array([0.4, 0.4, 0.2])
    assert stats.chisquare(counts, np.tile(expected, (n, 1)), axis=1).pvalue.min() > 1e-3
    sizes = np.array([4, 4, 2])
    joint = (np.outer(sizes, sizes) - np.diag(sizes)) / 90
    assert stats.chisquare(pairs.ravel(), (runs * joint).ravel()).pvalue > 1e-3


def test_without_a_generator_rows_stay_in_order():
    np.testing.assert_array_equal(dealt(10, 10, 3, None), np.arange(10))


def sorted_rows(table):
    return table[np.lexsort(table.T)]


@pytest.mark.parametrize("n", [2, 17, 3_000, 700_000])
def test_a_shuffled_store_has_each_row_once(n):
    """The largest one has several buckets and many blocks."""
    data = make_data(n)
    store = make_store(data, memory=8 * 2**20)
    table = table_of(data)
    np.testing.assert_array_equal(sorted_rows(np.array(store.data)), sorted_rows(table))
    if n > 100:
        place = np.argsort(store.data[:, 0])[np.argsort(np.argsort(table[:, 0]))]
        assert abs(stats.spearmanr(place, np.arange(n)).statistic) < 4 / np.sqrt(n)
        moved = place // (n // 4) != np.arange(n) // (n // 4)
        assert abs(moved.mean() - 0.75) < 4 * np.sqrt(0.19 / n) + 4 / n


def test_the_order_is_that_of_the_seed():
    data = make_data(2_000)
    a, b, c = (np.array(make_store(data, seed=s).data) for s in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert np.mean(a[:, 0] == c[:, 0]) < 0.01


def test_memory_is_bounded(tmp_path):
    """A pass over 40 MB of arrays on disk takes what it was allowed, for all rows alike."""
    for name, a in make_data(1_200_000).items():
        np.save(tmp_path / f"{name}.npy", a)
    source = {n: np.load(tmp_path / f"{n}.npy", mmap_mode="r") for n in ("X", "y")}
    packing, memory = Copies(), 8 * 2**20
    tracemalloc.start()
    try:
        make_store(source, packing, memory=memory)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < memory
    assert max(packing.sizes) * 8 * 6 < memory / 8
    assert sum(packing.sizes) == 1_200_000 + 16
