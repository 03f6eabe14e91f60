"""A store in groups holds the rows of each group together, in the order of the source."""

import pickle
import re
import zlib

import numpy as np
import pytest

from row_store.packings import Copies, table_of
from row_store.test_sources import SOURCES

from amc_pymc.row_store import Placeholder, Rows, RowStore, group_writer, open_source, stored_groups
from amc_pymc.row_store.group_writer import Checksums, group_runs
from amc_pymc.row_store.header import encoded, end_of_rows, read_header

N, G, BEYOND = 3_000, 40, 5


class InGroups(Copies):
    """Columns x0, x1, y, in groups of g."""

    placeholders = (*Copies.placeholders, Placeholder("g", (), np.dtype(np.int64)))
    level_names, n_levels, beyond = ("g",), G, BEYOND

    def levels(self, chunk):
        assert list(chunk) == ["g"]  # nothing else is read to count rows
        return chunk["g"]


def make_data(n=N, n_levels=G):
    """Group 3 is empty, and so is the last one; group 5 has one row."""
    rng = np.random.default_rng(2)
    g = rng.integers(0, n_levels - 1, n)
    g[np.isin(g, (3, 5))] = 0
    g[n // 2] = 5
    return {"X": rng.normal(size=(n, 2)), "y": rng.integers(0, 1000, n), "g": g}


def make_store(source, packing=None, columns=None, **kwargs):
    packing = packing or InGroups()
    rows = Rows(source, columns, **kwargs)
    return stored_groups(rows, open_source(rows, packing.placeholders), packing, progressbar=False)


def assert_in_groups(store, data, n_levels=G):
    order = np.argsort(data["g"], kind="stable")
    sizes = np.bincount(data["g"], minlength=n_levels)
    np.testing.assert_array_equal(store.first, np.append(0, np.cumsum(sizes)))
    rows = table_of(data)[order]
    np.testing.assert_array_equal(store.data[: len(rows)], rows)
    np.testing.assert_array_equal(store.data[len(rows) :], np.tile(rows[-1], (BEYOND, 1)))


def frame(data):
    import pandas as pd

    x = data["X"].T
    return pd.DataFrame({"a": x[0], "b": x[1], "y": data["y"], "shop": data["g"]})


COLUMNS = {"X": ["a", "b"], "y": "y", "g": "shop"}


@pytest.mark.parametrize("source", [s for s in SOURCES if "frame" not in s.__name__])
def test_sources(source, tmp_path, monkeypatch):
    data = make_data()
    if source.__name__.startswith("parquet"):
        monkeypatch.setattr("row_store.test_sources.frame", frame)
    if source.__name__ == "zarr_arrays":
        zarr = pytest.importorskip("zarr")
        given, columns = {n: zarr.array(a, chunks=a[:700].shape) for n, a in data.items()}, None
    elif source.__name__ == "dask_arrays":
        da = pytest.importorskip("dask.array")
        given, columns = {n: da.from_array(a, chunks=900) for n, a in data.items()}, None
    elif source.__name__ == "lists":
        given, columns = {n: a.tolist() for n, a in data.items()}, None
    else:
        given, columns = source(data, tmp_path)
        columns = COLUMNS if columns else None
    assert_in_groups(make_store(given, columns=columns), data)


def test_a_dask_dataframe():
    dd = pytest.importorskip("dask.dataframe")
    data = make_data()
    given = dd.from_pandas(frame(data), npartitions=4)
    assert_in_groups(make_store(given, columns=COLUMNS), data)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_many_buckets(tmp_path, dtype):
    """A group that is larger than a bucket, and blocks that end within buckets."""
    data = make_data(400_000, 300)
    data["g"][::3] = 77
    if dtype == "float32":
        data["X"] = data["X"].astype(np.float32)
    packing = InGroups()
    packing.n_levels = 300
    store = make_store(data, packing, memory=8 * 2**20, dtype=dtype, folder=tmp_path)
    assert_in_groups(store, data, 300)
    again = make_store(data, packing, memory=8 * 2**20, dtype=dtype, folder=tmp_path)
    np.testing.assert_array_equal(again.first, store.first)
    assert [p.name for p in tmp_path.iterdir()] == ["rows.bin"]  # no levels are left behind


def test_buckets_are_runs_of_groups():
    first = np.array([0, 3, 5, 5, 15, 16, 16])
    np.testing.assert_array_equal(group_runs(first, 6), [0, 3, 4, 6])
    for size in range(1, 20):
        runs = group_runs(first, size)
        assert runs[0] == 0 and runs[-1] == 6 and np.all(np.diff(runs) > 0)
        rows = np.diff(first[runs])
        assert np.all((rows <= size) | (np.diff(runs) == 1))


def test_checksums_do_not_depend_on_the_pieces():
    text = np.arange(1_000, dtype=np.int16).view(np.uint8)
    found = []
    for step in (1, 64, 100, 999, 5_000):
        sums = Checksums(100)
        for start in range(0, text.size, step):
            sums.add(text[start : start + step])
        found.append(sums.end())
    assert len(found[0]) == 20 and all(f == found[0] for f in found)


def test_the_order_of_groups_needs_no_seed(tmp_path):
    data = make_data()
    make_store(data, folder=tmp_path, seed=1)
    make_store(data, folder=tmp_path, seed=2, shuffle=False)


def test_a_pickled_store_knows_its_groups():
    data = make_data()
    store = make_store(data)
    text = pickle.dumps(store)
    assert len(text) < 5_000
    assert_in_groups(pickle.loads(text), data)


# --- what is refused ------------------------------------------------------------------------------


class OtherIndex(InGroups):
    level_names = ("y",)

    def levels(self, chunk):
        return chunk["y"] % G


class MoreGroups(InGroups):
    n_levels = G + 1


class NextGroup(InGroups):
    """The same index, read in another way."""

    def levels(self, chunk):
        return (chunk["g"] + 1) % G


@pytest.mark.parametrize(
    ("packing", "reason"),
    [
        (OtherIndex, r"grouped by other data \(\['g'\], not \['y'\]\)"),
        (MoreGroups, r"another number of groups, or in none \(40, not 41\)"),
        (NextGroup, "what the model makes of them have changed"),
    ],
)
def test_a_store_of_other_groups_is_refused(packing, reason, tmp_path):
    data = make_data()
    make_store(data, folder=tmp_path)
    with pytest.raises(ValueError, match=f"cannot be used: .*{reason}.*Delete it"):
        make_store(data, packing(), folder=tmp_path)


def test_stores_with_and_without_groups_are_told_apart(tmp_path):
    from row_store import packings

    data = make_data()
    packings.make_store({n: data[n] for n in ("X", "y")}, folder=tmp_path)
    with pytest.raises(ValueError, match=r"in none \(None, not 40\)"):
        make_store(data, folder=tmp_path)
    (tmp_path / "rows.bin").unlink()
    make_store(data, folder=tmp_path)
    with pytest.raises(ValueError, match=r"in none \(40, not None\)"):
        packings.make_store({n: data[n] for n in ("X", "y")}, folder=tmp_path)


@pytest.mark.parametrize(
    ("place", "reason"), [(-30, "its table of groups is"), (-8 * G - 40, "its rows from 0 on are")]
)
def test_a_damaged_store_is_refused(tmp_path, place, reason):
    data, file = make_data(), tmp_path / "rows.bin"
    make_store(data, folder=tmp_path)
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=f"cannot be used: {reason} damaged"):
        make_store(data, folder=tmp_path)


