"""Where the time goes."""

import time

import numpy as np
import pymc as pm

import amc_pymc as amc

from amc_pymc.steps.preparation import Stopwatch, in_words


def test_tasks_add_up():
    watch, begin = Stopwatch(), time.perf_counter()
    for task, seconds in (("sums", 0.05), ("mode", 0.02), ("sums", 0.05)):
        watch.begin(task)
        time.sleep(seconds)
    watch.end()
    passed = time.perf_counter() - begin
    time.sleep(0.01)
    watch.end()
    assert list(watch.seconds) == ["sums", "mode"]
    assert watch.seconds["sums"] >= 0.1 and watch.seconds["mode"] >= 0.02
    assert sum(watch.seconds.values()) <= passed


def test_words():
    assert in_words({"mode": 1.0, "residuals": 2.0}) == "3.0 s: residuals 2.0, mode 1.0"


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
