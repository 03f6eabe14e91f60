"""Races over many groups hold few nodes of the quadrature; nothing else about the sampler changes."""

import numpy as np
import pytest

from grouped_runs import racing, sample

import amc_pymc as amc

from amc_pymc.reading.group_densities import HELD_TOLERANCE
from amc_pymc.tall import groups as loops
from amc_pymc.tall.groups import hermite_nodes
from models.grouped import intercepts_model, simulate_intercepts

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS:UserWarning")


@pytest.fixture(scope="module")
def model():
    return intercepts_model(simulate_intercepts("logistic", 100_000, 2_500, seed=4), "logistic")


@pytest.fixture(scope="module")
def step(model):
    return racing(model, recover=False, audits=amc.Audits(50, max_share=None))


@pytest.fixture(scope="module")
def idata(model, step):
    return sample(model, step, 200, tune=200, seed=3, var_names=["beta", "sd_group"])


@pytest.mark.slow
def test_few_nodes_are_held(step):
    densities = step.sampler.prepared.densities
    assert densities.most_spread > 0.0
    assert len(densities.held_nodes.log_weights) < 7


@pytest.mark.slow
def test_the_log_likelihood_is_that_of_many_nodes(step, idata):
    """At draws of the chain, up to a constant."""
    prepared = step.sampler.prepared
    d, posterior = prepared.densities, idata.posterior
    x = np.concatenate(
        [posterior["beta"].values, np.log(posterior["sd_group"].values)[..., None]], axis=2
    )[:, ::20].reshape(20, -1)
    assert d.layout.names == ("beta", "sd_group_log__")
    units, error = np.arange(d.n_units), []
    for point in x:
        raced = d.raced_change(prepared.surrogate.centre, point, prepared.surrogate, units)
        places = d.groups.rows.data, d.groups.first, d.groups.group_data, d.modes, d.factors
        many = hermite_nodes(31, 1)
        error.append(
            raced - loops.values(point, units, *places, *many, False, d.counter, d.program).sum()
        )
    assert np.ptp(error) < HELD_TOLERANCE


def test_decisions_are_audited_with_many_nodes(idata):
    found = amc.decision_error(idata).loc["all"]
    assert found["audited"] == 100 and found["ci_low"] < 0.05
    quadrature = idata.sample_stats["race_quadrature"]
    assert 0.0 < quadrature.max() < 2 * HELD_TOLERANCE
    assert (quadrature.diff("draw") >= 0.0).all()
    # Each chain looks for its own largest error.
    assert (quadrature.isel(draw=0) < quadrature.isel(draw=-1)).all()
