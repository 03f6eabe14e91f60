"""A row's log-likelihood as an expression, against PyTensor, on every model of the zoo."""

from __future__ import annotations

from functools import cache

import numpy as np
import pymc as pm
import pymc.dims as pmd
import pytensor
import pytensor.tensor as pt
import pytest

from pytensor.compile.mode import Mode

from amc_pymc.engine import Graph
from amc_pymc.reading import extract_rows
from amc_pymc.reading.scalars import Columns, NotScalar, ParameterLeaves
from tests.model_zoo import ZOO, names
from tests.reading.realistic_models import MODELS
from tests.reading.zoo_rows import zoo_model, zoo_rows

PYTHON = Mode(linker="py", optimizer=None)
N_ROWS = 130
pytestmark = pytest.mark.filterwarnings(
    "ignore:PyTensor could not link to a BLAS:UserWarning", "ignore:.*Numba will use object mode"
)
#: Models whose rows have no expression, and what the reason says.
NOT_SCALAR: dict[str, str] = {}


class Program:
    """The expression of the rows of a model, and PyTensor's own function of them."""

    def __init__(self, model, rows=None):
        self.model = model
        self.rows = rows or extract_rows(model)
        self.graph = Graph()
        self.columns = Columns(self.graph, "column")
        self.layout = self.rows.layout
        leaf = ParameterLeaves(self.graph, self.layout)
        self.plain = self.rows.expression(self.graph, self.columns, leaf)
        (self.output,), self.used = self.columns.used([self.plain])

    def values(self, x, node=None):
        """The expression of the renumbered columns at every row, or another of all columns."""
        row = self.used if node is None else self.columns.arrays
        (found,) = self.graph.evaluate([self.output if node is None else node], row=row, eta=x)
        return np.broadcast_to(np.asarray(found, float), self.rows.n_rows)

    def gradient(self, direction):
        """``x -> (N,)``, derivatives of all rows along a direction, by PyTensor."""
        (x, *others), rows = self.rows.graph()
        weight = pt.vector("weight")
        along = pt.dot(pt.grad((rows * weight).sum(), x, disconnected_inputs="ignore"), direction)
        inputs = [weight, x, *others]
        f = pytensor.function(inputs, along, mode=PYTHON, on_unused_input="ignore")
        every = np.arange(self.rows.n_rows)
        return lambda at, w: float(f(w, at, every, *self.rows.arrays))


def points(model, discrete=None, number=3):
    """Flat points around the initial one."""
    rng = np.random.default_rng(8)
    start = model.initial_point()
    for _ in range(number):
        point = {}
        for name, value in start.items():
            if name in (discrete or {}):
                point[name] = rng.integers(0, discrete[name], value.shape)
            elif value.dtype.kind == "f":
                point[name] = value + 0.4 * rng.normal(size=value.shape)
            else:
                point[name] = value
        yield np.concatenate([np.ravel(point[v.name]) for v in model.value_vars]).astype(float)


@cache
def program(name):
    return Program(zoo_model(name), zoo_rows(name))


def assert_right(p, discrete=None):
    """Values at several points, with and without codes, and derivatives along a direction."""
    rng = np.random.default_rng(9)
    continuous = p.layout.indices(p.layout.continuous)
    direction = np.zeros(p.layout.size)
    direction[continuous] = rng.normal(size=continuous.size)
    along = p.graph.derivative(p.output, "du")
    gradient = p.gradient(direction)
    for x in points(p.model, discrete):
        expected = p.rows(p.layout.unravel(x), np.arange(p.rows.n_rows))
        for got in (p.values(x, p.plain), p.values(x)):
            np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-11)
        possible = np.isfinite(expected)
        weight = np.where(possible, rng.normal(size=p.rows.n_rows), 0.0)
        found = p.graph.evaluate([along], row=p.used, eta=x, du=direction)[0]
        slopes = np.broadcast_to(np.asarray(found, float), p.rows.n_rows)
        assert np.isfinite(slopes[possible]).all()
        if possible.all():
            scale = 1.0 + np.abs(slopes * weight).sum()
            assert abs(gradient(x, weight) - slopes @ weight) < 1e-8 * scale


@pytest.mark.parametrize("name", names("accepted"))
def test_expressions_of_the_zoo(name):
    if name in NOT_SCALAR:
        with pytest.raises(NotScalar, match=NOT_SCALAR[name]):
            program(name)
        return
    assert_right(program(name), ZOO[name].discrete)


