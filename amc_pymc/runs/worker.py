"""A worker process, which may die without harm to others."""

import signal
import time

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from typing import Any

import cloudpickle

from threadpoolctl import threadpool_limits

from amc_pymc.runs.errors import portable
from amc_pymc.signals import on_interrupt

__all__ = ["Worker", "WorkerDied", "heard", "stop_workers"]

#: Seconds that workers have to stop before they are killed.
_STOP_SECONDS = 1.0


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
    shared : tuple, optional
        Further arguments of the function, such as arrays in shared memory, which processes can only inherit.
    blas_threads : int or None, default 1
        Maximum number of BLAS threads; None sets no limit.

    Examples
    --------
    >>> import multiprocessing
    >>> from amc_pymc.runs.worker import Worker, heard, stop_workers
    >>> worker = Worker(range, multiprocessing.get_context("fork"))
    >>> worker.begin(2)
    >>> [worker.receive() for _ in range(3)]
    [('ready', None), ('piece', 0), ('piece', 1)]
    >>> stop_workers([worker])
    """

    def __init__(
        self,
        function: Callable[..., Iterator[Any]] | bytes,
        context: BaseContext,
        shared: tuple[Any, ...] = (),
        blas_threads: int | None = 1,
    ):
        self._connection, there = context.Pipe()
        self._process = context.Process(  # type: ignore[attr-defined]
            target=_serve, args=(function, shared, blas_threads, self._connection, there)
        )
        # The worker inherits this; otherwise Ctrl-C in a terminal would end it while it starts.
        with on_interrupt(signal.SIG_IGN):
            self._process.start()
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
    ready = [by_connection[c] for c in wait(list(by_connection), seconds)]
    # Child processes of a dead worker may keep its end of the pipe open.
    return ready or [w for w in workers if not w.alive]


def stop_workers(workers: Sequence[Worker], *, busy: Sequence[Worker] = ()) -> None:
    """Stop workers: idle ones by a message, those in `busy` by a signal."""
    with on_interrupt(signal.SIG_IGN):
        for worker in workers:
            worker.begin(None)
        for worker in busy:
            worker._process.terminate()
        until = time.monotonic() + _STOP_SECONDS
        for worker in workers:
            worker._process.join(max(0.0, until - time.monotonic()))
        for worker in workers:
            worker.kill()


def _serve(
    function: Callable[..., Iterator[Any]] | bytes,
    shared: tuple[Any, ...],
    blas_threads: int | None,
    parents_end: Connection,
    connection: Connection,
) -> None:
    parents_end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limits = nullcontext() if blas_threads is None else threadpool_limits(blas_threads, "blas")
    try:
        with limits:
            work = cloudpickle.loads(function) if isinstance(function, bytes) else function
            connection.send(("ready", None))
            while (job := connection.recv()) is not None:
                for message in _messages(work, job, shared):
                    connection.send(message)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent has closed the connection
    except Exception as error:
        connection.send(("error", portable(error)))


def _messages(
    work: Callable[..., Iterator[Any]], job: Any, shared: tuple[Any, ...]
) -> Iterator[tuple[str, Any]]:
    try:
        for piece in work(job, *shared):
            yield "piece", piece
    except Exception as error:
        yield "error", portable(error)


def _cause_of_death(code: int | None) -> str:
    if code is None:
        return "no longer answering"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code}"
