"""Handling of Ctrl-C."""

import signal
import threading

from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def held_back() -> Iterator[list[int]]:
    """Hold back the first Ctrl-C until the end of the block, which receives a list that then is not empty.

    The second one raises KeyboardInterrupt.
    """
    pressed: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    with on_interrupt(hold):
        yield pressed


@contextmanager
def on_interrupt(handler: Any) -> Iterator[None]:
    """Handle Ctrl-C by `handler` in the block; outside the main thread, where this is impossible, do nothing.

    Parameters
    ----------
    handler : callable or signal.SIG_IGN

    Examples
    --------
    >>> import signal
    >>> from amc_pymc.signals import on_interrupt
    >>> with on_interrupt(lambda number, frame: print("stop")):
    ...     signal.raise_signal(signal.SIGINT)
    stop
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
