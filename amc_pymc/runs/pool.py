"""One pool for all jobs, in this process or in worker processes that may die, and a loop of steps.

Long jobs report their progress and stop on Ctrl-C with their results so far.
"""

from __future__ import annotations

import multiprocessing
import os
import time

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from ctypes import Array
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any, Literal, NamedTuple, Self

import cloudpickle
import numpy as np

from amc_pymc.progress import ProgressReport
from amc_pymc.runs.processes import Supervisor, Task
from amc_pymc.signals import held_back


def number_of_cores(cores: int | None, jobs: int) -> int:
    """Return the number of worker processes, by default that of available cores, at most 4.

    It is 1 in a daemonic process, for example one of ``multiprocessing.Pool``, which may not have others.
    """
    if multiprocessing.current_process().daemon:
        jobs = 1
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


class Pool:
    """Runs jobs in this process or in worker processes; close it, or use it in a ``with`` block.

    Processes start with the first jobs and stay for later ones. A process that dies is replaced and its job repeated.
    Results do not depend on where jobs run if each has its own random numbers.

    Parameters
    ----------
    function : callable
        Function of a job. For processes that are not forked, it must be picklable by cloudpickle.
    cores : int or None, default 1
        Worker processes; 1 runs all jobs in this process, None uses all available cores, at most four.
    mp_ctx : str or context, optional
        Start method of worker processes, by default that of Python.
    in_pieces : bool, default False
        Whether the function yields pieces of a result, as those of :meth:`run`.
    what : str
        Name of what the function holds, for messages.

    Raises
    ------
    TypeError, ValueError
        If `cores` is no positive integer, or the function cannot be sent.

    Examples
    --------
    >>> from amc_pymc.runs import Pool
    >>> with Pool(abs) as pool:
    ...     list(pool.map([-1, 2]))
    [1, 2]
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        cores: int | None = 1,
        mp_ctx: str | BaseContext | None = None,
        in_pieces: bool = False,
        what: str = "a job",
    ):
        self._plain = function
        self._function = function if in_pieces else _whole(function)
        self._processes: Supervisor | None = None
        processes = number_of_cores(cores, 2**31)
        if processes > 1:
            self._processes = Supervisor(self._function, processes, mp_ctx, what=what)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all worker processes."""
        if self._processes is not None:
            self._processes.close()

    def map(self, jobs: Sequence[Any]) -> Iterator[Any]:
        """Yield the results of jobs, values that cloudpickle can serialise, in their order.

        The error of a job is raised in place of its result, or earlier by worker processes. If the caller stops
        iterating, for example after Ctrl-C, jobs that have not started are cancelled.
        """
        if self._processes is None:
            yield from map(self._plain, jobs)
            return
        tasks = (Task(cloudpickle.dumps(job), k) for k, job in enumerate(jobs))
        early: dict[int, Any] = {}
        following = 0
        for task in self.run(tasks):
            early[task.index] = task.pieces[0]
            while following in early:
                yield early.pop(following)
                following += 1

    def run(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """Yield tasks with the pieces of their results, from worker processes in any order."""
        if self._processes is not None:
            yield from self._processes.run(tasks)
        else:
            for task in tasks:
                task.pieces.extend(self._function(task.message))
                yield task


def _whole(function: Callable[[Any], Any]) -> Callable[[bytes], list[Any]]:
    """Return a function of a pickled job, whose result is one piece."""
    return lambda message: [function(cloudpickle.loads(message))]


@dataclass(frozen=True)
class JobReport:
    """Progress of a running job, and the request to stop it.

    Attributes
    ----------
    advance : callable
        Reports some more units of work as done.
    stopped : callable
        Whether the user has asked to stop; the job should then return its results so far.
    """

    advance: Callable[[int], None]
    stopped: Callable[[], bool]


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
        It should call ``report.advance(n)`` and ``report.stopped()`` regularly. A job interrupted by Ctrl-C must
        return its results so far.
    jobs : sequence
    cores : int
        1 runs all jobs in this process, in order.
    bar : ProgressReport
        Progress bar of :func:`amc_pymc.progress.progress`.
    mp_ctx : str or context, optional
        Start method of worker processes; default: Python's.

    Returns
    -------
    list
        Results in the order of the jobs, without those of jobs not started before Ctrl-C.

    Raises
    ------
    KeyboardInterrupt
        At the second Ctrl-C.

    Examples
    --------
    >>> from amc_pymc.progress import progress
    >>> from amc_pymc.runs import run_jobs
    >>> with progress("Squares", 3, enabled=False) as bar:
    ...     run_jobs(lambda job, report: job**2, [1, 2, 3], bar=bar)
    [1, 4, 9]
    """
    with held_back() as pressed:
        if cores > 1:
            return _parallel(function, jobs, cores, bar, mp_ctx, pressed)
        report, results = JobReport(bar.advance, lambda: bool(pressed)), []
        for job in jobs:
            results.append(function(job, report))
            if pressed:
                break
    return results


def _parallel(
    function: Callable[[Any, JobReport], Any],
    jobs: Sequence[Any],
    cores: int,
    bar: ProgressReport,
    mp_ctx: str | BaseContext | None,
    pressed: list[int],
) -> list[Any]:
    def reporting(message: tuple[int, bytes], done: Array[Any], stop: Array[Any]) -> list[Any]:
        """Do a numbered job in a worker process."""
        k, job = message
        done[k] = 0

        def advance(n: int) -> None:
            done[k] += n

        return [function(cloudpickle.loads(job), JobReport(advance, lambda: bool(stop[0])))]

    processes = Supervisor(
        reporting, cores, mp_ctx, blas_threads=None,
        shared=lambda context: (context.RawArray("q", len(jobs)), context.RawArray("q", 1)),
    )  # fmt: skip
    done, stop = processes.shared
    seen = 0

    def stopping() -> bool:
        nonlocal seen
        stop[0], before = len(pressed), seen
        seen = max(seen, sum(done))  # a job whose worker died begins again
        bar.advance(seen - before)
        return bool(pressed)

    tasks = [Task((k, cloudpickle.dumps(job)), k) for k, job in enumerate(jobs)]
    with closing(processes):
        found = {t.index: t.pieces[0] for t in processes.run(tasks, stopping=stopping)}
    return [found[k] for k in sorted(found)]


class Ended[T](NamedTuple):
    """How a run has ended.

    Attributes
    ----------
    last : object
        State after the last complete step.
    why : {"done", "enough", "max_time", "interrupted"}
    """

    last: T
    why: Literal["done", "enough", "max_time", "interrupted"]


def run_loop[T](
    steps: Iterable[T],
    *,
    n_steps: int | None = None,
    n_untimed: int = 0,
    max_time: float | None = None,
    begin: float | None = None,
    each: Callable[[T], None] = lambda state: None,
    enough: Callable[[T], bool] = lambda state: False,
) -> Ended[T]:
    """Make steps until there are no more, and keep the results so far if a run ends early.

    Parameters
    ----------
    steps : iterable
        Makes a step when it is asked for the state after it.
    n_steps : int, optional
        Number of steps, if known. After the last one no limit has ended the run.
    n_untimed : int
        Number of first steps that `max_time` does not end, for example because they are read from a journal.
    max_time : float, optional
        Seconds after which no further step begins.
    begin : float, optional
        Time of the monotonic clock from which they count, by default now.
    each : callable, optional
        Called with the state after each step.
    enough : callable, optional
        Whether the state needs no further step.

    Returns
    -------
    Ended

    Raises
    ------
    KeyboardInterrupt
        At Ctrl-C in the first step; later it ends the run.
    ValueError
        If there are no steps.

    Examples
    --------
    >>> from amc_pymc.runs import run_loop
    >>> run_loop(iter(range(100)), enough=lambda state: state == 3)
    Ended(last=3, why='enough')
    """
    since = time.monotonic() if begin is None else begin
    found: list[T] = []
    try:
        for k, state in enumerate(steps):
            found = [state]
            each(state)
            if n_steps is not None and k + 1 >= n_steps:
                continue  # there are no more, but the iterator may have something to finish
            if enough(state):
                return Ended(state, "enough")
            if max_time is not None and k >= n_untimed and time.monotonic() - since > max_time:
                return Ended(state, "max_time")
    except KeyboardInterrupt:
        if not found:
            raise
        return Ended(found[0], "interrupted")
    if not found:
        raise ValueError("a run needs at least one step.")
    return Ended(found[0], "done")
