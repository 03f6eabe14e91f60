"""Log densities of a model's parts, derived once."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from amc_pymc.reading.densities import RestDensities
from amc_pymc.reading.graphs import INTERPRETED, log_densities
from amc_pymc.reading.particles.prior import layout_of


@pytest.fixture
def model():
    with pm.Model() as out:
        sd = pm.HalfNormal("sd", 2.0)
        mu = pm.Normal("mu", 0.0, sd, shape=2)
        pm.Normal("y", mu[0], 1.0, observed=np.array([0.3, -1.2, 0.5]))
        pm.Potential("more", -pt.exp(mu[1]))
    return out


def at_the_start(model, graphs):
    fn = model.compile_fn(graphs, mode=INTERPRETED, on_unused_input="ignore")
    return fn(model.initial_point())


def test_they_are_those_of_pymc_in_the_order_asked_for(model):
    parts = [model["y"], model["more"], model["sd"], model["mu"]]
    found = at_the_start(model, log_densities(model, parts))
    wanted = at_the_start(model, [model.logp(vars=[part], sum=False)[0] for part in parts])
    for one, two in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, two)
    layout = layout_of(model)
    for number in (4, 2, 0):
        terms = log_densities(model, parts[:number])
        rest = RestDensities(terms, model.value_vars, layout)
        total, _ = rest.rest_value_and_gradient(layout.ravel(model.initial_point()))
        assert total == pytest.approx(sum(np.sum(w) for w in wanted[:number]), rel=1e-14, abs=0)


def test_a_part_without_a_density_is_no_matter_to_the_others():
    """A random number in it, that of a variable of another model."""
    with pm.Model():
        other = pm.Normal("other")
    with pm.Model() as model:
        mu = pm.Normal("mu")
        y = pm.Normal("y", mu, observed=0.5)
        broken = pm.Normal("broken", other, observed=0.5)
    assert len(log_densities(model, [mu, y])) == 2
    with pytest.raises(ValueError, match="Random variables detected in the logp graph"):
        log_densities(model, [broken])


def test_a_potential_that_is_a_random_variable():
    """PyMC takes it for the variable, and has no second density for it."""
    with pm.Model() as model:
        t = pm.HalfNormal("t")
        pm.Potential("renamed", t)
    (found,) = log_densities(model, [t])
    graphs = [found, model.logp(vars=[t])]
    one, two = pytensor.function(model.value_vars, graphs, mode=INTERPRETED)(0.3)
    assert one == two
    assert None in log_densities(model, [t, t])
    assert None in model.logp(vars=[t, t], sum=False)
