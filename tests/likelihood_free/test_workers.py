"""Simulations in workers that die, hang or are interrupted: the same numbers, and no process left."""

import faulthandler
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import cloudpickle
import numpy as np
import pytest

from scipy import stats

from amc_pymc.running import remote, supervisor
from amc_pymc.likelihood_free import workers as module
from amc_pymc.likelihood_free.problem import Failure, Simulated
from amc_pymc.likelihood_free.simulator_problem import SimulatorProblem
from amc_pymc.likelihood_free.workers import simulation_workers

METHODS = ["fork", pytest.param("spawn", marks=pytest.mark.slow)]
pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")


@pytest.fixture(autouse=True)
def many_chunks(monkeypatch):
    """More chunks than by default, so that few simulations are enough to see what becomes of them."""
    monkeypatch.setattr(module, "_CHUNKS", 256)


class Slow(BaseException):
    pass


def ring(signum, frame):
    raise Slow


class Walk:
    """Distance |u + noise|; what else happens is up to `event`, called with each row and first coordinate."""

    n_dim = 2

    def __init__(self, event=None):
        self.event = event

    def simulate(self, u, rng, *, batched=False, timeout=None):
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
                self._within(timeout, i, x[0])
                distance[i] = abs(x.sum() + noise)
            except Slow:
                failures.append(Failure(i, "timeout", f"longer than {timeout} seconds"))
            except Exception as error:
                failures.append(Failure(i, "error", f"{type(error).__name__}: {error}"))
        return Simulated(distance, failures)

    def _within(self, timeout, i, x):
        if timeout is not None:
            signal.signal(signal.SIGALRM, ring)
            signal.setitimer(signal.ITIMER_REAL, timeout)
        try:
            if self.event is not None:
                self.event(i, x)
        finally:
            if timeout is not None:
                signal.setitimer(signal.ITIMER_REAL, 0.0)


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


