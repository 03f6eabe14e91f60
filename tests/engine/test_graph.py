"""Simplification changes no value, derivatives are what finite differences say, and families are what they stand for."""

import math

import numpy as np
import pytest

from amc_pymc.engine import GROUP, LOCAL, ROW, Families, Graph
from amc_pymc.engine.functions import ARRAY
from tests.engine.random_graphs import Grower

N = 40
STEP = 1e-5


def leaves(rng, size=N):
    """Values of leaves of every kind but products."""
    return {
        ("column", 0): rng.normal(size=size),
        ("column", 1): rng.uniform(0.1, 3.0, size),
        ("group", 0): rng.normal(size=size),
        ("local", 0): rng.normal(size=size),
        ("local", 1): rng.uniform(0.2, 2.0, size),
        ("entry", 0): np.asarray(rng.normal()),
        ("entry", 1): np.asarray(rng.uniform(0.3, 2.0)),
    }


def arguments(values):
    """As ``evaluate`` wants them."""
    by_kind = {k: [v for (op, _), v in values.items() if op == k] for k in ("column", "group")}
    eta = np.array([float(v) for (op, _), v in values.items() if op == "entry"])
    local = [v for (op, _), v in values.items() if op == "local"]
    return {"row": by_kind["column"], "group": by_kind["group"], "local": local, "eta": eta}


# --- simplification -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(15))
def test_simplified_graphs_have_the_values_of_plain_ones(seed):
    rng = np.random.default_rng(seed)
    values = leaves(rng)
    grower = Grower(rng, values).grow(120)
    nodes, expected = zip(*grower.grown)
    got = grower.graph.evaluate(nodes, **arguments(values))
    for a, b in zip(got, expected, strict=True):
        scale = 1.0 + np.abs(b).max()
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9 * scale)


def graph_of(op, *args):
    """One operation; numbers are constants and names are leaves, each once."""
    g = Graph()
    names = {}

    def node(a):
        if isinstance(a, str):
            return names.setdefault(a, g.make("local", value=len(names)))
        if isinstance(a, tuple):
            return g.make(a[0], *(node(b) for b in a[1:]))
        return g.const(a)

    return g, node((op, *args))


@pytest.mark.parametrize(
    "tree",
    [
        ("add", "x", 0.0), ("add", 0.0, "x"), ("sub", "x", 0.0), ("sub", 0.0, "x"),
        ("mul", "x", 1.0), ("mul", 1.0, "x"), ("mul", "x", -1.0), ("mul", -1.0, "x"),
        ("mul", "x", 0.0), ("mul", "x", ("div", "y", "x")), ("mul", ("div", "y", "x"), "x"),
        ("div", "x", 1.0), ("div", 0.0, "x"), ("neg", ("neg", "x")), ("pow", "x", 0.0),
        ("pow", "x", 1.0), ("pow", "x", 2.0), ("pow", "x", 0.5), ("pow", "x", -1.0),
        ("pow", "x", 2), ("pow", "x", -1), ("pow", 2.0, "x"),
        ("log", ("exp", "x")), ("log", ("sigmoid", "x")), ("ge", ("sigmoid", "x"), 0.0),
        ("le", ("sigmoid", "x"), 1.0), ("ge", ("sigmoid", "x"), 0.6), ("ge", ("sigmoid", "x"), 1),
        ("le", ("sigmoid", "x"), 0), ("switch", ("lt", "x", "y"), "x", "x"),
        ("switch", True, "x", "y"), ("switch", False, "x", "y"),
        ("switch", ("lt", "x", "y"), ("exp", "x"), ("exp", "y")),
        ("switch", ("lt", "x", "y"), ("sub", "x", 1.0), ("sub", "y", 1.0)),
        ("switch", ("lt", "x", "y"), ("sub", 1.0, "x"), ("sub", 1.0, "y")),
        ("switch", ("lt", "x", "y"), ("sub", "x", "y"), ("sub", "y", "x")),
        ("and", ("lt", "x", "y"), True), ("and", False, ("lt", "x", "y")),
        ("or", ("lt", "x", "y"), True), ("or", False, ("lt", "x", "y")),
        ("and", ("lt", "x", 1.0), ("lt", "x", 1.0)), ("xor", ("lt", "x", "y"), True),
        ("float", "x"), ("int", ("int", "x")), ("add", 2, 3), ("mod", 7, 3), ("floordiv", -7, 2),
        ("maximum", 1.0, 2.0), ("minimum", 1, 2), ("sqrt", 2.0), ("gammaln", 3.5), ("not", True),
        ("lt", 1, 2.0), ("eq", 1, True), ("add", True, True), ("mul", ("lt", "x", "y"), "x"),
    ],
    ids=str,
)  # fmt: skip
def test_each_rule(tree):
    x, y = np.array([0.3, 1.2, 2.5, 1.0]), np.array([1.0, 0.4, 2.5, 0.0])
    given = {"x": x, "y": y}

    def plain(t):
        if isinstance(t, tuple):
            parts = [plain(a) for a in t[1:]]
            if t[0] in ("add", "mul"):
                parts = [np.asarray(p) * 1 for p in parts]
            return ARRAY[t[0]](*parts)
        return given[t] if isinstance(t, str) else t

    g, node = graph_of(*tree)
    order = [n for n in dict.fromkeys(str(tree).split("'")) if n in given]
    (got,) = g.evaluate([node], local=[given[n] for n in order])
    np.testing.assert_allclose(np.asarray(got, float), np.asarray(plain(tree), float), rtol=5e-15)


