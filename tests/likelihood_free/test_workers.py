"""Simulations in workers that die, hang or are interrupted: the same numbers, and no process left."""

import faulthandler
import logging
import multiprocessing
import os
import signal
import sys
import threading

import numpy as np
import pytest

from scipy import stats

from amc_pymc.likelihood_free import workers as module
from amc_pymc.likelihood_free.problem import Failure, Simulated
from amc_pymc.likelihood_free.simulator_problem import SimulatorProblem
from amc_pymc.likelihood_free.workers import simulation_workers

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")


@pytest.fixture(autouse=True)
def many_chunks(monkeypatch):
    """More chunks than by default, so that few simulations are enough to see what becomes of them."""
    monkeypatch.setattr(module, "_CHUNKS", 256)


class Walk:
    """Distance |u + noise|; what else happens is up to `event`, called with each row and first coordinate."""

    n_dim = 2

    def __init__(self, event=None):
        self.event = event

    def simulate(self, u, rng, *, batched=False, summaries=False):
        if batched:
            noise = rng.normal(size=len(u))
            for i, x in enumerate(u[:, 0]):
                if self.event is not None:
                    self.event(i, x)
            return Simulated(np.abs(u.sum(axis=1) + noise), [])
        distance, failures = np.full(len(u), np.inf), []
        for i, x in enumerate(u):
            noise = rng.normal(size=rng.integers(1, 4)).sum()
            try:
                if self.event is not None:
                    self.event(i, x[0])
                distance[i] = abs(x.sum() + noise)
            except Exception as error:
                failures.append(Failure(i, "error", f"{type(error).__name__}: {error}"))
        return Simulated(distance, failures)


def points(n, seed=5):
    return np.random.default_rng(seed).random((n, 2))


def run(problem, u, seed=(1, 2), **settings):
    with simulation_workers(problem, **settings) as simulate:
        return simulate(u, seed)


def same(found, expected):
    np.testing.assert_array_equal(found.distance, expected.distance)
    np.testing.assert_array_equal(found.summaries, expected.summaries)
    assert found.failures == expected.failures


def no_children():
    return multiprocessing.active_children() == []


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def abort():
    """As C code does."""
    faulthandler.disable()
    os.abort()


