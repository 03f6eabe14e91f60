"""Every operation: its printed form, its form on arrays and SciPy agree, at extremes too."""

import functools
import math

import numpy as np
import pytest

from scipy import special

from amc_pymc.engine import Graph
from amc_pymc.engine.functions import ARRAY
from amc_pymc.engine.printer import PRINTED
from tests.engine.printing import compiled

EPS = np.finfo(float).eps
INF, NAN = math.inf, math.nan
#: Arguments each operation is tried at.
POSITIVE = np.concatenate([np.geomspace(1e-300, 1e300, 301), np.linspace(0.05, 60.0, 1201)])
REAL = np.concatenate([-POSITIVE[::3], np.linspace(-40.0, 40.0, 1601), POSITIVE[::3]])
MODERATE = np.linspace(-30.0, 30.0, 1201)
UNARY = {
    "neg": REAL,
    "abs": REAL,
    "sign": REAL,
    "held": REAL,
    "float": REAL,
    "floor": REAL,
    "ceil": REAL,
    "int": MODERATE,
    "sqrt": POSITIVE,
    "exp": np.linspace(-707.9, 708.9, 2001),
    "expm1": np.linspace(-700.0, 700.0, 2001),
    "log": POSITIVE,
    "log1p": POSITIVE,
    "sigmoid": np.linspace(-707.0, 750.0, 2001),
    "softplus": np.linspace(-707.0, 750.0, 2001),
    "log1mexp": -np.geomspace(1e-300, 740.0, 2001),
    "sin": MODERATE,
    "cos": MODERATE,
    "tanh": MODERATE,
    "arctan": REAL,
    "erf": MODERATE,
    "erfc": np.linspace(-6.0, 25.0, 2001),
    "erfcx": np.concatenate([np.linspace(-26.0, 60.0, 4001), np.geomspace(60.0, 1e300, 50)]),
    "gamma": np.linspace(0.01, 170.0, 1001),
    "gammaln": POSITIVE,
    "digamma": POSITIVE,
    "trigamma": POSITIVE[np.abs(np.log(POSITIVE)) < 300.0],
    "tetragamma": POSITIVE[np.abs(np.log(POSITIVE)) < 200.0],
    "isnan": REAL,
    "isinf": REAL,
}
BINARY = [
    *("add", "sub", "mul", "div", "pow", "maximum", "minimum", "floordiv", "mod"),
    *("lt", "gt", "le", "ge", "eq", "ne"),
]
LOGICAL = ("and", "or", "xor")
#: Error in units of the last place; absolute where a function passes through zero.
ULPS = {"erfcx": 4000, "erfc": 2000, "trigamma": 40, "tetragamma": 100, "gamma": 200, "gammaln": 40,
        "digamma": 60}  # fmt: skip
ABSOLUTE = {"gammaln": 1e-14, "digamma": 1e-14, "sin": 1e-15, "cos": 1e-15}


@functools.cache
def unary():
    """All operations of one argument in one compiled function."""
    g = Graph()
    x = g.make("local", value=0)
    return compiled(g, [g.make(op, x) for op in UNARY])


@functools.cache
def binary():
    g = Graph()
    x, y = g.make("local", value=0), g.make("local", value=1)
    truths = g.make("gt", x, g.const(0.0)), g.make("gt", y, g.const(0.0))
    outputs = [g.make(op, x, y) for op in BINARY]
    outputs += [g.make(op, *truths) for op in LOGICAL]
    outputs += [g.make("not", truths[0]), g.make("switch", truths[0], x, y)]
    return compiled(g, outputs)


def of(op, x):
    """The printed form of an operation of one argument."""
    with np.errstate(all="ignore"):
        return unary()(np.asarray(x, float)[:, None])[:, list(UNARY).index(op)]


def test_every_operation_is_tried():
    tried = {*UNARY, *BINARY, *LOGICAL, "not", "switch"}
    assert tried == set(ARRAY) == PRINTED


