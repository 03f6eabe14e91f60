"""Checkpoints of amc.estimate_evidence: resuming, what is not made again, refusals."""

import dataclasses
import importlib
import warnings

import numpy as np
import pytest

import amc_pymc as amc

from amc_pymc.evidence.mcmc import HMC
from amc_pymc.evidence.model import Elsewhere, compiled_particles
from amc_pymc.evidence.paths import Highest, RecordingPath
from tests.evidence.evidence_models import (
    compiled_once,  # noqa: F401
    labels,
    normal_model,
    one,
    regression,
)

STEPS = []


@pytest.fixture(autouse=True)
def counted_steps(monkeypatch):
    """Count Hamiltonian moves that are made in this process."""
    step = HMC.step
    monkeypatch.setattr(HMC, "step", lambda *arguments: STEPS.append(1) or step(*arguments))


def estimated(model, checkpoint=None, **settings):
    STEPS.clear()
    settings = {"random_seed": 1, "target_mcse": 0.02} | settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of limits
        return amc.estimate_evidence(model, checkpoint=checkpoint, progressbar=False, **settings)


def assert_same(a, b):
    assert a.groups == b.groups
    for group in a.groups:
        for name, values in a[group].data_vars.items():
            if not name.endswith("seconds") and values.dtype.kind in "fiu":
                np.testing.assert_array_equal(values, b[group][name], err_msg=f"{group}/{name}")
    assert a["evidence"].attrs == b["evidence"].attrs


def keep(folder, n):
    """Leave only the first batches, as if the run had been killed."""
    files = sorted(folder.glob("*.npz"))
    for file in files[n:]:
        file.unlink()
    return len(files)


@pytest.mark.parametrize("known", [regression, labels])
def test_a_killed_run_resumes(tmp_path, known):
    model, folder = known().model, tmp_path / "run"
    whole = estimated(model)
    assert_same(whole, estimated(model, folder))
    n = keep(folder, 1000)
    assert n > 4 and STEPS
    assert_same(whole, estimated(model, folder))
    assert not STEPS  # the pilot run is not made again
    for batches in (n - 1, 3, 1, 0):
        keep(folder, batches)
        assert_same(whole, estimated(model, folder))
        assert keep(folder, 1000) == n


def test_random_numbers_after_the_pilot_run_are_the_same(tmp_path):
    """Annealing from the mixture needs a run of its own after the pilot run, which is made again."""
    settings = {"arms": ["smc_reference"], "target_mcse": 0.1}
    whole = estimated(regression().model, tmp_path / "run", **settings)
    assert keep(tmp_path / "run", 2) > 2
    assert_same(whole, estimated(regression().model, tmp_path / "run", **settings))


def test_measurements_are_restored():
    path = RecordingPath(compiled_particles(regression().model)[0])
    x = np.random.default_rng(1).normal(size=(50, path.n_dim))
    first, again = Elsewhere(Highest()), Elsewhere(Highest())
    found = first.measured(path.values)(x)
    np.testing.assert_array_equal(first.receive(found), path.values(x))
    again.recall(first.stored(found))
    assert first.counts.tolist() == again.counts.tolist() == [50, 0, 0]
    assert len(first.seen.points()[0]) > 0
    for a, b in zip(first.seen.points(), again.seen.points(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_chains_are_not_run_again(tmp_path, monkeypatch):
    """Pilot runs say that no mixture will do, so chains and a bridge give the estimate."""
    module = importlib.import_module("amc_pymc.evidence.run")
    explored = module.explored
    monkeypatch.setattr(
        module, "explored", lambda *a, **k: dataclasses.replace(explored(*a, **k), unfit=True)
    )
    model, folder = regression().model, tmp_path / "run"
    whole = estimated(model, target_mcse=0.1)
    assert_same(whole, estimated(model, folder, target_mcse=0.1))
    assert "method" in whole["evidence"].attrs and keep(folder, 10) == 2
    monkeypatch.setattr(module, "bridge_chains", None)
    assert_same(whole, estimated(model, folder, target_mcse=0.1))
    monkeypatch.undo()
    keep(folder, 1)
    assert_same(whole, estimated(model, folder, target_mcse=0.1))


def test_every_call_gets_further(tmp_path):
    """Rounds on disk do not count towards `max_time`."""
    whole, found = estimated(regression().model), []
    for _ in range(20):
        part = estimated(regression().model, tmp_path / "run", max_time=1e-9)
        found.append(part["rounds"].sizes["round"])
        if "out_of_time" not in part["evidence"].attrs["flag_names"]:
            break
    assert len(found) > 1 and (np.diff(found) > 0).all(), found
    assert_same(whole, part)


def test_workers_and_measured_costs(tmp_path):
    model = regression().model
    whole = estimated(model)
    estimated(model, tmp_path / "run", max_time=1e-9)
    assert_same(whole, estimated(model, tmp_path / "run", cores=2))
    timed = estimated(model, tmp_path / "cpu", cost="cpu")
    keep(tmp_path / "cpu", 3)
    estimated(model, tmp_path / "cpu", cost="cpu")
    timed = estimated(model, tmp_path / "cpu", cost="cpu")
    assert_same(timed, estimated(model, tmp_path / "cpu", cost="cpu"))


@pytest.mark.parametrize(
    "given, differs",
    [
        ({"model": normal_model(2.0)}, "model or data differs|model or data was"),
        ({"target_mcse": 0.01}, "target was 0.02, now it is 0.01"),
        ({"max_cost": 1e6}, "max_cost was null, now it is 1000000.0"),
        ({"arms": ["importance"]}, "names was null"),
        ({"draws": 7}, "draws was 500, now it is 7"),
        ({"random_seed": 2}, "with another random_seed"),
    ],
    ids=lambda given: None if isinstance(given, str) else next(iter(given)),
)
def test_other_runs_are_refused(tmp_path, given, differs):
    estimated(one().model, tmp_path / "run")
    with pytest.raises(ValueError, match=differs):
        estimated(**{"model": one().model, "checkpoint": tmp_path / "run"} | given)


def test_parts_of_other_places_are_named(tmp_path):
    estimated(one().model, tmp_path / "run")
    (tmp_path / "run" / "000001.npz").replace(tmp_path / "run" / "000000.npz")
    keep(tmp_path / "run", 1)
    with pytest.raises(
        ValueError, match=r"run': 000000.npz cannot be read \(its checksum.*delete it"
    ):
        estimated(one().model, tmp_path / "run")


def test_not_with_draws(tmp_path):
    idata = estimated(one().model)
    with pytest.raises(ValueError, match="is for runs without idata"):
        estimated(one().model, tmp_path / "run", idata=idata)
