"""Fail-safe simulation: errors, endless loops and nan in a simulator do not end a run."""

from __future__ import annotations

import itertools
import math
import signal
import threading
import time

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from amc_pymc.arguments import positive_or_none
from amc_pymc.rng import spawn_generators
from amc_pymc.simulators.problem import Failure, Simulated

__all__ = [
    "NegativeDistance",
    "Summary",
    "check_simulation",
    "check_timeout",
    "clipped",
    "run_batch",
    "run_each",
]

#: Maximum number of simulated values kept before their distances are computed.
_KEPT_NUMBERS = 2**18
#: Maximum number of times that both halves of a failed batch are simulated, and maximum for all parts together.
_TRIES, _MOST_PAIRS = 8, 100
#: Bounds that exclude the faces of the cube, where quantiles may be infinite.
_LOWEST, _HIGHEST = 2.0**-53, 1.0 - 2.0**-53


class Summary(NamedTuple):
    """Summary statistics of simulations.

    Attributes
    ----------
    function : callable
        Maps simulations of m rows, arrays (m, *shape), to statistics (m, S).
    size : int
        Number of statistics S.
    """

    function: Callable[[list[np.ndarray]], np.ndarray]
    size: int


class NegativeDistance(ValueError):
    """Error for a negative distance, a fault of the distance function and not of a simulation."""


def clipped(u: np.ndarray, n_dim: int) -> np.ndarray:
    """Return points (n, D) clipped to the open unit cube; raise a ValueError if they are invalid."""
    u = np.asarray(u, dtype=float)
    if u.ndim != 2 or u.shape[1] != n_dim:
        raise ValueError(f"u must have shape (n, {n_dim}), got {u.shape}.")
    if not np.all((u >= 0.0) & (u <= 1.0)):
        raise ValueError(f"u must lie in the unit cube, got values from {u.min()} to {u.max()}.")
    inside: np.ndarray = np.clip(u, _LOWEST, _HIGHEST)
    return inside


def check_timeout(timeout: float | None, batched: bool = False) -> None:
    """Raise a TypeError or ValueError if a time limit in seconds is invalid or cannot be enforced."""
    if positive_or_none("simulation_timeout", timeout) is None:
        return
    if batched:
        raise ValueError(
            f"simulation_timeout={timeout!r} is for simulations one by one; in a batch none can be stopped without "
            "the others. Use simulation_timeout=None or batched=False."
        )
    if not hasattr(signal, "setitimer"):
        raise ValueError(
            f"simulation_timeout={timeout!r} needs signals, which this system has not; use None."
        )
    if threading.current_thread() is not threading.main_thread():
        raise ValueError(
            f"simulation_timeout={timeout!r} works in the main thread of a process only, for it needs signals; use "
            "processes instead of threads, or simulation_timeout=None."
        )


def check_simulation(
    array: np.ndarray, shape: tuple[int, ...], *, any_length: bool = False
) -> None:
    """Raise an error if a simulation has not the shape of the data, or their number of axes, or is not numbers."""
    same_axes = array.ndim == len(shape) > 0
    if array.shape != shape and not (any_length and same_axes):
        hint = ""
        if array.shape == (1, *shape):
            hint = "; drop the first axis"
        elif same_axes:
            hint = (
                "; if its length varies, return summary statistics, or give pm.Simulator a Python function as "
                "sum_stat and use batched=False"
            )
        raise ValueError(f"simulation of shape {array.shape}, the data call for {shape}{hint}")
    if array.dtype.kind not in "biuf":
        raise TypeError(f"simulation of dtype {array.dtype}, it must be numbers")


