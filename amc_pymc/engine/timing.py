"""Wall time by task, with compilation counted separately."""

from __future__ import annotations

import time

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from numba.core import event

__all__ = ["COMPILING", "Stopwatch", "in_words"]

#: Name of the task for compilation time.
COMPILING = "compiling"


class Stopwatch:
    """Wall seconds by task.

    Time in which Numba compiles is counted as ``"compiling"``, not as part of the task that caused it.

    Examples
    --------
    >>> watch = Stopwatch()
    >>> with watch.running():
    ...     watch.begin("sums")
    ...     total = sum(range(1_000))
    ...     watch.begin("mode")
    >>> list(watch.seconds)
    ['sums', 'mode']
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._task: str | None = None
        self._since = self._compiled = 0.0
        self._numba = event.TimingListener()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Record compilation time in the block; the last task ends with the block."""
        with event.install_listener("numba:compile", self._numba):
            try:
                yield
            finally:
                self._end()

    def begin(self, task: str) -> None:
        """End the current task and begin another."""
        self._end()
        self._task, self._since, self._compiled = task, time.perf_counter(), self._compiling()

    def _end(self) -> None:
        if self._task is None:
            return
        compiled = self._compiling() - self._compiled
        self._add(self._task, max(0.0, time.perf_counter() - self._since - compiled))
        if compiled > 0.0:
            self._add(COMPILING, compiled)
        self._task = None

    def _add(self, task: str, seconds: float) -> None:
        self.seconds[task] = self.seconds.get(task, 0.0) + seconds

    def _compiling(self) -> float:
        return self._numba.duration if self._numba.done else 0.0


def in_words(seconds: Mapping[str, float]) -> str:
    """Format seconds by task in one line, the longest task first.

    Examples
    --------
    >>> in_words({"mode": 0.52, "compiling": 12.31})
    '12.8 s: compiling 12.3, mode 0.5'
    """
    parts = sorted(seconds.items(), key=lambda item: -item[1])
    return f"{sum(seconds.values()):.1f} s: " + ", ".join(f"{k} {v:.1f}" for k, v in parts)
