import numpy as np
import pytest

from amc_pymc.rows import Rows


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"columns": ["y"]}, TypeError, "columns must map.*list"),
        ({"columns": {"y": "y"}}, ValueError, "columns is for tables"),
        ({"memory": 1000}, ValueError, "memory must be at least .*1000"),
        ({"memory": 1e9}, TypeError, "memory must be an integer"),
        ({"folder": 3}, ValueError, "folder must be an existing folder or None, got 3"),
        ({"folder": "no/such/folder"}, ValueError, "existing folder or None, got 'no/such/folder'"),
    ],
)
def test_bad_settings(kwargs, error, message):
    with pytest.raises(error, match=message):
        Rows({"y": np.ones(3)}, **kwargs)


def test_a_source_must_exist():
    with pytest.raises(ValueError, match=r"source: there is no file or folder 'none\.parquet'"):
        Rows("none.parquet")


@pytest.mark.parametrize("rows", [3, np.ones(3), [np.ones(3)]])
def test_what_rows_cannot_be(rows):
    with pytest.raises(TypeError, match=r"rows must map names of pm\.Data"):
        Rows(rows)
