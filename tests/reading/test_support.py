"""Which states discrete variables have, against their distributions' own densities."""

from __future__ import annotations

import re

import numpy as np
import pymc as pm
import pytest

from amc_pymc.reading.factors import element_states


def one(build, **kwargs):
    """States of a single variable."""
    with pm.Model() as model:
        build()
    (value_var,) = model.value_vars
    return element_states(model, value_var, **kwargs)


KNOWN = {
    "bernoulli": (lambda: pm.Bernoulli("x", 0.3), [[0, 1]]),
    "categorical": (lambda: pm.Categorical("x", p=np.ones(4) / 4), [[0, 1, 2, 3]]),
    "rows of p": (lambda: pm.Categorical("x", p=np.ones((2, 3)) / 3), [[0, 1, 2]] * 2),
    "ordered": (
        lambda: pm.OrderedLogistic("x", eta=0.0, cutpoints=[-1.0, 1.0], compute_p=False),
        [[0, 1, 2]],
    ),
    "discrete uniform": (lambda: pm.DiscreteUniform("x", -2, 1), [[-2, -1, 0, 1]]),
    "bounds by element": (
        lambda: pm.DiscreteUniform("x", [[0], [3]], [4, 5], shape=(2, 2)),
        [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5], [3, 4], [3, 4, 5]],
    ),
    "binomial": (lambda: pm.Binomial("x", [2, 0], 0.4), [[0, 1, 2], [0]]),
    "beta-binomial": (lambda: pm.BetaBinomial("x", 1.0, 2.0, n=2), [[0, 1, 2]]),
    "hypergeometric": (lambda: pm.HyperGeometric("x", 10, 3, 4), [[0, 1, 2, 3]]),
    "truncated poisson": (
        lambda: pm.Truncated("x", pm.Poisson.dist(2.0), upper=3),
        [[0, 1, 2, 3]],
    ),
    "truncated on both sides": (
        lambda: pm.Truncated("x", pm.Poisson.dist(2.0, shape=2), lower=[1, 2], upper=[2.5, 4]),
        [[1, 2], [2, 3, 4]],
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_supports(name):
    build, expected = KNOWN[name]
    found = one(build)
    assert all(s.dtype == np.int64 for s in found)
    # a hypergeometric variable cannot exceed the draws, nor the good ones; more states do no harm
    for states, least in zip(found, expected, strict=True):
        if name == "hypergeometric":
            assert set(least) <= set(states.tolist())
        else:
            assert states.tolist() == least


@pytest.mark.parametrize("name", KNOWN)
def test_nothing_possible_is_left_out(name):
    """Every value around the states that has a positive density is one of them."""
    with pm.Model() as model:
        KNOWN[name][0]()
    (value_var,) = model.value_vars
    states = element_states(model, value_var)
    logp = model.compile_logp(sum=False)
    shape = model.initial_point()["x"].shape
    for value in range(-3, 13):
        (found,) = logp({"x": np.full(shape, value)})
        for s, density in zip(states, np.broadcast_to(found, shape).ravel(), strict=True):
            assert value in s or density == -np.inf


def test_an_element_without_states():
    with pytest.raises(ValueError, match=r"'x' has no state: its bounds are 3 and 1"):
        one(lambda: pm.DiscreteUniform("x", [0, 3], [1, 1], initval=[0, 1]))


@pytest.mark.parametrize(
    "build",
    [
        lambda: pm.Poisson("x", 2.0),
        lambda: pm.Truncated("x", pm.Poisson.dist(2.0), lower=3),
        lambda: pm.ZeroInflatedPoisson("x", 0.5, 2.0),
    ],
    ids=["poisson", "truncated below", "mixture"],
)
def test_infinitely_many_states_are_refused(build):
    with pytest.raises(ValueError, match=r"'x' has infinitely many states.*pm\.Truncated"):
        one(build)


def test_too_many_states_are_refused():
    message = r"'x' has 2,001 states \(0 to 2000\), more than max_states=1,000.*max_states="
    with pytest.raises(ValueError, match=message):
        one(lambda: pm.DiscreteUniform("x", 0, 2_000))
    assert one(lambda: pm.DiscreteUniform("x", 0, 2_000), max_states=2_001)[0].size == 2_001
    with pytest.raises(ValueError, match=r"has 3 states \(0 to 2\), more than max_states=2"):
        one(lambda: pm.Categorical("x", p=np.ones(3) / 3), max_states=2)


def test_bounds_that_depend_on_other_variables_are_refused():
    with pm.Model() as model:
        n = pm.DiscreteUniform("n", 1, 5)
        pm.Binomial("x", n, 0.3)
    with pytest.raises(ValueError, match=r"bounds of 'x' depend on n; .*pm\.Metropolis"):
        element_states(model, model.rvs_to_values[model["x"]])


def test_bounds_are_named_as_given():
    with pytest.raises(ValueError, match=re.escape("-500 to 600")):
        one(lambda: pm.DiscreteUniform("x", -500, 600))


def test_bounds_from_data():
    with pm.Model() as model:
        top = pm.Data("top", 3)
        pm.DiscreteUniform("x", 1, top)
    (value_var,) = model.value_vars
    assert element_states(model, value_var)[0].tolist() == [1, 2, 3]
