"""Inverse temperatures: formulas, ends, what is refused."""

import numpy as np
import pytest

from amc_pymc.evidence.annealing import make_schedule

U = np.arange(8) / 7
BARRIER = np.array([0.0, 0.1, 0.3, 1.0]), np.array([0.0, 2.0, 2.5, 4.0])
NAMED = ["adaptive", ("power", 1), ("power", 4), ("power", 0.5)]


@pytest.mark.parametrize("power", [1, 2, 4.0, np.float64(0.5)])
def test_powers(power):
    np.testing.assert_allclose(make_schedule(("power", power), 7), U ** float(power), rtol=1e-7)


@pytest.mark.parametrize("n_steps", [1, 2, 3, 400, np.int64(5)])
@pytest.mark.parametrize("schedule", NAMED, ids=str)
def test_from_zero_to_one(schedule, n_steps):
    betas = make_schedule(schedule, n_steps, barrier=BARRIER)
    assert betas.shape == (n_steps + 1,)
    assert betas.dtype == float
    assert (betas[0], betas[-1]) == (0.0, 1.0)
    assert (np.diff(betas) > 0.0).all()


def test_adaptive_steps_cross_equal_parts_of_the_barrier():
    betas = make_schedule("adaptive", 11, barrier=BARRIER)
    np.testing.assert_allclose(np.diff(np.interp(betas, *BARRIER)), 4.0 / 11, rtol=1e-12)
    assert (betas < 0.1).sum() == 6  # half of the barrier is on the first tenth of the way


def test_given_temperatures_are_taken_as_they_are():
    given = np.array([0.0, 0.1, 0.7, 1.0])
    found = make_schedule(given, 99)
    np.testing.assert_array_equal(found, given)
    found[1] = 0.2
    assert given[1] == 0.1
    np.testing.assert_array_equal(make_schedule([0, 1], 99), [0.0, 1.0])
    np.testing.assert_array_equal(make_schedule((0, 0.5, 1), 99), [0.0, 0.5, 1.0])


@pytest.mark.parametrize(
    "schedule",
    [
        "linear",
        "",
        ("cubic", 3),
        ("adaptive", 2),
        ("power", 2, 3),
        *(("power", c) for c in (0, -1.0, np.nan, np.inf, "4", None, True, [4.0], 1j)),
        None,
        3,
        0.5,
        True,
        [],
        [0.0],
        [1.0],
        [0.0, 0.0, 1.0],
        [0.0, 0.6, 0.4, 1.0],
        [1.0, 0.0],
        [0.1, 1.0],
        [0.0, 0.9],
        [0.0, 0.5, 1.5],
        [0.0, np.nan, 1.0],
        [np.nan, 1.0],
        [0.0, np.inf],
        [False, True],
        ["0", "1"],
        [0.0, 1.0 + 0.0j],
        [[0.0, 1.0]],
        [[0.0], [0.0, 1.0]],
        {0.0: 1.0},
    ],
    ids=str,
)
def test_what_is_no_schedule(schedule):
    with pytest.raises(ValueError, match="schedule must be"):
        make_schedule(schedule, 10)


@pytest.mark.parametrize("schedule", [("power", 500.0), ("power", 1e-17)])
def test_temperatures_that_floating_point_cannot_tell_apart(schedule):
    """Two equal ones would multiply an impossible slope by zero."""
    with pytest.raises(ValueError, match="closer to each other"):
        make_schedule(schedule, 10)


@pytest.mark.parametrize(
    ("n_steps", "error"), [(0, ValueError), (2.0, TypeError), (True, TypeError)]
)
def test_bad_numbers_of_steps(n_steps, error):
    with pytest.raises(error, match="n_steps must be"):
        make_schedule(("power", 1), n_steps)


def test_adaptive_needs_a_barrier():
    with pytest.raises(ValueError, match="needs the barrier"):
        make_schedule("adaptive", 10)
