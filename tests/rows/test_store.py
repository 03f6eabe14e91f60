"""A store holds its rows, by group if there are groups, or it is refused; processes share it."""

import json
import os
import pickle
import re
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from rows.packings import (
    COLUMNS,
    GROUPS,
    Copies,
    InGroups,
    assert_in_groups,
    frame,
    make_data,
    make_store,
    table_of,
)

from amc_pymc.rows import writer

N = 5_000
BOTH = pytest.mark.parametrize("kind", [Copies, InGroups])


def data_of(kind, n=N):
    return make_data(n, groups=GROUPS if kind is InGroups else None)


def facts_of(file):
    return json.loads(file.with_suffix(".json").read_text())


# --- what is stored -------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 400_000])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_rows_keep_the_order_of_the_source(n, dtype):
    data = make_data(n)
    store = make_store(data, memory=8 * 2**20, dtype=dtype)
    np.testing.assert_array_equal(store.data, table_of(data).astype(dtype))
    assert store.data.dtype == dtype and store.first.size == 0


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_many_buckets(tmp_path, dtype):
    """A group that is larger than a bucket."""
    data, packing = make_data(400_000, groups=300), InGroups()
    data["g"][::3] = 77
    data["X"] = data["X"].astype(dtype)
    packing.n_levels = 300
    for _ in range(2):  # made, and opened
        store = make_store(data, packing, memory=8 * 2**20, dtype=dtype, folder=tmp_path)
        assert_in_groups(store, data, 300)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rows.json", "rows.npy"]


@BOTH
def test_memory_is_bounded(kind, tmp_path):
    """A pass over 40 MB of arrays on disk takes what it was allowed, for all rows alike."""
    for name, a in data_of(kind, 1_200_000).items():
        np.save(tmp_path / f"{name}.npy", a)
    source = {p.name: np.load(tmp_path / f"{p.name}.npy", mmap_mode="r") for p in kind.placeholders}
    packing, memory = kind(), 8 * 2**20
    tracemalloc.start()
    try:
        make_store(source, packing, memory=memory)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < memory
    assert max(packing.sizes) * 8 * 6 < memory / 8
    assert sum(packing.sizes) == 1_200_000 + 16


def test_float32():
    data = make_data(N)
    data["y"][77] = 2**24 + 1
    with pytest.raises(ValueError, match=r"cannot hold 16777217.0 in row 77; use 'float64'"):
        make_store(data, dtype="float32")
    data["y"][77] = 1
    data["X"][78, 0] = 1e300
    with pytest.raises(ValueError, match=r"cannot hold 1e\+300 in row 78"):
        make_store(data, dtype="float32")
    data["X"][78, 0] = 1.0
    data["X"][:, 1] = 0.1  # a constant may be rounded
    make_store(data, dtype="float32")
    data["X"][:, 0] += 1e6
    with pytest.raises(ValueError, match="or subtract what all rows have in common"):
        make_store(data, dtype="float32")


def test_released_rows_are_read_again():
    data = make_data(N)
    store = make_store(data)
    view = store.data
    store.release()
    np.testing.assert_array_equal(view, table_of(data))
    for _ in range(3):
        store.touch(5_000.0)
    np.testing.assert_array_equal(view, table_of(data))


@BOTH
@pytest.mark.parametrize("keep", [True, False])
def test_a_pickled_store_is_the_same_file(kind, keep, tmp_path):
    """In another process, too; and the pickle has no rows in it."""
    store = make_store(data_of(kind), kind(), folder=tmp_path if keep else None)
    expected, text = np.array(store.data), pickle.dumps(store)
    assert len(text) < 5_000
    np.testing.assert_array_equal(pickle.loads(text).data, expected)
    np.testing.assert_array_equal(pickle.loads(text).first, store.first)
    (tmp_path / "pickle").write_bytes(text)
    code = (
        "import pickle, sys; s = pickle.load(open(sys.argv[1], 'rb'));"
        "print(s.data.sum().hex(), s.first.sum())"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "pickle")], capture_output=True, text=True
    )
    assert out.stdout.split() == [expected.sum().hex(), str(int(store.first.sum()))], out


