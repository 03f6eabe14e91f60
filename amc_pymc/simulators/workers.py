"""Batches of simulations in this process or in worker processes, which may die or hang.

A batch is split into chunks that depend only on its size. Each chunk has its own stream of random numbers, so
results do not depend on where they are simulated. Which simulations are made never depends on their outcome:
the work of a dead worker is repeated with the same random numbers, and a simulation that cannot be completed is
a failure with an infinite distance. Otherwise weights would be biased.
"""

from __future__ import annotations

import hashlib
import logging
import math
import multiprocessing
import threading
import time

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import BaseContext
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from amc_pymc.arguments import positive_or_none
from amc_pymc.execution import Worker, WorkerDied, heard, number_of_cores, stop_workers
from amc_pymc.progress import ProgressReport
from amc_pymc.rng import as_generator
from amc_pymc.simulators.problem import Failure, Problem, Simulated

__all__ = ["Simulate", "simulation_workers"]

type Seed = int | Sequence[int] | np.random.SeedSequence
type Simulate = Callable[[np.ndarray, Seed], Simulated]

#: Number of chunks of a batch, within the limits on their sizes.
_CHUNKS = 64
#: Minimum and maximum simulations in a chunk, made one by one and in one call.
_ONE_BY_ONE, _BATCHED = (1, 100), (1_000, 5_000)
#: Maximum number of chunks submitted to an executor at a time.
_IN_FLIGHT = 256
#: Number of times that a chunk may lose its worker.
_TRIES = 3
#: Successive worker deaths that end a run: without a finished simulation, and before workers are ready.
_DEATHS, _DEATHS_AT_START = 30, 3
#: Seconds beyond the allowed time after which a worker counts as hanging; more for its first job, which may
#: include compilation.
_GRACE, _FIRST_GRACE = 5.0, 60.0
#: Maximum seconds of simulations in one piece of work, if each takes its full timeout.
_PIECE_SECONDS = 60.0
#: Maximum seconds between checks of workers that send nothing.
_POLL_SECONDS = 1.0
#: Spawn key that separates the streams of chunks from other children of a seed.
_SPACE = 0x51D5
#: Maximum number of problems cached in each thread of an executor.
_KEPT = 2
#: Maximum warnings of each kind; later ones are logged at level DEBUG.
_WARNINGS = 5
#: Names of executor errors, besides those of Python, that report a lost worker.
_LOST = {"CommClosedError", "EngineError", "KilledWorker", "WorkerCrashedError"}

_log = logging.getLogger("amc_pymc")


