"""Signals: Ctrl-C, and alarms that are no failures."""

import signal

import pytest

from amc_pymc.signals import raise_if_signalled, signals_heard


class TooLong(Exception):
    """What an alarm raises."""


@pytest.fixture
def alarm():
    """A signal whose handler raises TooLong."""

    def handle(number, frame):
        raise TooLong

    before = signal.signal(signal.SIGUSR1, handle)
    yield lambda: signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def divide_by_zero():
    return 1 / 0


def tried(function):
    try:
        function()
    except Exception as error:
        raise_if_signalled(error)
        return "failed"
    return "worked"


def test_an_alarm_is_no_failure(alarm):
    with pytest.raises(TooLong):
        tried(alarm)
    assert tried(divide_by_zero) == "failed"
    assert tried(lambda: None) == "worked"


def test_an_alarm_that_was_wrapped_is_raised(alarm):
    def wrapped():
        try:
            alarm()
        except TooLong as error:
            raise ValueError("it does not compile") from error

    with pytest.raises(TooLong):
        tried(wrapped)


def test_an_alarm_that_something_swallows_is_raised_in_the_end(alarm):
    handler = signal.getsignal(signal.SIGUSR1)
    reached = False
    with pytest.raises(TooLong):
        with signals_heard():
            try:
                alarm()
            except Exception:
                reached = True
    assert reached
    assert signal.getsignal(signal.SIGUSR1) is handler
    with signals_heard():
        pass
    with pytest.raises(ZeroDivisionError), signals_heard():
        divide_by_zero()
