"""The interval on a variance: formula, probability of error, coverage."""

import math

import numpy as np
import pytest

from scipy.optimize import brentq
from scipy.special import rel_entr

from amc_pymc.bandits import kl_variance_delta, kl_variance_error, kl_variance_interval


def divergence(p, q):
    return rel_entr(p, q) + rel_entr(1 - p, 1 - q)


def roots(mean, d):
    """Ends of {q: KL(mean, q) <= d}."""
    low = (
        0.0 if mean == 0.0 else brentq(lambda q: divergence(mean, q) - d, 1e-300, mean, xtol=1e-15)
    )
    high = 1.0
    if mean < 1.0:
        high = brentq(lambda q: divergence(mean, q) - d, mean, 1 - 1e-16, xtol=1e-15)
    return low, high


def test_by_hand():
    # pairs (0, 1), (0.5, 0), (0.2, 0.2) with costs 0.4, 1, 1: Z = 0.4, 0.25, 0; mean 0.65 / 3
    found = kl_variance_interval([0, 1, 0.5, 0, 0.2, 0.2], [0.4, 1, 1], delta=1.5)
    low, high = roots(0.65 / 3, 0.5)
    np.testing.assert_allclose(found, [0.65 / 6, low / 2, high / 2], rtol=1e-9)
    # a last value without a partner changes nothing
    assert kl_variance_interval([0, 1, 0.5, 0, 0.2, 0.2, 0.9], [0.4, 1, 1], delta=1.5) == found
    # nothing seen: KL(0, q) = -log(1 - q)
    still = kl_variance_interval([0.3] * 8, delta=2.0)
    np.testing.assert_allclose(still, [0, 0, (1 - math.exp(-0.5)) / 2], atol=1e-15)
    # all differences 1: KL(1, q) = -log q
    most = kl_variance_interval([0, 1] * 4, delta=2.0)
    np.testing.assert_allclose(most, [0.5, math.exp(-0.5) / 2, 0.5])


@pytest.mark.parametrize("all_times", [False, True])
def test_against_roots(all_times):
    rng = np.random.default_rng(1)
    for n in (1, 2, 17, 300):
        y, q = rng.beta(0.5, 0.5, size=2 * n), rng.random(n)
        z = q * np.diff(y.reshape(n, 2))[:, 0] ** 2
        times = range(1, n + 1) if all_times else [n]
        ends = np.array([roots(z[:s].mean(), 3.0 / s) for s in times])
        found = kl_variance_interval(y, q, delta=3.0, all_times=all_times)
        expected = [z.mean() / 2, ends[:, 0].max() / 2, ends[:, 1].min() / 2]
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("mean", [1e-12, 1e-6, 0.3, 0.999])
@pytest.mark.parametrize("n", [1, 100, 10**6])
def test_ends_keep_their_digits(mean, n):
    """KL at the ends is delta / n, in relative terms, for small variances and many pairs."""
    delta, y = 4.0, np.zeros(2)
    y[1] = math.sqrt(mean)
    found = kl_variance_interval(y, delta=delta / n)  # one pair at delta / n, as n pairs at delta
    for q in (2 * found.low, 2 * found.high):
        if 0.0 < q < 1.0 and n < 10**6:
            assert divergence(y[1] ** 2, q) == pytest.approx(delta / n, rel=1e-8)
    if n == 10**6 and 0.01 < mean < 0.9:
        sd = math.sqrt(2 * delta / n * mean * (1 - mean))
        assert 2 * found.high - mean == pytest.approx(sd, rel=0.01)
        assert mean - 2 * found.low == pytest.approx(sd, rel=0.01)