@contextmanager
def simulation_workers(
    problem: Problem,
    *,
    cores: int | None = 1,
    executor: Executor | None = None,
    batched: bool = False,
    timeout: float | None = None,
    summaries: bool = False,
    mp_ctx: str | BaseContext | None = None,
    bar: ProgressReport | None = None,
) -> Iterator[Simulate]:
    """Provide a function that simulates batches with persistent workers.

    Parameters
    ----------
    problem : Problem
        Sent to each worker process once. It must be picklable (by cloudpickle) unless all simulations run in
        this process or in forked ones. To repeat simulations with the same random numbers, ``simulate`` must
        use its generator row by row.
    cores : int or None, default 1
        Number of worker processes. 1 simulates in this process, unless there is a `timeout`. None uses those
        available, four at most.
    executor : concurrent.futures.Executor, optional
        Any object with ``submit`` to use instead: threads, Dask, MPI. The problem is sent with every chunk and
        unpacked once in each thread.
    batched : bool
        Pass whole chunks to the simulator.
    timeout : float, optional
        Maximum seconds for one simulation, enforced by ``problem.simulate``, but not in threads or with
        `batched`. An unresponsive worker process that takes more than n + 1 times as long plus five seconds for
        n simulations is killed, and they are repeated one by one. Pieces of work are limited to a minute.
    summaries : bool, default False
        Keep summary statistics: ``problem.simulate`` is called with ``summaries=True``.
    mp_ctx : str or context, optional
        Start method of worker processes, by default that of Python.
    bar : ProgressReport, optional
        Progress report, advanced as simulations finish.

    Yields
    ------
    callable
        ``simulate(u, seed)`` takes points (n, D) of the unit cube and a SeedSequence, or integers to make one,
        and returns a :class:`Simulated` in the order of the points. It depends only on points and seed.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.
    RuntimeError
        From ``simulate``, if workers cannot start or keep dying, or an executor repeatedly loses the same
        chunk. Errors of ``problem.simulate`` itself, which reports those of the simulator, are raised.
    KeyboardInterrupt
        From ``simulate``, after all worker processes have been stopped. The batch is discarded, because
        keeping the simulations that were fast enough would bias weights.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.simulators.problem import Simulated
    >>> from amc_pymc.simulators.workers import simulation_workers
    >>> class Noise:
    ...     n_dim = 1
    ...
    ...     def simulate(self, u, rng, *, batched=False, timeout=None):
    ...         return Simulated(np.abs(u[:, 0] + rng.normal(size=len(u))), [])
    >>> u = np.linspace(0, 1, 5)[:, None]
    >>> with simulation_workers(Noise()) as simulate:
    ...     first, second = simulate(u, 3), simulate(u, [3])
    >>> bool((first.distance == second.distance).all())
    True
    """
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise TypeError(f"executor must have a method submit, got {executor!r}.")
    cores = number_of_cores(cores, 2**31)
    if executor is not None and cores != 1:
        raise ValueError(f"cores={cores} and executor exclude each other; leave one out.")
    how = _How(batched, positive_or_none("simulation_timeout", timeout), summaries)
    processes = None
    if executor is None and (cores > 1 or how.timeout is not None):
        processes = _Processes(problem, how, cores, _context(mp_ctx))
    remote = None if executor is None else _Remote(problem, how, executor)

    def simulate(u: np.ndarray, seed: Seed) -> Simulated:
        u = _points(u, problem.n_dim)
        chunks = _chunks(u, _seed_sequence(seed), batched)
        if processes is not None:
            parts = processes.run(chunks)
        elif remote is not None:
            parts = remote.run(chunks)
        else:
            parts = _here(problem, how, chunks)
        return _joined(parts, len(u), bar)

    try:
        yield simulate
    finally:
        if processes is not None:
            processes.close()


class _How(NamedTuple):
    """Settings of simulations: whether in one call, timeout in seconds, and whether with summaries."""

    batched: bool
    timeout: float | None
    summaries: bool


class _Chunk(NamedTuple):
    """Rows of a batch that are simulated together.

    Attributes
    ----------
    start : int
        First row.
    u : array (n, D)
    seed : SeedSequence
        Seed of the batch.
    stream : int
        Index of the stream of random numbers among those of the batch.
    anew : int
        Offset of stream indices after an interrupted row; a chunk restarted at row i uses stream `anew` + i.
    """

    start: int
    u: np.ndarray
    seed: np.random.SeedSequence
    stream: int
    anew: int

    def generator(self) -> np.random.Generator:
        seed = self.seed
        key = (*seed.spawn_key, _SPACE, self.stream)
        return as_generator(
            np.random.SeedSequence(seed.entropy, spawn_key=key, pool_size=seed.pool_size)
        )

    def after(self, row: int) -> _Chunk:
        """Return the rows after one that used an unknown share of the random numbers."""
        start = self.start + row + 1
        return self._replace(start=start, u=self.u[row + 1 :], stream=self.anew + start)


def _chunks(u: np.ndarray, seed: np.random.SeedSequence, batched: bool) -> list[_Chunk]:
    n = len(u)
    least, most = _BATCHED if batched else _ONE_BY_ONE
    size = min(most, max(least, math.ceil(n / _CHUNKS)))
    starts = range(0, n, size)
    return [_Chunk(i, u[i : i + size], seed, k, len(starts)) for k, i in enumerate(starts)]


def _pieces(problem: Problem, how: _How, chunk: _Chunk, rows: int) -> Iterator[Simulated]:
    """Simulate a chunk, `rows` rows at a time; random numbers do not depend on `rows`."""
    rng = chunk.generator()
    for start in range(0, len(chunk.u), rows):
        piece = _simulated(problem, how, chunk.u[start : start + rows], rng)
        yield piece
        if any(failure.kind == "timeout" for failure in piece.failures):
            rng = chunk.after(start + len(piece.distance) - 1).generator()