@pytest.mark.parametrize("op", UNARY)
def test_printed_operation_is_that_on_arrays(op):
    x = UNARY[op]
    with np.errstate(all="ignore"):
        expected = np.asarray(ARRAY[op](x), float)
    assert np.isfinite(expected).mean() > 0.9
    rtol = 8 * ULPS.get(op, 1) * EPS
    np.testing.assert_allclose(of(op, x), expected, rtol=rtol, atol=ABSOLUTE.get(op, 1e-307))


def test_printed_operations_of_two_arguments_are_those_on_arrays():
    rng = np.random.default_rng(1)
    x, y = rng.normal(scale=5.0, size=(2, 500))
    x[:20], y[10:30], x[40:50] = 0.0, 0.0, y[40:50]
    with np.errstate(all="ignore"):
        expected = [np.asarray(ARRAY[op](x, y), float) for op in BINARY]
    expected += [ARRAY[op](x > 0, y > 0) for op in LOGICAL]
    expected += [~(x > 0), np.where(x > 0, x, y)]
    got = binary()(np.column_stack([x, y])).T
    for op, a, b in zip([*BINARY, *LOGICAL, "not", "switch"], got, expected, strict=True):
        if op in ("floordiv", "mod"):  # by zero Numba gives nan or infinity, as it likes
            a, b = a[y != 0], b[y != 0]
        np.testing.assert_allclose(a, b, rtol=8 * EPS, err_msg=op)


def test_powers_by_constants():
    """Small whole ones are products."""
    g = Graph()
    x = g.make("local", value=0)
    powers = [2, 3, -1, -3, 5.0, 0.5, -0.5, 1.7, 0, 31, 33, -40]
    at = np.array([0.3, 1.0, 2.5, 7.0])
    got = compiled(g, [g.make("pow", x, g.const(p)) for p in powers])(at[:, None])
    np.testing.assert_allclose(got, at[:, None] ** np.array(powers, float), rtol=1e-13)


def test_errors_of_the_branch_free_functions():
    """The bounds that their docstrings promise, against NumPy."""
    rng = np.random.default_rng(2)
    x = rng.uniform(-708.0, 709.0, 50_000)
    np.testing.assert_allclose(of("exp", x), np.exp(x), rtol=3e-16)
    near = np.concatenate([1.0 + rng.uniform(-1e-8, 1e-8, 5_000), rng.uniform(0.5, 2.0, 20_000)])
    np.testing.assert_allclose(of("log", near), np.log(near), rtol=4.5e-16)
    wide = np.exp(rng.uniform(-706.0, 709.0, 50_000))
    np.testing.assert_allclose(of("log", wide), np.log(wide), rtol=4.5e-16)


@pytest.mark.parametrize(
    ("op", "x", "value"),
    [
        ("exp", [-INF, -1e300, -708.0, 0.0, 709.0, 1e300, INF], [0, 0, 0, 1, INF, INF, INF]),
        ("log", [0.0, -0.0, 5e-324, 1e-308, 1.0, INF], [-INF, -INF, -INF, -INF, 0.0, INF]),
        ("log", [-1.0, -1e-320, -INF], [NAN, NAN, NAN]),
        ("sigmoid", [-INF, -1e300, 0.0, 1e300, INF], [0.0, 0.0, 0.5, 1.0, 1.0]),
        ("softplus", [-INF, -1e300, 0.0, 1e300, INF], [0.0, 0.0, math.log(2.0), 1e300, INF]),
        ("log1mexp", [-INF, -1e300, -0.0, 0.0, -1e-320], [0.0, 0.0, -INF, -INF, np.log(1e-320)]),
        ("log1mexp", [1.0, INF], [NAN, NAN]),
        ("digamma", [INF, 0.0, -1.5], [INF, NAN, NAN]),
        ("trigamma", [INF, 0.0, -1.5], [0.0, NAN, NAN]),
        ("tetragamma", [INF, 0.0, -1.5], [0.0, NAN, NAN]),
        ("erfcx", [INF, 0.0, -1e3, -INF], [0.0, 1.0, INF, INF]),
        ("sign", [-INF, -5e-324, 0.0, 5e-324, INF], [-1.0, -1.0, 0.0, 1.0, 1.0]),
        ("floor", [-INF, -1e300, 1e300, INF], [-INF, -1e300, 1e300, INF]),
        ("ceil", [-INF, -1e300, 1e300, INF], [-INF, -1e300, 1e300, INF]),
        ("gammaln", [INF, 1.0, 2.0], [INF, 0.0, 0.0]),
    ],
)
def test_extreme_arguments(op, x, value):
    np.testing.assert_allclose(of(op, x), value, rtol=1e-12)


