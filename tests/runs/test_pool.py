"""Pools: the same results everywhere, worker deaths survived, errors that come home."""

import multiprocessing
import os
import signal

import numpy as np
import pytest

from amc_pymc.rng import spawn_generators
from amc_pymc.runs import Pool, WorkerDied, run_jobs
from tests.runs.bars import Bar

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")


def walk(rng):
    return rng.normal(size=3).sum()


def refuse():
    raise TypeError("this cannot be unpickled")


class Unloadable:
    def __reduce__(self):
        return refuse, ()


class Own(Exception):
    """Can be pickled, but not unpickled, which breaks a pool of the standard library."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")
        self.more = Unloadable()


def failing(k):
    if k == 1:
        raise Own("this", "that")
    return k


def where(k):
    return os.getpid()


def in_daemon(k):
    """The results of a pool in a process of multiprocessing.Pool."""
    with Pool(abs, cores=2) as pool:
        return list(pool.map([-1, k]))


def test_daemonic_processes_have_no_workers():
    with multiprocessing.get_context("fork").Pool(1) as daemons:
        assert daemons.map(in_daemon, [2]) == [[1, 2]]


def once(path):
    """Kill this process the first time only."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def no_children():
    return multiprocessing.active_children() == []


# --- results --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_results_do_not_depend_on_cores(method):
    expected = [walk(rng) for rng in spawn_generators(1, 20)]
    with Pool(walk, cores=2, mp_ctx=method) as pool:
        for _ in range(2):
            assert list(pool.map(spawn_generators(1, 20))) == expected
    assert no_children()


def test_processes_stay_for_later_jobs():
    with Pool(where, cores=2, mp_ctx="fork") as pool:
        pids = [set(pool.map(range(20))) for _ in range(3)]
    assert len(set.union(*pids)) <= 2
    assert os.getpid() not in set.union(*pids)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"cores": 0}, ValueError, "cores must be at least 1, got 0"),
        ({"cores": 2, "mp_ctx": "knife"}, ValueError, "mp_ctx must be one of .*got 'knife'"),
    ],
)
def test_bad_arguments(settings, error, message):
    with pytest.raises(error, match=message):
        Pool(walk, **settings)


# --- errors ---------------------------------------------------------------------------------------


def test_errors_that_cannot_be_pickled_come_by_name_and_message():
    with Pool(failing, cores=2, mp_ctx="fork") as pool:
        with pytest.raises(RuntimeError, match="Own: this and that") as caught:
            list(pool.map(range(5)))
        assert "in failing" in "".join(caught.value.__notes__)
        assert list(pool.map([2, 3])) == [2, 3]  # nothing is broken
    assert no_children()


# --- workers that die -----------------------------------------------------------------------------


def test_a_job_whose_worker_dies_is_repeated(tmp_path):
    path = str(tmp_path / "met")

    def job(given):
        k, rng = given
        found = rng.normal()
        if k == 3:
            once(path)
        return found

    expected = [rng.normal() for rng in spawn_generators(5, 8)]
    with Pool(job, cores=2, mp_ctx="fork") as pool:
        assert list(pool.map(list(enumerate(spawn_generators(5, 8))))) == expected
    assert os.path.exists(path)


def test_a_job_that_always_kills_is_given_up():
    def job(k):
        if k == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return k

    with Pool(job, cores=2, mp_ctx="fork") as pool:
        with pytest.raises(
            WorkerDied, match=r"3 worker processes have died \(SIGKILL\) on the same job"
        ):
            list(pool.map(range(6)))
    assert no_children()


def test_a_long_job_whose_worker_dies_is_repeated(tmp_path):
    """Its progress is not counted twice."""
    path = str(tmp_path / "met")

    def job(rng, report):
        total = 0.0
        for step in range(30):
            total += rng.normal()
            report.advance(1)
            if step == 20:
                once(path)
        return total

    expected = [rng.normal(size=30).cumsum()[-1] for rng in spawn_generators(2, 3)]
    bar = Bar()
    found = run_jobs(job, spawn_generators(2, 3), cores=2, bar=bar, mp_ctx="fork")
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert os.path.exists(path)
    assert bar.total == 90
