"""Fingerprints of settings: the same in every process, and different if anything differs."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest

from amc_pymc.runs import fingerprint, name_of


@dataclass
class Settings:
    epsilon: float
    weights: np.ndarray


@dataclass
class Others:
    epsilon: float
    weights: np.ndarray


class Pair(NamedTuple):
    first: int
    second: str


class Bare:
    pass


def test_settings_are_mappings():
    ones = np.ones(3)
    found = fingerprint({"settings": Settings(0.1, ones), "pair": Pair(1, "a")})
    assert found["pair"] == [1, "a"]
    assert found["settings"]["epsilon"] == 0.1
    assert fingerprint(Settings(0.1, ones)) == fingerprint(Settings(0.1, ones.copy()))
    for other in (Settings(0.2, ones), Settings(0.1, 2 * ones), Others(0.1, ones)):
        assert fingerprint(other) != fingerprint(Settings(0.1, ones))


def test_large_arrays_differ_in_any_element():
    x = np.arange(1000.0)
    y = x.copy()
    y[500] = np.nextafter(500.0, 501.0)
    assert fingerprint(x) == fingerprint(x.copy())
    assert fingerprint(x) != fingerprint(y)
    assert fingerprint(x) != fingerprint(x.reshape(10, 100))


def test_names_have_no_addresses():
    here = f"{__name__}.Bare"
    assert name_of(Bare) == name_of(Bare()) == here
    assert name_of([Bare(), "x"]) == f"{here}, x"
    assert name_of(Pair(1, "a")) == "1, a"
    assert name_of(lambda: None) == f"{__name__}.test_names_have_no_addresses.<locals>.<lambda>"


@pytest.mark.parametrize("value", [object(), {1}, b"x", np.array([None]), Settings(0.1, {1})])
def test_values_that_cannot_be_told(value):
    with pytest.raises(TypeError, match=r"told.* must be numbers, strings or arrays"):
        fingerprint({"x": value}, "told")