def _simulated(problem: Problem, how: _How, u: np.ndarray, rng: np.random.Generator) -> Simulated:
    timeout = None if how.batched else how.timeout
    more: dict[str, Any] = {"summaries": True} if how.summaries else {}
    found: Simulated = problem.simulate(u, rng, batched=how.batched, timeout=timeout, **more)
    summaries: Any = found.summaries
    if np.shape(found.distance) != (len(u),):
        raise ValueError(
            f"{type(problem).__name__}.simulate returned distances of shape {np.shape(found.distance)} for "
            f"{len(u)} points; it must be ({len(u)},)."
        )
    if how.summaries and np.shape(summaries)[:-1] != (len(u),):
        raise ValueError(
            f"{type(problem).__name__}.simulate returned summaries of shape {np.shape(summaries)} for "
            f"{len(u)} points; it must be ({len(u)}, S)."
        )
    return found


def _rows(how: _How, chunk: _Chunk) -> int:
    """Return the number of rows in a piece: few if they may take long, to detect hanging early."""
    if how.timeout is None or how.batched:
        return len(chunk.u)
    return min(len(chunk.u), max(1, int(_PIECE_SECONDS // how.timeout)))


def _joined(
    parts: Iterable[tuple[int, Simulated]], n: int, bar: ProgressReport | None = None
) -> Simulated:
    """Combine parts, each with its first row and in any order."""
    distance, failures, summaries = np.full(n, np.inf), [], None
    for start, part in parts:
        rows = slice(start, start + len(part.distance))
        distance[rows] = part.distance
        if part.summaries is not None:
            if summaries is None:
                summaries = np.full((n, part.summaries.shape[1]), np.nan)
            summaries[rows] = part.summaries
        failures += [f._replace(index=f.index + start) for f in part.failures]
        if bar is not None:
            bar.advance(len(part.distance))
    return Simulated(distance, sorted(failures), summaries)


def _here(problem: Problem, how: _How, chunks: list[_Chunk]) -> Iterator[tuple[int, Simulated]]:
    for chunk in chunks:
        for piece in _pieces(problem, how, chunk, len(chunk.u)):
            yield chunk.start, piece


# --- worker processes -----------------------------------------------------------------------------


@dataclass
class _Task:
    """A chunk, its rows per piece, the finished pieces, and the number of workers that died on it."""

    chunk: _Chunk
    rows: int
    deaths: int = 0
    pieces: list[Simulated] = field(default_factory=list)

    def done(self) -> int:
        """Return the number of finished rows."""
        return sum(len(piece.distance) for piece in self.pieces)

    def left(self) -> int:
        """Return the number of unfinished rows."""
        return len(self.chunk.u) - self.done()

    def parts(self) -> Iterator[tuple[int, Simulated]]:
        """Yield the finished pieces with their first rows."""
        start = self.chunk.start
        for piece in self.pieces:
            yield start, piece
            start += len(piece.distance)


@dataclass(eq=False)
class _Post:
    """A worker process and its current task."""

    worker: Worker
    ready: bool = False
    warm: bool = False
    task: _Task | None = None
    deadline: float = math.inf


class _Processes:
    """Worker processes that are replaced when they die or hang."""

    def __init__(self, problem: Problem, how: _How, cores: int, context: BaseContext):
        self._how, self._cores, self._context = how, cores, context
        function = _Job(problem, how)
        forked = context.get_start_method() == "fork"
        self._function: Any = function if forked else _pickled(function)
        self._posts: list[_Post] = []
        self._deaths = self._deaths_at_start = 0
        self._warnings: Counter[str] = Counter()

    def run(self, chunks: list[_Chunk]) -> Iterator[tuple[int, Simulated]]:
        # Workers that died between batches did not die on a task of this batch.
        self._posts = [post for post in self._posts if post.worker.alive]
        waiting = deque(_Task(chunk, _rows(self._how, chunk)) for chunk in chunks)
        try:
            while waiting or any(post.task for post in self._posts):
                self._assign(waiting)
                for post in self._heard():
                    yield from self._receive(post, waiting)
                for post in [p for p in self._posts if p.deadline < time.monotonic()]:
                    yield from self._hangs(post, waiting)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop all worker processes."""
        posts, self._posts = self._posts, []
        busy = [p.worker for p in posts if p.task is not None or not p.ready]
        stop_workers([p.worker for p in posts], busy=busy)

    def _assign(self, waiting: deque[_Task]) -> None:
        wanted = len(waiting) + sum(post.task is not None for post in self._posts)
        while len(self._posts) < min(self._cores, wanted):
            self._posts.append(_Post(Worker(self._function, self._context)))
        for post in self._posts:
            if waiting and post.ready and post.task is None:
                post.task = waiting.popleft()
                post.worker.begin((post.task.chunk, post.task.rows))
                self._set_deadline(post)

    def _set_deadline(self, post: _Post) -> None:
        if self._how.timeout is not None and post.task is not None:
            grace = _GRACE if post.warm else _FIRST_GRACE
            rows = min(post.task.rows, post.task.left())
            seconds = (rows + 1) * self._how.timeout + grace
            post.deadline = time.monotonic() + seconds

    def _heard(self) -> list[_Post]:
        until = min(post.deadline for post in self._posts)
        seconds = min(_POLL_SECONDS, max(0.0, until - time.monotonic()))
        found = heard([post.worker for post in self._posts], seconds)
        return [post for post in self._posts if post.worker in found]

    def _receive(self, post: _Post, waiting: deque[_Task]) -> Iterator[tuple[int, Simulated]]:
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
        self._set_deadline(post)
        if not task.left():
            yield from task.parts()
            post.task, post.deadline = None, math.inf

    def _dies(
        self, post: _Post, cause: str, waiting: deque[_Task]
    ) -> Iterator[tuple[int, Simulated]]:
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
                "simulation. Simulate once with cores=1 to see what happens."
            )
        if task.deaths < _TRIES or task.rows > 1:
            self._warn(f"A worker process died ({cause}); what it did is done again.")
            task.rows = 1 if task.deaths >= _TRIES else task.rows
            self._again(task, waiting)
            return
        yield from self._without(task, "error", f"the worker process died ({cause})", waiting)

    def _dies_idle(self, post: _Post, cause: str) -> None:
        self._warn(f"A worker process died ({cause}) while it had nothing to do.")
        if not post.ready:
            self._deaths_at_start += 1
        if self._deaths_at_start == _DEATHS_AT_START:
            raise RuntimeError(
                f"Worker processes die ({cause}) before they begin. In a script, processes that are not "
                "forked need the call below `if __name__ == '__main__':`; with cores=1 there are none."
            )

    def _hangs(self, post: _Post, waiting: deque[_Task]) -> Iterator[tuple[int, Simulated]]:
        """Kill a hanging worker, and repeat or fail its simulations."""
        self._posts.remove(post)
        post.worker.kill()
        task = post.task
        assert task is not None
        if task.rows > 1:
            self._warn("A worker process was hanging; its simulations are done again one by one.")
            task.rows = 1
            self._again(task, waiting)
            return
        message = f"longer than {self._how.timeout} seconds"
        yield from self._without(task, "timeout", message, waiting)

    def _again(self, task: _Task, waiting: deque[_Task]) -> None:
        task.pieces = []
        waiting.appendleft(task)

    def _without(
        self, task: _Task, kind: str, message: str, waiting: deque[_Task]
    ) -> Iterator[tuple[int, Simulated]]:
        """Record the current simulation as failed, and continue with the next one."""
        row = task.done()
        task.pieces.append(Simulated(np.array([np.inf]), [Failure(0, kind, message)]))
        self._warn(f"Simulation {task.chunk.start + row} of a batch has failed: {message}.", kind)
        yield from task.parts()
        rest = task.chunk.after(row)
        if len(rest.u):
            waiting.appendleft(_Task(rest, 1, task.deaths))

    def _warn(self, text: str, of: str = "worker") -> None:
        self._warnings[of] += 1
        _log.log(logging.WARNING if self._warnings[of] <= _WARNINGS else logging.DEBUG, text)


class _Job(NamedTuple):
    """Function that a worker process calls for each job."""

    problem: Problem
    how: _How

    def __call__(self, job: tuple[_Chunk, int]) -> Iterator[Simulated]:
        chunk, rows = job
        return _pieces(self.problem, self.how, chunk, rows)


# --- executors ------------------------------------------------------------------------------------


class _Remote:
    """Simulation of chunks by an executor."""

    def __init__(self, problem: Problem, how: _How, executor: Executor):
        self._executor, self._how, self._payload = executor, how, _pickled(problem)
        self._digest = hashlib.sha256(self._payload).hexdigest()

    def run(self, chunks: list[_Chunk]) -> Iterator[tuple[int, Simulated]]:
        begun: deque[tuple[_Chunk, Future[Any] | None]] = deque()
        try:
            for chunk in chunks:
                if len(begun) == _IN_FLIGHT:
                    yield self._first(begun)
                begun.append((chunk, self._submit(chunk, 0)))
            while begun:
                yield self._first(begun)
        finally:
            for _, future in begun:
                if future is not None:
                    future.cancel()

    def _submit(self, chunk: _Chunk, attempt: int) -> Future[Any] | None:
        """Submit a chunk; return None if the executor is broken."""
        try:
            return self._executor.submit(
                _simulate_chunk, self._digest, self._payload, self._how, chunk, attempt
            )
        except Exception as error:
            if not _is_lost(error):
                raise
            return None

    def _first(self, begun: deque[tuple[_Chunk, Future[Any] | None]]) -> tuple[int, Simulated]:
        chunk, future = begun[0]
        for attempt in range(1, _TRIES + 2):
            try:
                if future is not None:
                    found = future.result()
                    begun.popleft()
                    return chunk.start, found
                lost: Exception | None = None
            except Exception as error:
                if not _is_lost(error):
                    raise
                lost = error
            if attempt <= _TRIES:
                _log.warning("The executor lost simulations (%r); they are submitted again.", lost)
                future = self._submit(chunk, attempt)
                begun[0] = chunk, future
        raise RuntimeError(
            f"The executor has lost the same simulations {_TRIES + 1} times. Do its workers have memory "
            "enough, and does the simulator run there? With cores= instead of executor= dead workers are "
            "replaced, and a simulation that kills them counts as failed."
        ) from lost


def _simulate_chunk(
    digest: str, payload: bytes, how: _How, chunk: _Chunk, attempt: int
) -> Simulated:
    """Simulate a chunk in an executor; a new `attempt` makes it a different task for Dask."""
    pieces = _pieces(_unpacked(digest, payload), how, chunk, _rows(how, chunk))
    return _joined(_numbered(pieces), len(chunk.u))


def _numbered(pieces: Iterable[Simulated]) -> Iterator[tuple[int, Simulated]]:
    start = 0
    for piece in pieces:
        yield start, piece
        start += len(piece.distance)


#: Cache of problems per thread, because compiled functions are not shared between threads.
_local = threading.local()


def _unpacked(digest: str, payload: bytes) -> Problem:
    kept: dict[str, Problem] = _local.__dict__.setdefault("problems", {})
    if digest not in kept:
        while len(kept) >= _KEPT:
            del kept[next(iter(kept))]
        kept[digest] = cloudpickle.loads(payload)
    return kept[digest]


def _is_lost(error: Exception) -> bool:
    """Whether an error reports a lost worker; errors of the simulator are reported as failures."""
    known = isinstance(error, BrokenExecutor | CancelledError | ConnectionError)
    return known or any(kind.__name__ in _LOST for kind in type(error).__mro__)


# --- arguments ------------------------------------------------------------------------------------


def _pickled(thing: Any) -> bytes:
    try:
        found: bytes = cloudpickle.dumps(thing)
        return found
    except Exception as error:
        raise TypeError(
            f"problem cannot be sent to other processes or threads ({type(error).__name__}: {error}); use "
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


def _points(u: np.ndarray, n_dim: int) -> np.ndarray:
    if not isinstance(u, np.ndarray) or u.dtype.kind != "f" or u.shape[1:] != (n_dim,):
        got = f"{u.dtype} of shape {u.shape}" if isinstance(u, np.ndarray) else repr(u)
        raise TypeError(f"u must be an array of floats (n, {n_dim}), got {got}.")
    if not ((u >= 0.0) & (u <= 1.0)).all():
        raise ValueError("u has points outside of the unit cube, or nan.")
    return u


def _seed_sequence(seed: Seed) -> np.random.SeedSequence:
    if isinstance(seed, np.random.SeedSequence):
        return seed
    if seed is None or isinstance(seed, np.random.Generator):
        raise TypeError(f"seed must be a SeedSequence or integers, got {seed!r}.")
    return as_generator(seed).bit_generator.seed_seq  # type: ignore[return-value]
