"""Failures of simulations in words and as arrays."""

import numpy as np
import pytest

from amc_pymc.likelihood_free.problem import Failure, describe, failure_arrays, failures_from_arrays

PARAMETERS = {"a": np.linspace(0.0, 1.998, 1_000), "b": np.arange(20_000.0).reshape(1_000, 4, 5)}


def test_kinds_are_counted_and_shown_where_they_were_met_first():
    failures = [
        *(Failure(i, "error", f"ValueError: at {i}") for i in (700, 600, 800)),
        *(Failure(i, "nan", "the distance is nan") for i in (1, 2)),
    ]
    text = describe(failures, PARAMETERS)
    assert text.startswith(
        "5 of 1,000 simulations failed: 3 raised ('ValueError: at 600', first at a=1.2, b=[["
    )
    assert "]), 2 returned nan (first at a=0.002, b=[[" in text
    assert "\n" not in text
    assert len(text) < 800


def test_long_messages_are_cut():
    text = describe([Failure(0, "error", "x" * 10_000)], {"a": np.zeros(1)})
    assert "x" * 197 + "..." in text
    assert len(text) < 300


@pytest.mark.parametrize(
    "failures",
    [[], [Failure(3, "nan", "μ is nan")], [Failure(i, "error", f"E {i % 3}") for i in range(50)]],
)
def test_arrays_hold_failures(failures):
    arrays = failure_arrays(failures)
    assert not any(a.dtype.hasobject for a in arrays.values())
    assert failures_from_arrays(arrays) == failures
    assert len(arrays["failure_messages"]) == len({f.message for f in failures})