def test_a_store_that_is_gone_is_named():
    store = make_store(make_data(N))
    text = pickle.dumps(store)
    del store
    others = [make_store(make_data(N)) for _ in range(3)]  # one may have its place
    with pytest.raises(ValueError, match=r"cannot be opened.*pass amc_pymc.Rows\(folder=\)"):
        _ = pickle.loads(text).data
    del others


# --- stores that are kept -------------------------------------------------------------------------


@pytest.fixture(params=[Copies, InGroups])
def kept(request, tmp_path):
    """Kind of the packing, data, and file of their store."""
    data = data_of(request.param)
    make_store(data, request.param(), folder=tmp_path)
    return request.param, data, tmp_path / "rows.npy"


def refused(kept, message, packing=None, **kwargs):
    kind, data, file = kept
    message = f"{re.escape(str(file))} cannot be used: .*{message}.*Delete it"
    with pytest.raises(ValueError, match=message):
        make_store(data, packing or kind(), folder=file.parent, **kwargs)


def test_a_kept_store_is_read_again(kept):
    """And NumPy reads it, too."""
    kind, data, file = kept
    before, packing = file.stat().st_mtime_ns, kind()
    store = make_store(data, packing, folder=file.parent)
    assert packing.sizes == [16]  # the sample that tells a packing
    assert file.stat().st_mtime_ns == before
    np.testing.assert_array_equal(store.data, make_store(data, kind()).data)
    np.testing.assert_array_equal(store.data, np.load(file, mmap_mode="r"))


def test_a_store_that_is_deleted_is_made_anew(kept):
    kind, data, file = kept
    data["y"][-1] += 1
    file.unlink()  # what was said of it stays
    for _ in range(2):
        store = make_store(data, kind(), folder=file.parent)
        np.testing.assert_array_equal(store.data, make_store(data, kind()).data)


def other(kind, **attributes):
    return type("Other", (kind,), attributes)()


def next_group(self, chunk):
    return (chunk["g"] + 1) % GROUPS


