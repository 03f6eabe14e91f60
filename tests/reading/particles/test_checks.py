"""Graphs without parameter checks, and how graphs are made anew."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from pymc.logprob.utils import CheckParameterValue
from pytensor.compile.builders import OpFromGraph

from amc_pymc.likelihood_free.model_prior import PriorTransform
from amc_pymc.reading.graphs import INTERPRETED
from amc_pymc.reading.particles.prior import without_checks

X, SIGMA = pt.scalar("x"), pt.scalar("sigma")


def values(graphs, **given):
    inputs = [X, SIGMA]
    fn = pytensor.function(inputs, graphs, mode=INTERPRETED, on_unused_input="ignore")
    return [np.asarray(v).tolist() for v in fn(given.get("x", 0.3), given.get("sigma", -1.0))]


def checked(value, *, log_density):
    return CheckParameterValue("sigma > 0", can_be_replaced_by_ninf=log_density)(value, SIGMA > 0.0)


def inner_graph():
    x, sigma = pt.scalar(), pt.scalar()
    density = CheckParameterValue("sigma > 0", can_be_replaced_by_ninf=True)(x, sigma > 0.0)
    return OpFromGraph([x, sigma], [density])(X, SIGMA)


def loop():
    step = pytensor.scan(
        lambda x, sigma: pm.logp(pm.Normal.dist(0.0, sigma), x),
        sequences=[pt.stack([X, X])], non_sequences=[SIGMA], return_updates=False,
    )  # fmt: skip
    return step.sum()


GRAPHS = {
    "log density": lambda: checked(X, log_density=True),
    "density of PyMC": lambda: pm.logp(pm.Normal.dist(0.0, SIGMA), X),
    "inner graph": inner_graph,
    "loop": loop,
}


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("impossible", [-np.inf, np.nan])
def test_impossible_parameters_give_a_number(kind, impossible):
    graph = GRAPHS[kind]()
    with pytest.raises(Exception, match="sigma > 0"):
        values([graph])
    found = without_checks([graph], impossible=impossible)
    np.testing.assert_array_equal(values(found), [impossible])
    np.testing.assert_allclose(values(found, sigma=2.0), values([graph], sigma=2.0), rtol=1e-12)


def test_what_is_no_log_density_becomes_nan():
    assert np.isnan(values(without_checks([checked(X, log_density=False)]))).all()


@pytest.mark.parametrize("kind", ["log density", "inner graph"])
def test_inputs_are_replaced(kind):
    other = 2.0 * pt.sqrt(X)
    found = without_checks([GRAPHS[kind]()], {SIGMA: other})
    assert values(found, x=0.3) == [0.3]
    # Upstream of what is replaced nothing is looked at.
    check = checked(SIGMA, log_density=True)
    (kept,) = without_checks([check + X], {check: X})
    assert values([kept], x=0.3) == [0.6]


def test_single_precision_is_left_behind():
    third = pt.constant(np.float32(1 / 3))
    graph = pt.log(third) + 0.0 * X
    assert values([graph])[0] != np.log(np.float64(np.float32(1 / 3)))
    assert values(without_checks([graph])) == [np.log(np.float64(np.float32(1 / 3)))]


def test_logistic_likelihoods_do_not_underflow():
    p = pt.sigmoid(X)
    (found,) = without_checks([pt.switch(SIGMA > 0.0, pt.log(p), pt.log(1.0 - p))])
    assert values([found], x=800.0) == [-800.0]
    assert values([found], x=-800.0, sigma=1.0) == [-800.0]


def test_checks_inside_of_inner_graphs_spoil_their_own_point_only():
    """A prior whose parameters come out of an inner graph that checks them."""
    with pm.Model() as model:
        scale = pm.Normal("scale", 0.0, 1.0)
        x, sigma = pt.scalar(), pt.scalar()
        root = CheckParameterValue("scale > 0")(pt.sqrt(pt.abs(sigma)) + x, sigma > 0.0)
        pm.Normal("y", OpFromGraph([x, sigma], [root])(1.0, scale), 1.0)
    cube = PriorTransform(model, {})
    found, possible = cube.values(np.array([[0.3, 0.5], [0.8, 0.5]]))
    assert possible.tolist() == [False, True]
    np.testing.assert_allclose(found["y"][1], 1.0 + np.sqrt(found["scale"][1]))
