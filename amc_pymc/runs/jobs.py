"""Long jobs that report their progress and stop on Ctrl-C with their results so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import Array
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from types import FrameType
from typing import Any

import cloudpickle
import numpy as np

from amc_pymc.progress import ProgressReport
from amc_pymc.runs.processes import Supervisor, Task
from amc_pymc.signals import on_interrupt


class JobReport:
    """Progress of a running job, and the request to stop it.

    Parameters
    ----------
    done : array (J,)
        Units of work done by each job.
    stop : array (1,)
        Nonzero if jobs should stop.
    job : int
    """

    def __init__(
        self,
        done: np.ndarray | Array[Any],
        stop: np.ndarray | Array[Any],
        job: int = 0,
        bar: ProgressReport | None = None,
    ):
        self._done, self._stop, self._job, self._bar = done, stop, job, bar
        self._count = 0

    def advance(self, n: int = 1) -> None:
        """Report `n` more units of work as done."""
        self._count += n
        if self._count > self._done[self._job]:  # else a worker that died had done them before
            self._done[self._job] = self._count
        if self._bar is not None:
            self._bar.advance(n)

    @property
    def stopped(self) -> bool:
        """Whether the user has asked to stop; the job should then return its results so far."""
        return bool(self._stop[0])


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
        It should check ``report.stopped`` regularly and call ``report.advance``. A job interrupted by Ctrl-C
        must return its results so far.
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
    if cores > 1:
        return _parallel(function, jobs, cores, bar, mp_ctx)
    done, stop, results = np.zeros(len(jobs), np.int64), np.zeros(1, np.int64), []
    with on_interrupt(_asking(stop)):
        for k, job in enumerate(jobs):
            results.append(function(job, JobReport(done, stop, k, bar)))
            if stop[0]:
                break
    return results


def _asking(stop: np.ndarray | Array[Any]) -> Callable[[int, Any], None]:
    """Return a handler of Ctrl-C that asks jobs to stop, and interrupts this process if called again."""

    def ask_to_stop(signum: int, frame: FrameType | None) -> None:
        if stop[0]:
            raise KeyboardInterrupt
        stop[0] = 1

    return ask_to_stop


def _parallel(
    function: Callable[[Any, JobReport], Any],
    jobs: Sequence[Any],
    cores: int,
    bar: ProgressReport,
    mp_ctx: str | BaseContext | None,
) -> list[Any]:
    processes = Supervisor(
        _Reporting(function), cores, mp_ctx, blas_threads=None,
        shared=lambda context: (context.RawArray("q", len(jobs)), context.RawArray("q", 1)),
    )  # fmt: skip
    done, stop = processes.shared
    seen, found = 0, {}

    def stopping() -> bool:
        nonlocal seen
        reported = sum(done)
        bar.advance(reported - seen)
        seen = reported
        return bool(stop[0])

    tasks = [Task((k, cloudpickle.dumps(job)), k) for k, job in enumerate(jobs)]
    with on_interrupt(_asking(stop)):
        try:
            for task in processes.run(tasks, stopping=stopping):
                found[task.index] = task.pieces[0]
        finally:
            processes.close()
    return [found[k] for k in sorted(found)]


@dataclass(frozen=True)
class _Reporting:
    """Function of a numbered job in a worker process."""

    function: Callable[[Any, JobReport], Any]

    def __call__(self, message: tuple[int, bytes], done: Array[Any], stop: Array[Any]) -> list[Any]:
        k, job = message
        return [self.function(cloudpickle.loads(job), JobReport(done, stop, k))]