OTHERS = {
    "model": ({"digest": "others"}, "it was made for another model"),
    "columns": (
        {
            "n_columns": 4,
            "whole": np.array([False, False, True, False]),
            "pack": lambda self, c, first: np.column_stack([c["X"], c["y"], c["y"]]),
        },
        r"another number of columns \(3, not 4\)",
    ),
    "values": (
        {"pack": lambda self, c, first: 2.0 * np.column_stack([c["X"], c["y"]])},
        "what the model makes of them have changed",
    ),
    "index": (
        {"level_names": ("y",), "levels": lambda self, c: c["y"] % GROUPS},
        r"other groups, or in none \(\[40, 'g'\], not \[40, 'y'\]\)",
    ),
    "number": ({"n_levels": GROUPS + 1}, r"or in none \(\[40, 'g'\], not \[41, 'g'\]\)"),
    "levels": ({"levels": next_group}, "what the model makes of them have changed"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_store_of_something_else_is_refused(kept, case):
    attributes, message = OTHERS[case]
    if kept[0] is InGroups or ("levels" not in attributes and "n_levels" not in attributes):
        refused(kept, message, other(kept[0], **attributes))


def test_a_store_of_another_type_is_refused(kept):
    refused(kept, r"another dtype \(float64, not float32\)", dtype="float32")


def test_a_store_of_other_rows_is_refused(kept):
    kind, data, file = kept
    refused((kind, {n: a[:-1] for n, a in data.items()}, file), "the source has changed since")
    data["y"][-1] += 1
    refused(kept, "the source has changed since")


def changed(place):
    """One bit, counted from the end if negative."""

    def damage(file):
        content = bytearray(file.read_bytes())
        content[place] ^= 1
        file.write_bytes(content)

    return damage


def in_json(damage):
    return lambda file: damage(file.with_suffix(".json"))


def described(**facts):
    """Other facts."""
    return lambda file: file.with_suffix(".json").write_text(json.dumps(facts_of(file) | facts))


DAMAGE = {
    "cut": (lambda file: os.truncate(file, file.stat().st_size - 8), "bytes, not"),
    "header": (changed(30), "its bytes are damaged"),
    "row": (changed(60_000), "its bytes are damaged"),
    "alone": (lambda file: file.with_suffix(".json").unlink(), "there is no rows.json beside it"),
    "json": (in_json(changed(0)), "rows.json beside it is damaged"),
    "json list": (in_json(lambda f: f.write_text("[1]")), "rows.json beside it is damaged"),
    "format": (described(format=99), "format 99, this version reads format 4"),
    "no table": (described(first=None), "rows.json beside it is damaged"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_store_is_refused(kept, case):
    damage, message = DAMAGE[case]
    damage(kept[2])
    refused(kept, message)


@pytest.mark.parametrize("forge", [lambda f: f[::-1], lambda f: f + 1, lambda f: f[:-1]])
def test_a_forged_table_of_groups_is_refused(tmp_path, forge):
    data, file = data_of(InGroups), tmp_path / "rows.npy"
    table = forge(make_store(data, InGroups(), folder=tmp_path).first)
    described(first=table.tolist())(file)
    refused(
        (InGroups, data, file), f"its table of groups does not increase from 0 to its {N:,} rows"
    )


def test_another_store_in_the_place_of_a_pickled_one_is_refused(kept):
    kind, data, file = kept
    text = pickle.dumps(make_store(data, kind(), folder=file.parent))
    file.unlink()
    make_store(data, kind(), folder=file.parent)
    with pytest.raises(ValueError, match="cannot be opened: another file has taken its place"):
        _ = pickle.loads(text).data


# --- rows that are refused ------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-1, GROUPS])
@pytest.mark.parametrize("row", [2, 2_500])
def test_rows_without_a_group_are_named(value, row, monkeypatch):
    monkeypatch.setattr(writer, "_CHUNK", 700)
    data = data_of(InGroups)
    data["g"][row] = value
    message = f"'g' must number groups from 0 to {GROUPS - 1}, got {value} in row {row}"
    with pytest.raises(ValueError, match=message):
        make_store(data, InGroups())


def test_the_column_of_a_table_is_named(tmp_path):
    pytest.importorskip("pyarrow")
    data = data_of(InGroups)
    data["g"][1_000:1_002] = GROUPS
    frame(data).to_parquet(tmp_path / "rows.parquet")
    message = re.escape("column 'shop' ('g') must number groups from 0 to 39, got 40 in row 1000")
    with pytest.raises(ValueError, match=message):
        make_store(tmp_path / "rows.parquet", InGroups(), columns=COLUMNS)


class Reading(InGroups):
    """A change of the source after some of the rows of a group have been counted."""

    def __init__(self, change, rows):
        super().__init__()
        self.change, self.left = change, rows

    def levels(self, chunk):
        found = super().levels(chunk).copy()
        self.left -= len(found)
        if self.left <= 0:
            self.change()
        return found


@pytest.mark.parametrize("value", [0, GROUPS - 1])
@pytest.mark.parametrize("n", [N, 300_000])
def test_a_source_that_changes_between_passes_is_refused(tmp_path, n, value):
    """Of one bucket, and of several."""
    data = data_of(InGroups, n)
    packing = Reading(lambda: data["g"].fill(value), n + 16)
    with pytest.raises(ValueError, match="the source has changed while it was read"):
        make_store(data, packing, memory=8 * 2**20, folder=tmp_path)
    assert not list(tmp_path.iterdir())
