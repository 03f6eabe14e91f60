"""Checks of arguments name the argument and its value."""

import math

import numpy as np
import pytest

from amc_pymc.arguments import boolean, positive_int, positive_or_none


@pytest.mark.parametrize("value", [True, False, np.True_, np.False_])
def test_boolean(value):
    found = boolean("rotate", value)
    assert type(found) is bool and found == value


@pytest.mark.parametrize("value", [0, 1, "no", None, 1.0, np.array([True]), np.int64(1)])
def test_no_boolean(value):
    with pytest.raises(TypeError, match="rotate must be True or False, got"):
        boolean("rotate", value)


@pytest.mark.parametrize("value", [-0.1, 0.0, 1.0, 2, math.nan, math.inf, -math.inf])
def test_no_share(value):
    with pytest.raises(ValueError, match=f"share must be between 0 and 1, got {value}"):
        positive_or_none("share", value, 1.0)


def test_a_share_that_may_be_the_whole():
    assert positive_or_none("share", 1, 1.0, closed=True) == 1.0
    for value in (0.0, 1.1, math.nan):
        with pytest.raises(ValueError, match=f"share must be between 0 and 1, got {value}"):
            positive_or_none("share", value, 1.0, closed=True)
    with pytest.raises(TypeError, match="share must be a number or None, got True"):
        positive_or_none("share", True, 1.0, closed=True)


@pytest.mark.parametrize("value", [0.0, -1, math.nan, math.inf])
def test_not_positive(value):
    with pytest.raises(ValueError, match=f"x must be positive and finite, got {value}"):
        positive_or_none("x", value)


@pytest.mark.parametrize("below", [1.0, math.inf])
@pytest.mark.parametrize("value", [True, np.True_, "0.5", [0.5], 1j, np.complex128(1j)])
def test_no_number(below, value):
    with pytest.raises(TypeError, match="x must be a number or None, got"):
        positive_or_none("x", value, below)


@pytest.mark.parametrize("below", [1.0, math.inf])
def test_numbers(below):
    assert positive_or_none("x", None, below) is None
    found = positive_or_none("x", np.float32(0.5), below)
    assert type(found) is float and found == 0.5


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (0, ValueError, "at least 1, got 0"),
        (5e3, TypeError, "5000.0; write 5000"),
        (1.5, TypeError, "1.5$"),
        (np.True_, TypeError, "True"),
    ],
)
def test_no_count(value, error, message):
    with pytest.raises(error, match=f"n must be .*{message}"):
        positive_int("n", value)
