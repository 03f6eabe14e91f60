"""Signals: Ctrl-C, and alarms whose exceptions must not be taken for failures."""

import math
import signal
import threading
import time

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any

#: Seconds after an interrupted call in which the next one raises.
_AGAIN = 1.0


class _Pressed:
    """Whether Ctrl-C was pressed during a call, and when the last such call returned."""

    now = False
    returned = -math.inf


def ends_loops[**P, T](function: Callable[P, T]) -> Callable[P, T]:
    """Let Ctrl-C end a loop over calls of public functions that return their partial results.

    A call that begins within a second after one during which Ctrl-C was pressed has returned raises
    KeyboardInterrupt. Exceptions of that type that code raises by itself do not count.

    Examples
    --------
    >>> import signal
    >>> from amc_pymc.signals import ends_loops, held_back
    >>> @ends_loops
    ... def estimate():
    ...     with held_back():
    ...         signal.raise_signal(signal.SIGINT)
    ...     return "what is complete"
    >>> estimate()
    'what is complete'
    >>> try:
    ...     estimate()
    ... except KeyboardInterrupt as stop:
    ...     print(stop)
    the last call was interrupted less than a second ago
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler) or threading.current_thread() is not threading.main_thread():
            return function(*args, **kwargs)
        if time.monotonic() - _Pressed.returned < _AGAIN:
            _Pressed.returned = -math.inf
            raise KeyboardInterrupt("the last call was interrupted less than a second ago")
        _Pressed.now = False
        with on_interrupt(handler):
            found = function(*args, **kwargs)
        if _Pressed.now:
            _Pressed.returned = time.monotonic()
        return found

    return call


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
    before = signal.signal(signal.SIGINT, _noting(handler) if callable(handler) else handler)
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


def _noting(handler: Callable[[int, Any], Any]) -> Callable[[int, Any], Any]:
    def handle(number: int, frame: FrameType | None) -> Any:
        _Pressed.now = True
        return handler(number, frame)

    return handle


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
