"""Chunks of points that a worker simulates, in pieces of bounded time."""

from __future__ import annotations

import math

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from amc_pymc.progress import ProgressReport
from amc_pymc.rng import as_generator
from amc_pymc.simulators.problem import Problem, Simulated

__all__ = [
    "Chunk",
    "SimulationSettings",
    "chunks_of",
    "joined",
    "pieces_of",
    "rows_per_piece",
]


#: Minimum and maximum simulations in a chunk, made one by one and in one call.
_ONE_BY_ONE, _BATCHED = (1, 100), (1_000, 5_000)
#: Number of chunks of a batch, within the limits on their sizes.
_CHUNKS = 64

#: Maximum seconds of simulations in one piece of work, if each takes its full timeout.
_PIECE_SECONDS = 60.0

#: Spawn key that separates the streams of chunks from other children of a seed.
_SPACE = 0x51D5


class SimulationSettings(NamedTuple):
    """Settings of simulations: whether in one call, timeout in seconds, and whether with summaries."""

    batched: bool
    timeout: float | None
    summaries: bool


class Chunk(NamedTuple):
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
        """Return the generator of the chunk's simulations."""
        seed = self.seed
        key = (*seed.spawn_key, _SPACE, self.stream)
        return as_generator(
            np.random.SeedSequence(seed.entropy, spawn_key=key, pool_size=seed.pool_size)
        )

    def after(self, row: int) -> Chunk:
        """Return the rows after one that used an unknown share of the random numbers."""
        start = self.start + row + 1
        return self._replace(start=start, u=self.u[row + 1 :], stream=self.anew + start)


def chunks_of(u: np.ndarray, seed: np.random.SeedSequence, batched: bool) -> list[Chunk]:
    """Split points into chunks, each with a seed of its own."""
    n = len(u)
    least, most = _BATCHED if batched else _ONE_BY_ONE
    size = min(most, max(least, math.ceil(n / _CHUNKS)))
    starts = range(0, n, size)
    return [Chunk(i, u[i : i + size], seed, k, len(starts)) for k, i in enumerate(starts)]


def pieces_of(
    problem: Problem, how: SimulationSettings, chunk: Chunk, rows: int
) -> Iterator[Simulated]:
    """Simulate a chunk, `rows` rows at a time; random numbers do not depend on `rows`."""
    rng = chunk.generator()
    for start in range(0, len(chunk.u), rows):
        piece = _simulated(problem, how, chunk.u[start : start + rows], rng)
        yield piece
        if any(failure.kind == "timeout" for failure in piece.failures):
            rng = chunk.after(start + len(piece.distance) - 1).generator()


def _simulated(
    problem: Problem, how: SimulationSettings, u: np.ndarray, rng: np.random.Generator
) -> Simulated:
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


def rows_per_piece(how: SimulationSettings, chunk: Chunk) -> int:
    """Return the number of rows in a piece: few if they may take long, to detect hanging early."""
    if how.timeout is None or how.batched:
        return len(chunk.u)
    return min(len(chunk.u), max(1, int(_PIECE_SECONDS // how.timeout)))


def joined(
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
