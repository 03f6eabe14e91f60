"""Batches of simulations in this process or in worker processes, which may die or hang.

A batch is split into chunks that depend only on its size. Each chunk has its own stream of random numbers, so
results do not depend on where they are simulated. Which simulations are made never depends on their outcome:
the work of a dead worker is repeated with the same random numbers, and a simulation that cannot be completed is
a failure with an infinite distance. Otherwise weights would be biased.
"""

from __future__ import annotations

import math

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.context import BaseContext
from typing import Any, NamedTuple, cast

import numpy as np

from amc_pymc.arguments import positive_or_none
from amc_pymc.progress import ProgressReport
from amc_pymc.rng import as_generator
from amc_pymc.runs import TRIES, Pool, Task
from amc_pymc.simulators.problem import Failure, Problem, Simulated

__all__ = ["Simulate", "simulation_workers"]

type Seed = int | Sequence[int] | np.random.SeedSequence
type Simulate = Callable[[np.ndarray, Seed], Simulated]

#: Number of chunks of a batch, within the limits on their sizes.
_CHUNKS = 64
#: Minimum and maximum simulations in a chunk, made one by one and in one call.
_ONE_BY_ONE, _BATCHED = (1, 100), (1_000, 5_000)
#: Seconds beyond the allowed time after which a worker counts as hanging; more for its first job, which may
#: include compilation.
_GRACE, _FIRST_GRACE = 5.0, 60.0
#: Maximum seconds of simulations in one piece of work, if each takes its full timeout.
_PIECE_SECONDS = 60.0
#: Spawn key that separates the streams of chunks from other children of a seed.
_SPACE = 0x51D5


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
    how = _How(batched, positive_or_none("simulation_timeout", timeout), summaries)
    with Pool(
        _Job(problem, how), cores=cores, executor=executor, mp_ctx=mp_ctx,
        in_pieces=True, supervised=how.timeout is not None, copies=True, what="problem",
    ) as pool:  # fmt: skip

        def simulate(u: np.ndarray, seed: Seed) -> Simulated:
            u = _points(u, problem.n_dim)
            chunks = _chunks(u, _seed_sequence(seed), batched)
            tasks = pool.run(_Simulations.of(chunk, how) for chunk in chunks)
            parts = (part for task in tasks for part in cast(_Simulations, task).parts())
            return _joined(parts, len(u), bar)

        yield simulate


class _How(NamedTuple):
    """Settings of simulations: whether in one call, timeout in seconds, and whether with summaries."""

    batched: bool
    timeout: float | None
    summaries: bool


_PLAIN = _How(False, None, False)


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
    if parent_process() is not None:  # otherwise forked workers share the state of np.random
        seed_seq: Any = rng.bit_generator.seed_seq
        np.random.seed(seed_seq.generate_state(4))
    for start in range(0, len(chunk.u), rows):
        piece = _simulated(problem, how, chunk.u[start : start + rows], rng)
        yield piece
        if any(failure.kind == "timeout" for failure in piece.failures):
            rng = chunk.after(start + len(piece.distance) - 1).generator()


def _simulated(problem: Problem, how: _How, u: np.ndarray, rng: np.random.Generator) -> Simulated:
    timeout = None if how.batched else how.timeout
    more: dict[str, Any] = {"summaries": True} if how.summaries else {}
    found = problem.simulate(u, rng, batched=how.batched, timeout=timeout, **more)
    if np.shape(found.distance) != (len(u),):
        raise ValueError(
            f"{type(problem).__name__}.simulate returned distances of shape {np.shape(found.distance)} for "
            f"{len(u)} points; it must be ({len(u)},)."
        )
    summaries: Any = found.summaries
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


# --- tasks ----------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Simulations(Task):
    """A chunk that is simulated in pieces.

    Attributes
    ----------
    how : _How
    """

    how: _How = _PLAIN

    @classmethod
    def of(cls, chunk: _Chunk, how: _How, rows: int | None = None, deaths: int = 0) -> _Simulations:
        """Make a task, by default with as many rows per piece as the timeout suggests."""
        return cls((chunk, _rows(how, chunk) if rows is None else rows), deaths=deaths, how=how)

    @property
    def rows(self) -> int:
        """Number of rows in a piece."""
        rows: int = self.message[1]
        return rows

    def done(self) -> int:
        """Return the number of finished rows."""
        return sum(len(piece.distance) for piece in self.pieces)

    def left(self) -> int:
        """Return the number of unfinished rows."""
        return len(self.message[0].u) - self.done()

    def complete(self) -> bool:
        """Whether all rows are finished."""
        return not self.left()

    def seconds(self, warm: bool) -> float | None:
        """Return the time limit of the next piece."""
        if self.how.timeout is None:
            return None
        rows = min(self.rows, self.left())
        return (rows + 1) * self.how.timeout + (_GRACE if warm else _FIRST_GRACE)

    def parts(self) -> Iterator[tuple[int, Simulated]]:
        """Yield the finished pieces with their first rows."""
        start = self.message[0].start
        for piece in self.pieces:
            yield start, piece
            start += len(piece.distance)

    def died(self, cause: str, warn: Callable[..., None]) -> list[Task]:
        """Repeat the chunk, at last one by one; then the current simulation has failed."""
        if self.deaths >= TRIES and self.rows == 1:
            return self._without("error", f"the worker process died ({cause})", warn)
        warn(f"A worker process died ({cause}); what it did is done again.")
        return self._again(1 if self.deaths >= TRIES else self.rows)

    def hung(self, warn: Callable[..., None]) -> list[Task]:
        """Repeat the chunk one by one; then the current simulation has failed."""
        if self.rows == 1:
            return self._without("timeout", f"longer than {self.how.timeout} seconds", warn)
        warn("A worker process was hanging; its simulations are done again one by one.")
        return self._again(1)

    def _again(self, rows: int) -> list[Task]:
        self.message, self.pieces = (self.message[0], rows), []
        return [self]

    def _without(self, kind: str, message: str, warn: Callable[..., None]) -> list[Task]:
        """Record the current simulation as failed, and continue with the next one."""
        row, (chunk, _) = self.done(), self.message
        self.pieces.append(Simulated(np.array([np.inf]), [Failure(0, kind, message)]))
        warn(f"Simulation {chunk.start + row} of a batch has failed: {message}.", kind)
        rest = chunk.after(row)
        return [_Simulations.of(rest, self.how, 1, self.deaths)] if len(rest.u) else []


@dataclass(frozen=True)
class _Job:
    """Function of a task."""

    problem: Problem
    how: _How

    def __call__(self, message: tuple[_Chunk, int]) -> Iterator[Simulated]:
        chunk, rows = message
        return _pieces(self.problem, self.how, chunk, rows)


# --- arguments ------------------------------------------------------------------------------------


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
