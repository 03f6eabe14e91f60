"""Long jobs that report their progress and stop on Ctrl-C with their results so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from ctypes import Array
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any

import cloudpickle

from amc_pymc.progress import ProgressReport
from amc_pymc.runs.processes import Supervisor, Task
from amc_pymc.signals import held_back


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
    processes = Supervisor(
        _Reporting(function), cores, mp_ctx, blas_threads=None,
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


@dataclass(frozen=True)
class _Reporting:
    """Function of a numbered job in a worker process."""

    function: Callable[[Any, JobReport], Any]

    def __call__(self, message: tuple[int, bytes], done: Array[Any], stop: Array[Any]) -> list[Any]:
        k, job = message
        done[k] = 0

        def advance(n: int) -> None:
            done[k] += n

        report = JobReport(advance, lambda: bool(stop[0]))
        return [self.function(cloudpickle.loads(job), report)]
