"""The loop of a run: one step after the other, until the last one, a limit or an interrupt."""

from __future__ import annotations

import time

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple


class Ended[T](NamedTuple):
    """How a run has ended.

    Attributes
    ----------
    last : object
        State after the last complete step.
    why : {"done", "enough", "max_time", "interrupted"}
    """

    last: T
    why: Literal["done", "enough", "max_time", "interrupted"]


def run_loop[T](
    steps: Iterable[T],
    *,
    n_steps: int | None = None,
    n_untimed: int = 0,
    max_time: float | None = None,
    begin: float | None = None,
    each: Callable[[T], None] = lambda state: None,
    enough: Callable[[T], bool] = lambda state: False,
) -> Ended[T]:
    """Make steps until there are no more, and keep the results so far if a run ends early.

    Parameters
    ----------
    steps : iterable
        Makes a step when it is asked for the state after it.
    n_steps : int, optional
        Number of steps, if known. After the last one no limit has ended the run.
    n_untimed : int
        Number of first steps that `max_time` does not end, for example because they are read from a journal.
    max_time : float, optional
        Seconds after which no further step begins.
    begin : float, optional
        Time of the monotonic clock from which they count, by default now.
    each : callable, optional
        Called with the state after each step.
    enough : callable, optional
        Whether the state needs no further step.

    Returns
    -------
    Ended

    Raises
    ------
    KeyboardInterrupt
        At Ctrl-C in the first step; later it ends the run.
    ValueError
        If there are no steps.

    Examples
    --------
    >>> from amc_pymc.runs import run_loop
    >>> run_loop(iter(range(100)), enough=lambda state: state == 3)
    Ended(last=3, why='enough')
    """
    since = time.monotonic() if begin is None else begin
    found: list[T] = []
    try:
        for k, state in enumerate(steps):
            found = [state]
            each(state)
            if n_steps is not None and k + 1 >= n_steps:
                continue  # there are no more, but the iterator may have something to finish
            if enough(state):
                return Ended(state, "enough")
            if max_time is not None and k >= n_untimed and time.monotonic() - since > max_time:
                return Ended(state, "max_time")
    except KeyboardInterrupt:
        if not found:
            raise
        return Ended(found[0], "interrupted")
    if not found:
        raise ValueError("a run needs at least one step.")
    return Ended(found[0], "done")
