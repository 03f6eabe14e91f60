"""Control variates of groups by differences of log-likelihoods."""

import numpy as np
import pymc as pm
import pytest

from amc_pymc.reading import group_table
from amc_pymc.reading.group_densities import GroupDensities
from amc_pymc.reading.group_table import GroupTable, affordable
from amc_pymc.reading.node_choice import choose_nodes
from amc_pymc.tall.samplers.compiled import unit_changes
from tests.reading.test_group_densities import densities, grouped
from tests.reading.test_kinked_groups import SD, SIZE, intercepts, kinked_groups, rows

G, D = 30, 4
PLACES = np.array([0, 1, 3])


def quadratic(scale, seed=1):
    """Values (G,) of quadratic functions of three of four coordinates, and their derivatives at zero."""
    rng = np.random.default_rng(seed)
    gradients = rng.normal(size=(G, 3)) / scale
    root = rng.normal(size=(G, 3, 3))
    hessians = -(np.eye(3) + 0.1 * (root + root.transpose(0, 2, 1))) / np.outer(scale, scale)
    offsets = rng.normal(size=G)

    def values(x):
        z = x[PLACES]
        return offsets + gradients @ z + 0.5 * np.einsum("gjk,j,k->g", hessians, z, z)

    return values, gradients, hessians


@pytest.mark.parametrize("start", [1e-6, 1.0, 1e6])
def test_quadratic_functions_are_expanded_exactly(start):
    """Whatever the scale of a coordinate is, and that where the search for steps starts."""
    scale = np.array([1e-3, 1.0, 50.0])
    values, gradients, hessians = quadratic(scale)
    table = GroupTable(G, PLACES)
    table.fill(values, np.zeros(D), np.diag(start / np.array([1e-3, 1.0, 1.0, 50.0]) ** 2))
    np.testing.assert_allclose(table.gradients * scale, gradients * scale, atol=1e-6)
    rows, columns = np.tril_indices(3)
    np.testing.assert_allclose(
        table.hessians * scale[rows] * scale[columns],
        hessians[:, rows, columns] * scale[rows] * scale[columns],
        atol=1e-6,
    )
    gradient, hessian = table.sums(D)
    inside = np.ix_(PLACES, PLACES)
    np.testing.assert_allclose(gradient[PLACES] * scale, gradients.sum(axis=0) * scale, atol=1e-5)
    found = hessian[inside] * np.outer(scale, scale)
    np.testing.assert_allclose(found, hessians.sum(axis=0) * np.outer(scale, scale), atol=1e-5)
    assert gradient[2] == 0.0 and np.all(hessian[2] == 0.0) and np.all(hessian[:, 2] == 0.0)


@pytest.mark.parametrize("start", [1e-6, 1.0, 1e6])
def test_steps_are_some_standard_deviations(start):
    """A kink per group, which steps that are too short or too long would not average over."""
    kinks = np.random.default_rng(2).normal(size=2_000)
    tried = []

    def values(x):
        tried.append(abs(x[0]))
        return -np.abs(x[0] - kinks)

    table = GroupTable(kinks.size, np.array([0]))
    table.fill(values, np.zeros(1), np.array([[-start]]))
    curvature = 2.0 * kinks.size / np.sqrt(2.0 * np.pi)  # twice the density of kinks at zero
    assert 1.4 < tried[-1] * np.sqrt(curvature) < 6.1
    assert table.sums(1)[1][0, 0] == pytest.approx(-curvature, rel=0.2)


def test_groups_that_are_impossible_nearby_are_not_expanded():
    def values(x):
        return np.array([-np.inf if x[0] > 0.1 else 0.0, -0.5 * x[0] ** 2, np.nan])

    table = GroupTable(3, np.array([0]))
    table.fill(values, np.zeros(1), np.array([[-1.0]]))
    assert np.all(np.isfinite(table.hessians)) and np.all(table.gradients[[0, 2]] == 0.0)
    assert table.hessians[1, 0] == pytest.approx(-1.0)