def test_rules_make_graphs_smaller():
    for tree, leaf in [(("log", ("exp", "x")), "x"), (("mul", "x", ("div", "y", "x")), "y")]:
        g, node = graph_of(*tree)
        assert g.nodes[node].op == "local", leaf
    g, node = graph_of("switch", ("lt", "x", 0.0), ("exp", "x"), ("exp", ("neg", "x")))
    assert sum(n.op == "exp" for n in (g.nodes[k] for k in g.upstream([node]))) == 1
    g, node = graph_of("ge", ("sigmoid", "x"), 0.0)
    assert g.numbers[node] is True


@pytest.mark.parametrize(
    ("op", "args", "value"),
    [
        ("log", (0.0,), -math.inf), ("log", (-1.0,), math.nan), ("sqrt", (-1.0,), math.nan),
        ("exp", (1e4,), math.inf), ("gammaln", (0.0,), math.inf), ("mod", (3.0, 0.0), math.nan),
        ("maximum", (1.0, math.nan), math.nan), ("minimum", (math.nan, 1.0), math.nan),
        ("add", (math.inf, -math.inf), math.nan), ("div", (1.0, 0.0), math.inf),
    ],
)  # fmt: skip
def test_constants_without_a_value_are_left_to_evaluation(op, args, value):
    g, node = graph_of(op, *args)
    np.testing.assert_equal(float(g.evaluate([node])[0]), value)


def test_constants_keep_sign_kind_and_nan():
    g = Graph()
    assert g.const(0.0) != g.const(-0.0)
    assert math.copysign(1.0, g.numbers[g.const(-0.0)]) == -1.0
    assert g.const(math.nan) == g.const(math.nan)
    assert len({g.const(1), g.const(1.0), g.const(True)}) == 3
    assert g.numbers[g.const(0.1)] == 0.1
    assert [g.nodes[g.const(v)].kind for v in (True, 1, 1.0)] == ["b", "i", "f"]


def test_dependence_adds_up():
    g = Graph()
    row, group, local = (g.make(op, value=0) for op in ("column", "group", "local"))
    entry = g.make("entry", g.const(0), value="eta")
    dot = g.make("dot", value=("eta", 0, (0, 1)))
    assert [g.depends[n] for n in (row, dot, group, local, entry)] == [ROW, ROW, GROUP, LOCAL, 0]
    assert g.depends[g.make("add", row, g.make("mul", local, entry))] == ROW | LOCAL
    assert g.depends[g.make("entry", g.make("column", value=0, kind="i"), value="eta")] == ROW


def test_replaced_makes_what_is_downstream_anew():
    g = Graph()
    x, y = g.make("local", value=0), g.make("local", value=1)
    place = g.make("column", value=0, kind="i")
    out = g.make("mul", g.make("exp", x), g.make("entry", place, value="eta"))
    (new,) = g.replaced([out], {x: y, place: g.const(1)})
    (value,) = g.evaluate([new], local=[5.0, 0.5], eta=np.array([1.0, 3.0]))
    assert value == pytest.approx(3.0 * math.exp(0.5))
    assert g.replaced([out], {}) == [out]


