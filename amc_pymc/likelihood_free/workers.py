"""Batches of simulations in this process or in worker processes, which may die.

A batch is split into chunks that depend only on its size. Each chunk has its own stream of random numbers, so
results do not depend on where they are simulated. Which simulations are made never depends on their outcome:
the work of a dead worker is repeated with the same random numbers, and a simulation that cannot be completed is
a failure with an infinite distance. Otherwise weights would be biased.
"""

from __future__ import annotations

import logging
import math

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import parent_process
from typing import Any, NamedTuple, cast

import numpy as np

from amc_pymc.likelihood_free.problem import Failure, Problem, Simulated
from amc_pymc.rng import as_generator
from amc_pymc.runs import TRIES, Pool, Task

_log = logging.getLogger("amc_pymc")
type Simulate = Callable[[np.ndarray, Sequence[int]], Simulated]

#: Number of chunks of a batch, within the limits on their sizes.
_CHUNKS = 64
#: Minimum and maximum simulations in a chunk, made one by one and in one call.
_ONE_BY_ONE, _BATCHED = (1, 100), (1_000, 5_000)
#: Spawn key that separates the streams of chunks from other children of a seed.
_SPACE = 0x51D5


@contextmanager
def simulation_workers(
    problem: Problem,
    *,
    cores: int | None = 1,
    batched: bool = False,
    summaries: bool = False,
    mp_ctx: str | None = None,
    advance: Callable[[int], None] = lambda n: None,
) -> Iterator[Simulate]:
    """Provide a function that simulates batches with persistent workers.

    Parameters
    ----------
    problem : Problem
        Sent to each worker process once. It must be picklable (by cloudpickle) unless all simulations run in
        this process or in forked ones. To repeat simulations with the same random numbers, ``simulate`` must
        use its generator row by row.
    cores : int or None, default 1
        Number of worker processes. 1 simulates in this process. None uses those available, four at most.
    batched : bool
        Pass whole chunks to the simulator.
    summaries : bool, default False
        Keep summary statistics.
    mp_ctx : str, optional
        Start method of worker processes, by default that of Python.
    advance : callable, optional
        Called with numbers of simulations that have finished.

    Yields
    ------
    callable
        ``simulate(u, seed)`` takes points (n, D) of the unit cube and integers as a seed, and returns a
        :class:`Simulated` in the order of the points. It depends only on points and seed.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.
    RuntimeError
        From ``simulate``, if workers cannot start or keep dying. Errors of ``problem.simulate`` itself, which reports
        those of the simulator, are raised.
    KeyboardInterrupt
        From ``simulate``, after all worker processes have been stopped. The batch is discarded, because
        keeping the simulations that were fast enough would bias weights.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.problem import Simulated
    >>> from amc_pymc.likelihood_free.workers import simulation_workers
    >>> class Noise:
    ...     n_dim = 1
    ...
    ...     def simulate(self, u, rng, *, batched=False, summaries=False):
    ...         return Simulated(np.abs(u[:, 0] + rng.normal(size=len(u))), [])
    >>> u = np.linspace(0, 1, 5)[:, None]
    >>> with simulation_workers(Noise()) as simulate:
    ...     first, second = simulate(u, [3]), simulate(u, [3])
    >>> bool((first.distance == second.distance).all())
    True
    """
    job = _Job(problem, batched, summaries)
    with Pool(job, cores=cores, mp_ctx=mp_ctx, in_pieces=True, what="problem") as pool:

        def simulate(u: np.ndarray, seed: Sequence[int]) -> Simulated:
            least, most = _BATCHED if batched else _ONE_BY_ONE
            size = min(most, max(least, math.ceil(len(u) / _CHUNKS)))
            starts = range(0, len(u), size)
            chunks = [
                _Chunk(i, u[i : i + size], tuple(seed), k, len(starts))
                for k, i in enumerate(starts)
            ]
            kept = np.full((len(u), len(problem.observed_summaries)), np.nan) if summaries else None
            out = Simulated(np.full(len(u), np.inf), [], kept)
            for task in pool.run(_Simulations((chunk, size)) for chunk in chunks):
                finished = cast(_Simulations, task)
                finished.write(out)
                advance(finished.done())
            return out._replace(failures=sorted(out.failures))

        yield simulate


