"""Printed kernels of rows against PyTensor's own derivatives, interpreted."""

import functools

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from amc_pymc.reading import NotRowFactorised, extract_rows
from amc_pymc.reading.densities import RowDensities
from amc_pymc.reading.graphs import INTERPRETED, initial_point_of
from amc_pymc.reading.packed_rows import NO_SCALAR_FORM, pack_rows
from amc_pymc.tall.decisions import residuals

N = 300


def data():
    rng = np.random.default_rng(3)
    return rng.normal(size=(N, 3)), rng.integers(0, 5, N), rng.normal(size=(N, 2)), rng


def student():
    """A product with a matrix, entries chosen by data, and a scale."""
    x, g, y, _ = data()
    with pm.Model() as model:
        b = pm.Normal("b", shape=3)
        a = pm.Normal("a", shape=5)
        s = pm.HalfNormal("s")
        pm.StudentT("y", nu=4, mu=x @ b + a[g], sigma=s, observed=y[:, 0])
    return model


def bivariate():
    """Several values in a row, and a Cholesky factor."""
    _, _, y, _ = data()
    with pm.Model() as model:
        mu = pm.Normal("mu", shape=2)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=pm.HalfNormal.dist(1))
        pm.MvNormal("y", mu, chol=chol, observed=y)
    return model


def one_each():
    """A variable with one entry for each row, and products of two vectors of parameters."""
    x, _, _, rng = data()
    counts = rng.poisson(2.0, N)
    with pm.Model() as model:
        b, c = pm.Normal("b", shape=3), pm.Normal("c", shape=3)
        z = pm.Normal("z", shape=N)
        rate = pm.math.exp(0.3 * (x @ b) + 0.2 * z)
        pm.ZeroInflatedPoisson("y", psi=pm.math.sigmoid(x @ c), mu=rate, observed=counts)
    return model


def shrunk():
    """Coefficients that are functions of parameters, of two forms, and some of one-hot columns."""
    x, g, y, _ = data()
    wide = np.column_stack([x, x**2, x[:, :1] * x[:, 1:]])
    with pm.Model() as model:
        tau = pm.HalfCauchy("tau", 1)
        local = pm.HalfCauchy("local", 1, shape=8)
        z, a, c = pm.Normal("z", shape=8), pm.Normal("a", shape=5), pm.Normal("c", shape=4)
        mu = wide @ (z * tau * local) + np.eye(5)[g] @ (tau * a)
        scale = pm.math.exp(0.1 * wide[:, :4] @ pm.math.tanh(c * np.array([1.0, 2.0, 0.5, 3.0])))
        pm.Normal("y", mu, scale, observed=y[:, 0])
    return model


def known_scale():
    """A parameter of the likelihood that is data, which PyMC checks."""
    x, _, y, _ = data()
    with pm.Model() as model:
        pm.Normal("y", x @ pm.Normal("b", shape=3), pm.Data("s", 0.8), observed=y[:, 0])
    return model


MODELS = {f.__name__: f for f in (student, bivariate, one_each, shrunk, known_scale)}


@functools.cache
def case(name):
    """Densities, points and a centre."""
    model = MODELS[name]()
    rows = extract_rows(model)
    d = rows.layout.size
    rng = np.random.default_rng(5)
    x = rows.layout.ravel(initial_point_of(model)) + 0.3 * rng.normal(size=d)
    points = x + 0.1 * rng.normal(size=(3, d))
    expand = np.arange(0, d, 2) if name == "student" else np.arange(d)
    return RowDensities(rows, expand=expand), points, rng.permutation(N)[:270]


def expanded(densities):
    """1 for coordinates in which the control variate is expanded, 0 for others."""
    return np.isin(np.arange(densities.layout.size), densities.expand).astype(float)


