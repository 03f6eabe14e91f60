"""Rows are stored as float32 only where that changes no decision."""

import numpy as np
import pymc as pm
import pytest

import amc_pymc as amc

N, FEW = 30_000, 200


def data(offset):
    rng = np.random.default_rng(6)
    t = offset + rng.uniform(0.0, 100.0, N)
    return {"t": t, "y": t + rng.normal(0.3, 1.0, size=N)}


def forecast(values, dtype):
    """Of the delay between two times."""
    with pm.Model() as model:
        t, y = (pm.Data(n, values[n][:FEW]) for n in ("t", "y"))
        delay = pm.Normal("delay", 0, 10)
        pm.Normal("obs", t + delay, pm.HalfNormal("s", 5), observed=y)
    return amc.racing_forecast(rows=amc.Rows(values, dtype=dtype), model=model, progressbar=False)


def effect(values):
    """The change of log ratios between independent draws, root mean square over draws: exact."""
    rest = values["y"] - values["t"]
    rounded = {n: a.astype(np.float32).astype(float) for n, a in values.items()}
    other = rounded["y"] - rounded["t"]
    # draws of delay differ by sqrt(2 / N) sd; the scale of the noise is that of the rounded data
    return abs(rest.mean() - other.mean()) * np.sqrt(2 * N) / max(other.std(), 1e-300)


@pytest.mark.parametrize("offset", [1e3, 1e6])
def test_small_errors_are_allowed(offset):
    values = data(offset)
    assert effect(values) < 0.1
    assert forecast(values, "float32").n_rows == N


def test_large_ones_are_refused():
    """Neighbours among floats of 32 bits are two minutes apart in seconds since 1970."""
    values = data(1.7e9)
    assert effect(values) > 0.1
    with pytest.raises(ValueError, match=r"float32' cannot hold .*use 'float64', or subtract what"):
        forecast(values, "float32")
    assert forecast(values, "float64").n_rows == N