def run_each(
    call: Callable[[int], Sequence[Any]],
    distance: Callable[[list[np.ndarray]], np.ndarray],
    rows: np.ndarray,
    n: int,
    shapes: Sequence[tuple[int, ...]],
    timeout: float | None = None,
    *,
    summary: Summary | None = None,
) -> Simulated:
    """Simulate rows one by one.

    Parameters
    ----------
    call : callable
        Maps a row to its simulations, one array for each of `shapes`.
    distance : callable
        Maps simulations of m rows, arrays (m, *shape), to distances (m,). It may raise
        :class:`NegativeDistance`, which is not caught.
    rows : array of int
        Rows with valid parameters; the others of the n rows count as failed.
    n : int
    shapes : sequence of tuple
        Shapes of the observed data.
    timeout : float, optional
        Maximum seconds for each row. Code in C is stopped when it returns to Python.
    summary : Summary, optional
        Summary statistics to keep.

    Returns
    -------
    Simulated

    Raises
    ------
    ValueError
        If `timeout` cannot be enforced here.
    """
    check_timeout(timeout)
    out, failures = _impossible(rows, n)
    kept_summaries = _room(summary, n)
    size = sum(math.prod(s) for s in shapes)
    per = max(1, _KEPT_NUMBERS // max(1, size))
    with _limited(timeout) as call_one:
        for start in range(0, len(rows), per):
            chunk = rows[start : start + per].tolist()
            kept = [np.empty((len(chunk), *s)) for s in shapes]
            done: list[int] = []
            for i in chunk:
                try:
                    _keep(call_one(call, i), kept, len(done), shapes)
                except _TimedOut:
                    failures.append(Failure(i, "timeout", f"longer than {timeout} seconds"))
                except Exception as error:
                    failures.append(Failure(i, "error", _told(error)))
                else:
                    done.append(i)
            held = [k[: len(done)] for k in kept]
            _measure(distance, held, np.array(done, int), out, failures)
            _summarise(summary, held, np.array(done, int), out, kept_summaries)
    return Simulated(out, sorted(failures), kept_summaries)


def run_batch(
    call: Callable[[np.ndarray, np.random.Generator], Sequence[Any]],
    distance: Callable[[list[np.ndarray]], np.ndarray],
    rows: np.ndarray,
    n: int,
    shapes: Sequence[tuple[int, ...]],
    rng: np.random.Generator,
    *,
    summary: Summary | None = None,
) -> Simulated:
    """Simulate all rows in one call, and isolate rows that raise.

    Parameters
    ----------
    call : callable
        Maps rows and a generator to simulations, one array for each of `shapes` with a first axis of rows.
    distance, rows, n, shapes, summary
        As for :func:`run_each`.
    rng : numpy.random.Generator
        Generator for the first call; each later call gets a child of it.

    Returns
    -------
    Simulated

    Notes
    -----
    If a call raises, its rows are simulated again in halves, halves that raise are split again, and so on; a
    single row that raises has failed. Rows are assumed to be independent, and a call to raise if any of its rows
    would raise alone. Given that a call has raised, at least one of its halves must raise. If neither does, both
    are drawn again, which samples from the distribution conditional on the failure. To accept them instead would
    mean repeating rows until they succeed and ignoring their probability of failure. A part fails as a whole if
    neither half raises in eight attempts; so do all remaining parts after a hundred pairs of halves.
    """
    out, failures = _impossible(rows, n)
    kept_summaries = _room(summary, n)
    if not len(rows):
        return Simulated(out, failures, kept_summaries)

    def attempt(part: np.ndarray, rng: np.random.Generator) -> list[np.ndarray] | Exception:
        kept = [np.empty((1, len(part), *s)) for s in shapes]
        try:
            _keep(call(part, rng), kept, 0, [(len(part), *s) for s in shapes])
        except Exception as error:
            return error
        return [k[0] for k in kept]

    for part, found in _in_parts(attempt, rows, rng):
        if isinstance(found, Exception):
            among = f" (in a call of {len(part)} rows)" if len(part) > 1 else ""
            failures += [Failure(i, "error", _told(found) + among) for i in part.tolist()]
        else:
            _measure(distance, found, part, out, failures)
            _summarise(summary, found, part, out, kept_summaries)
    return Simulated(out, sorted(failures), kept_summaries)


def _in_parts(
    attempt: Callable[[np.ndarray, np.random.Generator], list[np.ndarray] | Exception],
    rows: np.ndarray,
    rng: np.random.Generator,
) -> list[tuple[np.ndarray, Any]]:
    """Return the rows in parts, each with its simulations or its error."""
    parts, pairs = [], iter(range(_MOST_PAIRS))
    waiting = deque([(rows, attempt(rows, rng))])
    while waiting:
        part, found = waiting.popleft()
        halves = np.array_split(part, 2)
        tries = _TRIES if isinstance(found, Exception) and len(part) > 1 else 0
        for _ in itertools.islice(pairs, tries):
            ends = [attempt(half, *spawn_generators(rng, 1)) for half in halves]
            if any(isinstance(end, Exception) for end in ends):
                waiting.extend(zip(halves, ends, strict=True))
                break
        else:
            parts.append((part, found))
    return parts


def _impossible(rows: np.ndarray, n: int) -> tuple[np.ndarray, list[Failure]]:
    left_out = np.setdiff1d(np.arange(n), rows, assume_unique=True)
    message = "the prior has no value here: parameters of a distribution are impossible"
    return np.full(n, np.inf), [Failure(i, "nan", message) for i in left_out.tolist()]


def _keep(
    found: Sequence[Any], kept: list[np.ndarray], k: int, shapes: Sequence[tuple[int, ...]]
) -> None:
    for array, held, shape in zip(found, kept, shapes, strict=True):
        array = np.asarray(array)
        check_simulation(array, tuple(shape))
        held[k] = array


def _measure(
    distance: Callable[[list[np.ndarray]], np.ndarray],
    simulations: list[np.ndarray],
    rows: np.ndarray,
    out: np.ndarray,
    failures: list[Any],
) -> None:
    """Write the distances of the given rows to `out`."""
    if not len(rows):
        return
    good = np.ones(len(rows), bool)
    for array in simulations:
        good &= ~np.isnan(array).any(axis=tuple(range(1, array.ndim)))
    failures += [Failure(i, "nan", "the simulation has nan") for i in rows[~good].tolist()]
    if not good.any():
        return
    if not good.all():
        rows, simulations = rows[good], [s[good] for s in simulations]
    try:
        out[rows] = _checked(distance(simulations), len(rows))
    except Exception:  # find the rows that raise
        for k, i in enumerate(rows.tolist()):
            try:
                out[i] = _checked(distance([s[k : k + 1] for s in simulations]), 1)[0]
            except NegativeDistance:
                raise
            except Exception as error:
                failures.append(Failure(i, "error", _told(error)))
    lost = rows[np.isnan(out[rows])]
    failures += [Failure(i, "nan", "the distance is nan") for i in lost.tolist()]
    out[lost] = np.inf


def _room(summary: Summary | None, n: int) -> np.ndarray | None:
    return None if summary is None else np.full((n, summary.size), np.nan)


def _summarise(
    summary: Summary | None,
    simulations: list[np.ndarray],
    rows: np.ndarray,
    distance: np.ndarray,
    out: np.ndarray | None,
) -> None:
    """Write summary statistics of the rows with a finite distance to `out`."""
    if summary is None or out is None or not len(rows):
        return
    good = np.isfinite(distance[rows])
    if good.any():
        out[rows[good]] = summary.function([s[good] for s in simulations])


def _checked(given: Any, n: int) -> np.ndarray:
    distance: np.ndarray = np.asarray(given, dtype=float)
    if distance.shape != (n,):
        raise ValueError(f"distances of shape {distance.shape} for {n} simulations")
    return distance


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _limited(seconds: float | None) -> AbstractContextManager[Any]:
    return nullcontext(lambda call, i: call(i)) if seconds is None else _TimeLimit(seconds)


class _TimedOut(BaseException):
    """Timeout of a simulation; not an Exception, which a simulator might catch."""


class _TimeLimit:
    """Context manager that limits the seconds of each call."""

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._armed = False

    def __enter__(self) -> Callable[[Callable[[int], Any], int], Any]:
        self._before = signal.signal(signal.SIGALRM, self._ring)
        self._left, self._began = signal.setitimer(signal.ITIMER_REAL, 0.0), time.monotonic()
        return self._limited

    def __exit__(self, *error: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if self._before is None else self._before)
        delay, interval = self._left
        if delay > 0.0:  # restore a timer that was already running
            left = max(1e-6, delay - (time.monotonic() - self._began))
            signal.setitimer(signal.ITIMER_REAL, left, interval)

    def _ring(self, signum: int, frame: FrameType | None) -> None:
        if self._armed:
            raise _TimedOut

    def _limited(self, call: Callable[[int], Any], i: int) -> Any:
        self._armed = True
        try:
            # The alarm is repeated in case the simulator catches the exception.
            signal.setitimer(signal.ITIMER_REAL, self._seconds, self._seconds)
            return call(i)
        finally:
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0.0)