def hang_in_c(seconds=600.0):
    """As if in C code that never returns to Python."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM, signal.SIGTERM])
    time.sleep(seconds)


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


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(module, "_GRACE", 0.3)
    monkeypatch.setattr(module, "_FIRST_GRACE", 0.3)


# --- the same numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_numbers_do_not_depend_on_cores(method, batched):
    u = points(2_100)
    expected = run(Walk(), u, batched=batched)
    assert np.isfinite(expected.distance).all()
    for cores in (2, 3) if method == "fork" else (2,):
        same(run(Walk(), u, batched=batched, cores=cores, mp_ctx=method), expected)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("pool", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_numbers_do_not_depend_on_the_executor(pool, batched):
    u = points(2_100)
    expected = run(Walk(), u, batched=batched)
    with pool(2) as executor:
        same(run(Walk(), u, batched=batched, executor=executor), expected)


@pytest.mark.parametrize("timeout", [9.0, 20.0, 60.0])
def test_numbers_do_not_depend_on_a_timeout_that_nothing_meets(timeout):
    u = points(1_300)
    same(run(Walk(), u, timeout=timeout), run(Walk(), u))


def test_a_batch_depends_on_its_seed_only():
    u = points(300)
    with simulation_workers(Walk(), cores=2, mp_ctx="fork") as simulate:
        first, other, again = (
            simulate(u, s) for s in ([1, 2], [1, 3], np.random.SeedSequence([1, 2]))
        )
    same(first, again)
    assert not np.isin(first.distance, other.distance).any()
    same(first, run(Walk(), u))


def test_rows_have_noise_of_their_own():
    """Also across chunks and after a row that was broken off."""

    class Still(Walk):
        def simulate(self, u, rng, *, batched=False, timeout=None):
            failures = [Failure(i, "timeout", "") for i in range(len(u)) if u[i, 1] > 0.5]
            return Simulated(rng.random(len(u)), failures)

    found = run(Still(), points(1_000), timeout=60.0)
    assert len(np.unique(found.distance)) == 1_000
    assert len(found.failures) > 400


class Uniform(Walk):
    """The first random number of each row."""

    def simulate(self, u, rng, *, batched=False, timeout=None):
        return Simulated(np.array([rng.random(4)[0] for _ in u]), [])


def test_streams_of_batches_are_apart_from_what_a_caller_spawns():
    found = np.concatenate([run(Uniform(), points(200), [1, b]).distance for b in range(20)])
    seeds = [np.random.SeedSequence(words) for words in ([1], *([1, b] for b in range(20)))]
    children = [child for seed in seeds for child in seed.spawn(300)]
    others = [np.random.default_rng(child).random() for child in [*seeds, *children]]
    assert len(np.unique(np.concatenate([found, np.unique(others)]))) == 4_000 + len(
        np.unique(others)
    )


class Summarising(Walk):
    def simulate(self, u, rng, *, batched=False, timeout=None, summaries=False):
        assert summaries
        found = super().simulate(u, rng, batched=batched, timeout=timeout)
        return found._replace(summaries=np.column_stack([found.distance, u]))


@pytest.mark.parametrize("settings", [{}, {"cores": 2}, {"batched": True}, {"timeout": 9.0}])
def test_summaries(settings):
    u = points(1_300)
    found = run(Summarising(), u, summaries=True, **settings)
    np.testing.assert_array_equal(found.summaries, np.column_stack([found.distance, u]))
    with ThreadPoolExecutor(2) as executor:
        if "cores" in settings:
            same(run(Summarising(), u, summaries=True, executor=executor), found)


def test_a_culprit_has_no_summaries():
    u = points(700)
    found = run(Summarising(at({u[300, 0]}, die)), u, cores=2, mp_ctx="fork", summaries=True)
    assert found.summaries.shape == (700, 3)
    assert np.flatnonzero(np.isnan(found.summaries).all(axis=1)).tolist() == [300]


def test_summaries_that_are_missing():
    class Without(Walk):
        def simulate(self, u, rng, *, batched=False, timeout=None, summaries=False):
            return super().simulate(u, rng)

    with pytest.raises(ValueError, match=r"returned summaries of shape \(\) for 1 points"):
        run(Without(), points(3), summaries=True)


def test_a_problem_of_scipy():
    def simulator(rng, mu, k):
        return rng.normal(mu, 1.0, size=rng.poisson(3.0) + 1).mean() + k

    prior = {"mu": stats.norm(0.0, 2.0), "k": stats.poisson(2.0)}
    problem = SimulatorProblem(prior, simulator, observed=1.0)
    u = points(600)
    expected = run(problem, u)
    assert len(np.unique(expected.distance)) == 600
    same(run(problem, u, cores=2), expected)
    same(run(problem, u, timeout=60.0), expected)


@pytest.mark.parametrize("settings", [{}, {"cores": 2}, {"batched": True}, {"timeout": 1.0}])
@pytest.mark.parametrize("n", [0, 1])
def test_few_points(settings, n):
    found = run(Walk(), points(n), **settings)
    assert found.distance.shape == (n,) and found.failures == []
    assert no_children()


def test_chunks_depend_on_the_size_of_the_batch_only():
    def sizes(n, batched):
        told, u = [], np.arange(float(n))[:, None] / n

        class Telling:
            n_dim = 1

            def simulate(self, u, rng, *, batched=False, timeout=None):
                told.append(len(u))
                return Simulated(u[:, 0], [])

        found = run(Telling(), u, batched=batched)
        np.testing.assert_array_equal(found.distance, u[:, 0])
        return told

    assert sizes(5, False) == [1] * 5
    assert sizes(1_000, False) == [4] * 250
    assert sizes(100_050, False) == [100] * 1_000 + [50]
    assert sizes(1_500, True) == [1_000, 500]
    assert max(sizes(3_000_001, True)) == 5_000


def test_the_problem_is_sent_once_to_each_worker(tmp_path):
    class Counting(Walk):
        def __setstate__(self, state):
            self.__dict__ = state
            with (tmp_path / "loaded").open("a") as file:
                file.write("x")

    problem, u = Counting(), points(400)
    with ThreadPoolExecutor(1) as executor:
        with simulation_workers(problem, executor=executor) as simulate:
            simulate(u, 1), simulate(u, 2)
    assert (tmp_path / "loaded").read_text() == "x"


@pytest.mark.slow
def test_the_problem_is_sent_once_to_a_spawned_worker(tmp_path):
    class Counting(Walk):
        def __setstate__(self, state):
            self.__dict__ = state
            with (tmp_path / "loaded").open("a") as file:
                file.write("x")

    with simulation_workers(Counting(), cores=2, mp_ctx="spawn") as simulate:
        simulate(points(400), 1), simulate(points(400), 2)
    assert (tmp_path / "loaded").read_text() in ("x", "xx")  # one may have done all


class Kept(Walk):
    loaded: ClassVar[list[int]] = []

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.loaded.append(self.event)

    def __call__(self, message):
        return self.event


def test_a_thread_keeps_few_problems():
    """The last two."""
    copies = [remote.Copies(str(k), cloudpickle.dumps(Kept(k))) for k in range(5)]
    for k in (0, 1, 2, 3, 4, 3, 4, 2):
        assert copies[k](None) == k
    assert Kept.loaded == [0, 1, 2, 3, 4, 2]


# --- failures of the simulator --------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"cores": 2}, {"timeout": 9.0}])
def test_failures_are_told_in_order(settings):
    u = points(700)
    bad = set(u[[3, 250, 699], 0])

    def fail():
        raise ArithmeticError("no")

    found = run(Walk(at(bad, fail)), u, **settings)
    assert found.failures == [Failure(i, "error", "ArithmeticError: no") for i in (3, 250, 699)]
    assert np.flatnonzero(np.isinf(found.distance)).tolist() == [3, 250, 699]


class Broken(Walk):
    def simulate(self, u, rng, *, batched=False, timeout=None):
        raise LookupError("of the problem itself")


class Odd(Walk):
    def simulate(self, u, rng, *, batched=False, timeout=None):
        return Simulated(np.zeros(len(u) + 1), [])


@pytest.mark.parametrize("settings", [{}, {"cores": 2}, {"executor": 2}])
@pytest.mark.parametrize(
    ("problem", "error", "message"),
    [
        (Broken(), LookupError, "of the problem itself"),
        (Odd(), ValueError, r"Odd.simulate returned distances of shape \(2,\) for 1 points"),
    ],
)
def test_errors_of_the_problem_are_raised(problem, error, message, settings):
    with ThreadPoolExecutor(2) as executor:
        given = {"executor": executor} if "executor" in settings else settings
        with pytest.raises(error, match=message):
            run(problem, points(200), **given)
    assert no_children()


def test_an_error_in_a_worker_says_where():
    with pytest.raises(LookupError) as caught:
        run(Broken(), points(200), cores=2, mp_ctx="fork")
    assert "in simulate" in "".join(caught.value.__notes__)


# --- workers that die -----------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"timeout": 20.0}, {"timeout": 60.0}, {"batched": True}])
@pytest.mark.parametrize("method", METHODS)
def test_a_killed_worker_changes_nothing(method, settings, tmp_path, caplog):
    u = points(2_000)
    bad = {u[1_234, 0]}
    expected = run(Walk(), u, batched=settings.get("batched", False))
    with caplog.at_level(logging.WARNING, "amc_pymc"):
        problem = Walk(at(bad, lambda: once(tmp_path, die)))
        found = run(problem, u, cores=2, mp_ctx=method, **settings)
    same(found, expected)
    assert (tmp_path / "met").exists()
    assert "A worker process died (SIGKILL); what it did is done again." in caplog.text
    assert no_children()


@pytest.mark.slow
def test_a_worker_killed_from_outside():
    """At any moment, also between two batches."""
    u = points(20_000)
    pause = Walk(lambda i, x: time.sleep(2e-5))
    with simulation_workers(Walk(), cores=2, mp_ctx="fork") as simulate:
        expected = [simulate(u, k) for k in range(2)]
    with simulation_workers(pause, cores=2, mp_ctx="fork") as simulate:
        for k in range(2):
            killer = multiprocessing.get_context("fork").Process(
                target=kill_some, args=(os.getpid(),)
            )
            killer.start()
            same(simulate(u, k), expected[k])
            killer.join()
            assert killer.exitcode == 0
            for child in multiprocessing.active_children():
                os.kill(child.pid, signal.SIGKILL)
    assert no_children()


def kill_some(parent, times=2):
    for _ in range(times):
        time.sleep(0.2)
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        for pid in children:
            if (
                int(pid) != os.getpid()
                and b"tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()
            ):
                os.kill(int(pid), signal.SIGKILL)
                break


@pytest.mark.parametrize(
    ("how", "said"),
    [(die, "SIGKILL"), (abort, "SIGABRT"), (lambda: sys.exit(3), "exit code 3")],
)
@pytest.mark.parametrize("timeout", [None, 20.0, 60.0])
def test_a_simulation_that_kills_its_worker_is_a_failure(how, said, timeout, caplog):
    u = points(2_000)
    rows = [100, 101, 1_700]
    expected = run(Walk(), u)
    with caplog.at_level(logging.WARNING, "amc_pymc"):
        found = run(Walk(at(set(u[rows, 0]), how)), u, cores=2, mp_ctx="fork", timeout=timeout)
    text = f"the worker process died ({said})"
    assert found.failures == [Failure(i, "error", text) for i in rows]
    assert np.flatnonzero(np.isinf(found.distance)).tolist() == rows
    # What comes before it in its chunk has the same random numbers, what comes after has others.
    size = 8
    others = [i for i in range(2_000) if i not in rows and (i < 100 or i // size not in (12, 212))]
    np.testing.assert_array_equal(found.distance[others], expected.distance[others])
    assert f"Simulation 100 of a batch has failed: {text}." in caplog.text
    assert no_children()


def test_what_follows_a_culprit_does_not_depend_on_workers():
    u = points(700)
    problem = Walk(at(set(u[[5, 300], 0]), die))
    first = run(problem, u, cores=2, mp_ctx="fork")
    same(run(problem, u, cores=3, mp_ctx="fork"), first)
    same(run(problem, u, timeout=30.0, mp_ctx="fork"), first)


def test_a_simulator_that_only_kills_is_given_up(monkeypatch):
    monkeypatch.setattr(supervisor, "_DEATHS", 9)
    with pytest.raises(RuntimeError, match=r"9 worker processes have died \(SIGKILL\) one after"):
        run(Walk(lambda i, x: die()), points(200), cores=2, mp_ctx="fork")
    assert no_children()


class Unloadable(Walk):
    def __init__(self, how):
        self.how = how

    def __setstate__(self, state):
        state["how"]()


def not_here():
    raise ImportError("a library is missing here")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "error", "message"),
    [(not_here, ImportError, "is missing here"),
     (die, RuntimeError, r"Worker processes die \(SIGKILL\) before they begin.*__main__")],
)  # fmt: skip
def test_workers_that_cannot_begin(how, error, message):
    with pytest.raises(error, match=message):
        run(Unloadable(how), points(20), cores=2, mp_ctx="spawn")
    assert no_children()


def test_warnings_about_workers_are_few(caplog):
    u = points(2_000)
    problem = Walk(at(set(u[16:24, 0]), die))
    with caplog.at_level(logging.WARNING, "amc_pymc"):
        assert len(run(problem, u, cores=2, mp_ctx="fork").failures) == 8
    assert sum("has failed" in r.message for r in caplog.records) == 5
    assert len(caplog.records) == 5 + 3


# --- workers that hang ----------------------------------------------------------------------------


def test_a_slow_simulation_is_stopped_by_its_alarm():
    u = points(300)
    found = run(Walk(at({u[7, 0]}, lambda: time.sleep(60))), u, timeout=0.3)
    assert found.failures == [Failure(7, "timeout", "longer than 0.3 seconds")]
    assert np.isfinite(np.delete(found.distance, 7)).all()


@pytest.mark.parametrize(("cores", "piece_seconds", "row"), [(1, 0.0, 7), (2, 60.0, 8)])
@pytest.mark.parametrize("method", METHODS)
def test_a_simulation_deaf_to_its_alarm(method, cores, piece_seconds, row, monkeypatch):
    """Found at once, or after its chunk of rows 6, 7 and 8."""
    monkeypatch.setattr(module, "_GRACE", 0.3)
    monkeypatch.setattr(module, "_PIECE_SECONDS", piece_seconds)
    if method == "fork":
        monkeypatch.setattr(module, "_FIRST_GRACE", 0.3)
    u = points(700)
    expected = run(Walk(at({u[row, 0]}, lambda: time.sleep(60))), u, timeout=0.3)
    begun = time.monotonic()
    problem = Walk(at({u[row, 0]}, hang_in_c))
    found = run(problem, u, timeout=0.3, cores=cores, mp_ctx=method)
    assert time.monotonic() - begun < 300.0
    # As many random numbers follow whether the alarm was heeded or not.
    same(found, expected)
    assert found.failures == [Failure(row, "timeout", "longer than 0.3 seconds")]
    assert no_children()


def test_a_batch_that_hangs(impatient):
    u = points(1_500)
    problem = Walk(at({u[1_100, 0]}, hang_in_c))
    found = run(problem, u, batched=True, timeout=0.001, cores=2, mp_ctx="fork")
    assert found.failures == [Failure(1_100, "timeout", "longer than 0.001 seconds")]
    assert np.isfinite(np.delete(found.distance, 1_100)).all()
    expected = run(Walk(), u, batched=True)
    np.testing.assert_array_equal(found.distance[:1_000], expected.distance[:1_000])


def test_time_is_counted_for_each_simulation(impatient, monkeypatch):
    """Forty in a chunk that take a part of their time are no reason to kill anybody."""
    monkeypatch.setattr(module, "_CHUNKS", 1)
    monkeypatch.setattr(module, "_PIECE_SECONDS", 0.0)
    problem = Walk(lambda i, x: time.sleep(0.04))
    begun = time.monotonic()
    assert run(problem, points(40), timeout=0.3, mp_ctx="fork").failures == []
    assert time.monotonic() - begun > 2 * 0.3 + module._GRACE


# --- Ctrl-C ---------------------------------------------------------------------------------------


def test_an_interrupt_here():
    calls = []

    def event(i, x):
        calls.append(x)
        if len(calls) == 50:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(Walk(event), points(400))
    assert len(calls) == 50


def test_a_batch_after_an_interrupt():
    u = points(400)
    pid = os.getpid()

    def interrupt():
        os.kill(pid, signal.SIGINT)
        time.sleep(60)

    with simulation_workers(Walk(at({u[200, 0]}, interrupt)), cores=2, mp_ctx="fork") as simulate:
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            simulate(u, 1)
        assert time.monotonic() - begun < 20.0
        assert no_children()
        same(simulate(u[:200], 1), run(Walk(), u[:200], 1))
    assert no_children()


def test_workers_do_not_heed_an_interrupt(caplog):
    """A terminal sends it to them too; only the process that waits for them decides."""
    u = points(400)
    problem = Walk(at(set(u[::50, 0]), lambda: os.kill(os.getpid(), signal.SIGINT)))
    with caplog.at_level(logging.WARNING, "amc_pymc"):
        same(run(problem, u, cores=2, mp_ctx="fork"), run(Walk(), u))
    assert caplog.text == ""


SCRIPT = textwrap.dedent(
    """
    import os, signal, sys, time
    import numpy as np
    from amc_pymc.likelihood_free.problem import Simulated
    from amc_pymc.likelihood_free.workers import simulation_workers

    class Waiting:
        n_dim = 1

        def simulate(self, u, rng, *, batched=False, timeout=None):
            open(f"{sys.argv[2]}/begun{os.getpid()}", "w").close()
            time.sleep(float(sys.argv[3]))
            return Simulated(np.zeros(len(u)), [])

    if __name__ == "__main__":
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job
        with simulation_workers(Waiting(), cores=2, mp_ctx=sys.argv[1]) as simulate:
            try:
                simulate(np.full((9, 1), 0.5), 1)
            except KeyboardInterrupt:
                print("interrupted")
    """
)


@contextmanager
def script(tmp_path, method, seconds=60.0):
    """A script with two workers that are busy, and their process ids."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(path), method, str(tmp_path), str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 60.0
        while len(begun := list(tmp_path.glob("begun*"))) < 2:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < until
            time.sleep(0.02)
        yield process, [int(b.name[5:]) for b in begun]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


