"""What the progress bar of the preparation says while it is done."""

import contextlib

import numpy as np
import pymc as pm
import pytest

from grouped_runs import racing

from amc_pymc.step_methods import preparation

N_ROWS, N_GROUPS = 200, 20
_rng = np.random.default_rng(1)
GROUP = _rng.integers(0, N_GROUPS, N_ROWS)
X, Y = _rng.normal(size=(2, N_ROWS))


class Bar:
    def __init__(self, text, total):
        self.text, self.total, self.done = text, total, 0

    def update(self, *, description):
        self.text = description

    def advance(self, n=1):
        self.done += n


@pytest.fixture
def bars(monkeypatch):
    """Bars that were shown, and what each said when a part of the preparation began."""
    shown = []

    @contextlib.contextmanager
    def progress(text, total, *, enabled):
        shown.append((Bar(text, total), {}))
        yield shown[-1][0]

    monkeypatch.setattr(preparation, "progress", progress)
    for name in (
        "_densities",
        "_compile_derivatives",
        "fit_nested",
        "posterior_mode",
        "_with_nodes",
        "_compile_races",
        "with_forecast",
    ):
        monkeypatch.setattr(preparation, name, noted(name, getattr(preparation, name), shown))
    return shown


def noted(name, function, shown):
    def call(*args, **kwargs):
        bar, said = shown[-1]
        said[name] = (bar.text, bar.done)
        return function(*args, **kwargs)

    return call


def groups():
    with pm.Model() as model:
        u = pm.Normal("u", 0.0, pm.HalfNormal("sd", 1.0), shape=N_GROUPS)
        b = pm.Normal("b", 0.0, pm.HalfNormal("sd_b", 1.0), shape=2)
        pm.Normal("obs", b[0] + b[1] * X + u[GROUP], 1.0, observed=Y)
    return model


def rows():
    with pm.Model() as model:
        pm.Normal("obs", pm.Normal("b") * X, pm.HalfNormal("sd", 1.0), observed=Y)
    return model


@pytest.mark.parametrize("build", [groups, rows])
def test_stages_are_named_as_they_come(build, bars):
    racing(build(), progressbar=True)
    ((bar, said),) = bars
    assert said["_densities"] == ("Taking the model apart (compiles at first use)", 0)
    assert said["_compile_derivatives"] == ("Compiling derivatives", 1)
    assert said["fit_nested" if build is groups else "posterior_mode"] == ("Searching the mode", 1)
    if build is groups:
        assert said["_with_nodes"] == ("Choosing the nodes of the quadrature", 1)
    assert said["_compile_races"] == ("Compiling races", 2)
    assert said["with_forecast"] == ("Measuring residuals", 3)
    assert (bar.text, bar.done, bar.total) == ("Prepared", 4, 4)


def test_the_end_without_a_control_variate(bars):
    racing(rows(), progressbar=True, proxy=None)
    ((bar, said),) = bars
    assert bar.text == "Prepared without a control variate" and bar.done == bar.total
    assert "with_forecast" not in said