@pytest.mark.parametrize("op", [op for op in UNARY if op not in ("int", "isnan", "isinf")])
def test_nan_stays_nan(op):
    assert np.isnan(of(op, [NAN]))


def test_nan_is_neither_larger_nor_smaller():
    x = np.array([[NAN, 1.0], [1.0, NAN], [NAN, NAN]])
    got = binary()(x)
    for op in ("maximum", "minimum", "add", "pow"):
        expected = ARRAY[op](x[:, 0], x[:, 1])
        np.testing.assert_array_equal(got[:, BINARY.index(op)], expected, err_msg=op)
    for op in ("lt", "gt", "le", "ge", "eq"):
        assert not got[:, BINARY.index(op)].any()


def test_derivatives_of_log_gamma_against_the_hurwitz_zeta_function():
    x = np.concatenate([np.linspace(0.01, 40.0, 2000), [11.99, 12.0, 12.01, 1e4]])
    np.testing.assert_allclose(of("trigamma", x), special.zeta(2, x), rtol=3e-15)
    np.testing.assert_allclose(of("tetragamma", x), -2.0 * special.zeta(3, x), rtol=2e-14)


def test_numbers_that_stand_for_integers_and_truth_values():
    """Sums and signs of truth values, and functions of truncated numbers."""
    g = Graph()
    x = g.make("local", value=0)
    truth, whole = g.make("gt", x, g.const(1.0)), g.make("int", x)
    both = g.make("gt", x, g.const(2.0))
    outputs = [
        *(g.make(op, truth, both) for op in ("add", "sub", "mul", "div", "eq", "maximum")),
        *(g.make(op, truth) for op in ("neg", "abs", "float", "int", "exp", "sqrt")),
        *(g.make(op, whole) for op in ("neg", "exp", "log", "softplus", "gammaln", "float", "abs")),
        g.make("mul", truth, x),
        g.make("switch", truth, both, x),
        truth,
        g.make("mod", whole, g.const(3)),
        g.make("floordiv", whole, g.const(3)),
    ]
    values = np.array([[0.5], [1.5], [2.5], [7.9]])
    expected = g.evaluate(outputs, local=[values[:, 0]])
    got = compiled(g, outputs)(values).T
    for k, (a, b) in enumerate(zip(got, expected, strict=True)):
        np.testing.assert_allclose(a, np.asarray(b, float), rtol=8 * EPS, err_msg=str(k))
    np.testing.assert_array_equal(expected[0], [0, 1, 2, 2])
    assert expected[0].dtype == np.int64


def test_softplus_and_sigmoid_keep_small_numbers():
    x = np.array([-40.0, -100.0, -700.0])
    np.testing.assert_allclose(of("softplus", x), np.exp(x), rtol=8 * EPS)
    np.testing.assert_allclose(of("sigmoid", x), np.exp(x), rtol=8 * EPS)


def test_erfcx_is_smooth_where_its_form_changes():
    x = np.array([24.999999, 25.0, 25.000001])
    np.testing.assert_allclose(of("erfcx", x), special.erfcx(x), rtol=2e-13)
    np.testing.assert_allclose(of("erfcx", [26.0, 100.0]), special.erfcx([26.0, 100.0]), rtol=1e-13)
