"""Worker processes that are replaced when they die or hang."""

from __future__ import annotations

import logging
import math
import multiprocessing
import time

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any

import cloudpickle

from amc_pymc.runs.task import Task
from amc_pymc.runs.worker import Worker, WorkerDied, heard, stop_workers

__all__ = ["Supervisor", "pickled"]

#: Successive worker deaths that end a run: without a piece of a result, and before workers are ready.
_DEATHS, _DEATHS_AT_START = 30, 3
#: Maximum seconds between checks of workers that send nothing.
_POLL_SECONDS = 1.0
#: Maximum warnings of each kind; later ones are logged at level DEBUG.
_WARNINGS = 5

_log = logging.getLogger("amc_pymc")


@dataclass(eq=False)
class _Post:
    """A worker process and its current task."""

    worker: Worker
    ready: bool = False
    warm: bool = False
    task: Task | None = None
    deadline: float = math.inf


class Supervisor:
    """Worker processes that are replaced when they die or hang.

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
    >>> from amc_pymc.runs.supervisor import Supervisor
    >>> from amc_pymc.runs.task import Task
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
        self._posts: list[_Post] = []
        self._deaths = self._deaths_at_start = 0
        self._warnings: Counter[str] = Counter()

    def run(
        self,
        tasks: Iterable[Task],
        *,
        stopping: Callable[[], bool] = lambda: False,
        poll: float = _POLL_SECONDS,
    ) -> Iterator[Task]:
        """Yield tasks as they are finished.

        Parameters
        ----------
        tasks : iterable of Task
        stopping : callable, optional
            Called after messages, and every `poll` seconds. Once it returns True, no further tasks begin.
        poll : float
            Seconds.

        Raises
        ------
        RuntimeError
            If workers cannot start or keep dying. Errors of the function are raised as they are, if they can be
            pickled. After any error, KeyboardInterrupt included, all processes have been stopped.
        """
        # Workers that died between batches did not die on a task of this batch.
        self._posts = [post for post in self._posts if post.worker.alive]
        waiting = deque(tasks)
        try:
            while waiting or any(post.task for post in self._posts):
                self._assign(waiting)
                for post in self._heard(poll):
                    yield from self._receive(post, waiting)
                now = time.monotonic()
                for post in [p for p in self._posts if p.deadline < now]:
                    yield from self._hangs(post, waiting)
                if stopping():
                    waiting.clear()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop all worker processes."""
        posts, self._posts = self._posts, []
        busy = [p.worker for p in posts if p.task is not None or not p.ready]
        stop_workers([p.worker for p in posts], busy=busy)

    def _assign(self, waiting: deque[Task]) -> None:
        wanted = len(waiting) + sum(post.task is not None for post in self._posts)
        while len(self._posts) < min(self._cores, wanted):
            worker = Worker(self._function, self._context, self.shared, self._blas_threads)
            self._posts.append(_Post(worker))
        for post in self._posts:
            if waiting and post.ready and post.task is None:
                self._begin(post, waiting.popleft())

    def _begin(self, post: _Post, task: Task) -> None:
        post.task = task
        post.worker.begin(task.message)
        self._set_deadline(post, task)

    def _set_deadline(self, post: _Post, task: Task) -> None:
        seconds = task.seconds(post.warm)
        post.deadline = math.inf if seconds is None else time.monotonic() + seconds

    def _heard(self, poll: float) -> list[_Post]:
        until = min(post.deadline for post in self._posts)
        seconds = min(poll, max(0.0, until - time.monotonic()))
        found = heard([post.worker for post in self._posts], seconds)
        return [post for post in self._posts if post.worker in found]

    def _receive(self, post: _Post, waiting: deque[Task]) -> Iterator[Task]:
        try:
            kind, value = post.worker.receive()
        except WorkerDied as death:
            yield from self._dies(post, str(death), waiting)
            return
        if kind == "error":
            raise value
        if kind == "ready":
            post.ready, self._deaths_at_start = True, 0
            return
        task = post.task
        assert task is not None
        task.pieces.append(value)
        post.warm, self._deaths = True, 0
        if not task.complete():
            self._set_deadline(post, task)
            return
        post.task, post.deadline = None, math.inf
        if waiting:
            self._begin(post, waiting.popleft())  # before the caller uses the result
        yield task

    def _dies(self, post: _Post, cause: str, waiting: deque[Task]) -> Iterator[Task]:
        self._posts.remove(post)
        task = post.task
        if task is None:
            self._dies_idle(post, cause)
            return
        task.deaths += 1
        self._deaths += 1
        if self._deaths == _DEATHS:
            raise RuntimeError(
                f"{_DEATHS} worker processes have died ({cause}) one after the other and none has finished a "
                "piece of its work. Run one job with cores=1 to see what happens."
            )
        yield from _after(task, task.died(cause, self._warn), waiting)

    def _dies_idle(self, post: _Post, cause: str) -> None:
        self._warn(f"A worker process died ({cause}) while it had nothing to do.")
        if not post.ready:
            self._deaths_at_start += 1
        if self._deaths_at_start == _DEATHS_AT_START:
            raise RuntimeError(
                f"Worker processes die ({cause}) before they begin. In a script, processes that are not "
                "forked need the call below `if __name__ == '__main__':`; with cores=1 there are none."
            )

    def _hangs(self, post: _Post, waiting: deque[Task]) -> Iterator[Task]:
        self._posts.remove(post)
        post.worker.kill()
        assert post.task is not None
        yield from _after(post.task, post.task.hung(self._warn), waiting)

    def _warn(self, text: str, kind: str = "worker") -> None:
        self._warnings[kind] += 1
        few = self._warnings[kind] <= _WARNINGS
        _log.log(logging.WARNING if few else logging.DEBUG, text)


def _after(task: Task, again: list[Task], waiting: deque[Task]) -> Iterator[Task]:
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