class _Chunk(NamedTuple):
    """Rows of a batch that are simulated together.

    Attributes
    ----------
    start : int
        First row.
    u : array (n, D)
    seed : tuple of int
        Seed of the batch.
    stream : int
        Index of the stream of random numbers among those of the batch.
    anew : int
        Offset of stream indices after an interrupted row; a chunk restarted at row i uses stream `anew` + i.
    """

    start: int
    u: np.ndarray
    seed: tuple[int, ...]
    stream: int
    anew: int

    def after(self, row: int) -> _Chunk:
        """Return the rows after one that used an unknown share of the random numbers."""
        start = self.start + row + 1
        return self._replace(start=start, u=self.u[row + 1 :], stream=self.anew + start)


@dataclass(eq=False)
class _Simulations(Task):
    """A chunk that is simulated in pieces of some rows; the message is the chunk and their number."""

    def done(self) -> int:
        """Return the number of finished rows."""
        return sum(len(piece.distance) for piece in self.pieces)

    def complete(self) -> bool:
        """Whether all rows are finished."""
        return self.done() == len(self.message[0].u)

    def write(self, out: Simulated) -> None:
        """Write the finished pieces into the rows of their batch."""
        start = self.message[0].start
        for piece in self.pieces:
            rows = slice(start, start + len(piece.distance))
            out.distance[rows] = piece.distance
            out.failures.extend(f._replace(index=f.index + start) for f in piece.failures)
            if out.summaries is not None and piece.summaries is not None:
                out.summaries[rows] = piece.summaries
            start = rows.stop

    def died(self, cause: str) -> list[Task]:
        """Repeat the chunk, at last one by one; then the current simulation has failed."""
        chunk, rows = self.message
        if self.deaths < TRIES or rows > 1:
            _log.warning("A worker process died (%s); what it did is done again.", cause)
            self.message, self.pieces = (chunk, 1 if self.deaths >= TRIES else rows), []
            return [self]
        row, message = self.done(), f"the worker process died ({cause})"
        self.pieces.append(Simulated(np.array([np.inf]), [Failure(0, "error", message)]))
        _log.warning("Simulation %d of a batch has failed: %s.", chunk.start + row, message)
        rest = chunk.after(row)
        return [_Simulations((rest, 1), deaths=self.deaths)] if len(rest.u) else []


@dataclass(frozen=True)
class _Job:
    """Function of a task."""

    problem: Problem
    batched: bool
    summaries: bool

    def __call__(self, message: tuple[_Chunk, int]) -> Iterator[Simulated]:
        """Simulate a chunk, some rows at a time; random numbers do not depend on their number."""
        chunk, rows = message
        root = np.random.SeedSequence(chunk.seed)
        rng = as_generator(np.random.SeedSequence(root.entropy, spawn_key=(_SPACE, chunk.stream)))
        if parent_process() is not None:  # otherwise forked workers share the state of np.random
            seed_seq: Any = rng.bit_generator.seed_seq
            np.random.seed(seed_seq.generate_state(4))
        for start in range(0, len(chunk.u), rows):
            u = chunk.u[start : start + rows]
            found = self.problem.simulate(u, rng, batched=self.batched, summaries=self.summaries)
            for name in ("distance", "summaries") if self.summaries else ("distance",):
                shape = np.shape(getattr(found, name))
                if shape[:1] != (len(u),) or len(shape) != 1 + (name == "summaries"):
                    raise ValueError(
                        f"{type(self.problem).__name__}.simulate returned {name} of shape {shape} for {len(u)} points."
                    )
            yield found