@pytest.mark.parametrize(
    "group",
    [pytest.param(False, marks=pytest.mark.slow), True],
    ids=["to the process", "to its group"],
)
@pytest.mark.parametrize("method", METHODS)
def test_interrupting_a_script(tmp_path, method, group):
    with script(tmp_path, method) as (process, workers):
        (os.killpg if group else os.kill)(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30.0)
    assert (process.returncode, out, err) == (0, "interrupted\n", "")
    assert not any(map(alive, workers))


@pytest.mark.slow
def test_workers_end_with_a_process_that_is_killed(tmp_path):
    with script(tmp_path, "fork", 0.5) as (process, workers):
        process.kill()
        process.communicate()
        until = time.monotonic() + 30.0
        while any(map(alive, workers)):
            assert time.monotonic() < until
            time.sleep(0.05)


# --- executors that lose work ---------------------------------------------------------------------


class KilledWorker(Exception):
    """As Dask calls it."""


class Losing:
    """An executor that loses every chunk so many times."""

    def __init__(self, times, error, at_submit=False):
        self.times, self.error, self.at_submit = times, error, at_submit
        self.tried = {}
        self.most = self.pending = 0

    def submit(self, call, home, function, message, attempt):
        chunk = message[0]
        k = self.tried[chunk.start] = self.tried.get(chunk.start, 0) + 1
        assert attempt == k - 1
        if k <= self.times and self.at_submit:
            raise self.error
        future = Future()
        if k <= self.times:
            future.set_exception(self.error)
        else:
            future.set_result(call(home, function, message, attempt))
        return future


