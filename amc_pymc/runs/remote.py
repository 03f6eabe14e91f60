"""Jobs on an executor, which may lose them."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import uuid

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from dataclasses import dataclass
from typing import Any

import cloudpickle

from amc_pymc.runs.processes import TRIES, Task, can_be_pickled, pickled, portable

#: Maximum number of jobs submitted to an executor at a time.
_IN_FLIGHT = 256
#: Maximum number of functions cached in each thread of an executor.
_KEPT = 2
#: Names of executor errors, besides those of Python, that report a lost worker.
_LOST = {"CommClosedError", "EngineError", "KilledWorker", "WorkerCrashedError"}
#: Identifies this process, together with its number, among those of all machines.
_PROCESS = uuid.uuid4().hex

_log = logging.getLogger("amc_pymc")


@dataclass(frozen=True)
class Copies:
    """A function that is sent as bytes; each thread of an executor unpickles and keeps its own copy.

    Compiled functions cannot be used by several threads at once.

    Attributes
    ----------
    digest : str
    payload : bytes
    """

    digest: str
    payload: bytes

    @classmethod
    def of(cls, function: Callable[[Any], Iterable[Any]], what: str = "a job") -> Copies:
        """Pickle a function."""
        payload = pickled(function, what)
        return cls(hashlib.sha256(payload).hexdigest(), payload)

    def __call__(self, message: Any) -> Iterable[Any]:
        """Call the copy of this thread."""
        kept: dict[str, Callable[[Any], Iterable[Any]]] = _local.__dict__.setdefault(
            "functions", {}
        )
        if self.digest not in kept:
            while len(kept) >= _KEPT:
                del kept[next(iter(kept))]
            kept[self.digest] = cloudpickle.loads(self.payload)
        return kept[self.digest](message)


_local = threading.local()


def check_executor(executor: Any, cores: int | None) -> None:
    """Raise an error if `executor` is none, or if worker processes are asked for too."""
    if not callable(getattr(executor, "submit", None)):
        raise TypeError(f"executor must have a method submit, got {executor!r}.")
    if cores not in (None, 1):
        raise ValueError(f"cores={cores} and executor exclude each other; leave one out.")


def run_remotely(
    executor: Executor, function: Callable[[Any], Iterable[Any]], tasks: Iterable[Task]
) -> Iterator[Task]:
    """Yield finished tasks, in order.

    Parameters
    ----------
    executor : Executor
        Any object with ``submit``: processes, threads, Dask, MPI.
    function : callable
        Function of a message that yields the pieces of a result; it must reach the workers, see :class:`Copies`.
    tasks : iterable of Task

    Raises
    ------
    RuntimeError
        If the executor repeatedly loses the same task. Errors of the function are raised in place of its result:
        in threads the same objects, from other processes with the name and the message if they cannot be pickled.
        If the caller stops iterating, tasks that have not started are cancelled.
    """
    home = _PROCESS, os.getpid()

    def submit(task: Task, attempt: int) -> Future[list[Any]] | None:
        """Submit a task; return None if the executor is broken."""
        try:
            return executor.submit(_call, home, function, task.message, attempt)
        except Exception as error:
            if not _is_lost(error):
                raise
            return None

    begun: deque[tuple[Task, Future[list[Any]] | None]] = deque()
    try:
        for task in tasks:
            if len(begun) == _IN_FLIGHT:
                yield _first(begun, submit)
            begun.append((task, submit(task, 0)))
        while begun:
            yield _first(begun, submit)
    finally:
        for _, future in begun:
            if future is not None:
                future.cancel()


def _first(
    begun: deque[tuple[Task, Future[list[Any]] | None]],
    submit: Callable[[Task, int], Future[list[Any]] | None],
) -> Task:
    """Wait for the first task; submit it again if it is lost."""
    task, future = begun[0]
    lost: Exception | None = None
    for attempt in range(1, TRIES + 2):
        try:
            if future is not None:
                task.pieces = future.result()
                begun.popleft()
                return task
        except Exception as error:
            if not _is_lost(error):
                raise
            lost = error
        if attempt <= TRIES:
            _log.warning("The executor lost a job (%r); it is submitted again.", lost)
            future = submit(task, attempt)
            begun[0] = task, future
    raise RuntimeError(
        f"The executor has lost the same job {TRIES + 1} times. Do its workers have memory enough, and does "
        "the job run there? With cores= instead of executor= dead workers are replaced."
    ) from lost


def _call(
    home: tuple[str, int], function: Callable[[Any], Iterable[Any]], message: Any, attempt: int
) -> list[Any]:
    """Run a task in an executor; a new `attempt` makes it a different task for Dask."""
    try:
        return list(function(message))
    except Exception as error:
        if home == (_PROCESS, os.getpid()) or can_be_pickled(error):
            raise
        found = portable(error)
    raise found  # outside of the block, so that it does not refer to the error, which some libraries pickle too


def _is_lost(error: Exception) -> bool:
    """Whether an error reports a lost worker."""
    known = isinstance(error, BrokenExecutor | CancelledError | ConnectionError)
    return known or any(kind.__name__ in _LOST for kind in type(error).__mro__)
