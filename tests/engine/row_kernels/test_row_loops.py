"""Loops over rows of a linear regression with unit variance, against matrices."""

import numpy as np
import pytest

from amc_pymc.engine import Families, Graph
from amc_pymc.engine.row_kernels import loops, printed_rows, row_program

#: More rows than two blocks hold.
N = 600


def problem(seed=1):
    rng = np.random.default_rng(seed)
    data = rng.normal(size=(N, 2))
    design = np.column_stack([np.ones(N), data[:, 0]])
    units = rng.permutation(N)[:550]
    return data, design, data[:, 1], units, rng


@pytest.fixture(scope="module", params=["entries", "dot"])
def functions(request):
    """Rows with columns (x, y); coefficients as entries of eta, or as a product beside one."""
    g = Graph()
    intercept = g.entry("eta", g.const(0))
    if request.param == "dot":
        product = g.leaf("dot", ("eta", 1, (0,)))
    else:
        product = g.make("mul", g.leaf("column", 0), g.entry("eta", g.const(1)))
    r = g.make("sub", g.leaf("column", 1), g.make("add", intercept, product))
    row = g.make("mul", g.const(-0.5), g.make("mul", r, r))
    return printed_rows(row_program(g, row, 2, Families(g), 2)).arrays[0]


def log_densities(design, y, eta):
    return -0.5 * (y - design @ eta) ** 2


def test_values_gradient_and_hessian(functions):
    data, design, y, units, rng = problem()
    eta = rng.normal(size=2)
    X, r = design[units], (y - design @ eta)[units]
    np.testing.assert_allclose(loops.values(eta, units, data, functions), -0.5 * r**2)
    total, gradient = loops.gradient(eta, units, data, functions)
    assert total == pytest.approx(-0.5 * r @ r)
    np.testing.assert_allclose(gradient, X.T @ r)
    np.testing.assert_allclose(loops.hessian(eta, units, data, functions), -X.T @ X)


def test_totals_of_all_rows_at_several_points(functions):
    """More rows than two blocks hold."""
    data, design, y, _, rng = problem()
    etas = rng.normal(size=(3, 2))
    columns, r = np.ascontiguousarray(data.T), y - etas @ design.T
    expected = -0.5 * (r**2).sum(axis=1)
    np.testing.assert_allclose(loops.totals(etas, columns, functions), expected)
    values, slopes = loops.total_gradients(etas, columns, functions)
    np.testing.assert_allclose(values, expected)
    np.testing.assert_allclose(slopes, r @ design)


@pytest.mark.parametrize("mask", [(1.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_residuals(mask, functions):
    """Rows are quadratic: nothing is left where all coordinates are expanded."""
    data, design, y, units, rng = problem()
    mask = np.array(mask)
    x, x_new, centre = rng.normal(size=(3, 2))
    out = loops.rewards(np.stack([x, x_new]), centre, units, mask, data, functions)
    at = np.where(mask > 0.0, centre, x)
    u, v = mask * (x_new - x), mask * (x_new + x - 2.0 * centre)
    taylor = (y - design @ at) * (design @ u) - 0.5 * (design @ u) * (design @ v)
    change = log_densities(design, y, x_new) - log_densities(design, y, x) - taylor
    np.testing.assert_array_equal(out[0], 0.0)
    np.testing.assert_allclose(out[1], change[units], atol=1e-12)
    if mask.all():
        np.testing.assert_allclose(out[1], 0.0, atol=1e-12)


@pytest.mark.parametrize("mask", [(1.0, 1.0), (0.0, 1.0), (0.0, 0.0)])
def test_residuals_of_states(mask, functions):
    data, design, y, units, rng = problem()
    mask = np.array(mask)
    points, centre = rng.normal(size=(3, 2)), rng.normal(size=2)
    out = loops.state_rewards(points, centre, units, mask, data, functions)
    for x, found in zip(points, out):
        at = np.where(mask > 0.0, centre, x)
        u = mask * (x - centre)
        taylor = log_densities(design, y, at) if mask.any() else 0.0
        taylor += (y - design @ at) * (design @ u) - 0.5 * (design @ u) ** 2
        np.testing.assert_allclose(found, (log_densities(design, y, x) - taylor)[units], atol=1e-12)
