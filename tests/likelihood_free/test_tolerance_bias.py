"""Bias of posterior means by the tolerance, against what is known in closed form."""

import math

import numpy as np
import pytest

from amc_pymc.likelihood_free import tolerance_bias as module
from amc_pymc.likelihood_free.tolerance_bias import closest, tolerance_bias
from amc_pymc.logweights import weighted_mean
from models.point_simulators import gaussian_known

D, N, TOLERANCE = 3, 4000, 0.5
EXAMPLE = gaussian_known(D, observed=[0.8, 0.0, -0.4])


def simulated(seed, n=N):
    """Parameters (n, D), log weights that vary, distances and gaps, with the prior wider than the model's."""
    rng = np.random.default_rng(seed)
    theta = math.sqrt(0.1) * 1.3 * rng.standard_normal((n, D))
    log_weight = -0.5 * np.square(theta).sum(axis=1) * (1.0 - 1.0 / 1.3**2) / 0.1
    x = EXAMPLE.simulate(rng, theta)
    return theta, log_weight, EXAMPLE.distance(x), x - EXAMPLE.observed


def plain_mean(theta, log_weight, distance):
    near = distance <= TOLERANCE
    w = np.exp(log_weight[near])
    return weighted_mean(w / w.sum(), theta[near])


def true_bias(mean):
    return mean - 0.5 * EXAMPLE.observed


# --- what it says ---------------------------------------------------------------------------------


def test_a_parabola_is_found_exactly():
    d = np.linspace(0.0, 3.0, 3001)
    values = np.stack([3.0 + d**2, 1.0 - 2.0 * d**2, np.full(3001, 5.0)], axis=1)
    found = tolerance_bias(values, np.zeros(3001), d, 1.0)
    near = values[d <= 1.0].mean(axis=0)
    np.testing.assert_allclose(found.bias, near - [3.0, 1.0, 5.0], atol=1e-10)


def test_summaries_take_the_slope_away():
    """A linear simulator without noise of its own leaves nothing to extrapolate."""
    rng = np.random.default_rng(1)
    gaps = rng.uniform(-1.0, 2.0, (5000, 2))
    values = gaps @ [[1.0], [-0.5]] + 4.0
    d = np.linalg.norm(gaps, axis=1)
    found = tolerance_bias(values, np.zeros(5000), d, 0.7, gaps)
    np.testing.assert_allclose(found.bias, values[d <= 0.7].mean() - 4.0, atol=1e-10)


@pytest.fixture(scope="module")
def runs():
    """Errors of the bias, its standard errors and the biases (runs, D), without summaries and with them."""
    found = {}
    for name in ("distance", "summaries"):
        rows = []
        for seed in range(60):
            theta, log_weight, distance, gaps = simulated(seed)
            mean, _ = plain_mean(theta, log_weight, distance)
            told = tolerance_bias(
                theta, log_weight, distance, TOLERANCE, gaps if name == "summaries" else None
            )
            rows.append([told.bias - true_bias(mean), told.error, told.bias])
        found[name] = np.array(rows).swapaxes(0, 1)
    return found


@pytest.mark.parametrize("name", ["distance", "summaries"])
def test_bias_within_its_error(runs, name):
    gap, error, bias = runs[name]
    z = gap / error
    # The mean square of 180 errors, correlated within a run, is one within 4 sqrt(2 / 60).
    assert 1.0 - 4.0 * math.sqrt(2.0 / 60.0) < np.square(z).mean() < 1.0 + 4.0 * math.sqrt(2.0 / 60)
    # It is there in the first coordinate, and seen.
    assert (bias / error).mean(axis=0)[0] < -1.0


def test_windows_do_not_grow_where_the_mean_is_bent():
    """Of exp(3 theta) it is exp(3 m + 9 v / 2), which no regression on summaries within a wide window meets."""
    inside = []
    for seed in range(60):
        theta, log_weight, distance, gaps = simulated(seed)
        values = np.exp(3.0 * theta)
        mean, _ = plain_mean(values, log_weight, distance)
        told = tolerance_bias(values, log_weight, distance, TOLERANCE, gaps)
        exact = np.exp(1.5 * EXAMPLE.observed + 4.5 * 0.05)
        inside.append(np.abs(mean - told.bias - exact) < 2.5 * told.error)
    assert np.mean(inside, axis=0).min() > 0.6


def test_intervals_hold_the_exact_mean(runs):
    """Not with Monte Carlo errors alone, which know nothing of the tolerance."""
    plain, honest = [], []
    for seed in range(60):
        theta, log_weight, distance, gaps = simulated(seed)
        mean, mcse = plain_mean(theta, log_weight, distance)
        told = tolerance_bias(theta, log_weight, distance, TOLERANCE, gaps)
        error = np.sqrt(mcse**2 + told.bias**2 + told.error**2)
        plain.append(np.abs(true_bias(mean)) < 1.96 * mcse)
        honest.append(np.abs(true_bias(mean)) < 1.96 * error)
    assert np.mean(plain, axis=0)[0] < 0.5
    assert np.mean(honest) > 0.95 - 4.0 * math.sqrt(0.95 * 0.05 / 60.0)