@pytest.mark.parametrize("all_times", [False, True])
@pytest.mark.parametrize("spread", [0.05, 1.0])
def test_coverage(all_times, spread):
    """Truth uniform on an interval of length `spread`, costs 0 or 1/2."""
    rng, runs, n, error = np.random.default_rng(2), 2_000, 60, 0.2
    truth = 0.25 * spread**2 / 12
    delta = kl_variance_delta(error, n, all_times=all_times)
    misses = 0
    for _ in range(runs):
        y, q = spread * rng.random(2 * n), 0.5 * rng.integers(0, 2, size=n)
        found = kl_variance_interval(y, q, delta=delta, all_times=all_times)
        misses += not found.low <= truth <= found.high
    assert misses / runs <= error + 4 * math.sqrt(error * (1 - error) / runs)


def test_coverage_is_tight_where_differences_are_0_or_1():
    """With fair coins the bound for one n is nearly attained in its exponent."""
    rng, runs, n, error = np.random.default_rng(3), 20_000, 50, 0.2
    delta = kl_variance_delta(error, n, all_times=False)
    ones = rng.binomial(n, 0.5, size=runs)
    found = [
        kl_variance_interval(np.array([0, 1] * k + [0, 0] * (n - k)), delta=delta)
        for k in range(n + 1)
    ]
    missed = np.array([not v.low <= 0.25 <= v.high for v in found])[ones].mean()
    assert error / 10 < missed <= error


def test_unbiased():
    rng = np.random.default_rng(4)
    y = rng.beta(2.0, 3.0, size=200_000)
    found = kl_variance_interval(y, delta=10.0).estimate
    z = 0.5 * np.diff(y.reshape(-1, 2))[:, 0] ** 2
    assert abs(found - 0.04) < 4 * z.std() / math.sqrt(z.size)


def test_probability_of_error():
    # ceil(12 log 1000) = ceil(82.89) = 83
    assert kl_variance_error(12.0, 1000) == pytest.approx(2 * math.e * 83 * math.exp(-12.0))
    assert kl_variance_error(12.0, 1) == pytest.approx(2 * math.exp(-12.0))
    assert kl_variance_error(1.0, 1000) == 1.0
    assert kl_variance_error(3.0, 1000, all_times=False) == pytest.approx(2 * math.exp(-3.0))


@pytest.mark.parametrize("n", [1, 2, 3, 10, 1_000, 10**7])
@pytest.mark.parametrize("error", [0.9, 0.2, 0.05, 1e-6])
def test_delta_is_the_smallest(error, n):
    for all_times in (True, False):
        delta = kl_variance_delta(error, n, all_times=all_times)
        assert kl_variance_error(delta * (1 + 1e-12), n, all_times=all_times) <= error * (1 + 1e-9)
        for smaller in np.linspace(0.01, 1.0, 400, endpoint=False) * delta:
            assert kl_variance_error(smaller, n, all_times=all_times) > error


def test_bad_input():
    for arguments, message in [
        (([0.1],), "values must have shape"),
        (([0.1, 1.2],), r"values must lie in \[0, 1\], got 1.2"),
        (([0.1, math.nan],), r"values must lie in \[0, 1\], got nan"),
        (([0.1, 0.2], [1.0, 1.0]), r"costs must have shape \(1,\)"),
        (([0.1, 0.2], [-1.0]), r"costs must lie in \[0, 1\], got -1"),
    ]:
        with pytest.raises(ValueError, match=message):
            kl_variance_interval(*arguments, delta=1.0)
    with pytest.raises(ValueError, match="delta must be positive"):
        kl_variance_interval([0.1, 0.2], delta=0.0)
    with pytest.raises(ValueError, match="delta must be positive"):
        kl_variance_error(math.nan, 3)
    with pytest.raises(ValueError, match="n_pairs must be at least 1, got 0"):
        kl_variance_error(1.0, 0)
    with pytest.raises(ValueError, match="n_pairs must be at least 1, got 0"):
        kl_variance_delta(0.1, 0)
    with pytest.raises(ValueError, match="error must be between 0 and 1, got 1"):
        kl_variance_delta(1.0, 10)
