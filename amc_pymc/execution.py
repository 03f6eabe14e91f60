"""Run independent jobs, one after the other or in worker processes.

A job is a value in and a value out with its own generator, so results do not depend on where it runs. They
are returned in the order of the jobs. Ctrl-C asks running jobs to stop and returns what there is.
"""

import multiprocessing
import os
import signal

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, wait
from multiprocessing.context import BaseContext
from typing import Any

import cloudpickle
import numpy as np

from amc_pymc.progress import ProgressReport

__all__ = ["JobReport", "map_jobs", "number_of_cores", "run_jobs"]

_POLL_SECONDS = 0.2


class JobReport:
    """What a job tells while it runs, and whether it should stop.

    Parameters
    ----------
    done : array (J,)
        Units of work done by each job.
    stop : array (1,)
        Not zero if jobs are to stop.
    job : int
    """

    def __init__(self, done, stop, job: int, bar: ProgressReport | None = None):
        self._done, self._stop, self._job, self._bar = done, stop, job, bar

    def advance(self, n: int = 1) -> None:
        """Report `n` more units of work as done."""
        self._done[self._job] += n
        if self._bar is not None:
            self._bar.advance(n)

    @property
    def stopped(self) -> bool:
        """Whether the user has asked to stop; a job then returns what it has."""
        return bool(self._stop[0])


def number_of_cores(cores: int | None, jobs: int) -> int:
    """Worker processes for some jobs: `cores`, by default those available, four at most."""
    if cores is None:
        available = (
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        )
        return max(1, min(4, available or 1, jobs))
    if isinstance(cores, bool) or not isinstance(cores, int | np.integer):
        raise TypeError(f"cores must be an integer or None, got {cores!r}.")
    if cores < 1:
        raise ValueError(f"cores must be at least 1, got {cores}.")
    return min(int(cores), jobs)


def run_jobs(
    function: Callable[[Any, JobReport], Any],
    jobs: Sequence[Any],
    *,
    cores: int = 1,
    bar: ProgressReport,
    mp_ctx: str | BaseContext | None = None,
) -> list[Any]:
    """Call ``function(job, report)`` for each job.

    Parameters
    ----------
    function : callable
        Looks at ``report.stopped`` now and then and calls ``report.advance``. A job interrupted by Ctrl-C
        must return what it has.
    jobs : sequence
    cores : int
        1 runs all jobs in this process, in order.
    bar : ProgressReport
        From :func:`amc_pymc.progress.progress`.
    mp_ctx : str or context, optional
        Start method of worker processes, default that of Python.

    Returns
    -------
    list
        Results in the order of the jobs; of jobs that were not begun before Ctrl-C there are none.

    Examples
    --------
    >>> from amc_pymc.execution import run_jobs
    >>> from amc_pymc.progress import progress
    >>> with progress("Squares", 3, enabled=False) as bar:
    ...     run_jobs(lambda job, report: job**2, [1, 2, 3], bar=bar)
    [1, 4, 9]
    """
    if cores == 1:
        return _serial(function, jobs, bar)
    return _parallel(function, jobs, cores, bar, mp_ctx)


def _serial(function, jobs, bar) -> list[Any]:
    done, stop, results = np.zeros(len(jobs), np.int64), np.zeros(1, np.int64), []

    def ask_to_stop(signum, frame):
        if stop[0]:
            raise KeyboardInterrupt
        stop[0] = 1

    before = _on_interrupt(ask_to_stop)
    try:
        for k, job in enumerate(jobs):
            results.append(function(job, JobReport(done, stop, k, bar)))
            if stop[0]:
                break
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
    return results


def _on_interrupt(handler):
    """Install a handler of Ctrl-C; return the one before, or None outside the main thread."""
    try:
        return signal.signal(signal.SIGINT, handler)
    except ValueError:
        return None


def _parallel(function, jobs, cores, bar, mp_ctx) -> list[Any]:
    context = mp_ctx if isinstance(mp_ctx, BaseContext) else multiprocessing.get_context(mp_ctx)
    done, stop = context.RawArray("q", len(jobs)), context.RawArray("q", 1)
    payload = cloudpickle.dumps(function) if context.get_start_method() != "fork" else function
    with ProcessPoolExecutor(
        cores, mp_context=context, initializer=_begin_worker, initargs=(payload, done, stop)
    ) as pool:
        packed = [cloudpickle.dumps(job) for job in jobs]
        # Workers inherit this; until they are up, Ctrl-C in a terminal would end them.
        before = _on_interrupt(signal.SIG_IGN)
        try:
            futures = [pool.submit(_work, job, k) for k, job in enumerate(packed)]
        finally:
            if before is not None:
                signal.signal(signal.SIGINT, before)
        pending, seen = set(futures), 0
        try:
            while pending:
                try:
                    pending = wait(pending, timeout=_POLL_SECONDS).not_done
                except KeyboardInterrupt:
                    stop[0] = 1
                    pending -= {f for f in pending if f.cancel()}
                reported = sum(done)
                bar.advance(reported - seen)
                seen = reported
                failed = [f for f in futures if f.done() and not f.cancelled() and f.exception()]
                if failed:
                    failed[0].result()
        except BaseException:
            stop[0] = 1
            pool.shutdown(cancel_futures=True)
            raise
    return [f.result() for f in futures if not f.cancelled()]


_worker: dict[str, Any] = {}


def _begin_worker(function, done, stop) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loaded = cloudpickle.loads(function) if isinstance(function, bytes) else function
    _worker.update(function=loaded, done=done, stop=stop)


def _work(job: bytes, k: int) -> Any:
    report = JobReport(_worker["done"], _worker["stop"], k)
    return _worker["function"](cloudpickle.loads(job), report)


def map_jobs(
    function: Callable[[Any], Any], jobs: Sequence[Any], executor: Executor | None = None
) -> Iterator[Any]:
    """Yield ``function(job)`` for each job, in the order of the jobs.

    Parameters
    ----------
    function : callable
        Importable, so that workers of any kind find it.
    jobs : sequence
        Values that cloudpickle can carry.
    executor : concurrent.futures.Executor, optional
        Anything with ``submit``: processes, threads, Dask, MPI. None runs one job after the other here.

    Yields
    ------
    object
        Results; an error in a job is raised in its place. Jobs not begun when the caller stops asking,
        for example after Ctrl-C, are cancelled.
    """
    if executor is None:
        yield from map(function, jobs)
        return
    futures = [executor.submit(_call, function, cloudpickle.dumps(job)) for job in jobs]
    try:
        for future in futures:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()


def _call(function: Callable[[Any], Any], job: bytes) -> Any:
    return function(cloudpickle.loads(job))
