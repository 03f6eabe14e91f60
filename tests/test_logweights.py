"""Summaries of log-weights."""

import math
import warnings

import numpy as np
import pytest

from scipy.special import logsumexp

from amc_pymc.logweights import (
    log_mean_exp,
    relative,
    reported_variance,
    summarise_log_weights,
    trusted_variance,
)
from amc_pymc.results import pareto_k


def test_log_mean_exp():
    x = np.random.default_rng(1).normal(-800.0, 3.0, (4, 50))
    assert log_mean_exp(x) == pytest.approx(logsumexp(x) - math.log(200))
    assert log_mean_exp(x, axis=1) == pytest.approx(logsumexp(x, axis=1) - math.log(50))
    assert log_mean_exp([-np.inf, -np.inf]) == -math.inf
    assert log_mean_exp([-np.inf, 0.0]) == pytest.approx(-math.log(2.0))


@pytest.mark.parametrize("shift", [-1e5, 0.0, 600.0])
def test_moments(shift):
    x = np.random.default_rng(2).normal(0.0, 0.8, 40)
    w, found = np.exp(x), summarise_log_weights(x + shift)
    assert found.log_mean == pytest.approx(math.log(w.mean()) + shift)
    assert found.relative_variance == pytest.approx(w.var(ddof=1) / w.mean() ** 2)
    assert found.ess == pytest.approx(w.sum() ** 2 / (w @ w))


def test_relative_variance_of_log_normal_weights():
    rng, s, p0, n = np.random.default_rng(3), 0.7, 0.25, 400_000
    x = np.where(rng.random(n) < p0, -np.inf, rng.normal(0.0, s, n))
    found = summarise_log_weights(x)
    exact = math.exp(s**2) / (1.0 - p0) - 1.0
    assert reported_variance(found, x) == pytest.approx(exact, rel=0.02)
    assert found.relative_variance == pytest.approx(exact, rel=0.02)


def test_zeros_and_single_weights():
    zeros = summarise_log_weights([-np.inf] * 3)
    assert zeros.log_mean == -math.inf
    assert zeros.relative_variance == reported_variance(zeros, np.full(3, -np.inf)) == math.inf
    one = summarise_log_weights([2.0])
    assert one.log_mean == pytest.approx(2.0)
    assert reported_variance(one, np.array([2.0])) == math.inf


@pytest.mark.parametrize("bad", [[], [[1.0]], [np.nan], [np.inf]])
def test_bad_weights(bad):
    with pytest.raises(ValueError, match="log_weights must"):
        summarise_log_weights(bad)


def test_reported_variance_of_two_weights():
    """The variance of two logarithms is half their squared difference, whatever their weights."""
    log_w = np.array([0.3, -1.1])
    found = summarise_log_weights(log_w)
    s2 = 0.5 * 1.4**2
    wanted = trusted_variance(2, found.relative_variance, math.expm1(s2), s2, 1.0)
    assert wanted > 1.5 * found.relative_variance
    assert reported_variance(found, log_w) == pytest.approx(wanted)


def test_equal_weights_have_no_kurtosis():
    """Rounding may leave them a variance all the same."""
    assert trusted_variance(100, 1e-16, 0.0, 0.0, math.nan) == pytest.approx(1e-16)


@pytest.mark.parametrize("shift", [-1e5, 0.0, 1e5])
def test_relative(shift):
    x = np.array([0.0, -1.0, -np.inf]) + shift
    np.testing.assert_allclose(relative(x), [1.0, math.exp(-1.0), 0.0], rtol=1e-9)
    np.testing.assert_array_equal(relative(np.full(2, -np.inf)), np.zeros(2))
    assert len(relative(np.empty(0))) == 0


def test_pareto_k_of_weights_beyond_floating_point_numbers():
    """Logarithms that differ by more than the largest number, and all impossible ones."""
    logs = np.random.default_rng(1).normal(size=400)
    expected = pareto_k(logs)
    assert math.isfinite(expected)
    far = np.concatenate([1e308 * np.ones(400), np.full(400, -1e308), np.full(9, -np.inf)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert math.isnan(pareto_k(far))
        assert pareto_k(np.append(logs - 1e4, -np.inf)) == pytest.approx(expected, abs=1e-6)
        assert math.isnan(pareto_k(np.full(30, -np.inf))) and math.isnan(pareto_k(np.empty(0)))