@pytest.mark.parametrize("at_submit", [False, True])
@pytest.mark.parametrize("error", [BrokenExecutor("x"), KilledWorker("x"), ConnectionError("x")])
def test_chunks_lost_by_an_executor_are_submitted_again(error, at_submit):
    u = points(700)
    executor = Losing(3, error, at_submit)
    same(run(Walk(), u, executor=executor), run(Walk(), u))
    assert set(executor.tried.values()) == {4}
    with pytest.raises(RuntimeError, match=r"lost the same job 4 times.*cores= instead"):
        run(Walk(), u, executor=Losing(4, error, at_submit))


def test_other_errors_of_an_executor_are_raised_at_once():
    executor = Losing(1, LookupError("no such thing"))
    with pytest.raises(LookupError, match="no such thing"):
        run(Walk(), points(700), executor=executor)
    assert set(executor.tried.values()) == {1}


def test_an_executor_is_not_given_everything_at_once():
    waiting, most = set(), []

    class Watched(Future):
        def result(self, timeout=None):
            most.append(len(waiting))
            waiting.discard(self)
            return super().result(timeout)

    class Executor:
        def submit(self, function, *args):
            future = Watched()
            future.set_result(function(*args))
            waiting.add(future)
            return future

    u = points(40_000)
    run(Walk(), u, executor=Executor())
    assert len(most) == 400
    assert max(most) == 256


