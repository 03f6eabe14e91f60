"""Marginal log-likelihoods of groups whose rows have kinks, against numerical integration."""

from functools import cache

import numpy as np
import pymc as pm
import pytest

from scipy.special import logsumexp

from amc_pymc.reading.group_densities import GroupDensities
from amc_pymc.reading.group_totals import GroupTotals
from amc_pymc.reading.layout import FlatLayout
from amc_pymc.reading.node_choice import EVEN, TOLERANCE, choose_nodes
from amc_pymc.tall.groups import lobatto_nodes
from tests.reading.test_group_densities import CONTINUOUS, densities, grouped, integrand, points
from tests.reading.test_groups import taken

G, SIZE = 60, 25
SD, SLOPE_SD = 3.0, 0.3


def rows():
    """Level, covariate and response of each row."""
    rng = np.random.default_rng(5)
    g, x = np.repeat(np.arange(G), SIZE), rng.normal(size=G * SIZE)
    effects = rng.normal(size=(G, 2)) * [SD, SLOPE_SD]
    return g, x, effects[g, 0] + effects[g, 1] * x + rng.laplace(size=g.size)


def intercepts(unit=1.0):
    """Effects with a wide prior, which is three to fifteen times as wide as their posteriors."""
    g, x, y = rows()
    with pm.Model() as model:
        b = pm.Normal("b")
        u = pm.Normal("u", 0.0, SD * unit, shape=G)
        pm.Laplace("y", mu=b * unit * x + u[g], b=unit, observed=unit * y)
    return model


def intercepts_and_slopes():
    g, x, y = rows()
    with pm.Model() as model:
        b = pm.Normal("b")
        u = pm.Normal("u", 0.0, [SD, SLOPE_SD], shape=(G, 2))
        pm.Laplace("y", mu=b * x + u[g, 0] + u[g, 1] * x, b=1.0, observed=y)
    return model


@cache
def kinked_groups(build, *args):
    return taken(build, *args)[2]


def kinked_densities(build, n_nodes, *args):
    d = GroupDensities(kinked_groups(build, *args))
    assert d.find_kinks(np.array([0.05])) and not d.find_kinks(np.array([0.05]))
    d.set_nodes(n_nodes)
    return d


def moments(groups, g, x, unit=1.0):
    """Log integral of a group's integrand, and mean and covariance of its effects, by NumPy."""
    f, q = integrand(groups, g, x), groups.program.n_local
    y = groups.rows[0][groups.first[g] : groups.first[g + 1]]
    line = np.median(y) + unit * np.linspace(-4.0, 4.0, 3_001 if q == 1 else 401)
    axes = [line] if q == 1 else [line, np.linspace(-1.6, 1.6, 401)]
    u = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, q)
    terms = f(u)
    log_z = logsumexp(terms)
    p = np.exp(terms - log_z)
    steps = sum(np.log(a[1] - a[0]) for a in axes)
    return log_z + steps, p @ u, np.cov(u.T, aweights=p, ddof=0).reshape(q, q)


@pytest.mark.parametrize(
    ("build", "n_nodes", "error"), [(intercepts, 61, 2e-3), (intercepts_and_slopes, 31, 1e-2)]
)
def test_values_are_integrals(build, n_nodes, error):
    d = kinked_densities(build, n_nodes)
    x = np.array([0.05])
    d.settle(x)
    found = d.all_values(x)
    for g in range(6):
        log_z, mean, covariance = moments(d.groups, g, x)
        assert found[g] == pytest.approx(log_z, abs=error)
        whitened = np.linalg.solve(d.factors[g], d.modes[g] - mean)
        assert np.linalg.norm(whitened) < 0.7
        inverse = np.linalg.inv(d.factors[g])
        scale = np.linalg.eigvalsh(inverse @ covariance @ inverse.T)
        assert 0.5 < scale.min() and scale.max() < 2.0


def test_scale_that_second_derivatives_give_is_not_enough():
    """Which shows that the check above can fail."""
    d, x = GroupDensities(kinked_groups(intercepts), 21), np.array([0.05])
    d.settle(x)
    np.testing.assert_allclose(d.factors[:, 0, 0], SD)
    errors = [d.all_values(x)[g] - moments(d.groups, g, x)[0] for g in range(6)]
    assert np.abs(errors).max() > 0.05


