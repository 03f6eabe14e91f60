"""Wall time by task."""

from __future__ import annotations

import time

from collections.abc import Mapping

__all__ = ["COMPILING", "Stopwatch", "in_words"]

#: Name of the task for compilation time.
COMPILING = "compiling"


class Stopwatch:
    """Wall seconds by task.

    Examples
    --------
    >>> watch = Stopwatch()
    >>> watch.begin("sums")
    >>> total = sum(range(1_000))
    >>> watch.begin("mode")
    >>> watch.end()
    >>> list(watch.seconds)
    ['sums', 'mode']
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.task: str | None = None
        self._since = 0.0

    def begin(self, task: str) -> None:
        """End the current task and begin another."""
        self.end()
        self.task, self._since = task, time.perf_counter()

    def end(self) -> None:
        """End the current task, if any."""
        if self.task is not None:
            passed = time.perf_counter() - self._since
            self.seconds[self.task] = self.seconds.get(self.task, 0.0) + passed
            self.task = None


def in_words(seconds: Mapping[str, float]) -> str:
    """Format seconds by task in one line, the longest task first.

    Examples
    --------
    >>> in_words({"mode": 0.52, "compiling": 12.31})
    '12.8 s: compiling 12.3, mode 0.5'
    """
    parts = sorted(seconds.items(), key=lambda item: -item[1])
    return f"{sum(seconds.values()):.1f} s: " + ", ".join(f"{k} {v:.1f}" for k, v in parts)
