"""The loop of a run: what ends it, and what is kept."""

import time

import pytest

from amc_pymc.runs import run_loop


def interrupted(after):
    yield from range(after)
    raise KeyboardInterrupt


def slow(n, seconds):
    for k in range(n):
        time.sleep(seconds)
        yield k


def test_enough():
    seen = []
    assert run_loop(range(9), each=seen.append, enough=lambda k: k == 2) == (2, "enough")
    assert seen == [0, 1, 2]


def test_max_time_ends_a_run_after_a_step():
    last, why = run_loop(slow(50, 0.02), max_time=0.1)
    assert why == "max_time" and 3 <= last <= 10
    assert run_loop(slow(3, 0.0), max_time=1e-9) == (0, "max_time")
    assert run_loop(slow(3, 0.0), max_time=30.0) == (2, "done")


def test_max_time_counts_from_the_beginning_of_the_run():
    assert run_loop(range(9), max_time=60.0, begin=time.monotonic() - 61.0) == (0, "max_time")


def test_max_time_does_not_end_steps_of_a_journal():
    assert run_loop(range(9), max_time=1e-9, n_untimed=3) == (3, "max_time")
    found = run_loop(range(9), max_time=1e-9, n_untimed=3, enough=lambda k: k == 1)
    assert found == (1, "enough")


def test_no_limit_ends_a_run_at_its_last_step():
    finished = []

    def states():
        yield from range(3)
        finished.append(True)

    assert run_loop(states(), n_steps=3, enough=lambda k: k == 2) == (2, "done")
    assert run_loop(range(1), n_steps=1, max_time=1e-9) == (0, "done")
    assert finished == [True]


def test_an_interrupt_keeps_what_there_is():
    assert run_loop(interrupted(3)) == (2, "interrupted")
    with pytest.raises(KeyboardInterrupt):
        run_loop(interrupted(0))


def test_other_errors_are_raised():
    def states():
        yield 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_loop(states())
