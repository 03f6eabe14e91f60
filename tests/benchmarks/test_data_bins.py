import numpy as np
import pytest

from scipy import stats

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

    @pytest.mark.parametrize("axes", [1, 2, 3])
    def test_cells_of_independent_axes_are_equally_full(self, axes):
        z = np.random.default_rng(1).normal(size=(30_000, axes))
        count = np.bincount(quantile_bins(z, 5))
        assert count.size == 5**axes
        # A cell count is binomial but for the fixed margins, which only narrow it.
        expected = 30_000 / 5**axes
        assert np.abs(count - expected).max() < 5 * np.sqrt(expected)
        if axes == 1:
            assert np.all(count == 6000)

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
    def test_by_hand(self):
        z = np.array([[0, 0], [4, 0], [2, 3], [2, 1.0]])
        labels = np.array([0, 0, 1, 1])
        assert z.std(axis=0) == pytest.approx([np.sqrt(2), np.sqrt(1.5)])
        # Squared distances from the bins' means: 4 / 2 for two rows, 1 / 1.5 for the others.
        np.testing.assert_array_equal(outlying_rows(z, labels, 0.5), [0, 1])
        np.testing.assert_array_equal(outlying_rows(z * [0.1, 1000], labels, 0.5), [0, 1])
        np.testing.assert_array_equal(outlying_rows(z, labels, 0.75), [0, 1, 2])

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


def test_expansion_sums_exactly_over_a_quadratic():
    """Sum of a + b.y + y'Qy over rows from the moments alone."""
    rng = np.random.default_rng(8)
    y = stats.t(5).rvs((500, 3), random_state=rng)
    labels = quantile_bins(y[:, :2], 4)
    a, b, q = 1.7, rng.normal(size=3), rng.normal(size=(3, 3))
    q += q.T
    m = bin_moments(y, labels)
    value = a + m.reference @ b + np.einsum("bi,ij,bj->b", m.reference, q, m.reference)
    slope = b + 2 * m.reference @ q
    total = m.count @ value + np.sum(slope * m.first)
    total += 0.5 * np.einsum("bri,ij,brj->", m.factor, 2 * q, m.factor)
    assert total == pytest.approx(np.sum(a + y @ b + np.einsum("ni,ij,nj->n", y, q, y)))
