"""What float32 does to decisions is measured on the rows as they were before."""

from __future__ import annotations

import logging

import numpy as np
import pymc as pm
import pytest

import amc_pymc as amc

N, FEW = 30_000, 200


def data(offset):
    rng = np.random.default_rng(6)
    t = offset + rng.uniform(0.0, 100.0, N)
    return {"t": t, "y": t + rng.normal(0.3, 1.0, size=N)}


def build(values):
    """The delay between two times."""
    with pm.Model() as model:
        t, y = (pm.Data(n, values[n][:FEW]) for n in ("t", "y"))
        delay = pm.Normal("delay", 0, 10)
        pm.Normal("obs", t + delay, pm.HalfNormal("s", 5), observed=y)
    return model


def forecast(offset, dtype, **kwargs):
    values = data(offset)
    rows = amc.Rows(values, dtype=dtype, **kwargs)
    return amc.racing_forecast(rows=rows, model=build(values), progressbar=False)


def true_effect(offset):
    """The change of log ratios between independent draws, root mean square over draws: exact."""
    values = data(offset)
    rest = values["y"] - values["t"]
    rounded = {n: a.astype(np.float32).astype(float) for n, a in values.items()}
    other = rounded["y"] - rounded["t"]
    # draws of delay differ by sqrt(2 / N) sd; the scale of the noise is that of the rounded data
    return abs(rest.mean() - other.mean()) * np.sqrt(2 * N) / max(other.std(), 1e-300)


def test_small_numbers_are_not_harmed(caplog):
    caplog.set_level(logging.INFO, logger="amc_pymc")
    found = forecast(0.0, "float32")
    assert 0.0 < found.rounding < 0.02
    assert found.rounding > 0.1 * true_effect(0.0)
    assert "rounding changes log ratios by at most" in str(found)
    assert "Rounding the rows to float32 changes log ratios by" in caplog.text
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_times_since_1970_are_destroyed():
    """Neighbours among floats of 32 bits are two minutes apart there."""
    told = "dtype='float32' changes the log ratio of a decision"
    with pytest.warns(UserWarning, match=f"racing_forecast: {told}"):
        found = forecast(1.7e9, "float32")
    assert found.rounding > max(1.0, 0.3 * true_effect(1.7e9))
    assert [f.name for f in found.flags] == ["rounded_rows"]
    values = data(1.7e9)
    rows = amc.Rows(values, dtype="float32")
    with pytest.warns(UserWarning, match=f"RacingMetropolis: {told}"):
        amc.RacingMetropolis(rows=rows, model=build(values), progressbar=False)


@pytest.mark.filterwarnings("ignore:racing_forecast. dtype='float32'")
def test_the_effect_grows_with_the_offset():
    """From one that does not matter to one that does, and not by chance."""
    found = [forecast(offset, "float32").rounding for offset in (1e3, 1e5, 1e7)]
    assert found[0] < 0.1 < found[2]
    assert found[0] < found[1] < found[2]


def test_nothing_is_rounded_to_float64(caplog):
    caplog.set_level(logging.WARNING, logger="amc_pymc")
    found = forecast(1.7e9, "float64")
    assert found.rounding is None
    assert "rounding" not in str(found)
    assert caplog.text == ""


def test_a_kept_store_remembers(tmp_path):
    first, again = (forecast(3e4, "float32", folder=tmp_path).rounding for _ in range(2))
    assert first == again


def test_steps_have_it():
    values = data(1e3)
    rows = amc.Rows(values, dtype="float32")
    step = amc.RacingMetropolis(rows=rows, model=build(values), progressbar=False)
    assert step.prepared.rounding == pytest.approx(forecast(1e3, "float32").rounding)


def test_the_sample_is_of_rows_of_the_source():
    """All of it, in the order of the source."""
    values = data(1e3)
    rows = amc.Rows(values, dtype="float32")
    step = amc.RacingMetropolis(rows=rows, model=build(values), progressbar=False)
    sample = step.prepared.densities.native.store.unrounded
    assert sample.shape == (4_096, 2)
    table = np.stack(list(values.values()), axis=1)
    if sample[0, 0] not in values["t"]:
        table = table[:, ::-1]
    places = [int(np.flatnonzero((table == row).all(axis=1))[0]) for row in sample[::64]]
    assert places == sorted(places)
    # uniform over the source: means of 64 places
    assert abs(np.mean(places) / N - 0.5) < 4 / np.sqrt(12 * 64)