@pytest.mark.parametrize("forge", [lambda f: f[::-1], lambda f: f + 1, lambda f: f // 2])
def test_a_forged_table_of_groups_is_refused(tmp_path, forge):
    """Its checksum is right, but it does not lead from 0 to N."""
    data, file = make_data(), tmp_path / "rows.bin"
    store = make_store(data, folder=tmp_path)
    table = forge(store.first).astype("<i8").tobytes()
    with open(file, "r+b") as f:
        header = read_header(f) | {"first_checksum": f"{zlib.crc32(table):08x}"}
        f.seek(end_of_rows(header))
        f.write(table)
        f.seek(0)
        f.write(encoded(header))
    message = f"{re.escape(str(file))} cannot be used: its table of groups does not increase from 0"
    with pytest.raises(ValueError, match=message):
        make_store(data, folder=tmp_path)
    with pytest.raises(ValueError, match=f"{re.escape(str(file))} cannot be opened: its table of"):
        _ = RowStore(str(file), header).first


@pytest.mark.parametrize("value", [-1, G])
@pytest.mark.parametrize("row", [2, 2_500])
def test_rows_without_a_group_are_named(value, row, monkeypatch):
    monkeypatch.setattr(group_writer, "_CHUNK", 700)
    data = make_data()
    data["g"][row] = value
    message = f"'g' must number groups from 0 to {G - 1}, got {value} in row {row} \\(0 more"
    with pytest.raises(ValueError, match=message):
        make_store(data)


def test_the_column_of_a_table_is_named(tmp_path):
    pytest.importorskip("pyarrow")
    data = make_data()
    data["g"][1_000:1_002] = G
    frame(data).to_parquet(tmp_path / "rows.parquet")
    message = re.escape(
        "column 'shop' ('g') must number groups from 0 to 39, got 40 in row 1000 (1"
    )
    with pytest.raises(ValueError, match=message):
        make_store(tmp_path / "rows.parquet", columns=COLUMNS)


def test_groups_are_whole_numbers():
    data = make_data()
    data["g"] = data["g"] + np.where(np.arange(N) == 9, 0.5, 0.0)
    with pytest.raises(ValueError, match=r"'g' must fit the placeholder.*in row 9"):
        make_store(data)


def test_a_source_that_changes_between_passes_is_refused(monkeypatch, tmp_path):
    data = make_data()
    real = group_writer._counts

    def counts(*args):
        found = real(*args)
        data["g"][:] = 0
        return found

    monkeypatch.setattr(group_writer, "_counts", counts)
    with pytest.raises(ValueError, match="the source has changed while it was read"):
        make_store(data, folder=tmp_path)
    assert not list(tmp_path.iterdir())
