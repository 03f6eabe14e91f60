"""Marginal likelihoods of population parameters against integration by other means."""

from functools import cache

import cloudpickle
import numpy as np
import pymc as pm
import pytest

from scipy import stats
from scipy.special import expit, logsumexp

from amc_pymc.evidence.mcmc import HMC, Tuning, start
from amc_pymc.reading import group_densities as group_totals
from amc_pymc.reading.factors import find_factors
from amc_pymc.reading.particles.densities import ParticleDensities, counted, extract_marginals

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS:UserWarning")
G, N = 6, 27
#: Trapezoidal grid for references, in standard deviations of the effects' prior.
GRID = np.linspace(-14.0, 14.0, 4001)
#: PyMC's constants may be in single precision.
ROUNDING = 1e-5
#: A tenth of the default target, up to which nothing is flagged.
TENTH = 0.005


def data(seed=3):
    """Group of each row, one of them empty, and a generator."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, G - 1, N), rng


def rows_of(kind):
    g, rng = data()
    t = 0.5 + 0.7 * rng.normal(size=G)[g]
    if kind == "poisson":
        return g, rng.poisson(np.exp(t))
    if kind == "bernoulli":
        return g, (rng.random(N) < expit(t)).astype(int)
    return g, t + rng.normal(size=N)


def intercepts(kind):
    g, y = rows_of(kind)
    with pm.Model() as model:
        a, sd = pm.Normal("a", 0, 2), pm.HalfNormal("sd", 1)
        effect = pm.Normal("effect", 0, sd, shape=G)
        eta = a + effect[g]
        if kind == "poisson":
            pm.Poisson("y", pm.math.exp(eta), observed=y)
        elif kind == "bernoulli":
            pm.Bernoulli("y", logit_p=eta, observed=y)
        else:
            pm.Normal("y", eta, 1.5, observed=y)
        pm.Deterministic("double", 2.0 * a)
        pm.Deterministic("shifted", a + effect)
    return model


def taken(model, observed=("y",), which=0) -> ParticleDensities:
    return extract_marginals(model, find_factors(model, observed)[which], observed)


@cache
def densities(kind) -> ParticleDensities:
    return taken(intercepts(kind))


LOG_PMF = {
    "poisson": lambda y, eta: stats.poisson.logpmf(y, np.exp(eta)),
    "bernoulli": lambda y, eta: stats.bernoulli.logpmf(y, expit(eta)),
    "normal": lambda y, eta: stats.norm.logpdf(y, eta, 1.5),
}


def by_trapezoid(kind, x, g=None, y=None):
    """Marginal log likelihood at (a, log sd) on a fine grid."""
    if g is None:
        g, y = rows_of(kind)
    a, sd = x[0], np.exp(x[1])
    total = 0.0
    for k in range(G):
        own = LOG_PMF[kind](y[g == k, None], a + sd * GRID).sum(axis=0)
        total += logsumexp(own + stats.norm.logpdf(GRID)) + np.log(GRID[1] - GRID[0])
    return total


POINTS = np.array([[0.4, -0.3], [1.0, 0.2], [-0.5, -2.0]])


@pytest.mark.parametrize("kind", sorted(LOG_PMF))
def test_likelihood_is_that_of_numerical_integration(kind):
    found = densities(kind).refined(POINTS, 1e-5)
    wanted = [by_trapezoid(kind, x) for x in POINTS]
    np.testing.assert_allclose(found.values(POINTS)[1], wanted, atol=2e-5)
    assert abs(found.groups.error(POINTS)) < 2e-5


@pytest.mark.parametrize("kind", sorted(LOG_PMF))
def test_gradient_is_that_of_the_values(kind):
    found, h = densities(kind).refined(POINTS, 1e-9), 1e-5
    terms, gradients = found.gradients(POINTS)
    np.testing.assert_array_equal(terms, found.values(POINTS))
    for i in range(2):
        e = h * np.eye(2)[i]
        slope = (found.values(POINTS + e) - found.values(POINTS - e)) / (2 * h)
        np.testing.assert_allclose(gradients[:, :, i], slope, rtol=1e-5, atol=1e-5)


def test_prior_is_that_of_the_population_parameters():
    prior = densities("normal").values(POINTS)[0]
    sd = np.exp(POINTS[:, 1])
    wanted = stats.norm.logpdf(POINTS[:, 0], 0, 2) + stats.halfnorm.logpdf(sd) + POINTS[:, 1]
    np.testing.assert_allclose(prior, wanted)
    draws = densities("normal").draw_prior(4000, np.random.default_rng(1))
    assert abs(draws[:, 0].std() - 2.0) < 4 * 2.0 / np.sqrt(8000)


def test_gaussian_effects_take_two_nodes_from_the_start():
    assert densities("normal").groups.rule == "adaptive Gauss-Hermite, 2 nodes"
    assert densities("poisson").groups.rule == "adaptive Gauss-Hermite, 7 nodes"


def test_only_what_depends_on_population_parameters_is_shown():
    shown = densities("normal").constrain(POINTS)
    assert list(shown) == ["a", "sd", "double"]
    np.testing.assert_allclose(shown["double"], 2.0 * POINTS[:, 0])


def test_error_of_few_nodes_is_found_with_its_sign():
    found = densities("poisson")
    coarse = found.refined(POINTS, 1e9)
    assert coarse.groups.rule == "adaptive Gauss-Hermite, 2 nodes"
    wanted = [by_trapezoid("poisson", x) for x in POINTS]
    off = coarse.values(POINTS)[1] - wanted
    assert np.abs(off).max() > 1e-3
    # exp(-off), averaged over points, is the ratio of the evidences
    assert coarse.groups.error(POINTS) == pytest.approx(-np.log(np.mean(np.exp(-off))), rel=1e-3)


def test_long_tails_take_the_wide_rule():
    g = np.repeat(np.arange(30), 2)
    y = stats.cauchy.rvs(size=60, random_state=1)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        effect = pm.Cauchy("effect", 0, 3, shape=30)
        pm.StudentT("y", nu=1.5, mu=mu + effect[g], sigma=0.3, observed=y)
    x = np.array([[0.1], [-0.4]])
    found = taken(model).refined(x, 1e-4)
    assert found.groups.rule.startswith("trapezoidal rule")
    u = 3.0 * np.sinh(np.linspace(-9, 9, 40_001))
    for value, (mu_now,) in zip(found.values(x)[1], x):
        logs = stats.cauchy.logpdf(u, 0, 3) + np.log(3.0 * np.cosh(np.linspace(-9, 9, 40_001)))
        wanted = 0.0
        for k in range(30):
            own = stats.t.logpdf(y[g == k, None], 1.5, mu_now + u, 0.3).sum(axis=0)
            wanted += logsumexp(own + logs) + np.log(18 / 40_000)
        assert value == pytest.approx(wanted, abs=TENTH)
    assert abs(found.groups.error(x)) < TENTH


def test_the_rest_of_the_likelihood_and_another_factor_stay():
    g, y = rows_of("normal")
    h = np.arange(N) % 3
    with pm.Model() as model:
        z = pm.Normal("z", 0, 1, shape=3)  # groups have it last
        a, sd = pm.Normal("a", 0, 2), pm.HalfNormal("sd", 1)
        effect = pm.Normal("effect", 0, 1, shape=G)
        pm.Normal("y", a + sd * z[h] + effect[g], 1.5, observed=y)
        pm.Normal("other", a, 1.0, observed=[0.3, -0.2])
        pm.Potential("more", -0.5 * a**2)
    found = taken(model)
    assert found.layout.names == ("z", "a", "sd_log__")
    rng = np.random.default_rng(1)
    x = 0.5 * rng.normal(size=(2, 5))
    terms, gradients = found.gradients(x)
    for value, (*z, a, log_sd) in zip(terms[1], x):
        rest = stats.norm.logpdf([0.3, -0.2], a).sum() - 0.5 * a**2
        wanted = 0.0
        for k in range(G):
            shift = a + np.exp(log_sd) * np.array(z)[h[g == k]]
            cov = 1.5**2 * np.eye(shift.size) + 1.0
            if shift.size:
                wanted += stats.multivariate_normal.logpdf(y[g == k], shift, cov)
        assert value == pytest.approx(wanted + rest, abs=ROUNDING)
    for i in range(5):
        e = 1e-5 * np.eye(5)[i]
        slope = (found.values(x + e)[1] - found.values(x - e)[1]) / 2e-5
        np.testing.assert_allclose(gradients[1, :, i], slope, rtol=1e-6, atol=1e-6)


def test_gradients_are_zero_where_a_group_or_the_prior_is_impossible():
    g = np.repeat(np.arange(4), 3)
    y = np.random.default_rng(1).poisson(2.0, 12)
    with pm.Model() as model:
        a, p = pm.Normal("a", 0, 1), pm.Beta("p", 1, 1)
        pm.Potential("bounded", pm.math.sqrt(a + 5.0))
        effect = pm.Normal("effect", p, 1, shape=4)
        pm.Normal("x", a, 1.0, observed=[0.1])
        mean = pm.math.exp(effect[g]) * pm.math.switch(a > 0.5, 1.0, 0.0)
        pm.Poisson("y", mean, observed=y)
    x = np.array([[1.0, 0.2], [-3.0, 0.2], [-6.0, 0.2]])  # the last has no prior density
    inside = x[0]
    found = taken(model).refined(x[:1], 1e-9)
    terms, gradients = found.gradients(x)
    assert np.isfinite(terms).tolist() == [[True, True, True], [True, False, False]]
    assert np.isfinite(gradients).all() and not gradients[1, 1:].any()
    for i, e in enumerate(1e-5 * np.eye(2)):
        slope = (found.values(inside[None] + e) - found.values(inside[None] - e)) / 2e-5
        np.testing.assert_allclose(gradients[:, 0, i], slope[:, 0], rtol=1e-5, atol=1e-6)
    # trajectories of which many end where a group is impossible
    rng = np.random.default_rng(2)
    particles = start(found, np.tile(inside, (50, 1)), with_gradient=True)
    for _ in range(20):
        particles, acceptance = HMC().step(
            found, particles, 1.0, Tuning(0.7, np.array([0.1, 1.0])), rng
        )
        assert np.isfinite(particles.terms).all() and np.isfinite(particles.gradients).all()
    assert 0.1 < acceptance.mean() < 0.95 and np.ptp(particles.x[:, 0]) > 0.1


def test_points_far_out_are_evaluated():
    # the first step towards the mode goes where exp overflows
    g, y = rows_of("poisson")
    x = np.array([[-17.0, 7.5]])
    with counted() as counts:
        value = densities("poisson").values(x)[1, 0]
    assert counts.tolist() == [1, 0, 0]
    u = np.linspace(-400.0, 40.0, 400_001)
    wanted = 0.0
    for k in range(G):
        own = stats.poisson.logpmf(y[g == k, None], np.exp(-17.0 + u)).sum(axis=0)
        log_p = stats.norm.logpdf(u, 0, np.exp(7.5))
        if np.any(y[g == k]):
            wanted += logsumexp(own + log_p) + np.log(u[1] - u[0])
        elif not np.any(g == k):
            continue
        else:
            wanted += np.log(0.5)
    assert value == pytest.approx(wanted, abs=2.0)


def test_impossible_points_have_no_likelihood():
    x = np.array([[np.nan, 0.0], [0.4, -0.3]])
    terms, _ = densities("normal").gradients(x)
    assert np.all(terms[:, 0] == -np.inf)
    assert terms[1, 1] == densities("normal").values(x[1:])[1, 0]


def test_pickled_densities_are_the_same_and_arrive_once():
    found = densities("poisson").refined(POINTS, 1e-6)
    copies = [cloudpickle.loads(cloudpickle.dumps(found)) for _ in range(2)]
    assert copies[0] is copies[1]
    assert copies[0].groups.rule == found.groups.rule
    np.testing.assert_array_equal(copies[0].values(POINTS), found.values(POINTS))
    other = cloudpickle.loads(cloudpickle.dumps(densities("poisson")))
    assert other.groups.rule == densities("poisson").groups.rule != found.groups.rule


def test_wrong_groups_are_refused(monkeypatch):
    right = group_totals.GroupTotals.complete
    monkeypatch.setattr(group_totals.GroupTotals, "complete", lambda *args: right(*args) + 1e-3)
    with pytest.raises(ValueError, match="report this model"):
        taken(intercepts("normal"))


@pytest.mark.slow
def test_correlated_intercepts_and_slopes():
    g, rng = data()
    t, y = rng.normal(size=N), rng.poisson(1.5, N)
    with pm.Model() as model:
        a = pm.Normal("a", 0, 1)
        sd, r = pm.HalfNormal("sd", 1, shape=2), pm.Uniform("r", -1, 1)
        cov = pm.math.stack([sd[0] ** 2, r * sd[0] * sd[1], r * sd[0] * sd[1], sd[1] ** 2])
        z = pm.Normal("z", 0, 1, shape=(G, 2))
        u0 = sd[0] * z[:, 0]
        u1 = sd[1] * (r * z[:, 0] + pm.math.sqrt(1 - r**2) * z[:, 1])
        pm.Deterministic("cov", cov)
        pm.Poisson("y", pm.math.exp(a + u0[g] + u1[g] * t), observed=y)
    x = np.array([[0.2, -0.5, -0.8, 0.7], [0.0, -1.0, 0.1, -0.4]])
    found = taken(model).refined(x, 1e-6)
    z = np.linspace(-9, 9, 181)
    z0, z1 = (v.ravel() for v in np.meshgrid(z, z, indexing="ij"))
    for value, (a, s0, s1, raw) in zip(found.values(x)[1], x):
        r, s0, s1 = 2 * expit(raw) - 1, np.exp(s0), np.exp(s1)
        wanted = 0.0
        for k in range(G):
            eta = a + s0 * z0 + s1 * (r * z0 + np.sqrt(1 - r**2) * z1) * t[g == k, None]
            own = stats.poisson.logpmf(y[g == k, None], np.exp(eta)).sum(axis=0)
            own += stats.norm.logpdf(z0) + stats.norm.logpdf(z1)
            wanted += logsumexp(own) + 2 * np.log(z[1] - z[0])
        assert value == pytest.approx(wanted, abs=1e-5)
