"""Rows whose products of parameters have become coefficients have the same values."""

import numpy as np
import pytest

from amc_pymc.engine import Graph
from amc_pymc.engine.row_kernels import RowProgram
from amc_pymc.reading import packed_rows
from amc_pymc.reading.packed_rows import with_products

#: Rows, parameters, and columns: a response, a covariate, and indices of parameters.
N, D = 60, 20


class Row:
    """Ways of reading a parameter, data or a product in the expression of a row."""

    def __init__(self):
        self.graph = Graph()

    def at(self, k):
        return self.graph.make("entry", self.graph.const(k), value="eta")

    def level(self, column):
        place = self.graph.make("column", value=column, kind="i")
        return self.graph.make("entry", place, value="eta")

    def data(self, column):
        return self.graph.make("column", value=column)

    def __getattr__(self, op):
        return lambda *nodes: self.graph.make(op, *nodes)


def scaled(g):
    return g.mul(g.exp(g.at(0)), g.level(2))


def with_a_mean(g):
    return g.add(g.at(1), g.mul(g.exp(g.at(0)), g.level(2)))


def times_data(g):
    return g.mul(g.data(1), g.mul(g.at(0), g.exp(g.at(1))))


def level_times_data(g):
    return g.mul(g.mul(g.exp(g.at(0)), g.data(1)), g.level(2))


def two_factors(g):
    return g.add(g.mul(g.exp(g.at(0)), g.level(2)), g.mul(g.exp(g.at(1)), g.level(3)))


def scale_of_each_kind(g):
    """As many pairs of indices as there are levels of the first."""
    return g.mul(g.exp(g.level(4)), g.level(2))


def quotient(g):
    return g.div(g.level(2), g.exp(g.at(0)))


def crossed(g):
    """More pairs of levels than levels."""
    return g.mul(g.level(2), g.level(3))


def differences(g):
    """Of nonlinear functions."""
    return g.sub(g.sigmoid(g.level(2)), g.sigmoid(g.add(g.at(0), g.level(2))))


def linear(g):
    return g.add(g.at(0), g.mul(g.data(1), g.level(2)))


#: Expression of a mean, the number of coefficients, and whether a column is added to the data.
CASES = {
    scaled: (6, False),
    with_a_mean: (6, False),
    times_data: (1, False),
    level_times_data: (6, False),
    two_factors: (6 + 4, False),
    scale_of_each_kind: (6, True),
    quotient: (6, False),
    crossed: (0, False),
    differences: (0, False),
    linear: (0, False),
}


def data_of(rng):
    group = rng.integers(0, 6, N)
    group[:6] = np.arange(6)  # all levels
    other = np.arange(N) % 4
    columns = [rng.normal(size=N), rng.normal(size=N), 4 + group, 10 + 2 * other, 2 + group % 2]
    return np.column_stack(columns).astype(float)


def values(program, data, x):
    """Values of rows, whose coefficients follow x."""
    g, z = program.graph, [x]
    for f in program.families:
        (found,) = g.evaluate([f.expression], row=f.table.T, eta=x)
        z.append(np.broadcast_to(found, len(f.table)))
    (out,) = g.evaluate([program.row], row=data.T, eta=np.concatenate(z))
    return out


@pytest.mark.parametrize("may_add", [True, False], ids=["", "store"])
@pytest.mark.parametrize("mean", CASES, ids=lambda mean: mean.__name__)
def test_rows_have_the_same_values(mean, may_add):
    rng, row = np.random.default_rng(1), Row()
    error = row.sub(row.data(0), mean(row))
    program = RowProgram(row.graph, row.mul(error, error), 5, n_parameters=D)
    data = data_of(rng)
    found, columns = with_products(program, data, may_add)
    number, added = CASES[mean]
    if added and not may_add:
        number = added = 0
    assert sum(len(f.table) for f in found.families) == number
    assert columns.shape[1] == found.n_columns == 5 + added
    np.testing.assert_array_equal(columns[:, :5], data)
    for _ in range(5):
        x = rng.normal(size=D)
        np.testing.assert_allclose(values(found, columns, x), values(program, data, x), rtol=1e-12)


def test_products_with_too_many_levels_stay(monkeypatch):
    monkeypatch.setattr(packed_rows, "_MOST", 5)
    row = Row()
    program = RowProgram(row.graph, scaled(row), 5, n_parameters=D)
    data = data_of(np.random.default_rng(1))
    assert with_products(program, data)[0] is program


def test_nodes_that_depend_on_marked_parameters():
    """An entry reads parameters 0 to 2, by the data, and another the last one."""
    g = Graph()
    places = g.make("column", value=0, kind="i"), g.const(3)
    by_data, last = (g.make("entry", place, value="eta") for place in places)
    double = g.make("mul", 2.0, by_data)
    whole = g.make("add", double, last)
    data = np.array([[0.0], [1.0], [2.0]])
    expected = {1: {by_data, double, whole}, 3: {last, whole}, None: set()}
    for place, nodes in expected.items():
        assert (
            packed_rows.depending(g, whole, data, np.array([k == place for k in range(4)])) == nodes
        )
