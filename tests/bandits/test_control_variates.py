"""Control variates against least squares, brute force and theory."""

import numpy as np
import pytest
import statsmodels.api as sm

from amc_pymc.bandits import make_policy, ucbcv
from amc_pymc.bandits.arms import as_arms
from amc_pymc.bandits.combination import Combination, Plan
from amc_pymc.bandits.moments import Moments
from benchmarks.papers.combine_estimators import run_here

OMEGA = np.array([0.3, -1.0, 2.0])


def deviations(x, w, omega):
    return np.reshape(w, (len(x), -1)) - omega


def regression(x, w, omega=0.0):
    d = deviations(x, w, omega)
    seen = Moments(False, d.shape[1])
    seen.include(x, d)
    return ucbcv.regression(seen)


def jackknife(x, w, omega=0.0):
    return ucbcv.leave_one_out(x, deviations(x, w, omega), pseudo=True)


def splitting(x, w, omega=0.0):
    return ucbcv.leave_one_out(x, deviations(x, w, omega), pseudo=False)


def sample(s, q, seed, *, skewed=False):
    """Rewards of mean 1 and controls of means OMEGA, correlated with each other."""
    rng = np.random.default_rng(seed)
    noise = rng.exponential(size=(s, q)) - 1.0 if skewed else rng.normal(size=(s, q))
    w = noise @ (np.eye(q) + 0.4 * np.tri(q, k=-1)) + OMEGA[:q]
    x = 1.0 + (w - OMEGA[:q]) @ np.arange(1.0, q + 1.0) + rng.normal(size=s)
    if skewed:
        x += 0.3 * ((w - OMEGA[:q]) ** 2 - np.var(w, axis=0)).sum(axis=1)
    return x, w


def least_squares(x, w, q):
    design = np.column_stack([np.ones(x.size), w - OMEGA[:q]])
    return np.linalg.lstsq(design, x, rcond=None)[0]


@pytest.mark.parametrize("q", [0, 1, 2, 3])
@pytest.mark.parametrize("s", [5, 8, 200])
def test_regression_is_least_squares(s, q):
    x, w = sample(s, q, [s, q])
    fit = sm.OLS(x, np.column_stack([np.ones(s), w - OMEGA[:q]])).fit()
    found = regression(x, w, OMEGA[:q])
    np.testing.assert_allclose(found.mean, fit.params[0], rtol=1e-9)
    np.testing.assert_allclose(np.sqrt(found.variance), fit.bse[0], rtol=1e-9)
    assert found.df == fit.df_resid == s - q - 1


def test_regression_far_from_zero():
    """Running moments keep their digits when means are large."""
    x, w = sample(300, 2, 1)
    near, far = regression(x, w, OMEGA[:2]), regression(x + 1e7, w + 1e7, OMEGA[:2] + 1e7)
    np.testing.assert_allclose(far.mean - 1e7, near.mean, rtol=1e-6)
    np.testing.assert_allclose(far.variance, near.variance, rtol=1e-6)


def test_collinear_and_constant_controls_are_left_out():
    x, w = sample(50, 2, 2)
    doubled = np.column_stack([w[:, 0], 3.0 * w[:, 0] + 1.0, w[:, 1], np.full(50, 5.0)])
    omega = [OMEGA[0], 3.0 * OMEGA[0] + 1.0, OMEGA[1], 5.0]
    np.testing.assert_allclose(regression(x, doubled, omega), regression(x, w, OMEGA[:2]))
    np.testing.assert_allclose(
        regression(x, np.full(50, 5.0), 5.0), regression(x, np.empty((50, 0)))
    )
    np.testing.assert_allclose(jackknife(x, doubled, omega), jackknife(x, w, OMEGA[:2]))
    np.testing.assert_allclose(splitting(x, doubled, omega), splitting(x, w, OMEGA[:2]))


@pytest.mark.parametrize("q", [0, 1, 2, 3])
@pytest.mark.parametrize("s", [6, 40])
def test_jackknife_and_splitting_by_brute_force(s, q):
    x, w = sample(s, q, [7, s, q], skewed=True)
    full = least_squares(x, w, q)[0]
    pseudo, split = np.empty(s), np.empty(s)
    for j in range(s):
        rest = np.arange(s) != j
        fit = least_squares(x[rest], w[rest], q)
        pseudo[j] = s * full - (s - 1) * fit[0]
        split[j] = x[j] + fit[1:] @ (OMEGA[:q] - w[j])
    for function, values in ((jackknife, pseudo), (splitting, split)):
        found = function(x, w, OMEGA[:q])
        np.testing.assert_allclose(found.mean, values.mean(), rtol=1e-8)
        np.testing.assert_allclose(found.variance, values.var(ddof=1) / s, rtol=1e-8)
        assert found.df == s - 1


def test_an_observation_that_alone_determines_a_coefficient():
    x, w = np.arange(6.0), np.array([1.0, 0, 0, 0, 0, 0])
    for function in (jackknife, splitting):
        assert function(x, w, 0.1).variance == np.inf
        assert function(x, w, 0.1).mean == pytest.approx(regression(x, w, 0.1).mean)


def repeated(kernel, s, q, rho, runs, seed):
    """Estimates of a zero mean from many samples of normal rewards and q controls."""
    rng = np.random.default_rng(seed)
    means, variances = np.empty(runs), np.empty(runs)
    for r in range(runs):
        w = rng.normal(size=(s, q))
        x = rho * w.sum(axis=1) / np.sqrt(q) + np.sqrt(1.0 - rho**2) * rng.normal(size=s)
        means[r], variances[r] = kernel(x, w)
    return means, variances


@pytest.mark.parametrize(("s", "q", "rho"), [(8, 1, 0.8), (12, 3, 0.5)])
def test_variance_of_lemma_3(s, q, rho):
    runs = 4_000
    means, variances = repeated(lambda x, w: regression(x, w)[:2], s, q, rho, runs, [s, q])
    expected = (s - 2) / (s - q - 2) * (1.0 - rho**2) / s
    squares = means**2
    assert abs(squares.mean() - expected) < 4.0 * squares.std() / np.sqrt(runs)
    assert abs(variances.mean() - expected) < 4.0 * variances.std() / np.sqrt(runs)
    assert abs(means.mean()) < 4.0 * means.std() / np.sqrt(runs)


def test_splitting_is_unbiased_for_skewed_rewards_and_regression_is_not():
    s, runs, rng = 5, 4_000, np.random.default_rng(11)
    split, plain = np.empty(runs), np.empty(runs)
    for r in range(runs):
        w = rng.exponential(size=(s, 1)) - 1.0
        x = (w[:, 0] ** 2 - 1.0) + 0.1 * rng.normal(size=s)
        split[r] = splitting(x, w).mean
        plain[r] = regression(x, w).mean
    assert abs(split.mean()) < 4.0 * split.std() / np.sqrt(runs)
    assert abs(plain.mean()) > 4.0 * plain.std() / np.sqrt(runs)


def test_controls_of_an_incomplete_group():
    """A round may end with fewer draws than a reward needs."""

    class Controlled:
        control_means = (0.5,)

        def sample(self, n, rng):
            w = rng.random(n)
            return w + rng.normal(0.5, 0.1, n), None, w[:, None]

    used = as_arms({"a": Controlled(), "b": Controlled()})
    policy = make_policy("ucbcv", 2, control_means=0.5)
    run = Combination(used, policy, Plan((9, 37, 37, 18), "draws"), "paired")
    run_here(run, np.random.default_rng(8))
    assert sum(r.n for r in run.records) == 101
