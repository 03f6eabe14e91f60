"""Rows in memory are there once for all processes, and a pickled step has none of them."""

from __future__ import annotations

import multiprocessing
import os
import pickle

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import cloudpickle
import numpy as np
import pymc as pm
import pytest

from grouped_runs import example

import amc_pymc as amc

from amc_pymc.rows import files

N, GROUPS = 40_000, 300

needs_sharing = pytest.mark.skipif(
    not (hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()),
    reason="this system has no files in memory without names",
)


def rows_model():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(N, 2))
    with pm.Model() as model:
        x, y = pm.Data("X", X), pm.Data("y", X @ [0.4, -0.2] + rng.normal(size=N))
        pm.Normal("obs", x @ pm.Normal("b", shape=2), pm.HalfNormal("s"), observed=y)
    return model


def groups_model():
    """Of a form that other tests compile."""
    return example("gaussian", N, GROUPS)[1]


def discrete_model():
    rng = np.random.default_rng(4)
    with pm.Model() as model:
        x, y = pm.Data("x", rng.normal(size=N)), pm.Data("y", rng.normal(size=N))
        pm.Normal("obs", pm.Bernoulli("k", 0.5) * pm.Normal("b") * x, 1.0, observed=y)
    return model


MAKERS = {
    "rows": (rows_model, amc.RacingMetropolis),
    "groups": (groups_model, amc.RacingMetropolis),
    "discrete": (
        discrete_model,
        lambda model, **kw: amc.RacingGibbs([model["k"]], model=model, **kw),
    ),
}


@pytest.fixture(scope="module", params=MAKERS)
def made(request):
    """A model and a step whose rows are shared however few they are."""
    build, kind = MAKERS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_LEAST", 0)
        model = build()
        return model, kind(model=model, progressbar=False)


def all_values(step):
    return step.prepared.densities.all_values(step.prepared.start)


@needs_sharing
def test_a_pickled_step_has_no_rows(made):
    """Not those that are packed, nor the model's, nor what tells their order."""
    _, step = made
    text = cloudpickle.dumps(step)
    assert len(text) < 8 * N  # bytes of a single column
    again = pickle.loads(text)
    np.testing.assert_array_equal(all_values(again), all_values(step))
    x = step.prepared.start
    values = [s.prepared.raced.all_values(s.prepared.eta(x)) for s in (step, again)]
    np.testing.assert_array_equal(*values)
    assert cloudpickle.dumps(again)  # it can be passed on


@pytest.fixture(scope="module")
def spawned():
    """A process that has inherited nothing."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.slow
@needs_sharing
def test_spawned_processes_read_the_same_rows(made, spawned):
    """Quick, for there is nothing to draw."""
    _, step = made
    values = spawned.submit(loaded_values, cloudpickle.dumps(step)).result()
    np.testing.assert_array_equal(values, all_values(step))


def loaded_values(text):
    return all_values(pickle.loads(text))


def test_without_shared_memory(monkeypatch):
    """As on other systems: a pickle has the packed rows, once, and nothing else of the model."""
    monkeypatch.setattr(files, "_LEAST", 0)
    monkeypatch.setattr(files, "_FILES", Path("/no/such/folder"))
    for build, kind in (MAKERS["rows"], MAKERS["groups"]):
        model = build()
        step = kind(model=model, race="normal", progressbar=False)
        text = cloudpickle.dumps(step)
        densities = step.prepared.densities
        packed = densities.store.data
        assert len(text) < packed.nbytes + 8 * N
        np.testing.assert_array_equal(all_values(pickle.loads(text)), all_values(step))


def test_a_model_whose_data_have_changed_is_not_pickled():
    model = rows_model()
    step = amc.RacingMetropolis(model=model, progressbar=False)
    with model:
        pm.set_data({"y": np.zeros(N)})
    with pytest.raises(ValueError, match=r"\(\w\) have changed"):
        cloudpickle.dumps(step)
