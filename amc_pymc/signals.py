"""Signals: Ctrl-C, and alarms whose exceptions must not be taken for failures."""

import signal
import threading

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["on_interrupt", "raise_if_signalled", "signals_heard"]


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


def raise_if_signalled(error: BaseException) -> None:
    """Re-raise an error if it, or one of its causes, comes from a signal handler such as a timeout alarm.

    Call this first in an ``except`` block that treats any exception as a failure.

    Examples
    --------
    >>> from amc_pymc.signals import raise_if_signalled
    >>> try:
    ...     1 / 0
    ... except Exception as error:
    ...     raise_if_signalled(error)
    ...     print("a failure")
    a failure
    """
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    found: BaseException | None = error
    while found is not None:
        trace = found.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code in handlers:
                raise found
            trace = trace.tb_next
        found = found.__cause__ or found.__context__


def _code_of(handler: Any) -> Any:
    """Return the code object of a signal handler, None if it is not written in Python."""
    while hasattr(handler, "func"):  # functools.partial
        handler = handler.func
    if not hasattr(handler, "__code__") and not isinstance(handler, int):
        handler = getattr(type(handler), "__call__", handler)
    return getattr(handler, "__code__", None)


@contextmanager
def signals_heard() -> Iterator[None]:
    """Re-raise at the end of the block an error of a signal handler that code in the block has caught.

    PyTensor catches and logs exceptions in its rewrites, including those of an alarm. Outside the main thread, where
    handlers do not run, this does nothing.
    """
    raised: list[BaseException] = []
    ours: dict[int, Any] = {}
    before: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in signal.valid_signals():
                handler: Any = signal.getsignal(number)
                if _code_of(handler) is not None:
                    before[number], ours[number] = handler, _recording(handler, raised)
                    signal.signal(number, ours[number])
        yield
    finally:
        for key, ours_there in ours.items():
            if signal.getsignal(key) is ours_there:
                signal.signal(key, before[key])
    if raised:
        raise raised[0]


def _recording(
    handler: Callable[[int, Any], Any], raised: list[BaseException]
) -> Callable[..., Any]:
    def handle(number: int, frame: FrameType | None) -> Any:
        try:
            return handler(number, frame)
        except BaseException as error:
            raised.append(error)
            raise

    return handle
