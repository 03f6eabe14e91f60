"""Declared variables: datasets have the declared dims, types and attributes, or there is an error."""

import numpy as np
import pytest
import xarray as xr

from amc_pymc.results import as_table, declared_dataset, described
from amc_pymc.results.tables import RESULTS

TABLE = as_table("""
log_mean | arm     | float | nats  | log | logarithm of the mean
draws    | arm     | int   | draws |     | number of draws
path     | arm row | float |       |     | path
total    |         | float |       |     | sum
""")


def test_a_dataset_has_what_is_declared():
    values = {"log_mean": [1.0, 2.0], "draws": [3, 4], "path": np.zeros((2, 3)), "total": 1}
    found = declared_dataset(TABLE, values, {"arm": ["a", "b"]}, {"flags": ""})
    assert found["log_mean"].attrs == {
        "units": "nats", "scale": "log", "description": "logarithm of the mean",
    }  # fmt: skip
    assert found["draws"].attrs == {"units": "draws", "description": "number of draws"}
    assert [found[n].dims for n in values] == [("arm",), ("arm",), ("arm", "row"), ()]
    assert found["draws"].dtype == np.int64
    assert found["total"].dtype == np.float64  # an integer fits
    assert found.attrs == {"flags": ""}


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"mean": [1.0]}, KeyError),
        ({"draws": 3}, ValueError),
        ({"path": [1.0, 2.0]}, ValueError),
        ({"draws": [1.5, 2.0]}, TypeError),
    ],
)
def test_what_is_not_declared_is_refused(values, error):
    with pytest.raises(error):
        declared_dataset(TABLE, values)


def test_variables_of_a_model_stay_as_they_are():
    data = xr.Dataset({"draws": ("arm", [1, 2]), "mu": ("arm", [0.1, 0.2])})
    found = described(data, TABLE)
    assert found["draws"].attrs["units"] == "draws"
    assert found["mu"].attrs == {}
    with pytest.raises(ValueError, match=r"path must have dims \('arm', 'row'\)"):
        described(xr.Dataset({"path": ("arm", [1.0])}), TABLE)


@pytest.mark.parametrize("function", RESULTS)
def test_tables_are_complete(function):
    for table in RESULTS[function].values():
        for name, variable in table.items():
            assert variable.name == name
            assert variable.dtype in ("float", "int", "bool", "text")
            assert variable.scale in ("", "log")
            assert (variable.scale == "log") <= (variable.unit == "nats")
            assert len(variable.meaning.split()) > 0
            assert not variable.meaning.endswith(".")
