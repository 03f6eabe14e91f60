"""Models made by ``pm.do`` and ``pm.observe`` as input of steps, evidence and likelihood-free inference."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import amc_pymc as amc

from tests.interoperability.results import QUIET, X, Y, normal_pair
from tests.likelihood_free.abc_runs import rejection

SIMULATIONS = {"max_simulations": 2_000, "batched": True, "draws": 100, **QUIET}


def generative(y=None, sd=None):
    """A regression as a generative model, or written with data and a known standard deviation."""
    with pm.Model(coords={"term": ["constant", "slope"]}) as model:
        beta = pm.Normal("beta", 0.0, 2.0, dims="term")
        sigma = pm.HalfNormal("sigma", 1.0) if sd is None else pm.Data("sigma", sd)
        pm.Normal("y", X @ beta, sigma, observed=y, shape=len(X))
    return model


def by_hand():
    return generative(Y, 0.7)


def by_transformations():
    return pm.observe(pm.do(generative(), {"sigma": 0.7}), {"y": Y})


@pytest.mark.slow
def test_the_evidence_is_the_same():
    one, two = (
        amc.estimate_evidence(m, draws=50, **QUIET) for m in (by_hand(), by_transformations())
    )
    assert float(one["evidence"]["log_evidence"]) == float(two["evidence"]["log_evidence"])
    xr.testing.assert_equal(one["posterior"].to_dataset(), two["posterior"].to_dataset())


def test_an_intervention_on_data_replaces_them():
    """As a model that was written with the other data."""
    with pm.Model() as model:
        x = pm.Data("x", X[:, 1])
        pm.Normal("y", pm.Normal("slope", 0.0, 2.0) * x, 0.7, observed=Y)
    other = pm.do(model, {"x": -X[:, 1]})
    one, two = (amc.estimate_evidence(m, draws=50, **QUIET) for m in (model, other))
    slopes = [float(t["posterior"]["slope"].mean()) for t in (one, two)]
    assert slopes[0] == pytest.approx(-slopes[1], abs=0.01)


@pytest.mark.parametrize("sampler", [amc.sample_abc_tree, rejection])
@pytest.mark.filterwarnings("ignore:Likelihood-free inference:UserWarning")
def test_likelihood_free_inference_with_an_intervention(sampler):
    def model(known=None):
        with pm.Model() as model:
            shift = pm.Normal("shift", 0.0, 1.0) if known is None else pm.Data("shift", known)
            mu = pm.Normal("mu", 0.0, 1.0, shape=2)
            pm.Simulator("y", normal_pair, mu + shift, epsilon=0.3, observed=[0.8, -0.6])
        return model

    one, two = (
        sampler(model=m, **SIMULATIONS) for m in (model(0.2), pm.do(model(), {"shift": 0.2}))
    )
    np.testing.assert_array_equal(one["posterior"]["mu"], two["posterior"]["mu"])


def test_product_space_of_interventions():
    """The models differ in what is held fixed."""
    free = pm.observe(generative(), {"y": Y})
    models = {"free": free, "known": by_transformations()}
    found = amc.sample_product_space(models, draws=50, tune=50, chains=1, cores=1, **QUIET)
    assert set(found["models/known"]["posterior"].data_vars) == {"beta"}
    assert set(found["models/free"]["posterior"].data_vars) == {"beta", "sigma"}
