import io

from types import SimpleNamespace

import pytest

from rich.console import Console

import amc_pymc.progress as module

from amc_pymc.progress import progress


@pytest.fixture
def clock(monkeypatch):
    """Time that moves only when told to."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: Clock.now))
    return Clock


@pytest.fixture
def console(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for name in ("COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return Console(
        file=io.StringIO(), force_terminal=True, width=100, get_time=lambda: float(clock.now)
    )


def written(console):
    return console.file.getvalue()


def test_disabled_writes_nothing(clock, console, capfd):
    with progress("work", 3, enabled=False, min_seconds=0, console=console) as bar:
        for _ in range(3):
            clock.now += 10
            bar.advance()
        bar.advance(0, "more work")
    with progress("work", 3, enabled=False, min_seconds=0) as bar:
        bar.advance(3)
    assert written(console) == ""
    assert capfd.readouterr() == ("", "")


def test_short_work_writes_nothing(clock, console):
    with progress("work", 20, enabled=True, console=console) as bar:
        for _ in range(19):
            clock.now += 0.1
            bar.advance()
        bar.advance(0, "nearly done")
    assert written(console) == ""


def test_long_work_shows_bar_and_time_left(clock, console):
    with progress("work", 10, enabled=True, console=console) as bar:
        for _ in range(4):
            clock.now += 60
            bar.advance()
        assert "work" in written(console)
        assert "4/10" in written(console)
        assert "0:06:00" in written(console)
        bar.advance(6)
    assert "10/10" in written(console)


def test_bar_is_closed_after_an_error(clock, console):
    with pytest.raises(RuntimeError, match="broken"):
        with progress("work", 2, enabled=True, min_seconds=0, console=console) as bar:
            bar.advance()
            raise RuntimeError("broken")
    assert written(console).endswith("\x1b[?25h")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"total": -1}, "total must be None or not negative, got -1"),
        ({"total": 1, "min_seconds": -0.5}, "min_seconds must not be negative, got -0.5"),
        ({"total": 1, "min_seconds": float("nan")}, "min_seconds must not be negative, got nan"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message), progress("work", enabled=False, **arguments):
        pass
