"""Log prior and log likelihood of many points at once, and draws from the prior."""

from __future__ import annotations

import functools

from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import numpy as np
import pymc as pm
import pytest

from scipy import stats

from amc_pymc.extract.particles import extract_particles
from amc_pymc.extract.unconstrain import unconstrain

Y = np.array([1.0, -0.5, 2.0, 0.3])


def hierarchy(**initval):
    """Two observed variables, a Potential, a hierarchy, a transform."""
    with pm.Model(coords={"group": ["a", "b"]}) as model:
        tau = pm.HalfNormal("tau", 2.0, **initval)
        mu = pm.Normal("mu", 0.0, tau, dims="group")
        pm.Deterministic("gap", mu[1] - mu[0])
        pm.Normal("y", mu[0], 1.5, observed=Y)
        pm.Poisson("n", pm.math.exp(mu[1]), observed=[2, 0])
        pm.Potential("extra", -0.5 * mu[0] ** 2)
    return model


@functools.cache
def densities():
    return extract_particles(hierarchy())


def expected(x):
    """Log prior and log likelihood (2, P) by SciPy; x holds log tau and mu."""
    x = np.asarray(x)
    log_tau, mu = x[:, 0], x[:, 1:]
    tau = np.exp(log_tau)
    prior = stats.halfnorm.logpdf(tau, scale=2.0) + log_tau
    prior += stats.norm.logpdf(mu, 0.0, tau[:, None]).sum(axis=1)
    likelihood = stats.norm.logpdf(Y, mu[:, :1], 1.5).sum(axis=1) - 0.5 * mu[:, 0] ** 2
    likelihood += stats.poisson.logpmf([[2, 0]], np.exp(mu[:, 1:])).sum(axis=1)
    return np.stack([prior, likelihood])


def points(n=300, seed=1):
    return np.random.default_rng(seed).normal(size=(n, 3))


def test_values_are_those_of_the_model():
    x = points()
    np.testing.assert_allclose(densities().values(x), expected(x), rtol=1e-9)


def test_gradients_are_those_of_the_values():
    x, h = points(20), 1e-5
    terms, gradients = densities().gradients(x)
    np.testing.assert_allclose(terms, expected(x), rtol=1e-9)
    for d in range(3):
        up, down = x.copy(), x.copy()
        up[:, d] += h
        down[:, d] -= h
        slope = (expected(up) - expected(down)) / (2.0 * h)
        np.testing.assert_allclose(gradients[:, :, d], slope, rtol=1e-5, atol=1e-5)


def test_chunks_do_not_matter():
    other = extract_particles(hierarchy())
    other.chunk = 7
    x = points(50)
    np.testing.assert_allclose(other.values(x), densities().values(x), rtol=1e-13)
    np.testing.assert_allclose(other.gradients(x)[1], densities().gradients(x)[1], rtol=1e-12)


def test_one_by_one_gives_the_same():
    other = extract_particles(hierarchy())
    other.one_by_one("a test")
    x = points(5)
    np.testing.assert_allclose(other.values(x), expected(x), rtol=1e-9)
    np.testing.assert_allclose(other.gradients(x)[1], densities().gradients(x)[1], rtol=1e-9)
    assert other.fallback == "a test"


def test_initial_values_change_nothing():
    other = extract_particles(hierarchy(initval=7.0))
    x = points(5)
    np.testing.assert_array_equal(other.values(x), densities().values(x))
    mine, its = (d.draw_prior(50, np.random.default_rng(3)) for d in (densities(), other))
    np.testing.assert_array_equal(mine, its)
    assert len(np.unique(its[:, 0])) == 50


def test_prior_draws_follow_the_prior():
    x = densities().draw_prior(4_000, np.random.default_rng(5))
    tau = np.exp(x[:, 0])
    assert stats.kstest(tau, stats.halfnorm(scale=2.0).cdf).pvalue > 1e-3
    z = x[:, 1:] / tau[:, None]
    assert stats.kstest(z.ravel(), "norm").pvalue > 1e-3
    assert abs(np.corrcoef(z[1:, 0], z[:-1, 0])[0, 1]) < 4.0 / np.sqrt(4_000)
    assert abs(np.corrcoef(z.T)[0, 1]) < 4.0 / np.sqrt(4_000)
    assert densities().draw_prior(0, np.random.default_rng(5)).shape == (0, 3)


