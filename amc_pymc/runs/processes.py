"""Worker processes that are replaced when they die, and their tasks."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import signal
import time
import traceback

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from typing import Any

import cloudpickle

from threadpoolctl import threadpool_limits

from amc_pymc.signals import on_interrupt

_log = logging.getLogger("amc_pymc")
#: Seconds that workers have to stop before they are killed.
_STOP_SECONDS = 1.0
#: Maximum seconds between checks of workers that send nothing.
_POLL_SECONDS = 0.2
#: Number of times that a job may lose its worker, and number of deaths, without a result between them, that end a run.
TRIES, _DEATHS = 3, 30


class WorkerDied(RuntimeError):
    """A worker process ended unexpectedly; the message gives the cause."""


@dataclass(eq=False)
class Task:
    """A job whose result has one piece. Subclasses have more pieces, or other ways to go on.

    Attributes
    ----------
    message : object
        Argument of the function of the pool.
    index : int
        Place among the jobs.
    pieces : list
        Pieces of the result so far.
    deaths : int
        Number of worker processes that have died on it.
    """

    message: Any
    index: int = 0
    pieces: list[Any] = field(default_factory=list)
    deaths: int = 0

    def complete(self) -> bool:
        """Whether all pieces have arrived."""
        return bool(self.pieces)

    def died(self, cause: str) -> list[Task]:
        """Return the tasks to do after a worker process has died on this one.

        A task that does not return itself is finished with the pieces that it has.

        Raises
        ------
        WorkerDied
            If this has happened too often.
        """
        if self.deaths >= TRIES:
            raise WorkerDied(
                f"{self.deaths} worker processes have died ({cause}) on the same job. Do they have memory enough? "
                "Run it with cores=1 to see what happens."
            )
        _log.warning("A worker process died (%s); what it did is done again.", cause)
        self.pieces = []
        return [self]


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
    blas_threads : int or None
        Maximum number of BLAS threads; None sets no limit.

    Attributes
    ----------
    ready : bool
        Whether it has begun.
    task : Task or None
        Its current task.
    """

    def __init__(
        self,
        function: Callable[..., Iterator[Any]] | bytes,
        context: BaseContext,
        shared: tuple[Any, ...],
        blas_threads: int | None,
    ):
        self.connection, there = context.Pipe()
        self.process = context.Process(  # type: ignore[attr-defined]
            target=_serve, args=(function, shared, blas_threads, self.connection, there)
        )
        # The worker inherits this; otherwise Ctrl-C in a terminal would end it while it starts.
        with on_interrupt(signal.SIG_IGN):
            self.process.start()
        there.close()
        self.ready = False
        self.task: Task | None = None

    def begin(self, job: Any) -> None:
        """Send a job. If the worker is dead, only :meth:`receive` reports it."""
        with suppress(OSError):
            self.connection.send(job)

    def receive(self) -> tuple[str, Any]:
        """Receive a message: "ready", "piece" and its value, or "error" and the exception.

        Raises
        ------
        WorkerDied
            If the worker has ended.
        """
        try:
            message: tuple[str, Any] = self.connection.recv()
            return message
        except (EOFError, OSError):
            self.process.join(_STOP_SECONDS)
            code = self.process.exitcode
            self.kill()
            raise WorkerDied(_cause_of_death(code)) from None

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self.process.exitcode is None

    def kill(self) -> None:
        """Kill the process immediately."""
        self.process.kill()
        self.process.join()
        self.connection.close()


