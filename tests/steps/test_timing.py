"""Where the time goes."""

import numpy as np
import pymc as pm

import amc_pymc as amc

from amc_pymc.steps.preparation import in_words


def test_a_step_tells_its_preparation(caplog):
    y = np.random.default_rng(1).normal(2.0, 1.0, size=500)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 10)
        pm.Normal("obs", mu, 1, observed=y)
        with caplog.at_level("INFO", logger="amc_pymc"):
            step = amc.RacingMetropolis(progressbar=False)
    seconds = step.prepared.seconds
    assert {"model", "mode", "residuals"} <= set(seconds)
    assert all(v >= 0.0 for v in seconds.values())
    assert f"Prepared in {in_words(seconds)}." in caplog.text
    forecast = amc.racing_forecast(model=model, progressbar=False)
    assert set(forecast.seconds) >= {"model", "mode", "residuals"}
