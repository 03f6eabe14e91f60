"""Grouped models at the edge: few, small, empty and separated groups, no variance, poor nodes."""

import functools
import warnings

import arviz as az
import numpy as np
import pymc as pm
import pytest

from grouped_runs import assert_agree, example, example_step, flat, racing, sample
from scipy import special, stats

import amc_pymc as amc

from amc_pymc.steps import preparation
from models.grouped import intercepts_model, simulate_intercepts
from models.grouped_gaussian import gaussian_reference

# --- Gaussian, against the closed form ------------------------------------------------------------

SHAPES = {
    "five rows": (25, 5, {}),
    "one huge group, singletons, empty ones": (400, 40, {"sizes": "unbalanced"}),
    "no variance": (300, 30, {"sd": 1e-6}),
    "a large variance": (300, 30, {"sd": 4.0}),
}


def truth(data):
    return {name: tuple(m) for name, m in gaussian_reference(data)[0].items()}


@pytest.mark.slow
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_gaussian_groups(shape, centred):
    n_rows, n_groups, settings = SHAPES[shape]
    for seed in (1,) if centred else (1, 2):
        data = simulate_intercepts("gaussian", n_rows, n_groups, seed=seed, **settings)
        model = intercepts_model(data, "gaussian", centred=centred)
        idata = sample(model, racing(model), 1_500 if centred else 4_000)
        assert_agree(idata, truth(data))
        assert idata.sample_stats["accept"].mean() > 0.3


@pytest.mark.slow
def test_few_groups_that_hardly_differ():
    """Both tails of the log sd are visited and left; moves with Gaussian tails would be stuck in them."""
    data = simulate_intercepts("gaussian", *SHAPES["five rows"][:2], seed=2)
    model = intercepts_model(data, "gaussian")
    idata = sample(model, racing(model), 6_000)
    assert_agree(idata, truth(data))
    sd = flat(idata, "sd_group")[:, :, 0]
    assert sd.min() < 0.005 and sd.max() > 1.2
    assert float(az.ess(sd)) > 0.15 * sd.size


# --- binary outcomes, against a fine grid ---------------------------------------------------------


def binary(ones, size):
    """Groups of ``size`` rows, so many of which are ones, and their model."""
    ones = np.asarray(ones)
    group = np.repeat(np.arange(ones.size), size)
    y = np.concatenate([np.arange(size) < k for k in ones]).astype(int)
    with pm.Model() as model:
        a, sd = pm.Normal("a", 0, 1.5), pm.HalfNormal("sd", 1.0)
        u = pm.Normal("u", 0.0, sd, shape=ones.size)
        pm.Bernoulli("y", logit_p=a + u[group], observed=y)
    return model


def binary_posterior(ones, size):
    """Nodes of (a, log sd) and their weights."""
    z = np.linspace(-8.0, 8.0, 81)
    log_w = stats.norm.logpdf(z) + np.log(z[1] - z[0])
    nodes = np.stack(
        np.meshgrid(np.linspace(-10, 10, 201), np.linspace(-12, 1.8, 116), indexing="ij"), axis=-1
    ).reshape(-1, 2)
    eta = nodes[:, :1] + np.exp(nodes[:, 1:]) * z
    log_p = stats.norm.logpdf(nodes[:, 0], 0, 1.5)
    log_p += stats.halfnorm.logpdf(np.exp(nodes[:, 1])) + nodes[:, 1]
    one, zero = special.log_expit(eta), special.log_expit(-eta)
    for k, times in zip(*np.unique(ones, return_counts=True)):
        terms = k * one + (size - k) * zero + log_w
        log_p += times * special.logsumexp(terms, axis=1)
    weights = np.exp(log_p - log_p.max())
    return nodes, weights / weights.sum()


BINARY = {
    "separated groups": ([8, 8, 0, 3, 4, 2, 5, 1, 6, 3, 4, 2], 8),
    "no variance": ([4] * 20, 8),
    "pairs": ([2, 0, 1, 1, 2, 2, 0, 1, 2, 0, 0, 1, 2, 1, 1, 2, 0, 2, 2, 0] * 3, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", BINARY)
def test_binary_groups(shape):
    ones, size = BINARY[shape]
    nodes, weights = binary_posterior(ones, size)
    a, sd, log_sd = nodes[:, 0], np.exp(nodes[:, 1]), nodes[:, 1]
    moments = {}
    for name, v in (("a", a), ("sd", sd)):
        mean = weights @ v
        moments[name] = mean, np.sqrt(weights @ (v - mean) ** 2)
    model = binary(ones, size)
    idata = sample(model, racing(model), 2_000)
    assert_agree(idata, moments)
    # the neck of the funnel: how often the standard deviation is below 0.05 and 0.01
    draws = flat(idata, "sd")
    for limit in (0.05, 0.01):
        p = weights @ (log_sd < np.log(limit))
        below = (draws[:, :, 0] < limit).astype(float)
        ess = min(draws.size, float(az.ess(draws[:, :, 0])))
        assert abs(below.mean() - p) < 4 * np.sqrt(p * (1 - p) / ess) + 0.002


def test_groups_at_the_neck_of_the_funnel():
    """Modes are found, however far from those stored, by whatever way they are reached."""
    ones, size = BINARY["separated groups"]
    densities = racing(binary(ones, size)).prepared.densities
    z = np.linspace(-8.0, 8.0, 321)
    log_w = stats.norm.logpdf(z) + np.log(z[1] - z[0])
    for log_sd in (-12.0, -6.0, -3.0, 0.0, 1.0, 1.5):
        eta = 0.3 + np.exp(log_sd) * z
        expected = [
            special.logsumexp(
                k * special.log_expit(eta) + (size - k) * special.log_expit(-eta) + log_w
            )
            for k in ones
        ]
        got = densities.all_values(np.array([0.3, log_sd]))
        np.testing.assert_allclose(got, expected, atol=0.05)


# --- decisions ------------------------------------------------------------------------------------


@functools.cache
def many_pairs():
    ones, size = BINARY["pairs"]
    return binary(ones * 5, size)


@pytest.fixture
def poor_nodes(monkeypatch):
    """Laplace approximations of the groups' integrals."""

    def choose_nodes(densities, points, rng):
        densities.set_nodes(1)
        return 0.0

    monkeypatch.setattr(preparation, "choose_nodes", choose_nodes)


def test_audits_notice_poor_quadrature(poor_nodes):
    model = many_pairs()
    with pytest.warns(UserWarning, match="of independent moves would be accepted"):
        step = racing(model).replace(audits=amc.Audits(100, max_share=None))
    assert step.prepared.densities.n_nodes == 1
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        idata = sample(model, step, 200, tune=100, keep_warning_stat=True)
    assert idata.sample_stats["race_quadrature"].max() > 0.1
    last = idata.sample_stats["warning"].values[:, -1]
    assert any("the error of the quadrature" in str(w) for w in last)


@pytest.mark.slow
def test_decisions_are_wrong_as_rarely_as_promised():
    step = example_step("gaussian", 2_400, 600)
    _, model = example("gaussian", 2_400, 600)
    step = step.replace(audits=amc.Audits(500, max_share=None))
    idata = sample(model, step, 500)
    found = amc.decision_error(idata).loc["all"]
    assert found["audited"] == 1_000
    assert found["ci_low"] < 0.05 and found["error"] < 0.08
    assert idata.sample_stats["race_quadrature"].max() < 1e-6  # one node is exact
