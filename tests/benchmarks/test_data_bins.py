import numpy as np
import pytest

from benchmarks.papers.data_bins import bin_moments, outlying_rows, quantile_bins


def column(*values):
    return np.array(values, dtype=float)[:, None]


class TestQuantileBins:
    def test_one_axis_by_hand(self):
        z = column(5, 0, 3, 1, 4, 2, 7, 6)
        np.testing.assert_array_equal(quantile_bins(z, 4), [2, 0, 1, 0, 2, 1, 3, 3])

    def test_two_axes_by_hand(self):
        # Medians 1.5 and 15: four quadrants, of which the one of small and large is empty.
        z = np.array([[0, 0], [1, 10], [2, 20], [3, 30.0]])
        np.testing.assert_array_equal(quantile_bins(z, 2), [0, 0, 1, 1])
        z = np.array([[0, 30], [1, 10], [2, 20], [3, 0.0]])
        np.testing.assert_array_equal(quantile_bins(z, 2), [1, 0, 3, 2])

    def test_keys_are_constant_within_bins_and_split_no_further(self):
        rng = np.random.default_rng(3)
        z = rng.normal(size=(2000, 2))
        keys = [rng.integers(-3, 3, 2000), np.full(2000, 5), rng.random(2000) < 0.3]
        labels = quantile_bins(z, 4, keys=keys)
        cells = quantile_bins(z, 4)
        together = np.column_stack([cells, *keys])
        assert labels.max() + 1 == np.unique(together, axis=0).shape[0]
        for b in range(labels.max() + 1):
            assert np.unique(together[labels == b], axis=0).shape[0] == 1

    def test_too_many_bins(self):
        z = np.random.default_rng(4).normal(size=(1000, 2))
        keys = [np.arange(1000)]
        for given, more in (({"bins": 10}, {}), ({"bins": 1}, {"keys": keys})):
            with pytest.raises(ValueError, match=r"more than max_bins=50.*constant within a bin"):
                quantile_bins(z, **given, **more, max_bins=50)
        assert quantile_bins(z, 10, keys=keys, max_bins=1000).max() == 999


class TestOutlyingRows:
    def test_against_brute_force(self):
        rng = np.random.default_rng(5)
        z = rng.standard_t(3, size=(1000, 3)) * [1, 10, 0.1]
        labels = quantile_bins(z, 3)
        distance = np.empty(1000)
        for n in range(1000):
            reference = z[labels == labels[n]].mean(axis=0)
            distance[n] = np.linalg.norm((z[n] - reference) / z.std(axis=0))
        out = outlying_rows(z, labels, 0.2)
        assert out.dtype == np.int64 and out.size == 200
        assert np.all(np.diff(out) > 0)
        inside = np.setdiff1d(np.arange(1000), out)
        assert distance[out].min() > distance[inside].max()


class TestBinMoments:
    def setup_method(self):
        rng = np.random.default_rng(6)
        self.y = rng.normal(size=(400, 4)) @ rng.normal(size=(4, 4)) * [1, 1e-3, 1e4, 1]
        self.labels = rng.integers(-1, 5, 400)

    def bins(self):
        return [self.y[self.labels == b] for b in range(5)]

    def test_against_brute_force(self):
        m = bin_moments(self.y, self.labels)
        assert m.factor.shape == (5, 4, 4)
        for b, rows in enumerate(self.bins()):
            assert m.count[b] == len(rows)
            np.testing.assert_allclose(m.reference[b], rows.mean(axis=0))
            second = sum(np.outer(d, d) for d in rows - rows.mean(axis=0))
            np.testing.assert_allclose(m.factor[b].T @ m.factor[b], second, rtol=1e-10)
            assert np.abs(m.first[b]).max() < 1e-9
