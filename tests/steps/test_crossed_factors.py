"""Crossed factors: one is integrated out, the others stay among the coefficients."""

import functools

import numpy as np
import pymc as pm
import pytest

from grouped_runs import assert_agree, racing, sample
from scipy import stats

import amc_pymc as amc

from amc_pymc.steps.preparation import Options, chosen_factor
from amc_pymc.tall.decisions import residuals
from amc_pymc.tall.samplers.fit import probe_moves

SD_A, SD_B, PRIOR_SD = 0.8, 0.6, 2.0
N, LEVELS = 900, {"a": 45, "b": 30, "c": 6}


@functools.cache
def data():
    """Rows with a covariate and three crossed factors."""
    rng = np.random.default_rng(5)
    index = {f: rng.integers(0, k, size=N) for f, k in LEVELS.items()}
    x = rng.normal(size=N)
    effect = sum(rng.normal(0.0, 0.7, k)[index[f]] for f, k in LEVELS.items())
    return index, x, 0.5 - 0.4 * x + effect + rng.normal(size=N)


@functools.cache
def model(centred):
    """Standard deviations of a and b are known, that of c is not."""
    index, x, y = data()
    with pm.Model() as out:
        beta = pm.Normal("beta", 0.0, PRIOR_SD, shape=2)
        sd_c = pm.HalfNormal("sd_c", 1.0)
        c = pm.Normal("c", 0.0, sd_c, shape=LEVELS["c"])
        if centred:
            a = pm.Normal("a", 0.0, SD_A, shape=LEVELS["a"])
            b = pm.Normal("b", 0.0, SD_B, shape=LEVELS["b"])
        else:
            a = pm.Deterministic("a", SD_A * pm.Normal("z_a", shape=LEVELS["a"]))
            b = pm.Deterministic("b", SD_B * pm.Normal("z_b", shape=LEVELS["b"]))
        mu = beta[0] + beta[1] * x + a[index["a"]] + b[index["b"]] + c[index["c"]]
        pm.Normal("y", mu, 1.0, observed=y)
    return out


@functools.cache
def step(centred):
    return racing(model(centred), marginalize=["a" if centred else "z_a"])


@functools.cache
def reference():
    """Posterior means and standard deviations: Gaussian given sd_c, which a grid takes."""
    index, x, y = data()
    one_hot = [np.eye(k)[index[f]] for f, k in LEVELS.items()]
    Z = np.column_stack([np.ones(N), x, *one_hot])
    log_sd = np.linspace(-4.0, 2.0, 121)
    log_p, means, seconds = [], [], []
    for tau in np.exp(log_sd):
        sds = [PRIOR_SD] * 2 + [SD_A] * LEVELS["a"] + [SD_B] * LEVELS["b"] + [tau] * LEVELS["c"]
        precision = Z.T @ Z + np.diag(np.array(sds) ** -2.0)
        covariance = np.linalg.inv(precision)
        mean = covariance @ (Z.T @ y)
        evidence = 0.5 * mean @ precision @ mean - 0.5 * np.linalg.slogdet(precision)[1]
        log_p.append(evidence - np.log(sds).sum() + stats.halfnorm.logpdf(tau) + np.log(tau))
        means.append(np.append(mean, tau))
        seconds.append(np.append(np.diag(covariance) + mean**2, tau**2))
    w = np.exp(np.array(log_p) - max(log_p))
    w /= w.sum()
    mean = w @ np.array(means)
    sd = np.sqrt(w @ np.array(seconds) - mean**2)
    ends = np.cumsum([2, *LEVELS.values(), 1])
    parts = zip(["beta", "a", "b", "c", "sd_c"], ends - np.diff(ends, prepend=0), ends)
    return {name: (mean[i:j], sd[i:j]) for name, i, j in parts}


def test_the_factor_with_the_most_levels_is_integrated_out():
    names = [v.name for v in model(True).value_vars]
    assert chosen_factor(model(True), names, Options(marginalize="auto")).names == ("a",)


def test_two_factors_are_refused():
    with pytest.raises(ValueError, match=r"names a, b, which is not one grouping factor"):
        racing(model(True), marginalize=["a", "b"])


def test_gaussian_groups_leave_nothing_to_the_race():
    """Their control variates are exact: second derivatives are those of the integral."""
    prepared = step(True).prepared
    assert prepared.densities.n_nodes == 3
    centre, units = prepared.surrogate.centre, np.arange(prepared.densities.n_units)
    for move in probe_moves(prepared, np.random.default_rng(1)):
        assert np.std(residuals(prepared.raced.rewards, move, centre, units)[1]) < 1e-9


def test_a_posterior_in_closed_form():
    """Coefficients, effects of all three factors, and the standard deviation of one."""
    own = step(True)
    idata = sample(model(True), own, 300, tune=150)
    assert_agree(idata, reference())
    assert idata.sample_stats["accept"].mean() > 0.5
    assert amc.decision_error(idata).loc["all", "ci_low"] < 0.05


@pytest.mark.slow
def test_a_posterior_that_is_not_centred():
    assert_agree(sample(model(False), step(False), 2_000), reference())