def test_dependent_walks_have_noise_of_their_own():
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 1.0)
        walk = pm.GaussianRandomWalk("walk", sigma=sigma, init_dist=pm.Normal.dist(), shape=4)
        pm.Normal("y", walk[-1], 1.0, observed=0.0)
    found = extract_particles(model)
    x = found.draw_prior(500, np.random.default_rng(2))
    z = np.diff(x[:, 1:], axis=1) / np.exp(x[:, :1])
    assert stats.kstest(z.ravel(), "norm").pvalue > 1e-3


def test_there_and_back_again():
    x = points(6)
    shown = densities().constrain(x)
    np.testing.assert_allclose(shown["gap"], x[:, 2] - x[:, 1])
    np.testing.assert_allclose(shown["tau"], np.exp(x[:, 0]))
    np.testing.assert_allclose(unconstrain(hierarchy(), densities().layout, shown), x, rtol=1e-10)


def test_impossible_and_undefined_points_hurt_nobody_else():
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 1.0)
        pm.Normal("y", 0.0, a, observed=1.0)  # a negative standard deviation is impossible
        pm.Potential("root", pm.math.sqrt(a + 1.0))  # nan below -1
    found = extract_particles(model)
    before = found.counts.nan
    _, likelihood = found.values(np.array([[2.0], [-0.5], [-2.0], [1.0]]))
    assert np.isfinite(likelihood[[0, 3]]).all()
    assert (likelihood[[1, 2]] == -np.inf).all()
    assert found.counts.nan == before + 1


def test_discrete_coordinates_have_no_gradient():
    with pm.Model() as model:
        k = pm.Categorical("k", [0.2, 0.3, 0.5])
        m = pm.Normal("m", 0.0, 1.0)
        pm.Normal("y", m + k, 1.0, observed=1.5)
    found = extract_particles(model)
    x = np.column_stack([[0.0, 1.0, 2.0], [0.5, 0.5, 0.5]])
    order = [found.layout.names.index("k"), found.layout.names.index("m")]
    x = x[:, np.argsort(order)]
    terms, gradients = found.gradients(x)
    np.testing.assert_allclose(
        np.exp(terms[0] - stats.norm.logpdf(0.5)), [0.2, 0.3, 0.5], rtol=1e-9
    )
    assert (gradients[:, :, found.discrete] == 0.0).all()
    k = found.draw_prior(3_000, np.random.default_rng(1))[:, found.discrete][:, 0]
    assert stats.chisquare(np.bincount(k.astype(int)), [600, 900, 1500]).pvalue > 1e-3


def test_products_of_matrices_are_one():
    X = np.random.default_rng(1).normal(size=(500, 3))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 1.0, shape=3)
        pm.Bernoulli("y", logit_p=X @ beta, observed=(X[:, 0] > 0).astype(int))
    found = extract_particles(model)
    nodes = found._values.maker.fgraph.apply_nodes
    names = [type(n.op).__name__ for n in nodes]
    assert any("Dot" in n or "Gemm" in n for n in names)
    assert not any(n in ("Blockwise", "Scan") for n in names)
    assert found.chunk == 2**17 // 500


def test_pickled_once_per_process_and_usable_from_threads():
    copies = [cloudpickle.loads(cloudpickle.dumps(densities())) for _ in range(2)]
    assert copies[0] is copies[1]
    x = points(64)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(copies[0].values, [x] * 8))
    for values in found:
        np.testing.assert_array_equal(values, found[0])
    np.testing.assert_allclose(found[0], expected(x), rtol=1e-9)


def empty_model():
    with pm.Model() as model:
        pm.Normal("y", 0.0, 1.0, observed=1.0)
    return model


def prior_only():
    with pm.Model() as model:
        pm.Normal("a", 0.0, 1.0)
    return model


def improper():
    with pm.Model() as model:
        a = pm.Flat("a")
        pm.Normal("y", a, 1.0, observed=1.0)
    return model


def scaled():
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 1.0)
        pm.Normal("y", a, 1.0, observed=[1.0, 2.0], total_size=100)
    return model


def simulator():
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 1.0)
        pm.Simulator(
            "y", lambda rng, a, size=None: rng.normal(a, 1.0, size=2), a, observed=[1.0, 2.0]
        )
    return model


@pytest.mark.parametrize(
    ("build", "mentions"),
    [
        (empty_model, "no free variable"),
        (prior_only, "no likelihood"),
        (improper, "'a'"),
        (scaled, "total_size"),
        (simulator, "Simulator"),
    ],
)
def test_models_without_evidence_are_refused(build, mentions):
    with pytest.raises(ValueError, match=mentions):
        extract_particles(build())


def test_points_of_the_wrong_shape_are_refused():
    with pytest.raises(ValueError, match=r"\(P, 3\)"):
        densities().values(np.zeros(3))