def test_an_interrupt_cancels_what_an_executor_has_not_begun():
    pid, calls = os.getpid(), []

    def event(i, x):
        calls.append(x)
        if len(calls) == 5:
            os.kill(pid, signal.SIGINT)
        time.sleep(0.05)

    with ThreadPoolExecutor(1) as executor:
        problem = Walk(event)
        with pytest.raises(KeyboardInterrupt):
            run(problem, points(200), executor=executor)
    assert len(list(executor._threads)) == 1
    assert executor._work_queue.qsize() <= 1


def test_a_pool_that_is_broken_says_so():
    u = points(300)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as executor:
        with pytest.raises(RuntimeError, match="executor has lost the same job"):
            run(Walk(at({u[40, 0]}, die)), u, executor=executor)


@pytest.fixture
def cluster():
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None,
                                 silence_logs=logging.CRITICAL) as made,
        distributed.Client(made) as client,
    ):  # fmt: skip
        yield client


@pytest.mark.slow
def test_dask(cluster, tmp_path):
    """A worker is killed on the way."""
    u = points(1_000)
    problem = Walk(at({u[500, 0]}, lambda: once(tmp_path, die)))
    found = run(problem, u, executor=cluster.get_executor())
    assert (tmp_path / "met").exists()
    same(found, run(Walk(), u))
    same(
        run(Walk(), u, batched=True, executor=cluster.get_executor()), run(Walk(), u, batched=True)
    )


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
    with ThreadPoolExecutor(2) as executor:
        same(run(problem, u, batched=True, executor=executor), expected)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"cores": 0}, ValueError, "cores must be at least 1, got 0"),
        ({"cores": 1.5}, TypeError, "cores must be an integer or None, got 1.5"),
        ({"executor": 3}, TypeError, "executor must have a method submit, got 3"),
        ({"timeout": 0}, ValueError, "timeout must be positive and finite, got 0"),
        ({"timeout": -1.0}, ValueError, "timeout must be positive and finite, got -1.0"),
        ({"timeout": np.nan}, ValueError, "timeout must be positive and finite, got nan"),
        ({"timeout": np.inf}, ValueError, "timeout must be positive and finite, got inf"),
        ({"timeout": "3"}, TypeError, "timeout must be a number or None, got '3'"),
        ({"timeout": True}, TypeError, "timeout must be a number or None, got True"),
        ({"cores": 2, "mp_ctx": "knife"}, ValueError, "mp_ctx must be one of .*got 'knife'"),
    ],
)
def test_bad_arguments(settings, error, message):
    with pytest.raises(error, match=message):
        with simulation_workers(Walk(), **settings):
            pass