def test_tables_have_limits():
    assert affordable(2_000, 12, 1e7)
    assert not affordable(2_000, 12, 1e9)
    assert not affordable(1_000_000, 12, 1e7)


# --- races ----------------------------------------------------------------------------------------


def common_intercept():
    """The sum of second derivatives is positive, although the effects leave little to know of the intercept."""
    g, x, y = rows()
    with pm.Model() as model:
        a, b = pm.Normal("a", 0.0, 1.0), pm.Normal("b", 0.0, 1.0)
        u = pm.Normal("u", 0.0, SD, shape=y.size // SIZE)
        pm.Laplace("y", mu=a + b * x + u[g], b=1.0, observed=y)
    return model


def raced(build=intercepts, *, tabulated):
    """Densities of groups with kinks, and the surrogate of their sum."""
    d = GroupDensities(kinked_groups(build))
    d.expect_kinks()
    centre = np.full(d.layout.size, 0.05)
    points = [centre, centre - 0.03, centre + 0.03]
    choose_nodes(d, points, np.random.default_rng(1))
    assert d.table is not None
    d.set_nodes(61)  # the error of fewer nodes is in residuals of both kinds
    d.tabulate()
    if not tabulated:
        d.table = None
    return d, (centre, *d.expansion(centre))


def test_control_variates_and_residuals_add_up():
    d, surrogate = raced(common_intercept, tabulated=True)
    units = np.arange(d.n_units)
    x, x_new = np.array([0.02, 0.03]), np.array([0.07, -0.1])
    change = d.values(x_new, units) - d.values(x, units)
    found = d.raced(x, x_new, surrogate[0], units)
    assert found.sum() + d.expanded_change(x, x_new, surrogate) == pytest.approx(change.sum())
    pair = np.stack([x, x_new])
    np.testing.assert_array_equal(unit_changes(d.rewards, pair, surrogate[0], units), found)
    some = units[[7, 3]]
    np.testing.assert_array_equal(d.raced(x, x_new, surrogate[0], some), found[[7, 3]])


def test_residuals_are_small():
    """Second derivatives miss kinks, so that their control variates explain little of the curvature."""
    x, x_new = (
        np.array([0.05, 0.05]),
        np.array([0.35, 0.05]),
    )  # a standard deviation of the intercept
    sds = []
    for tabulated in (True, False):
        d, surrogate = raced(common_intercept, tabulated=tabulated)
        assert surrogate[2][0, 0] < 0.0 if tabulated else surrogate[2][0, 0] > 0.0
        found = d.raced(x, x_new, surrogate[0], np.arange(d.n_units))
        sds.append(np.sqrt(np.mean(found**2)))
    assert sds[0] < 0.1 * sds[1]


def test_smooth_groups_in_several_coordinates(monkeypatch):
    """With short steps, the table has the derivatives that the generated code computes."""
    monkeypatch.setattr(group_table, "_REACH", 0.1)
    monkeypatch.setattr(group_table, "_NEAR", 1e6)
    d = GroupDensities(grouped("two_observed"))
    smooth = densities("two_observed")
    d.expect_kinks()
    d.set_nodes(21)
    d.tabulate()
    x = np.random.default_rng(3).normal(scale=0.2, size=d.layout.size)
    gradient, hessian = smooth.expansion(x)
    found = d.expansion(x)
    sd = 1.0 / np.sqrt(np.abs(np.diag(hessian)))
    np.testing.assert_allclose(found[0] * sd, gradient * sd, atol=0.01)
    np.testing.assert_allclose(found[1] * np.outer(sd, sd), hessian * np.outer(sd, sd), atol=0.05)


def test_without_coordinates_there_is_no_table():
    d, _ = raced(tabulated=True)
    d.forget_expansion()
    assert d.table is None
    np.testing.assert_allclose(
        d.raced(np.zeros(1), np.ones(1), np.zeros(1), np.arange(3)),
        d.values(np.ones(1), np.arange(3)) - d.values(np.zeros(1), np.arange(3)),
        atol=0.02,  # searches start elsewhere
    )
