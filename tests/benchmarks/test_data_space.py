"""Control variates in the data of ARCH rows: expansions, bins, and what they leave of the variance."""

import numpy as np
import pytest

from scipy import stats

from benchmarks.papers.data_space import (
    DataControl,
    expansions,
    gradients,
    log_likelihoods,
    outlying_rows,
    quantile_bins,
)
from models.arch_order import Rows, lagged_rows, simulate_arch

WEIGHTS = 0.8 ** np.arange(5)
THETA = np.r_[0.3, 0.6 * WEIGHTS / WEIGHTS.sum(), 8.0]


def rows_of(n):
    returns = simulate_arch(n + 5, THETA[:-1], THETA[-1], np.random.default_rng(3))
    return lagged_rows(returns, 5, 5)


def data_of(n):
    rows = rows_of(n)
    return np.column_stack([rows.r**2, rows.squares])


def test_rows_and_their_gradients():
    y = data_of(50)
    scale = np.sqrt(THETA[0] + y[:, 1:] @ THETA[1:-1])
    np.testing.assert_allclose(
        log_likelihoods(y, THETA), stats.t(8.0, scale=scale).logpdf(np.sqrt(y[:, 0])), rtol=1e-12
    )
    for k, slope in enumerate(gradients(y, THETA).T):
        step = 1e-6 * np.eye(6)[k]
        above, below = (log_likelihoods(y + s * step, THETA) for s in (1, -1))
        np.testing.assert_allclose(slope, (above - below) / 2e-6, atol=1e-7)


def test_expansions_are_of_second_order():
    """The error of twice the displacement is eight times as large; at the reference there is none."""
    y = data_of(50)
    move = 1e-3 * np.abs(np.random.default_rng(4).standard_normal(y.shape))
    np.testing.assert_array_equal(expansions(y, y, THETA), log_likelihoods(y, THETA))
    errors = [
        expansions(y + s * move, y, THETA) - log_likelihoods(y + s * move, THETA) for s in (1, 2, 4)
    ]
    np.testing.assert_allclose(np.linalg.norm(errors[1]) / np.linalg.norm(errors[0]), 8, rtol=0.05)
    np.testing.assert_allclose(np.linalg.norm(errors[2]) / np.linalg.norm(errors[1]), 8, rtol=0.05)


def test_references_are_the_means_of_bins():
    control = DataControl(rows_of(3_000), THETA, 10, 0.2, np.random.default_rng(5))
    raced = np.setdiff1d(np.arange(3_000), control.exact)
    assert control.exact.size == 600 and np.isnan(control.reference[control.exact]).all()
    bins, label = np.unique(control.reference[raced], axis=0, return_inverse=True)
    assert 50 < len(bins) <= 100
    for b, reference in enumerate(bins):
        np.testing.assert_allclose(control.y[raced[label == b]].mean(axis=0), reference)


def test_variance_reduction():
    """Chen & Ghahramani (2016), section 5.2: two to three orders with 10 x 10 bins, 20 % out."""
    control = DataControl(rows_of(13_000), THETA, 10, 0.2, np.random.default_rng(5))
    raced = np.setdiff1d(np.arange(13_000), control.exact)
    assert control.exact.size == 2_600
    rng, y = np.random.default_rng(11), control.y[raced]
    for scale in (0.02, 0.1, 0.3):
        theta = THETA * np.exp(scale * rng.normal(size=THETA.size))
        left = control.residuals(theta, raced) - control.residuals(THETA, raced)
        plain = log_likelihoods(y, theta) - log_likelihoods(y, THETA)
        assert plain.var() > 10 * left.var()


def test_no_residual_where_bins_are_single_rows():
    rows = rows_of(40)
    control = DataControl(Rows(rows.r, rows.squares), THETA, 40, 0.0, np.random.default_rng(5))
    np.testing.assert_allclose(control.residuals(THETA, np.arange(40)), 0.0, atol=1e-12)


def column(*values):
    return np.array(values, dtype=float)[:, None]


@pytest.mark.parametrize(
    ("summary", "bins", "labels"),
    [
        (column(5, 0, 3, 1, 4, 2, 7, 6), 4, [2, 0, 1, 0, 2, 1, 3, 3]),
        # Medians 1.5 and 15: four quadrants, of which the one of small and large is empty.
        (np.array([[0, 0], [1, 10], [2, 20], [3, 30.0]]), 2, [0, 0, 1, 1]),
        (np.array([[0, 30], [1, 10], [2, 20], [3, 0.0]]), 2, [1, 0, 3, 2]),
    ],
)
def test_quantile_bins_by_hand(summary, bins, labels):
    np.testing.assert_array_equal(quantile_bins(summary, bins), labels)


def test_outlying_rows_by_brute_force():
    rng = np.random.default_rng(5)
    z = rng.standard_t(3, size=(1000, 3)) * [1, 10, 0.1]
    labels = quantile_bins(z, 3)
    distance = np.empty(1000)
    for n in range(1000):
        reference = z[labels == labels[n]].mean(axis=0)
        distance[n] = np.linalg.norm((z[n] - reference) / z.std(axis=0))
    out = outlying_rows(z, labels, 0.2)
    assert out.size == 200 and np.all(np.diff(out) > 0)
    assert distance[out].min() > np.delete(distance, out).max()
