"""Printed functions compute what ``Graph.evaluate`` does."""

import numpy as np
import pytest

from amc_pymc.expressions import GROUP, LOCAL, ROW, Graph
from amc_pymc.expressions.source import Stages, print_function
from tests.expressions.printing import compiled, staged
from tests.expressions.random_graphs import Grower
from tests.expressions.test_graph import leaves

N = 40


def unit_arrays(rng):
    """Rows (N, 5) and groups (N, 1), local effects (N, 2), parameters (6,), and all leaves' values."""
    values = leaves(rng, N)
    codes = rng.integers(0, 4, N)
    rows = np.column_stack(
        [values["column", 0], values["column", 1], codes, rng.normal(size=(N, 2))]
    )
    local = np.column_stack([values["local", 0], values["local", 1]])
    eta = np.concatenate([[values["entry", 0], values["entry", 1]], rng.normal(size=4)])
    return values, rows, values["group", 0][:, None], local, eta


@pytest.mark.parametrize("seed", range(4))
def test_stages_compute_what_evaluate_does(seed):
    rng = np.random.default_rng(3000 + seed)
    values, rows, groups, local, eta = unit_arrays(rng)
    grower = Grower(rng, values)
    g = grower.graph
    code = g.leaf("column", 2, "i")
    chosen = g.entry("eta", g.make("add", g.const(2), code))
    grower.numbers += [
        (chosen, eta[2 + rows[:, 2].astype(int)]),
        (g.leaf("dot", ("eta", 2, (3, 4))), rows[:, 3:5] @ eta[2:4]),
        (g.leaf("dot", ("eta", 1, (4, 0, 1, 3))), rows[:, [4, 0, 1, 3]] @ eta[1:5]),
        (g.make("eq", code, g.const(2)), rows[:, 2] == 2),
    ]
    grower.grow(70)
    outputs = [n for n, _ in grower.grown[-20:]] + [n for n, _ in grower.truths[-3:]]
    outputs += [g.const(2.5), g.const(-1), g.leaf("group", 0), g.entry("eta", g.const(1))]
    outputs += [g.make("gt", chosen, g.const(0.0))]
    expected = g.evaluate(
        outputs, row=list(rows.T), group=list(groups.T), local=list(local.T), eta=eta
    )
    got = staged(g, outputs)(rows, groups, local, eta).T
    for a, b in zip(got, expected, strict=True):
        b = np.broadcast_to(np.asarray(b, float), N)
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9 * (1.0 + np.abs(b).max()))


def test_stages_are_told_by_what_nodes_depend_on():
    rng = np.random.default_rng(5)
    grower = Grower(rng, leaves(rng)).grow(80)
    g = grower.graph
    outputs = [n for n, _ in grower.grown[-10:]]
    stages = Stages.of(g, outputs)
    assert all(g.depends(n) == 0 and g.nodes[n].op != "const" for n in stages.shared)
    assert all(g.depends(n) & (ROW | GROUP) and not g.depends(n) & LOCAL for n in stages.kept)
    for n in g.upstream(outputs):  # whatever a later stage reads of an earlier one is handed on
        for a in g.nodes[n].args:
            if g.nodes[a].op != "const" and g.depends(n) and not g.depends(a):
                assert a in stages.shared
            if g.depends(n) & LOCAL and g.depends(a) and not g.depends(a) & LOCAL:
                assert a in stages.kept


def test_derivatives_are_printed_too():
    """Absolute values have signs, counts have factorials: all these have compiled forms."""
    g = Graph()
    x = g.leaf("local", 0)
    entry = g.entry("eta", g.const(0))
    inside = g.make("mul", x, entry)
    ops = ("abs", "gammaln", "log1mexp", "erf", "bessel_i1e", "arctan", "softplus")
    outputs = []
    for op in ops:
        argument = g.make("neg", g.make("abs", inside)) if op == "log1mexp" else inside
        first = g.partial(g.make(op, argument), entry)
        outputs += [first, g.partial(first, x)]
    at = np.linspace(0.3, 2.0, 7)
    expected = g.evaluate(outputs, local=[at], eta=np.array([0.7]))
    got = compiled(g, outputs)(at[:, None], [0.7]).T
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, np.broadcast_to(b, 7), rtol=1e-12)


def test_literals():
    g = Graph()
    values = [np.nan, np.inf, -np.inf, -2.5, 0.1, 3, -3, True, 1e-300]
    got = compiled(g, [g.const(v) for v in values])(np.zeros((1, 1)))[0]
    np.testing.assert_array_equal(got, np.array(values, float))


def test_nothing_is_printed_twice():
    g = Graph()
    x = g.leaf("local", 0)
    e = g.make("exp", x)
    lines = print_function(g, "f", ("eta", "u"), [g.make("mul", e, e), e], {})
    assert sum("exp(" in line for line in lines) == 1
    known = print_function(g, "f", ("eta", "u"), [g.make("mul", e, e)], {e: "kept[0]"})
    assert "kept[0] * kept[0]" in "".join(known) and "exp" not in "".join(known)


def test_a_function_without_outputs_compiles():
    lines = print_function(Graph(), "f", ("eta", "shared"), [], {}, "shared[{}]")
    assert "    pass" in lines
