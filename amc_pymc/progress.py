"""A progress bar that appears only for long computations."""

import math
import time

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

REDRAW_SECONDS = 0.1
# Seconds over which the speed is averaged; rich's default of 30 s is too short for slow tasks.
SPEED_SECONDS = 300.0


class ProgressReport(Protocol):
    """Receiver of the progress of a long computation."""

    def advance(self, n: int = 1) -> None:
        """Report `n` more units of work as done."""

    def update(self, *, description: str) -> None:
        """Replace the text beside the bar."""


@contextmanager
def progress(
    description: str,
    total: int | None,
    *,
    enabled: bool,
    min_seconds: float = 2.0,
    console: Console | None = None,
) -> Iterator[ProgressReport]:
    """Show the progress of a computation and its remaining time.

    The bar is drawn by the calls to ``advance`` and ``update``, at most ten times a second, and never by a
    separate thread. Forking worker processes while it is shown is therefore safe.

    Parameters
    ----------
    description : str
        Text beside the bar.
    total : int or None
        Total units of work. None if unknown; the remaining time is then not shown.
    enabled : bool
        If False, nothing is written.
    min_seconds : float, default 2.0
        The bar appears with the first report after this many seconds. Shorter computations write nothing.
    console : rich.console.Console, optional
        Console to draw on; default: standard error, or the output cell of a notebook.

    Yields
    ------
    ProgressReport
        Object with ``advance(n=1)`` and ``update(description=...)``.

    Raises
    ------
    ValueError
        If `total` or `min_seconds` is negative.

    Examples
    --------
    >>> from amc_pymc.progress import progress
    >>> with progress("Annealing", 3, enabled=False) as bar:
    ...     for step in range(3):
    ...         bar.advance()
    ...     bar.update(description="Annealed")
    """
    if total is not None and total < 0:
        raise ValueError(f"total must be None or not negative, got {total}.")
    if not min_seconds >= 0:
        raise ValueError(f"min_seconds must not be negative, got {min_seconds}.")
    wait = min_seconds if enabled else math.inf
    bar = _RichBar(description, total, wait, console or Console(stderr=True))
    try:
        yield bar
    finally:
        bar.close()


@final
class _RichBar:
    def __init__(
        self, description: str, total: int | None, min_seconds: float, console: Console
    ) -> None:
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            auto_refresh=False,
            speed_estimate_period=SPEED_SECONDS,
        )
        self._task = self._bar.add_task(description, total=total)
        self._pending = 0
        self._visible = False
        self._next_draw = time.monotonic() + min_seconds

    def advance(self, n: int = 1) -> None:
        self._pending += n
        if time.monotonic() >= self._next_draw:
            self._draw()

    def update(self, *, description: str) -> None:
        self._bar.update(self._task, description=description)
        if time.monotonic() >= self._next_draw:
            self._draw()

    def close(self) -> None:
        if self._visible:
            self._draw()
            self._bar.stop()

    def _draw(self) -> None:
        if self._pending:
            self._bar.advance(self._task, self._pending)
            self._pending = 0
        if self._visible:
            self._bar.refresh()
        else:
            self._bar.start()
            self._visible = True
        self._next_draw = time.monotonic() + REDRAW_SECONDS