# --- derivatives ----------------------------------------------------------------------------------

DERIVATIVES = {
    **{op: np.linspace(-3.0, 3.0, 13) + 0.01 for op in (
        "neg", "exp", "expm1", "sigmoid", "softplus", "sin", "cos", "tanh",
        "arctan", "erf", "erfc", "erfcx", "abs", "float",
    )},
    **{op: np.linspace(0.2, 9.0, 13) for op in (
        "log", "log1p", "sqrt", "gammaln", "digamma", "gamma",
    )},
    "log1mexp": -np.geomspace(0.02, 20.0, 13),
}  # fmt: skip


@pytest.mark.parametrize("op", DERIVATIVES)
def test_first_and_second_derivatives_of_functions(op):
    g = Graph()
    x = g.make("local", value=0)
    y = g.make(op, x)
    first = g.derivative(y, x)
    second = g.derivative(first, x)
    at = DERIVATIVES[op]

    def values(node, x):
        return np.broadcast_to(np.asarray(g.evaluate([node], local=[x])[0], float), x.shape)

    for node, slope in ((y, first), (first, second)):
        size = 1.0 + np.abs(values(node, at))
        ahead, back = values(node, at + STEP), values(node, at - STEP)
        error = np.abs(values(slope, at) - (ahead - back) / (2 * STEP))
        # Rounding makes EPS * size / STEP, and the third derivative STEP^2 / 6 of it.
        assert (error < 1e-8 * size * (1.0 + np.abs(values(slope, at))) * 10.0).all()


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "pow", "maximum", "minimum", "mod"])
def test_first_and_second_derivatives_of_two_arguments(op):
    g = Graph()
    x, y = g.make("local", value=0), g.make("local", value=1)
    out = g.make(op, x, y)
    at = np.array([[0.7, 1.9, 2.2, 5.3], [1.3, 0.6, 2.1, 1.6]])

    def values(node, at):
        return np.broadcast_to(np.asarray(g.evaluate([node], local=at)[0], float), 4)

    for leaf, k in ((x, 0), (y, 1)):
        step = STEP * np.eye(2)[k][:, None]
        slope = g.derivative(out, leaf)
        pairs = [(out, slope)] + [
            (g.derivative(out, b), g.derivative(g.derivative(out, b), leaf)) for b in (x, y)
        ]
        for node, d in pairs:
            numeric = (values(node, at + step) - values(node, at - step)) / (2 * STEP)
            np.testing.assert_allclose(values(d, at), numeric, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("seed", range(10))
def test_derivatives_of_random_graphs(seed):
    rng = np.random.default_rng(1000 + seed)
    values = leaves(rng)
    grower = Grower(rng, values).grow(40, smooth=True)
    g = grower.graph
    out = grower.grown[-1][0]
    at = arguments(values)
    x, entry = g.make("local", value=0), g.make("entry", g.const(1), value="eta")
    for name, leaf, k in (("local", x, 0), ("eta", entry, 1)):
        first = g.derivative(out, leaf)
        second = g.derivative(first, leaf)

        def moved(by, nodes, name=name, k=k):
            new = dict(at)
            new[name] = list(at[name]) if name == "local" else at[name].copy()
            new[name][k] = new[name][k] + by
            return [np.broadcast_to(np.asarray(v, float), N) for v in g.evaluate(nodes, **new)]

        found = moved(0.0, [first, second])
        numeric = [
            (a - b) / (2 * STEP)
            for a, b in zip(moved(STEP, [out, first]), moved(-STEP, [out, first]), strict=True)
        ]
        for a, b in zip(found, numeric, strict=True):
            assert np.abs(a - b).max() < 1e-5 * (1.0 + np.abs(np.stack(found)).max()) ** 2


@pytest.mark.parametrize("seed", range(6))
def test_directional_is_the_sum_over_entries(seed):
    """Along a direction v: the partial derivatives by all entries and products times v."""
    rng = np.random.default_rng(2000 + seed)
    values = leaves(rng)
    grower = Grower(rng, values).grow(40, smooth=True)
    g = grower.graph
    at = arguments(values)
    at["eta"] = np.concatenate([at["eta"], rng.normal(size=2)])
    dot = g.make("dot", value=("eta", 2, (0, 1)))
    out = g.make("mul", grower.grown[-1][0], g.make("sin", dot))
    du, dv = rng.normal(size=(2, 4))
    along = g.derivative(out, "du")
    twice = g.derivative(along, "dv")

    def line(s, node):
        return np.asarray(g.evaluate([node], **{**at, "eta": at["eta"] + s * dv}, du=du)[0])

    a, c = (np.asarray(v, float) for v in g.evaluate([along, twice], **at, du=du, dv=dv))
    scale = (1.0 + np.abs(a).max() + np.abs(c).max()) ** 2
    numeric = (line(STEP, along) - line(-STEP, along)) / (2 * STEP)
    assert np.abs(c - numeric).max() < 1e-5 * scale
    entries = [g.make("entry", g.const(k), value="eta") for k in (0, 1)]
    slopes = g.evaluate([g.derivative(out, n) for n in [*entries, dot]], **at)
    by_dot = at["row"][0] * du[2] + at["row"][1] * du[3]
    total = slopes[0] * du[0] + slopes[1] * du[1] + slopes[2] * by_dot
    np.testing.assert_allclose(a, total, rtol=1e-9, atol=1e-12 * scale)


def test_derivative_of_what_is_not_chosen_does_not_matter():
    """Functions that overflow behind a condition: log densities of the normal's tails, powers."""
    g = Graph()
    x = g.make("local", value=0)
    tail = g.make("log", g.make("erfcx", g.make("neg", x)))
    body = g.make("log1p", g.make("neg", g.make("erfc", x)))
    out = g.make("switch", g.make("lt", x, g.const(-1.0)), tail, body)
    first = g.derivative(out, x)
    second = g.derivative(first, x)
    values = g.evaluate([out, first, second], local=[np.array([50.0, -50.0, 3.0])])
    assert np.isfinite(values).all()
    assert values[1][0] == 0.0
    larger = g.make("maximum", g.make("exp", x), g.make("sqrt", x))
    found = g.evaluate([g.derivative(larger, x)], local=[np.array([0.0, 1.0])])[0]
    np.testing.assert_allclose(found, np.exp([0.0, 1.0]))


def test_derivatives_far_out_are_finite():
    g = Graph()
    x = g.make("local", value=0)
    for op, at, slopes in [
        ("log1mexp", [-800.0, -1e5], [[0.0, 0.0], [0.0, 0.0]]),
        ("softplus", [-800.0, 800.0], [[0.0, 1.0], [0.0, 0.0]]),
    ]:
        first = g.derivative(g.make(op, x), x)
        found = g.evaluate([first, g.derivative(first, x)], local=[np.array(at)])
        np.testing.assert_allclose(np.asarray(found, float), slopes, atol=1e-300)


def test_a_power_of_zero_is_constant_in_its_exponent():
    g = Graph()
    x, b = g.make("column", value=0), g.make("local", value=0)
    slope = g.derivative(g.make("pow", x, b), b)
    (found,) = g.evaluate([slope], row=[np.array([0.0, 2.0])], local=[1.5])
    np.testing.assert_allclose(found, [0.0, 2.0**1.5 * np.log(2.0)])


def test_held_has_no_derivative():
    g = Graph()
    x = g.make("local", value=0)
    assert g.numbers[g.derivative(g.make("held", x), x)] == 0.0
    with pytest.raises(NotImplementedError, match="tetragamma has no derivative"):
        g.derivative(g.make("tetragamma", x), x)


# --- families of coefficients -------------------------------------------------------------------

ETA = np.array([0.3, -1.0, 2.0, 0.5, 1.5])


def graph_and_entries():
    g = Graph()
    return g, [g.make("entry", g.const(k), value="eta") for k in range(len(ETA))]


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
        "arrays": [eta[0], g.make("entry", g.const(0), value="other")],
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
    product = g.make("dot", value=("eta", first, (0, 1)))
    place = g.make("add", g.const(begin), g.make("column", value=2, kind="i"))
    total = g.make("add", product, g.make("entry", place, value="eta"))
    eta = np.concatenate([ETA, np.exp(ETA[:2]), np.sin(ETA[2:4])])
    row = [2.0, 3.0, 1]
    (found,) = g.evaluate([total], row=row, eta=eta)
    assert found == pytest.approx(2 * np.sin(ETA[2]) + 3 * np.sin(ETA[3]) + np.exp(ETA[1]))
