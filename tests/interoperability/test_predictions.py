"""Predictions and pointwise log likelihoods of PyMC from every result with draws."""

import logging

import numpy as np
import pymc as pm
import pytest

from scipy import stats

import amc_pymc as amc

from tests.interoperability.results import (
    GROUP,
    OF_SIMULATORS,
    QUIET,
    WITH_DRAWS,
    Y_GROUPS,
    X,
    Y,
    groups,
    result,
)

#: Mean (chains, draws, rows) and standard deviation of the data given draws.
GIVEN = {
    "line": lambda p: (p["beta"].values @ X.T, p["sigma"].values[..., None]),
    "selection": lambda p: ((p["included"].values * [0.05, -0.05]) @ X.T, 10.0),
    "groups": lambda p: (p["effect"].values[..., GROUP], 1.0),
    "simulated": lambda p: (p["mu"].values, 0.5),
}
MODELS = {
    **dict.fromkeys(WITH_DRAWS, "line"), "racing_gibbs": "selection", "recover_marginals": "groups",
    **dict.fromkeys(OF_SIMULATORS, "simulated"),
}  # fmt: skip


@pytest.mark.parametrize("name", WITH_DRAWS)
def test_predictions_have_the_distribution_that_draws_say(name):
    found = result(name)
    with found.model:
        predicted = pm.sample_posterior_predictive(found.draws, **QUIET)
    y = predicted.posterior_predictive["y"].values
    centre, sd = GIVEN[MODELS[name]](found.draws["posterior"])
    z = ((y - centre) / sd).ravel()
    assert z.size == y.size
    error = 1.0 / np.sqrt(z.size)
    assert abs(z.mean()) < 4.0 * error
    assert abs(z.std() - 1.0) < 4.0 * error / np.sqrt(2.0)


@pytest.mark.parametrize("name", [n for n in WITH_DRAWS if n not in OF_SIMULATORS])
def test_log_likelihoods_are_those_of_the_draws(name):
    found = result(name)
    with found.model:
        pointwise = pm.compute_log_likelihood(
            found.draws, extend_inferencedata=False, progressbar=False
        )
    centre, sd = GIVEN[MODELS[name]](found.draws["posterior"])
    data = Y_GROUPS if MODELS[name] == "groups" else Y
    expected = stats.norm.logpdf(data, centre, sd)
    np.testing.assert_allclose(pointwise["y"], expected, rtol=1e-8, atol=1e-8)
    if "log_likelihood_sum" in found.tree["sample_stats"]:
        total = found.tree["sample_stats"]["log_likelihood_sum"]
        np.testing.assert_allclose(total, expected.sum(-1), rtol=1e-8)


@pytest.mark.slow
def test_evidence_without_effects_predicts_once_they_are_recovered(caplog):
    """PyMC would draw effects that were integrated out from their prior, and says so in its log."""
    own = amc.estimate_evidence(groups(), draws=100, **QUIET)
    assert "effect" not in own["posterior"]
    whole = amc.recover_marginals(own, model=groups(), **QUIET)
    with caplog.at_level(logging.INFO, "pymc"), groups():
        pm.sample_posterior_predictive(whole, random_seed=1, progressbar=False)
    assert "Sampling: [y]" in caplog.text