class Supervisor:
    """Worker processes that are replaced when they die.

    Parameters
    ----------
    function : callable
        Function of a message, and of `shared`, that yields the pieces of a result. It must be picklable (by
        cloudpickle) unless processes are forked.
    cores : int
        Number of worker processes.
    mp_ctx : str or context, optional
        Start method, by default that of Python.
    shared : callable, optional
        Function of the context that makes further arguments of `function`, such as arrays in shared memory.
    blas_threads : int or None, default 1
        Maximum number of BLAS threads of each process.
    what : str
        Name of what the function holds, for messages.

    Raises
    ------
    TypeError, ValueError
        If the function cannot be pickled, or there is no such start method.

    Examples
    --------
    >>> from amc_pymc.runs.processes import Supervisor, Task
    >>> processes = Supervisor(lambda message: [message**2], 2, "fork")
    >>> sorted(task.pieces for task in processes.run(map(Task, range(4))))
    [[0], [1], [4], [9]]
    >>> processes.close()
    """

    def __init__(
        self,
        function: Callable[..., Iterable[Any]],
        cores: int,
        mp_ctx: str | BaseContext | None = None,
        *,
        shared: Callable[[BaseContext], tuple[Any, ...]] | None = None,
        blas_threads: int | None = 1,
        what: str = "a job",
    ):
        self._context = _context(mp_ctx)
        self._cores, self._blas_threads = cores, blas_threads
        forked = self._context.get_start_method() == "fork"
        self._function: Any = function if forked else pickled(function, what)
        self.shared = () if shared is None else shared(self._context)
        self._workers: list[Worker] = []
        self._deaths = 0

    def run(
        self,
        tasks: Iterable[Task],
        *,
        stopping: Callable[[], bool] = lambda: False,
    ) -> Iterator[Task]:
        """Yield tasks as they are finished.

        Parameters
        ----------
        tasks : iterable of Task
        stopping : callable, optional
            Called after messages, and several times a second. Once it returns True, no further tasks begin.

        Raises
        ------
        RuntimeError
            If workers cannot start. Errors of the function are raised as they are, if they can be
            pickled. After any error, KeyboardInterrupt included, all processes have been stopped.
        """
        # Workers that died between batches did not die on a task of this batch.
        self._workers = [worker for worker in self._workers if worker.alive]
        waiting = deque(tasks)
        try:
            while waiting or any(worker.task for worker in self._workers):
                self._assign(waiting)
                for worker in self._heard():
                    yield from self._receive(worker, waiting)
                if stopping():
                    waiting.clear()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop all worker processes: idle ones by a message, the others by a signal."""
        workers, self._workers = self._workers, []
        with on_interrupt(signal.SIG_IGN):
            for worker in workers:
                worker.begin(None)
                if worker.task is not None or not worker.ready:
                    worker.process.terminate()
            until = time.monotonic() + _STOP_SECONDS
            for worker in workers:
                worker.process.join(max(0.0, until - time.monotonic()))
                worker.kill()

    def _assign(self, waiting: deque[Task]) -> None:
        wanted = len(waiting) + sum(worker.task is not None for worker in self._workers)
        while len(self._workers) < min(self._cores, wanted):
            worker = Worker(self._function, self._context, self.shared, self._blas_threads)
            self._workers.append(worker)
        for worker in self._workers:
            if waiting and worker.ready and worker.task is None:
                self._begin(worker, waiting.popleft())

    def _begin(self, worker: Worker, task: Task) -> None:
        worker.task = task
        worker.begin(task.message)

    def _heard(self) -> list[Worker]:
        """Return workers that sent a message or died; wait shortly for the first."""
        ready = wait([worker.connection for worker in self._workers], _POLL_SECONDS)
        found = [worker for worker in self._workers if worker.connection in ready]
        # Child processes of a dead worker may keep its end of the pipe open.
        return found or [worker for worker in self._workers if not worker.alive]

    def _receive(self, worker: Worker, waiting: deque[Task]) -> Iterator[Task]:
        try:
            kind, value = worker.receive()
        except WorkerDied as death:
            yield from self._dies(worker, str(death), waiting)
            return
        if kind == "error":
            raise value
        if kind == "ready":
            worker.ready = True
            return
        task = worker.task
        assert task is not None
        task.pieces.append(value)
        self._deaths = 0
        if not task.complete():
            return
        worker.task = None
        if waiting:
            self._begin(worker, waiting.popleft())  # before the caller uses the result
        yield task

    def _dies(self, worker: Worker, cause: str, waiting: deque[Task]) -> Iterator[Task]:
        self._workers.remove(worker)
        task = worker.task
        if task is None and not worker.ready:
            raise RuntimeError(
                f"Worker processes die ({cause}) before they begin. In a script, processes that are not "
                "forked need the call below `if __name__ == '__main__':`; with cores=1 there are none."
            )
        if task is None:
            return
        task.deaths += 1
        self._deaths += 1
        if self._deaths == _DEATHS:
            raise RuntimeError(
                f"{_DEATHS} worker processes have died ({cause}) one after the other and none has finished a "
                "piece of its work. Run one job with cores=1 to see what happens."
            )
        again = task.died(cause)
        waiting.extendleft(reversed(again))
        if task not in again:
            yield task


def pickled(thing: Any, what: str = "a job") -> bytes:
    """Return the bytes of cloudpickle, or raise a TypeError that says `what` cannot be sent, and what to do."""
    try:
        found: bytes = cloudpickle.dumps(thing)
        return found
    except Exception as error:
        raise TypeError(
            f"{what} cannot be sent to other processes or threads ({type(error).__name__}: {error}); use "
            "cores=1, or mp_ctx='fork' where there is one."
        ) from error


def _context(mp_ctx: str | BaseContext | None) -> BaseContext:
    if isinstance(mp_ctx, BaseContext):
        return mp_ctx
    try:
        return multiprocessing.get_context(mp_ctx)
    except (TypeError, ValueError) as error:
        methods = multiprocessing.get_all_start_methods()
        raise ValueError(f"mp_ctx must be one of {methods}, got {mp_ctx!r}.") from error


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
                for piece in work(job, *shared):
                    connection.send(("piece", piece))
    except Exception as error:
        with suppress(OSError):  # the parent has closed the connection
            connection.send(("error", portable(error)))


def _cause_of_death(code: int | None) -> str:
    if code is None:
        return "no longer answering"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code}"


def portable(error: Exception) -> Exception:
    """Return an exception that can be pickled, with the traceback of the worker in a note.

    It is a RuntimeError with the name and the message of one that cannot be pickled.

    Examples
    --------
    >>> from amc_pymc.runs.processes import portable
    >>> error = KeyError("a")
    >>> error.cause = lambda: None
    >>> portable(error)
    RuntimeError("KeyError: 'a'")
    """
    note = "In a worker:\n" + "".join(traceback.format_tb(error.__traceback__))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(note)
    return error
