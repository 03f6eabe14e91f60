"""The progress bar of the preparation ends when it is done, whatever was skipped."""

import contextlib
import time

import numpy as np
import pymc as pm
import pytest

from grouped_runs import racing

from amc_pymc.engine.jit import njit, reports_of_compiling
from amc_pymc.steps import preparation
from amc_pymc.steps.preparation import COMPILING, Stopwatch


class Bar:
    done = 0

    def update(self, *, description):
        self.text = description

    def advance(self, n=1):
        self.done += n


@pytest.mark.parametrize(
    ("proxy", "text"),
    [("auto", "Prepared"), (None, "Prepared without a control variate")],
)
def test_the_end(monkeypatch, proxy, text):
    bar = Bar()
    monkeypatch.setattr(preparation, "progress", lambda *_, **__: contextlib.nullcontext(bar))
    with pm.Model() as model:
        pm.Normal("obs", pm.Normal("b"), 1.0, observed=np.random.default_rng(1).normal(size=200))
    racing(model, progressbar=True, proxy=proxy)
    assert (bar.text, bar.done) == (text, 4)


def test_compiling_is_a_task_of_its_own():
    """It interrupts another one, and the bar says what is compiled."""
    bar, watch = Bar(), Stopwatch()
    stages, shown = preparation.Stages(bar, watch), []
    bar.update = lambda *, description: shown.append(description)

    @njit
    def double(x):
        return 2.0 * x

    with reports_of_compiling(stages.compiling):
        begin = time.perf_counter()
        double(1.0)
        compiled = time.perf_counter() - begin
        time.sleep(0.02)
        double(1.0)
    stages.end("Prepared")
    first, *_, last = shown[:-1]
    assert first == "Compiling double, once per installation" and not last.startswith("Compiling")
    assert list(watch.seconds) == ["model", COMPILING]
    assert watch.seconds["model"] > 0.015 and 0.0 < watch.seconds[COMPILING] <= compiled
