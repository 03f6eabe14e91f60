"""Doubts about a forecast are flags: a warning, and in the forecast. The time of its preparation is told."""

import numpy as np
import pymc as pm
import pytest

import amc_pymc as amc

N = 3_000


def separated():
    """A logistic regression whose likelihood increases with the slope, and a flat prior."""
    x = np.linspace(-1.0, 1.0, N)
    with pm.Model() as model:
        slope = pm.Flat("slope", initval=0.0)
        pm.Bernoulli("y", logit_p=slope * x, observed=(x > 0.0).astype(int))
    return model


def edge():
    """A model whose rows are impossible beside the mode."""
    y = np.random.default_rng(1).random(N)
    with pm.Model() as model:
        pm.Uniform("y", 0.0, pm.HalfNormal("top", 3.0, initval=2.0), observed=y)
    return model


@pytest.mark.parametrize(
    ("model", "delta", "name", "message"),
    [
        (separated, 0.05, "mode_not_found", "the mode of the posterior was not found"),
        (edge, 0.05, "no_control_variate", "there is no control variate"),
    ],
)
def test_doubts_are_flags_that_warn(model, delta, name, message):
    with pytest.warns(UserWarning, match=f"racing_forecast: {message}") as caught:
        found = amc.racing_forecast(model=model(), delta=delta, marginalize=None, progressbar=False)
    assert [f.name for f in found.flags] == [name]
    assert caught[0].filename == __file__
    assert found.flags[0].message in str(caught[0].message)
    assert str(found).endswith(found.flags[0].message)
    assert "nan" not in str(found)


def test_without_doubts():
    y = np.random.default_rng(1).poisson(3.0, size=N)
    with pm.Model() as model:
        pm.Poisson("y", pm.Gamma("rate", 1, 1), observed=y)
    found = amc.racing_forecast(model=model, progressbar=False)
    assert found.flags == () and str(found).endswith(found.suggestion)
    assert found.effective_draws > found.nuts_effective_draws > 0.0  # over a hundred times
    assert found.pays


def test_a_step_tells_its_preparation(caplog):
    y = np.random.default_rng(1).normal(2.0, 1.0, size=500)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 10)
        pm.Normal("obs", mu, 1, observed=y)
        with caplog.at_level("INFO", logger="amc_pymc"):
            step = amc.RacingMetropolis(progressbar=False)
    seconds = step.prepared.seconds
    assert seconds > 0.0 and f"Prepared in {seconds:.1f} s." in caplog.text
    assert amc.racing_forecast(model=model, progressbar=False).seconds > 0.0