@pytest.mark.parametrize("name", names("either"))
def test_hidden_rows_are_right_or_refused(name):
    try:
        p = Program(zoo_model(name), zoo_rows(name))
    except (ValueError, NotScalar):
        return
    assert_right(p, ZOO[name].discrete)


# --- columns --------------------------------------------------------------------------------------


def coded(X, scale=1.0):
    """The program of a regression on the columns of X."""
    rng = np.random.default_rng(3)
    with pm.Model() as model:
        pm.Normal("other", 0, 1, shape=2)
        b = pm.Normal("b", 0, 1, shape=X.shape[1])
        pm.Normal("y", pt.dot(X, b) * scale, 1.0, observed=rng.normal(size=len(X)))
    return Program(model)


def one_hot(n, size, seed=0):
    code = np.random.default_rng(seed).integers(0, size, n)
    return np.equal.outer(code, np.arange(size)).astype(float)


@pytest.mark.parametrize(
    ("X", "entries", "columns"),
    [
        (one_hot(N_ROWS, 6), 1, 2),
        (np.column_stack([one_hot(N_ROWS, 4), one_hot(N_ROWS, 5, 1)]), 2, 3),
        (np.column_stack([one_hot(N_ROWS, 4)[:, 1:], np.zeros(N_ROWS)]), 1, 2),
        (np.column_stack([one_hot(N_ROWS, 4).astype(int), np.arange(N_ROWS)]), 1, 3),
        (np.column_stack([one_hot(N_ROWS, 2), np.linspace(0, 1, N_ROWS), np.ones(N_ROWS)]), 0, 5),
        (one_hot(N_ROWS, 6).astype(bool), 0, 7),  # right, but no code
    ],
    ids=[
        "one factor",
        "two factors",
        "reference and zeros",
        "integers",
        "few",
        "truth",
    ],
)
def test_one_hot_columns_are_codes(X, entries, columns):
    p = coded(X)
    assert_right(p)
    g = p.graph
    assert sum(bool(g.depends[n]) for n in g.leaves([p.output], "entry")) == entries
    assert len(p.used) == columns


def test_codes_are_positions_and_rows_without_a_one_read_nothing():
    X = np.zeros((N_ROWS, 5))
    X[0, 3], X[1, 0], X[2, 4] = 1.0, 1.0, 1.0
    p = coded(X)
    x = np.arange(p.layout.size, dtype=float)
    start = p.layout.slices["b"].start
    residuals = p.values(x)
    y = p.model.rvs_to_values[p.model["y"]].eval()
    mean = np.zeros(N_ROWS)
    mean[:3] = x[start + 3], x[start], x[start + 4]
    np.testing.assert_allclose(residuals, -0.5 * (y - mean) ** 2 - 0.5 * np.log(2 * np.pi))


def test_columns_are_views_of_the_data():
    X = np.random.default_rng(1).normal(size=(50, 3))
    with pm.Model() as model:
        pm.Normal("y", X @ pm.Normal("b", shape=3), 1.0, observed=X[:, 0])
    found = Program(model)
    assert len(found.columns.arrays) == 4
    for column in found.columns.arrays:
        assert any(np.shares_memory(column, data) for data in found.rows.arrays)


def test_a_wide_product_is_a_loop():
    p = coded(np.random.default_rng(1).normal(size=(N_ROWS, 30)))
    dots = p.graph.leaves([p.output], "dot")
    assert [len(p.graph.nodes[n].value[2]) for n in dots] == [30]
    assert p.graph.nodes[dots[0]].value[2] == tuple(range(30))


def test_named_dimensions_gather():
    rng = np.random.default_rng(2)
    with pm.Model(coords={"obs": range(N_ROWS), "group": range(4), "out": range(3)}) as model:
        group = pmd.Data("group_index", rng.integers(0, 4, N_ROWS), dims="obs")
        a = pmd.Normal("a", 0, 1, dims=("group", "out"))
        y = rng.normal(size=(N_ROWS, 3))
        pmd.Normal("y", a.isel(group=group), 1, observed=pmd.as_xtensor(y, dims=("obs", "out")))
    assert_right(Program(model))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_realistic_models(name):
    model = MODELS[name](N_ROWS, np.random.default_rng(sum(map(ord, name))))
    if name in NOT_SCALAR:
        with pytest.raises(NotScalar, match=NOT_SCALAR[name]):
            Program(model)
        return
    assert_right(Program(model))
