"""Expressions of the same form as one expression and a table."""

import numpy as np
import pytest

from amc_pymc.engine import Families, Graph

ETA = np.array([0.3, -1.0, 2.0, 0.5, 1.5])


def graph_and_entries():
    g = Graph()
    return g, [g.entry("eta", g.const(k)) for k in range(len(ETA))]


def evaluated(g, family):
    return g.evaluate([family.expression], row=family.table.T, eta=ETA)[0]


def test_constants_and_entries_differ():
    g, eta = graph_and_entries()
    scale = g.make("exp", eta[0])
    nodes = [
        g.make("mul", g.make("mul", scale, eta[k]), g.make("exp", g.const(0.1 * k)))
        for k in (4, 1, 3)
    ]
    nodes = [g.make("add", n, g.make("sin", g.make("mul", g.const(c), eta[0]))) for n, c in zip(nodes, (2.0, 3.0, 5.0))]  # fmt: skip
    families = Families(g)
    assert families.add(nodes) == 0
    (family,) = families.all
    assert family.table.shape[0] == 3
    np.testing.assert_allclose(evaluated(g, family), g.evaluate(nodes, eta=ETA))


def test_the_same_coefficients_are_known():
    g, eta = graph_and_entries()
    squares = [g.make("mul", e, e) for e in eta]
    cubes = [g.make("mul", s, e) for s, e in zip(squares, eta)]
    families = Families(g)
    assert [families.add(n) for n in (squares, cubes, squares)] == [0, 5, 0]
    assert sum(len(f.table) for f in families.all) == 10


@pytest.mark.parametrize("case", ["operations", "arrays", "kinds"])
def test_forms_that_differ(case):
    g, eta = graph_and_entries()
    nodes = {
        "operations": [g.make(op, eta[0]) for op in ("exp", "sin", "cos", "tanh")],
        "arrays": [eta[0], g.entry("other", g.const(0))],
        "kinds": [g.make("mul", eta[0], g.const(2)), g.make("mul", eta[0], g.const(2.5))],
    }[case]
    families = Families(g)
    assert families.add(nodes) is None
    assert families.all == []


def test_coefficients_stand_after_parameters():
    g, eta = graph_and_entries()
    families = Families(g, begin=len(ETA))
    begin = families.add([g.make("exp", eta[k]) for k in (0, 1)])
    first = families.add([g.make("sin", eta[k]) for k in (2, 3)])
    product = g.leaf("dot", ("eta", first, (0, 1)))
    place = g.make("add", g.const(begin), g.leaf("column", 2, "i"))
    total = g.make("add", product, g.entry("eta", place))
    eta = np.concatenate([ETA, np.exp(ETA[:2]), np.sin(ETA[2:4])])
    row = [2.0, 3.0, 1]
    (found,) = g.evaluate([total], row=row, eta=eta)
    assert found == pytest.approx(2 * np.sin(ETA[2]) + 3 * np.sin(ETA[3]) + np.exp(ETA[1]))