def once(folder, what):
    """Call `what` the first time only, whichever process comes by."""
    try:
        os.close(os.open(folder / "met", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    what()


def at(bad, what):
    """An event at the points whose first coordinates are in `bad`."""
    return lambda i, x: what() if x in bad else None


# --- the same numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_numbers_do_not_depend_on_cores(method, batched):
    u = points(2_100)
    expected = run(Walk(), u, batched=batched)
    assert np.isfinite(expected.distance).all()
    for cores in (2, 3) if method == "fork" else (2,):
        same(run(Walk(), u, batched=batched, cores=cores, mp_ctx=method), expected)


def test_rows_have_noise_of_their_own():
    """Also across chunks and after a row that was broken off."""

    class Still(Walk):
        def simulate(self, u, rng, *, batched=False, summaries=False):
            failures = [Failure(i, "nan", "") for i in range(len(u)) if u[i, 1] > 0.5]
            return Simulated(rng.random(len(u)), failures)

    found = run(Still(), points(1_000))
    assert len(np.unique(found.distance)) == 1_000
    assert len(found.failures) > 400


class Summarising(Walk):
    observed_summaries = np.zeros(3)

    def simulate(self, u, rng, *, batched=False, summaries=False):
        assert summaries
        found = super().simulate(u, rng, batched=batched)
        return found._replace(summaries=np.column_stack([found.distance, u]))


def test_a_culprit_has_no_summaries():
    u = points(700)
    found = run(Summarising(at({u[300, 0]}, die)), u, cores=2, mp_ctx="fork", summaries=True)
    assert found.summaries.shape == (700, 3)
    assert np.flatnonzero(np.isnan(found.summaries).all(axis=1)).tolist() == [300]


# --- failures of the simulator --------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"cores": 2}])
def test_failures_are_told_in_order(settings):
    u = points(700)
    bad = set(u[[3, 250, 699], 0])

    def fail():
        raise ArithmeticError("no")

    found = run(Walk(at(bad, fail)), u, **settings)
    assert found.failures == [Failure(i, "error", "ArithmeticError: no") for i in (3, 250, 699)]
    assert np.flatnonzero(np.isinf(found.distance)).tolist() == [3, 250, 699]


# --- workers that die -----------------------------------------------------------------------------


@pytest.mark.parametrize("batched", [False, True])
def test_a_killed_worker_changes_nothing(batched, tmp_path, caplog):
    u = points(2_000)
    bad = {u[1_234, 0]}
    expected = run(Walk(), u, batched=batched)
    with caplog.at_level(logging.WARNING, "amc_pymc"):
        problem = Walk(at(bad, lambda: once(tmp_path, die)))
        found = run(problem, u, cores=2, mp_ctx="fork", batched=batched)
    same(found, expected)
    assert (tmp_path / "met").exists()
    assert "A worker process died (SIGKILL); what it did is done again." in caplog.text
    assert no_children()


@pytest.mark.parametrize(
    ("how", "said"), [(die, "SIGKILL"), (abort, "SIGABRT"), (lambda: sys.exit(3), "exit code 3")]
)
def test_a_simulation_that_kills_its_worker_is_a_failure(how, said, caplog):
    u = points(2_000)
    rows = [100, 101, 1_700]
    expected = run(Walk(), u)
    with caplog.at_level(logging.WARNING, "amc_pymc"):
        found = run(Walk(at(set(u[rows, 0]), how)), u, cores=2, mp_ctx="fork")
    text = f"the worker process died ({said})"
    assert found.failures == [Failure(i, "error", text) for i in rows]
    assert np.flatnonzero(np.isinf(found.distance)).tolist() == rows
    # What comes before it in its chunk has the same random numbers, what comes after has others.
    size = 8
    others = [i for i in range(2_000) if i not in rows and (i < 100 or i // size not in (12, 212))]
    np.testing.assert_array_equal(found.distance[others], expected.distance[others])
    assert f"Simulation 100 of a batch has failed: {text}." in caplog.text
    assert no_children()


def test_a_simulator_that_always_kills_its_worker_ends_the_run():
    u = points(700)
    with pytest.raises(RuntimeError, match=r"30 worker processes have died \(SIGKILL\) one after"):
        run(Walk(at(set(u[:, 0]), die)), u, cores=2, mp_ctx="fork")
    assert no_children()


def test_what_follows_a_culprit_does_not_depend_on_workers():
    u = points(700)
    problem = Walk(at(set(u[[5, 300], 0]), die))
    first = run(problem, u, cores=2, mp_ctx="fork")
    same(run(problem, u, cores=3, mp_ctx="fork"), first)


# --- arguments ------------------------------------------------------------------------------------


def rarely_raising(rng, x):
    if (rng.random(len(x)) < 0.01).any():
        raise RuntimeError("bad luck")
    return rng.normal(x)


def test_what_batches_do_after_an_error_does_not_depend_on_workers():
    problem = SimulatorProblem({"x": stats.norm()}, rarely_raising, 0.0)
    u = points(2500)[:, :1]
    expected = run(problem, u, batched=True)
    assert 0 < len(expected.failures) < 1500
    same(run(problem, u, batched=True, cores=2, mp_ctx="fork"), expected)


def test_a_problem_that_cannot_be_sent():
    problem = Walk(threading.Lock())
    with pytest.raises(TypeError, match="problem cannot be sent to other processes"):
        run(problem, points(3), cores=2, mp_ctx="spawn")


def test_a_batch_depends_on_its_seed_only():
    u = points(300)
    with simulation_workers(Walk(), cores=2, mp_ctx="fork") as simulate:
        first, other, again = (simulate(u, s) for s in ([1, 2], [1, 3], [1, 2]))
    same(first, again)
    assert not np.isin(first.distance, other.distance).any()
    same(first, run(Walk(), u))
