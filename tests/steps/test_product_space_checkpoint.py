"""Checkpoints of amc.sample_product_space: chains on disk are not run again."""

import warnings

import numpy as np
import pymc as pm
import pytest

import amc_pymc as amc
import amc_pymc.steps.product_space as module

Y = np.random.default_rng(1).normal(0.05, 1.0, 500)


def two_models(y=Y):
    models = {}
    for name, sd in (("wide", 1.0), ("narrow", 0.1)):
        with pm.Model() as models[name]:
            pm.Normal("obs", pm.Normal("mu", 0, sd), 1, observed=y)
    return models


@pytest.fixture(scope="module")
def models():
    return two_models()


def sampled(models, checkpoint=None, **settings):
    settings = {"draws": 60, "tune": 40, "chains": 3, "cores": 1, "random_seed": 1} | settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few draws
        return amc.sample_product_space(
            models, checkpoint=checkpoint, progressbar=False, **settings
        )


def assert_same(a, b):
    assert a.groups == b.groups
    for group in a.groups:
        for name, values in a[group].data_vars.items():
            np.testing.assert_array_equal(values, b[group][name], err_msg=f"{group}/{name}")


@pytest.fixture(scope="module")
def whole(models):
    return sampled(models)


def files(folder):
    return sorted(folder.glob("*.npz"))


@pytest.mark.slow
def test_a_killed_run_resumes(models, whole, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    assert_same(whole, sampled(models, folder))
    assert len(files(folder)) == 4
    for batches in (2, 1, 0):
        for file in files(folder)[batches:]:
            file.unlink()
        assert_same(whole, sampled(models, folder))
    run = module._run_chain

    def only_tried(space, plan, numbered, job):
        assert plan.draws == module._TRIED, "a chain is run again"
        return run(space, plan, numbered, job)

    monkeypatch.setattr(module, "_run_chain", only_tried)
    assert_same(whole, sampled(models, folder))


def test_changed_constants_are_refused(models, whole, tmp_path, monkeypatch):
    """Settings, models and version are the same, but the draws would be others."""
    sampled(models, tmp_path / "run")
    files(tmp_path / "run")[-1].unlink()
    step = module.ps.wang_landau_step
    monkeypatch.setattr(module.ps, "wang_landau_step", lambda w, k, t: step(w, k, 2 * t))
    with pytest.raises(ValueError, match=r"000000.npz was made from other draws"):
        sampled(models, tmp_path / "run")
    monkeypatch.undo()
    assert_same(whole, sampled(models, tmp_path / "run"))


def test_interrupted_chains_are_not_stored(models, whole, tmp_path, monkeypatch):
    run = module._run_chain

    def stopped(space, plan, rng, job):
        record = run(space, plan, rng, job)
        return record._replace(complete=bool(plan.adapt))

    monkeypatch.setattr(module, "_run_chain", stopped)
    part = sampled(models, tmp_path / "run")
    assert "interrupted" in part["product_space"].attrs["flag_names"]
    assert len(files(tmp_path / "run")) == 1
    monkeypatch.undo()
    assert_same(whole, sampled(models, tmp_path / "run"))


@pytest.mark.parametrize(
    ("given", "differs"),
    [
        ({"models": two_models(Y + 0.01)}, "models differs"),
        ({"draws": 61}, "draws was 60, now it is 61"),
        ({"delta": 0.01}, "race was .*delta=0.05.*now it is .*delta=0.01"),
        ({"proposal": "random_walk"}, 'proposal was "auto", now it is "random_walk"'),
        ({"random_seed": 2}, "with another random_seed"),
    ],
    ids=lambda given: None if isinstance(given, str) else next(iter(given)),
)
def test_other_runs_are_refused(models, tmp_path, given, differs):
    sampled(models, tmp_path / "run", draws=60, tune=0)
    with pytest.raises(ValueError, match=differs):
        sampled(**{"models": models, "checkpoint": tmp_path / "run", "tune": 0} | given)
