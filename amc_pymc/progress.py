"""A progress bar that appears only for long computations."""

import math
import time

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

REDRAW_SECONDS = 0.1
# Seconds over which the speed is averaged; rich's default of 30 s is too short for slow tasks.
SPEED_SECONDS = 300.0


class ProgressReport(Protocol):
    """Receiver of the progress of a long computation."""

    def advance(self, n: int = 1, description: str | None = None) -> None:
        """Report `n` more units of work as done, and replace the text beside the bar if one is given."""


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

    The bar is drawn by the calls to ``advance``, at most ten times a second, and never by a
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
        Object with ``advance(n=1, description=None)``.

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
    ...     bar.advance(0, "Annealed")
    """
    if total is not None and total < 0:
        raise ValueError(f"total must be None or not negative, got {total}.")
    if not min_seconds >= 0:
        raise ValueError(f"min_seconds must not be negative, got {min_seconds}.")
    shown = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console or Console(stderr=True),
        auto_refresh=False,
        speed_estimate_period=SPEED_SECONDS,
    )
    wait = min_seconds if enabled else math.inf
    bar = _RichBar(shown, shown.add_task(description, total=total), time.monotonic() + wait)
    try:
        yield bar
    finally:
        if bar.visible:
            bar.draw()
            shown.stop()


@final
@dataclass
class _RichBar:
    bar: Progress
    task: TaskID
    next_draw: float
    pending: int = 0
    visible: bool = False

    def advance(self, n: int = 1, description: str | None = None) -> None:
        self.pending += n
        if description is not None:
            self.bar.update(self.task, description=description)
        if time.monotonic() >= self.next_draw:
            self.draw()

    def draw(self) -> None:
        if self.pending:
            self.bar.advance(self.task, self.pending)
            self.pending = 0
        if self.visible:
            self.bar.refresh()
        else:
            self.bar.start()
            self.visible = True
        self.next_draw = time.monotonic() + REDRAW_SECONDS
