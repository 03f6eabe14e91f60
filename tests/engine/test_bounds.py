"""Bounds of expressions contain all values in a box, and kinks within it are found."""

import math

import numpy as np
import pytest

from hypothesis import given, settings
from hypothesis import strategies as st

from amc_pymc.engine import Graph
from amc_pymc.engine.functions import ARRAY
from amc_pymc.engine.graph import DERIVATIVE_RULES
from amc_pymc.engine.row_kernels.bounds import Bounds
from tests.engine.random_graphs import Grower

#: Range from which arguments are drawn, for operations that are not defined everywhere.
WHERE = {
    **dict.fromkeys(("log", "sqrt", "gammaln", "digamma", "trigamma", "tetragamma"), (0.01, 9.0)),
    "log1p": (-0.9, 9.0),
    "log1mexp": (-9.0, -0.01),
}  # fmt: skip
UNARY = sorted(
    {op for op in DERIVATIVE_RULES if op not in ("add", "sub", "mul", "div", "pow", "mod")}
    - {"sin", "cos", "gamma"}
)
shares = st.floats(0.0, 1.0)


def bounds(*args):
    found = Bounds(*args)
    return found.intervals, found.smooth


def at(share, low, high):
    return low + share * (high - low)


@pytest.mark.parametrize("op", [*UNARY, "floor", "sign"])
@given(first=shares, second=shares, within=st.lists(shares, min_size=1, max_size=8))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_functions_of_one_number(op, first, second, within):
    g = Graph()
    x, width = g.make("local", value=0), g.make("local", value=1)
    [(low, high)], _ = bounds(g, [g.make(op, x)], {x: width})
    ends = sorted(at(s, *WHERE.get(op, (-4.0, 4.0))) for s in (first, second))
    middle, half = 0.5 * (ends[0] + ends[1]), 0.5 * (ends[1] - ends[0])
    low, high = g.evaluate([low, high], local=[middle, half])
    values = ARRAY[op](at(np.array(within), *ends))
    room = 1e-9 * (1.0 + np.abs(values).max())
    assert low - room <= values.min() and values.max() <= high + room
    assert math.isfinite(low) and math.isfinite(high)


@pytest.mark.parametrize("seed", range(25))
def test_random_expressions_of_three_numbers(seed):
    rng = np.random.default_rng(seed)
    leaves = {("local", k): rng.normal(size=1) for k in range(3)}
    grower = Grower(rng, leaves).grow(25)
    g, outputs = grower.graph, [n for n, _ in grower.grown]
    box = {g.make("local", value=k): g.make("local", value=3 + k) for k in range(3)}
    centre, half = np.concatenate(list(leaves.values())), rng.exponential(0.3, 3)
    points = centre[:, None] + half[:, None] * rng.uniform(-1.0, 1.0, (3, 500))
    for n, values in zip(outputs, g.evaluate(outputs, local=[*points, *half]), strict=True):
        [(low, high)], smooth = bounds(g, [n], box)
        low, high, smooth = g.evaluate([low, high, smooth], local=[*centre, *half])
        if smooth and not (np.isnan(low) or np.isnan(high)):
            known = np.ravel(values)[~np.isnan(np.ravel(values))]
            room = 1e-9 * (1.0 + np.abs(known).max(initial=0.0))
            assert known.min(initial=np.inf) >= low - room
            assert known.max(initial=-np.inf) <= high + room


def test_a_sum_in_a_box_varies_as_a_whole():
    """What it is made of does not: neither in a condition nor where other terms cancel."""
    g = Graph()
    a, b, shift, other = (g.make("local", value=k) for k in range(4))
    first, width = g.make("add", a, shift), g.const(1.0)
    second = g.make("add", g.make("add", a, b), shift)
    switched = g.make("switch", g.make("lt", first, 1.0), first, g.make("mul", first, first))
    assert not g.evaluate([bounds(g, [switched], {first: width})[1]], local=[1.5, 0.0, 0.0])[0]
    difference = g.make("sub", *(g.make("add", n, g.make("exp", other)) for n in (second, first)))
    [interval], _ = bounds(g, [difference], dict.fromkeys((first, second), width))
    assert g.evaluate(interval, local=[1.0, 0.5, 0.0, 0.3]) == [-1.5, 2.5]


KINKS = {
    "absolute value": (lambda g, x: g.make("abs", x), 0.0),
    "sign": (lambda g, x: g.make("sign", x), 0.0),
    "step": (lambda g, x: g.make("floor", x), 2.0),
    "larger": (lambda g, x: g.make("maximum", x, g.const(1.0)), 1.0),
    "smaller": (lambda g, x: g.make("mul", x, g.make("minimum", g.const(1.0), x)), 1.0),
    "condition": (
        lambda g, x: g.make("switch", g.make("lt", x, g.const(1.0)), x, g.make("mul", x, x)),
        1.0,
    ),
    "condition on a square": (
        lambda g, x: g.make(
            "switch", g.make("gt", g.make("mul", x, x), g.const(4.0)), x, g.const(0.0)
        ),
        2.0,
    ),
}


@pytest.mark.parametrize("kind", KINKS)
@pytest.mark.parametrize("distance", [-0.11, -0.09, 0.09, 0.11])
def test_kinks(kind, distance):
    make, place = KINKS[kind]
    g = Graph()
    x = g.make("local", value=0)
    _, smooth = bounds(g, [make(g, x)], {x: g.const(0.1)})
    assert g.evaluate([smooth], local=[place + distance])[0] == (abs(distance) > 0.1)


def test_what_is_added_and_subtracted_cancels():
    """Probabilities of ordered categories are positive and add up to one, as conditions say."""
    g = Graph()
    eta, first, gap = (g.make("local", value=k) for k in range(3))
    cuts = [first, g.make("add", first, g.make("exp", gap))]
    below = [g.make("sigmoid", g.make("sub", c, eta)) for c in cuts]
    parts = [below[0], g.make("sub", below[1], below[0]), g.make("sub", g.const(1.0), below[1])]
    total = g.make("sub", g.fold("add", parts), g.const(1.0))
    checks = [
        g.make("le", g.make("abs", total), g.const(1e-5)),
        *(g.make("ge", p, g.const(0.0)) for p in parts),
    ]
    box = dict.fromkeys([eta, first, gap], g.const(0.5))
    _, smooth = bounds(g, checks, box)
    assert g.evaluate([smooth], local=[0.3, -1.0, 0.2])[0]
    [(low, high)], _ = bounds(g, [total], box)
    assert g.evaluate([low, high], local=[0.3, -1.0, 0.2]) == [0.0, 0.0]


def test_a_shift_that_cancels_has_no_kink():
    """The largest term of a log of a sum of exponentials, which is subtracted before."""
    g = Graph()
    x = g.make("local", value=0)
    top = g.make("held", g.make("maximum", x, g.const(0.0)))
    total = g.fold("add", [g.make("exp", g.make("sub", t, top)) for t in (x, g.const(0.0))])
    value = g.make("add", g.make("log", total), top)
    [(low, high)], smooth = bounds(g, [value], {x: g.const(0.1)})
    low, high, smooth = g.evaluate([low, high, smooth], local=[0.02])
    assert smooth and low <= math.log1p(math.exp(-0.08)) and math.log1p(math.exp(0.12)) <= high