def test_error_knows_that_windows_share_simulations():
    """The spread of the first window's bias over runs is what is said; independent errors would be larger."""
    rows, said = [], []
    for seed in range(100):
        theta, log_weight, distance, _ = simulated(seed, 1500)
        near = distance <= TOLERANCE  # one window only
        found = tolerance_bias(theta[near], log_weight[near], distance[near], TOLERANCE)
        rows.append(found.bias)
        said.append(found.error)
    ratio = np.square(said).mean(axis=0) / np.var(rows, axis=0, ddof=1)
    np.testing.assert_allclose(ratio, 1.0, atol=4.0 * math.sqrt(2.0 / 100))


def test_errors_of_few_simulations_for_many_summaries():
    """Residuals are corrected for their leverage, here 8 / 42 on average."""
    rng = np.random.default_rng(4)
    noise, gaps = rng.normal(size=(42, 4000)), rng.normal(size=(42, 6))
    known = np.zeros(4000), np.zeros(4000)
    found = tolerance_bias(noise, np.zeros(42), np.linspace(0.1, 1.0, 42), 1.0, gaps, known)
    ratio = np.square(found.error).mean() / np.square(found.bias).mean()
    assert abs(ratio - 1.0) < 4.0 * math.sqrt(2.0 / 4000)


def test_another_estimate():
    """An efficient one is compared by the difference of variances."""
    theta, log_weight, distance, gaps = simulated(3)
    exact, tiny = 0.5 * EXAMPLE.observed, np.full(D, 1e-6)
    found = tolerance_bias(theta, log_weight, distance, TOLERANCE, gaps, (exact, tiny))
    assert (np.abs(found.bias) < 4.0 * found.error).all()
    off = tolerance_bias(theta, log_weight, distance, TOLERANCE, gaps, (exact + 1.0, tiny))
    np.testing.assert_allclose(off.bias - found.bias, 1.0)
    np.testing.assert_allclose(off.error, found.error)
    # The variance of the difference is that of the less efficient one less that of the other.
    less = tolerance_bias(theta, log_weight, distance, TOLERANCE, gaps, (exact, 0.5 * found.error))
    np.testing.assert_allclose(less.error, np.sqrt(0.75) * found.error, rtol=1e-6)


# --- what it is given -----------------------------------------------------------------------------


def test_scales_and_constants_change_nothing():
    theta, log_weight, distance, gaps = simulated(5)
    plain = tolerance_bias(theta, log_weight, distance, TOLERANCE, gaps)
    units = np.array([1e6, 1.0, 1e-6])
    found = tolerance_bias(
        theta * units + 3.0, log_weight + 900.0, 7.0 * distance, 7.0 * TOLERANCE, gaps * units
    )
    np.testing.assert_allclose(found.bias, plain.bias * units, rtol=1e-5)
    np.testing.assert_allclose(found.error, plain.error * units, rtol=1e-5)


def test_where_nothing_can_be_said():
    values, flat = np.arange(6.0)[:, None], np.zeros(6)
    few = tolerance_bias(values, flat, np.arange(6.0), 2.0)
    none = tolerance_bias(values, flat, np.arange(6.0) + 1.0, 0.5)
    for found in (few, none):
        assert np.isnan(found.bias).all() and np.isnan(found.error).all()
    zero = tolerance_bias(values, flat, flat, 0.0)
    assert zero.bias[0] == zero.error[0] == 0.0


def test_more_summaries_than_draws_are_left_out():
    theta, log_weight, distance, _ = simulated(7)
    gaps = np.random.default_rng(8).normal(size=(N, 2000))
    found = tolerance_bias(theta, log_weight, distance, TOLERANCE, gaps)
    plain = tolerance_bias(theta, log_weight, distance, TOLERANCE)
    np.testing.assert_allclose(found.bias, plain.bias)


def test_only_the_closest_count():
    theta, log_weight, distance, gaps = simulated(4)
    distance[:50], log_weight[50:100] = np.inf, -np.inf
    theta[:100], gaps[:100] = np.nan, np.nan
    index = closest(log_weight, distance, TOLERANCE)
    assert (
        len(index) < len(theta) and (np.diff(distance[index]) >= 0.0).all() and index.min() >= 100
    )
    parts = tolerance_bias(theta[index], log_weight[index], distance[index], TOLERANCE, gaps[index])
    whole = tolerance_bias(theta, log_weight, distance, TOLERANCE, gaps)
    np.testing.assert_allclose(parts.bias, whole.bias)
    np.testing.assert_allclose(parts.error, whole.error)


def test_many_columns(monkeypatch):
    theta, log_weight, distance, gaps = simulated(6)
    values = np.concatenate([theta, theta**2, theta * 2.0], axis=1)
    whole = tolerance_bias(values, log_weight, distance, TOLERANCE, gaps)
    monkeypatch.setattr(module, "_BLOCK", 2)
    parts = tolerance_bias(values, log_weight, distance, TOLERANCE, gaps)
    np.testing.assert_allclose(parts.bias, whole.bias)
    np.testing.assert_allclose(parts.error, whole.error)


def test_infinite_values_are_no_harm_to_others():
    theta, log_weight, distance, gaps = simulated(9)
    plain = tolerance_bias(theta, log_weight, distance, TOLERANCE, gaps)
    values = np.column_stack([theta, np.full(N, np.inf)])
    found = tolerance_bias(values, log_weight, distance, TOLERANCE, gaps)
    np.testing.assert_allclose(found.bias[:D], plain.bias)
    assert not np.isfinite(found.bias[D])