def test_cores_and_executor_exclude_each_other():
    with ThreadPoolExecutor(1) as executor:
        with pytest.raises(ValueError, match="cores=2 and executor exclude each other"):
            run(Walk(), points(3), cores=2, executor=executor)


def test_a_problem_that_cannot_be_sent():
    problem = Walk(threading.Lock())
    with pytest.raises(TypeError, match="problem cannot be sent to other processes"):
        run(problem, points(3), cores=2, mp_ctx="spawn")
    with ThreadPoolExecutor(1) as executor:
        with pytest.raises(TypeError, match="problem cannot be sent to other processes"):
            run(problem, points(3), executor=executor)


@pytest.mark.parametrize(
    ("u", "error"),
    [
        (np.zeros((3, 1)), TypeError),
        (np.zeros(2), TypeError),
        (np.zeros((3, 2), int), TypeError),
        ([[0.1, 0.2]], TypeError),
        (np.full((3, 2), np.nan), ValueError),
        (np.full((3, 2), np.inf), ValueError),
        (np.full((3, 2), -0.1), ValueError),
        (np.full((3, 2), 1.1), ValueError),
    ],
)
def test_bad_points(u, error):
    with pytest.raises(error, match=r"^u "):
        run(Walk(), u)


@pytest.mark.parametrize(
    "seed", [None, 1.5, "a", [1, -2], [], np.random.default_rng(1), [1.0], True]
)
def test_bad_seeds(seed):
    with pytest.raises((TypeError, ValueError), match="seed"):
        run(Walk(), points(3), seed)


def test_progress_is_told():
    class Bar:
        total = 0

        def advance(self, n=1):
            self.total += n

    for settings in ({}, {"cores": 2}, {"batched": True}, {"timeout": 30.0}):
        bar = Bar()
        run(Walk(), points(1_200), bar=bar, **settings)
        assert bar.total == 1_200