@functools.cache
def reference(name):
    """``(x, units) -> value, gradient, Hessian`` of their sum, and each row's log-likelihood."""
    densities, _, _ = case(name)
    rows = densities.rows
    inputs, each = rows.graph()
    x = inputs[0]
    gradient = pt.grad(each.sum(), x)
    v = pt.vector("v")
    along = pt.grad(pt.dot(gradient, v), x)
    kwargs = {"mode": INTERPRETED, "on_unused_input": "ignore"}
    first = pytensor.function(inputs, [each, gradient], **kwargs)
    second = pytensor.function([v, *inputs], along, **kwargs)

    def derivatives(x, units):
        values, slope = first(x, units, *rows.arrays)
        curve = [second(e, x, units, *rows.arrays) for e in np.eye(x.size)]
        return values, slope, np.array(curve)

    return derivatives


@pytest.mark.parametrize("name", MODELS)
def test_values_and_derivatives(name):
    densities, points, units = case(name)
    assert densities.packed is not None
    x, mask = points[0], expanded(densities)
    values, slope, curve = reference(name)(x, units)
    np.testing.assert_allclose(densities.values(x, units), values, rtol=1e-10)
    total, gradient = densities.value_and_gradient(x, units)
    assert total == pytest.approx(values.sum(), rel=1e-10)
    np.testing.assert_allclose(gradient, slope, rtol=1e-8, atol=1e-9)
    found = densities.hessian(x, units)
    np.testing.assert_allclose(found, curve * np.outer(mask, mask), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", ["student", "bivariate", "shrunk"])
def test_residuals(name):
    """Their sums, from derivatives at the centre."""
    densities, (x, x_new, centre), units = case(name)
    assert (densities.packed.coefficients is not None) == (name == "shrunk")
    densities = densities.in_parameters()
    mask, derivatives = expanded(densities), reference(name)
    u, v = mask * (x_new - x), mask * (x_new + x - 2.0 * centre)
    here, there = derivatives(x, units), derivatives(x_new, units)
    _, slope, curve = derivatives(np.where(mask > 0.0, centre, x), units)
    change = (there[0] - here[0]).sum() - slope @ u - 0.5 * u @ curve @ v
    found = residuals(densities.rewards, np.stack([x, x_new]), centre, units)
    assert found[1].sum() == pytest.approx(change, rel=1e-7, abs=1e-8)
    w = mask * (x_new - centre)
    at = derivatives(np.where(mask > 0.0, centre, x_new), units)
    left = there[0].sum() - at[0].sum() - at[1] @ w - 0.5 * w @ at[2] @ w
    found = residuals(densities.state_rewards, x_new[None], centre, units)
    assert found.sum() == pytest.approx(left, rel=1e-7, abs=1e-8)


def test_rows_that_are_no_scalar_expression_say_why():
    _, _, y, _ = data()
    with pm.Model() as model:
        b = pm.Normal("b", shape=3)
        pm.Normal("y", pt.sort(b)[0], 1.0, observed=y[:, 0])
    with pytest.raises(NotRowFactorised, match=r"y have no scalar form: Sort.*Use NUTS, or write"):
        RowDensities(extract_rows(model), expand=np.arange(3))


def test_as_many_rows_as_columns_are_no_obstacle():
    """A shape of the model is then taken for the number of rows."""
    from amc_pymc import RacingMetropolis

    values = np.random.default_rng(1).normal(size=(3, 3))
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", shape=3), 1.0, observed=values)
        rows = extract_rows(model)
        assert RacingMetropolis(progressbar=False).prepared is not None
    point = model.initial_point()
    expected = -0.5 * (values**2 + np.log(2.0 * np.pi)).sum(axis=1)
    np.testing.assert_allclose(rows(point, np.arange(3)), expected)


def test_integers_that_are_no_floats_have_no_scalar_form():
    *_, rng = data()
    with pm.Model() as model:
        p = pm.Beta("p", 1, 1)
        pm.Binomial("y", n=np.full(N, 2**60) + np.arange(N), p=p, observed=rng.integers(0, 9, N))
    with pytest.raises(NO_SCALAR_FORM, match="too large for a float"):
        pack_rows(extract_rows(model))
