import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from amc_pymc.rng import spawn_generators
from amc_pymc.runs import Pool, number_of_cores, run_jobs
from tests.runs.bars import Bar


def walk(steps, pause=0.0):
    """A job: the end of a random walk; the first jobs take longest."""

    def job(rng, report):
        where = 0.0
        for _ in range(steps):
            if report.stopped():
                break
            where += rng.normal()
            time.sleep(pause * rng.random())
            report.advance(1)
        return where, steps

    return job


# --- results ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_serial_and_parallel_results_are_equal_and_in_order(method):
    expected = run_jobs(walk(20), spawn_generators(3, 5), bar=Bar())
    assert len({e[0] for e in expected}) == 5
    bar = Bar()
    found = run_jobs(walk(20), spawn_generators(3, 5), cores=2, bar=bar, mp_ctx=method)
    assert found == expected
    assert bar.total == 100


def test_results_come_in_the_order_of_the_jobs_whichever_ends_first():
    def job(seconds, report):
        time.sleep(seconds)
        return seconds, os.getpid()

    seconds = [0.6, 0.0, 0.2, 0.0]
    found = run_jobs(job, seconds, cores=2, bar=Bar(), mp_ctx="fork")
    assert [f[0] for f in found] == seconds
    workers = {f[1] for f in found}
    assert len(workers) == 2
    assert os.getpid() not in workers


# --- progress -----------------------------------------------------------------------------------


def test_serial_progress_is_reported_step_by_step():
    bar = Bar()
    run_jobs(walk(7), spawn_generators(1, 3), bar=bar)
    assert (bar.total, bar.calls) == (21, 21)


def test_parallel_progress_adds_up_while_jobs_run():
    """Reports come in while the sum is taken; none may be lost."""
    bar = Bar()
    run_jobs(walk(3_000, 1e-4), spawn_generators(1, 2), cores=2, bar=bar, mp_ctx="fork")
    assert bar.total == 6_000
    assert bar.calls > 1


# --- errors -------------------------------------------------------------------------------------


class Unusual(RuntimeError):
    pass


def failing(bad, pause):
    def job(k, report):
        if k == bad:
            raise ZeroDivisionError(f"job {k}")
        begun = time.monotonic()
        while not report.stopped() and time.monotonic() - begun < pause:
            time.sleep(0.01)
        return k

    return job


@pytest.mark.parametrize("bad", [0, 1, 3])
def test_an_exception_surfaces_and_stops_the_others(bad):
    begun = time.monotonic()
    with pytest.raises(ZeroDivisionError, match=f"job {bad}"):
        # Before job 3 the jobs 0 and 2 or 1 and 2 run for their second.
        pause = 30.0 if bad < 2 else 0.5
        run_jobs(failing(bad, pause), range(6), cores=2, bar=Bar(), mp_ctx="fork")
    assert time.monotonic() - begun < 15.0


def test_serial_exceptions_surface_and_later_jobs_do_not_run():
    ran = []

    def job(k, report):
        ran.append(k)
        if k == 1:
            raise Unusual("no")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Unusual, match="no"):
        run_jobs(job, [0, 1, 2], bar=Bar())
    assert ran == [0, 1]
    assert signal.getsignal(signal.SIGINT) is before


def test_number_of_cores(monkeypatch):
    assert number_of_cores(3, 8) == 3
    assert number_of_cores(np.int64(8), 3) == 3
    for available, jobs, expected in [(16, 8, 4), (2, 8, 2), (16, 1, 1)]:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(available)), raising=False)
        assert number_of_cores(None, jobs) == expected


# --- Ctrl-C -------------------------------------------------------------------------------------


def test_serial_interrupt_returns_what_there_is():
    def job(k, report):
        for n in range(100):
            if report.stopped():
                return k, n
            if (k, n) == (1, 10):
                signal.raise_signal(signal.SIGINT)
            report.advance(1)
        return k, 100

    before = signal.getsignal(signal.SIGINT)
    bar = Bar()
    assert run_jobs(job, [0, 1, 2], bar=bar) == [(0, 100), (1, 11)]
    assert bar.total == 111
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_serial_interrupt_is_one():
    def job(k, report):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_jobs(job, [0], bar=Bar())
    assert signal.getsignal(signal.SIGINT) is before


SCRIPT = textwrap.dedent(
    """
    import signal, sys, time
    from amc_pymc.runs import run_jobs
    from amc_pymc.progress import progress

    def job(k, report):
        begun = time.monotonic()
        if k < 2:  # the later ones need not have begun
            open(f"{sys.argv[3]}/begun{k}", "w").close()
        while not report.stopped() and time.monotonic() - begun < 60:
            time.sleep(0.01)
            report.advance(1)
        return k, report.stopped()

    if __name__ == "__main__":
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job
        method = None if sys.argv[2] == "none" else sys.argv[2]
        with progress("Waiting", None, enabled=False) as bar:
            found = run_jobs(job, list(range(9)), cores=int(sys.argv[1]), bar=bar, mp_ctx=method)
        print(found)
    """
)


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(
    ("cores", "method", "group"),
    [
        (2, "fork", False),
        (2, "fork", True),
        pytest.param(1, "none", False, marks=pytest.mark.slow),
        pytest.param(2, "spawn", True, marks=pytest.mark.slow),
    ],
)
def test_interrupting_a_script(tmp_path, cores, method, group):
    """A terminal sends Ctrl-C to all processes, a group, an editor to one."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), str(cores), method, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 60.0
        while not all((tmp_path / f"begun{k}").exists() for k in range(cores)):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < until
            time.sleep(0.02)
        (os.killpg if group else os.kill)(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30.0)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 0, err
    assert err == ""
    found = eval(out)
    # Jobs handed to the workers in advance may still begin, and stop at once.
    assert [k for k, _ in found][:cores] == list(range(cores))
    assert all(stopped for _, stopped in found)
    assert len(found) < 9


# --- pools --------------------------------------------------------------------------------------


def fail_at_two(k):
    if k == 2:
        raise ZeroDivisionError("two")
    return k


def test_an_error_of_a_mapped_job_comes_in_its_place():
    with Pool(fail_at_two) as pool:
        results = pool.map(range(50))
        assert [next(results), next(results)] == [0, 1]
        with pytest.raises(ZeroDivisionError, match="two"):
            next(results)