@pytest.mark.parametrize("unit", [1e-4, 1e4])
def test_units_of_the_effects_do_not_matter(unit):
    """The search starts at a scale of one."""
    x = np.array([0.05])
    reference = kinked_densities(intercepts, 61).all_values(x)
    found = kinked_densities(intercepts, 61, unit).all_values(x) + SIZE * np.log(unit)
    np.testing.assert_allclose(found, reference, atol=4e-3)


def quantiles():
    """Many groups, for few of which a search goes back and forth between rows."""
    rng = np.random.default_rng(2)
    g = np.repeat(np.arange(1_000), 100)
    y = 0.4 * rng.normal(size=1_000)[g] + rng.standard_t(4, size=g.size)
    with pm.Model() as model:
        a, u = pm.Normal("a"), pm.Normal("u", 0.0, 1.0, shape=1_000)
        pm.AsymmetricLaplace("y", q=0.8, mu=a + 0.42 * u[g], b=1.0 / 0.92, observed=y)
    return model


def test_searches_end_at_the_mode():
    d = GroupDensities(kinked_groups(quantiles))
    d.expect_kinks()
    finer = GroupDensities(d.groups)
    finer.expect_kinks()
    d.set_nodes(61)
    finer.set_nodes(301)
    d.settle(np.array([0.96]))
    errors = [d.all_values(x) - finer.all_values(x) for x in np.linspace(0.91, 1.01, 8)[:, None]]
    assert np.abs(errors).max() < 0.01


@pytest.mark.parametrize("name", ["two_observed", "intercept_and_slope", "group_covariate"])
def test_smooth_groups_have_the_same_values(name):
    """Differences of gradients are second derivatives there."""
    d, kinked = densities(name), GroupDensities(grouped(name))
    kinked.expect_kinks()
    kinked.set_nodes(21)
    for x in points(d):
        np.testing.assert_allclose(kinked.all_values(x), d.all_values(x), atol=1e-6)


def test_nodes_are_chosen():
    d = kinked_densities(intercepts, 21)
    spread = [np.array([b]) for b in np.linspace(0.0, 0.1, 9)]  # two standard deviations about 0.05
    error = choose_nodes(d, spread, np.random.default_rng(1))
    assert error < TOLERANCE
    assert d.held_nodes is d.nodes, "fixed nodes need smooth residuals"
    finest = kinked_densities(intercepts, 401)
    changes = [d.all_values(x).sum() - finest.all_values(x).sum() for x in spread]
    assert np.std(changes) < 2.0 * TOLERANCE
    few = d.n_nodes
    choose_nodes(d, [x + 3.0 * (x - spread[4]) for x in spread], np.random.default_rng(1))
    assert d.n_nodes > few


def test_discrete_effects_have_no_scale():
    d = GroupDensities(grouped("zero_inflation"))
    assert not d.find_kinks(np.zeros(d.layout.size))


@pytest.mark.parametrize("name", CONTINUOUS)
def test_smooth_groups_have_no_kinks(name):
    d = densities(name)
    for x in points(d, 4, 1.0):
        assert not d.find_kinks(x)
        rule = lobatto_nodes(40)
        measured, explained = d.kernels.curvatures(x, np.arange(d.n_units), *d._places, *rule)
        assert explained == pytest.approx(measured, rel=1e-4)
        if name == "intercept_and_slope":  # nearly Gaussian, with two effects each
            assert measured == pytest.approx(2.0 * d.n_units, rel=0.1)


def test_totals_of_evidence_use_even_nodes():
    """And as many as a standard error needs; the scale of second derivatives would take 321."""
    model, _, groups = taken(intercepts)
    totals = GroupTotals(groups, FlatLayout.from_model(model, model.initial_point()))
    xs = np.linspace(0.0, 0.1, 6)[:, None]
    wanted = [sum(moments(groups, g, x)[0] for g in range(G)) for x in xs]
    found = totals.simplified(xs)
    assert found.rule == "trapezoidal rule, 21 nodes"
    np.testing.assert_allclose(found.values(xs), wanted, atol=0.15)
    refined = found.refined(xs, 0.01)
    assert refined.rule in {f"trapezoidal rule, {n} nodes" for n in EVEN[1]}
    np.testing.assert_allclose(refined.values(xs), wanted, atol=0.05)
    assert abs(refined.error(xs)) < 0.05
    again = totals.settled(xs[0])  # as before a run that does not look at several points
    np.testing.assert_allclose(again.values(xs), found.values(xs), atol=0.15)
    assert "Hermite" in totals.rule, "the original is as it was"
