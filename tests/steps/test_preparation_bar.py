"""The progress bar of the preparation ends when it is done, whatever was skipped."""

import contextlib

import numpy as np
import pymc as pm
import pytest

from grouped_runs import racing

from amc_pymc.steps import preparation


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
