"""Run independent jobs serially or in worker processes.

A job maps an input value to a result and has its own random generator, so results do not depend on where it
runs. They are returned in the order of the jobs. On Ctrl-C, running jobs are asked to stop and the results
so far are returned.
"""

import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback

from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing.connection import wait as wait_for_connections
from multiprocessing.context import BaseContext
from types import FrameType
from typing import Any

import cloudpickle
import numpy as np

from threadpoolctl import threadpool_limits

from amc_pymc.progress import ProgressReport

__all__ = [
    "JobReport",
    "Worker",
    "WorkerDied",
    "heard",
    "map_jobs",
    "number_of_cores",
    "raise_if_signalled",
    "run_jobs",
    "signals_heard",
    "stop_workers",
]

_POLL_SECONDS = 0.2
#: Seconds that workers have to stop before they are killed.
_STOP_SECONDS = 1.0


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
        done: MutableSequence[int] | np.ndarray,
        stop: MutableSequence[int] | np.ndarray,
        job: int,
        bar: ProgressReport | None = None,
    ):
        self._done, self._stop, self._job, self._bar = done, stop, job, bar

    def advance(self, n: int = 1) -> None:
        """Report `n` more units of work as done."""
        self._done[self._job] += n
        if self._bar is not None:
            self._bar.advance(n)

    @property
    def stopped(self) -> bool:
        """Whether the user has asked to stop; the job should then return its results so far."""
        return bool(self._stop[0])


def number_of_cores(cores: int | None, jobs: int) -> int:
    """Return the number of worker processes, by default that of available cores, at most 4."""
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


def _serial(
    function: Callable[[Any, JobReport], Any], jobs: Sequence[Any], bar: ProgressReport
) -> list[Any]:
    done, stop, results = np.zeros(len(jobs), np.int64), np.zeros(1, np.int64), []

    def ask_to_stop(signum: int, frame: FrameType | None) -> None:
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


def _on_interrupt(handler: Any) -> Any:
    """Install a handler of Ctrl-C; return the previous one, or None outside the main thread."""
    try:
        return signal.signal(signal.SIGINT, handler)
    except ValueError:
        return None


def _parallel(
    function: Callable[[Any, JobReport], Any],
    jobs: Sequence[Any],
    cores: int,
    bar: ProgressReport,
    mp_ctx: str | BaseContext | None,
) -> list[Any]:
    context = mp_ctx if isinstance(mp_ctx, BaseContext) else multiprocessing.get_context(mp_ctx)
    done, stop = context.RawArray("q", len(jobs)), context.RawArray("q", 1)
    payload = cloudpickle.dumps(function) if context.get_start_method() != "fork" else function
    with ProcessPoolExecutor(
        cores, mp_context=context, initializer=_begin_worker, initargs=(payload, done, stop)
    ) as pool:
        packed = [cloudpickle.dumps(job) for job in jobs]
        # Workers inherit this; otherwise Ctrl-C in a terminal would end them while they start.
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


