"""The objects behind the string arguments."""

from __future__ import annotations

import cloudpickle
import numpy as np
import pytest

import amc_pymc as amc

SETTINGS = [
    amc.NormalRace,
    amc.ExactRace,
    amc.Audits,
]


@pytest.mark.parametrize("kind", SETTINGS)
def test_settings_are_public_values(kind):
    assert kind() == cloudpickle.loads(cloudpickle.dumps(kind())) and hash(kind()) == hash(kind())
    assert kind.__dataclass_params__.frozen
    assert getattr(amc, kind.__name__) is kind and kind.__name__ in amc.__all__


@pytest.mark.parametrize(
    ("kind", "name", "bad", "good"),
    [
        (amc.Audits, "number", [-1, 1.5, True, "x", None, np.nan], [0, 10, np.int64(10)]),
        (amc.Audits, "max_share", [0, -0.1, 1.1, np.nan, "x"], [0.01, 1, 1.0, None]),
        (amc.Audits, "chains", [0, 2.5, None], [1]),
    ],
)
def test_values(kind, name, bad, good):
    message = "audits" if name == "number" else name
    for value in bad:
        with pytest.raises((ValueError, TypeError), match=message):
            kind(**{name: value})
    for value in good:
        assert getattr(kind(**{name: value}), name) == value
