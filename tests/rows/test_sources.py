"""Every kind of source gives the same store."""

import sys

import numpy as np
import pytest

from rows.packings import (
    COLUMNS,
    Copies,
    frame,
    make_data,
    make_store,
    table_of,
)

N = 3_000


def columns_of(data):
    return {name: COLUMNS[name] for name in data}


def arrays(data, folder):
    return data, None


def memmaps(data, folder):
    for name, a in data.items():
        np.save(folder / f"{name}.npy", a)
    return {n: np.load(folder / f"{n}.npy", mmap_mode="r") for n in data}, None


def zarr_arrays(data, folder):
    zarr = pytest.importorskip("zarr")
    chunks = {"X": (700, 2), "y": (500,)}
    return {n: zarr.array(a, chunks=chunks[n]) for n, a in data.items()}, None


def dask_arrays(data, folder):
    da = pytest.importorskip("dask.array")
    chunks = {"X": ((1000, 300, 1700), (2,)), "y": 900}
    return {n: da.from_array(a, chunks=chunks[n]) for n, a in data.items()}, None


def dask_frame(data, folder):
    dd = pytest.importorskip("dask.dataframe")
    return dd.from_pandas(frame(data), npartitions=4), columns_of(data)


def parquet_file(data, folder):
    pytest.importorskip("pyarrow")
    frame(data).to_parquet(folder / "rows.parquet", row_group_size=800)
    return folder / "rows.parquet", columns_of(data)


def parquet_folder(data, folder):
    pytest.importorskip("pyarrow")
    whole = frame(data)
    for k, part in enumerate(np.array_split(np.arange(len(whole)), 3)):
        whole.iloc[part].to_parquet(folder / f"part-{k}.parquet")
    return str(folder), columns_of(data)


SOURCES = [
    arrays,
    memmaps,
    zarr_arrays,
    dask_arrays,
    dask_frame,
    parquet_file,
    parquet_folder,
]


@pytest.mark.parametrize("make", SOURCES)
def test_a_source_gives_its_rows_in_order(make, tmp_path):
    data = make_data(N)
    source, columns = make(data, tmp_path)
    store = make_store(source, columns=columns)
    np.testing.assert_array_equal(store.data, table_of(data))


def test_blocks_of_a_source_are_read_once(tmp_path):
    """A chunk of a Dask array is computed once, although it is cut into several."""
    da = pytest.importorskip("dask.array")
    data, calls = make_data(20_000), []

    def noted(block):
        calls.append(len(block))
        return block

    source = {n: da.from_array(a, chunks=(10_000, -1)[: a.ndim]) for n, a in data.items()}
    source["X"] = source["X"].map_blocks(noted, dtype=float, meta=np.empty((0, 2)))
    packing = Copies()
    make_store(source, packing, memory=8 * 2**20)
    assert len(packing.sizes) == 4
    assert calls.count(10_000) == 2, calls


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    source, columns = parquet_file(make_data(100), tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow.dataset", None)
    with pytest.raises(ImportError, match=r"pip install pyarrow.*amc-pymc\[rows\]"):
        make_store(source, columns=columns)


# --- bad sources ----------------------------------------------------------------------------------


def changed(name, value):
    return make_data(50) | {name: value}


BAD = {
    "missing": (
        {"X": np.ones((50, 2))},
        ValueError,
        r"lacks 'y'; the rows of the model read pm.Data 'X', 'y'",
    ),
    "unknown": (changed("z", np.ones(50)), ValueError, r"has 'z'; the rows of the model read"),
    "lengths": (changed("y", np.ones(49)), ValueError, r"one length.*'X': 50, 'y': 49"),
    "trailing": (
        changed("X", np.ones((50, 3))),
        ValueError,
        r"'X' has the shape \(3,\), that of the pm.Data \(2,\)",
    ),
    "empty": ({"X": np.ones((0, 2)), "y": np.ones(0)}, ValueError, "at least two rows, got 0"),
    "text": (changed("y", np.array(["a"] * 50)), TypeError, "'y' must hold numbers, got <U1"),
    "object": (changed("y", object()), TypeError, r"rows\['y'\] must be an array.*object"),
    "masked": (changed("y", np.ma.ones(50)), TypeError, "masked"),
    "fraction": (
        changed("y", np.where(np.arange(50) == 7, 0.5, 1.0)),
        ValueError,
        "'y' must fit the placeholder, which holds int64, got 0.5 in row 7",
    ),
}


@pytest.mark.parametrize(("source", "error", "message"), BAD.values(), ids=BAD)
def test_bad_arrays_are_refused(source, error, message):
    with pytest.raises(error, match=message):
        make_store(source)


def test_numbers_that_are_not_finite_are_named():
    data = make_data(200_000)
    data["X"][150_000, 1] = np.inf
    with pytest.raises(ValueError, match=r"'X' at \[1\] must be finite, got inf in row 150000"):
        make_store(data)


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        (None, ValueError, r"no column 'X'; it has 'a', 'b', 'y', 's'"),
        ({"X": ["a", "nil"], "y": "y"}, ValueError, "no column 'nil'"),
        ({"X": ["a", "s"], "y": "y"}, TypeError, "column 's' must hold numbers"),
        ({"X": ["a"], "y": "y"}, ValueError, r"shape \(1,\)"),
        ({"y": "y"}, ValueError, "columns lacks 'X'"),
        ({"X": ["a", "b"], "y": "y", "z": "y"}, ValueError, "columns has 'z'"),
        ({"X": ["a", 1], "y": "y"}, TypeError, r"columns\['X'\] must be a name or names"),
    ],
)
def test_bad_columns_are_refused(columns, error, message, tmp_path):
    source, _ = parquet_file(make_data(100), tmp_path)
    with pytest.raises(error, match=message):
        make_store(source, columns=columns)


@pytest.mark.parametrize("kind", ["parquet", "dask"])
def test_missing_values_of_a_table_are_named(kind, tmp_path):
    table = frame(make_data(100))
    table["y"] = table["y"].astype("Int64")
    table.loc[42, "y"] = None
    if kind == "parquet":
        table.to_parquet(tmp_path / "t.parquet")
        source = tmp_path / "t.parquet"
    else:
        source = pytest.importorskip("dask.dataframe").from_pandas(table, npartitions=3)
    with pytest.raises(ValueError, match=r"column 'y' \('y'\) must be finite, got nan in row 42"):
        make_store(source, columns=columns_of(make_data(2)))


def test_other_bad_tables(tmp_path):
    with pytest.raises(ValueError, match="no Parquet files"):
        make_store(tmp_path)
    (tmp_path / "x.parquet").write_text("no parquet")
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        make_store(tmp_path)
    with pytest.raises(TypeError, match="got DataFrame"):
        make_store(frame(make_data(10)), columns=columns_of(make_data(2)))
    da = pytest.importorskip("dask.array")
    data = {n: da.from_array(a) for n, a in make_data(100).items()}
    data["X"] = data["X"][data["X"][:, 0] > 0]
    with pytest.raises(ValueError, match=r"unknown shape.*compute_chunk_sizes\(\)"):
        make_store(data)


def test_files_of_a_folder_must_agree(tmp_path):
    table = frame(make_data(100))
    table.to_parquet(tmp_path / "a.parquet")
    table.drop(columns="b").to_parquet(tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r"column 'b' \('X'\) must be finite, got nan in row 100"):
        make_store(tmp_path, columns=columns_of(make_data(2)))