def _begin_worker(function: Any, done: Any, stop: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loaded = cloudpickle.loads(function) if isinstance(function, bytes) else function
    _worker.update(function=loaded, done=done, stop=stop)


def _work(job: bytes, k: int) -> Any:
    report = JobReport(_worker["done"], _worker["stop"], k)
    try:
        return _worker["function"](cloudpickle.loads(job), report)
    except Exception as error:
        if _can_be_pickled(error):
            raise
        portable = _portable(error)
    raise portable  # outside of the block, so that it does not refer to the error, which some libraries pickle too


def map_jobs(
    function: Callable[[Any], Any], jobs: Sequence[Any], executor: Executor | None = None
) -> Iterator[Any]:
    """Yield ``function(job)`` for each job, in the order of the jobs.

    Parameters
    ----------
    function : callable
        Must be importable by workers.
    jobs : sequence
        Values that cloudpickle can serialise.
    executor : concurrent.futures.Executor, optional
        Any object with ``submit``: processes, threads, Dask, MPI. None runs jobs serially in this process.

    Yields
    ------
    object
        Results; the error of a job is raised in place of its result. If the caller stops iterating, for
        example after Ctrl-C, jobs that have not started are cancelled.
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


# --- signals --------------------------------------------------------------------------------------


def raise_if_signalled(error: BaseException) -> None:
    """Re-raise an error if it, or one of its causes, comes from a signal handler such as a timeout alarm.

    Call this first in an ``except`` block that treats any exception as a failure.

    Examples
    --------
    >>> from amc_pymc.execution import raise_if_signalled
    >>> try:
    ...     1 / 0
    ... except Exception as error:
    ...     raise_if_signalled(error)
    ...     print("a failure")
    a failure
    """
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    found: BaseException | None = error
    while found is not None:
        trace = found.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code in handlers:
                raise found
            trace = trace.tb_next
        found = found.__cause__ or found.__context__


def _code_of(handler: Any) -> Any:
    """Return the code object of a signal handler, None if it is not written in Python."""
    while hasattr(handler, "func"):  # functools.partial
        handler = handler.func
    if not hasattr(handler, "__code__") and not isinstance(handler, int):
        handler = getattr(type(handler), "__call__", handler)
    return getattr(handler, "__code__", None)


@contextmanager
def signals_heard() -> Iterator[None]:
    """Re-raise at the end of the block an error of a signal handler that code in the block has caught.

    PyTensor catches and logs exceptions in its rewrites, including those of an alarm. Outside the main thread, where
    handlers do not run, this does nothing.
    """
    raised: list[BaseException] = []
    ours: dict[int, Any] = {}
    before: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in signal.valid_signals():
                handler: Any = signal.getsignal(number)
                if _code_of(handler) is not None:
                    before[number], ours[number] = handler, _recording(handler, raised)
                    signal.signal(number, ours[number])
        yield
    finally:
        for key, ours_there in ours.items():
            if signal.getsignal(key) is ours_there:
                signal.signal(key, before[key])
    if raised:
        raise raised[0]


def _recording(
    handler: Callable[[int, Any], Any], raised: list[BaseException]
) -> Callable[..., Any]:
    def handle(number: int, frame: FrameType | None) -> Any:
        try:
            return handler(number, frame)
        except BaseException as error:
            raised.append(error)
            raise

    return handle


# --- workers that may die -------------------------------------------------------------------------


class WorkerDied(RuntimeError):
    """A worker process ended unexpectedly; the message gives the cause."""


class Worker:
    """A process that runs one job at a time and sends each piece of its result.

    Unlike a worker of an executor, it may be killed or crash without affecting others, and the job that it
    was running is known. It ignores Ctrl-C and ends with this process. The caller must tell from the pieces
    when a job is complete.

    Parameters
    ----------
    function : callable or bytes
        Function that yields the pieces of a job. Bytes are those of cloudpickle; a callable requires a
        forked process.
    context : multiprocessing context

    Examples
    --------
    >>> import multiprocessing
    >>> from amc_pymc.execution import Worker, heard, stop_workers
    >>> worker = Worker(range, multiprocessing.get_context("fork"))
    >>> worker.begin(2)
    >>> [worker.receive() for _ in range(3)]
    [('ready', None), ('piece', 0), ('piece', 1)]
    >>> stop_workers([worker])
    """

    def __init__(self, function: Callable[[Any], Iterator[Any]] | bytes, context: BaseContext):
        self._connection, there = context.Pipe()
        self._process = context.Process(  # type: ignore[attr-defined]
            target=_serve, args=(function, self._connection, there)
        )
        # The worker inherits this; otherwise Ctrl-C in a terminal would end it while it starts.
        before = _on_interrupt(signal.SIG_IGN)
        try:
            self._process.start()
        finally:
            if before is not None:
                signal.signal(signal.SIGINT, before)
            there.close()

    def begin(self, job: Any) -> None:
        """Send a job. If the worker is dead, only :meth:`receive` reports it."""
        try:
            self._connection.send(job)
        except OSError:
            pass

    def receive(self) -> tuple[str, Any]:
        """Receive a message: "ready", "piece" and its value, or "error" and the exception.

        Raises
        ------
        WorkerDied
            If the worker has ended.
        """
        try:
            message: tuple[str, Any] = self._connection.recv()
            return message
        except (EOFError, OSError):
            self._process.join(_STOP_SECONDS)
            code = self._process.exitcode
            self.kill()
            raise WorkerDied(_cause_of_death(code)) from None

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.exitcode is None

    def kill(self) -> None:
        """Kill the process immediately."""
        self._process.kill()
        self._process.join()
        self._connection.close()


def heard(workers: Sequence[Worker], seconds: float) -> list[Worker]:
    """Return workers that sent a message or died; wait at most `seconds` for the first."""
    by_connection: dict[Any, Worker] = {w._connection: w for w in workers}
    ready = [by_connection[c] for c in wait_for_connections(list(by_connection), seconds)]
    # Child processes of a dead worker may keep its end of the pipe open.
    return ready or [w for w in workers if not w.alive]


def stop_workers(workers: Sequence[Worker], *, busy: Sequence[Worker] = ()) -> None:
    """Stop workers: idle ones by a message, those in `busy` by a signal."""
    before = _on_interrupt(signal.SIG_IGN)
    try:
        for worker in workers:
            worker.begin(None)
        for worker in busy:
            worker._process.terminate()
        until = time.monotonic() + _STOP_SECONDS
        for worker in workers:
            worker._process.join(max(0.0, until - time.monotonic()))
        for worker in workers:
            worker.kill()
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _serve(function: Any, parents_end: Any, connection: Any) -> None:
    parents_end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with threadpool_limits(1, "blas"):
            work = cloudpickle.loads(function) if isinstance(function, bytes) else function
            connection.send(("ready", None))
            while (job := connection.recv()) is not None:
                for message in _messages(work, job):
                    connection.send(message)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent has closed the connection
    except Exception as error:
        connection.send(("error", _portable(error)))


def _messages(work: Callable[[Any], Iterable[Any]], job: Any) -> Iterator[tuple[str, Any]]:
    try:
        for piece in work(job):
            yield "piece", piece
    except Exception as error:
        yield "error", _portable(error)


def _portable(error: Exception) -> Exception:
    """Return an exception that can be pickled, with the traceback of the worker in a note."""
    note = "In a worker process:\n" + "".join(traceback.format_tb(error.__traceback__))
    if not _can_be_pickled(error):
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(note)
    return error


def _can_be_pickled(error: Exception) -> bool:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return False
    return True


def _cause_of_death(code: int | None) -> str:
    if code is None:
        return "no longer answering"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code}"
