"""A store is what its header says, or it is refused; processes share it."""

import json
import os
import pickle
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from row_store.packings import Copies, make_data, make_store, table_of

from amc_pymc.row_store import Placeholder
from amc_pymc.row_store.header import encoded, read_header

N = 5_000


@pytest.fixture
def kept(tmp_path):
    """Data, the folder of their store, and its file."""
    data = make_data(N)
    make_store(data, folder=tmp_path)
    return data, tmp_path, tmp_path / "rows.bin"


def test_a_kept_store_is_read_again(kept):
    data, folder, file = kept
    before = file.stat().st_mtime_ns
    packing = Copies()
    store = make_store(data, packing, folder=folder)
    assert packing.sizes == [16]  # the sample that tells a packing
    assert file.stat().st_mtime_ns == before
    np.testing.assert_array_equal(store.data, make_store(data).data)
    assert [p.name for p in folder.iterdir()] == ["rows.bin"]


def test_what_is_said_of_a_store(tmp_path, caplog):
    caplog.set_level("INFO", logger="amc_pymc")
    make_store(make_data(N), folder=tmp_path)
    assert re.search(
        rf"5,000 rows of 3 columns, 0 MiB, were written to {tmp_path}/rows.bin in 0 s with buffers "
        r"of 256 MiB; the store is kept",
        caplog.text,
    )
    make_store(make_data(N), folder=tmp_path)
    assert "made by an earlier run" in caplog.text
    make_store(make_data(N))
    assert "removed with the last step that reads it" in caplog.text


class Others(Copies):
    digest = "others"


class Twice(Copies):
    def pack(self, chunk, first):
        return 2.0 * super().pack(chunk, first)


class Wider(Copies):
    n_columns, whole = 4, np.array([False, False, True, False])

    def pack(self, chunk, first):
        return np.column_stack([super().pack(chunk, first), chunk["y"]])


@pytest.mark.parametrize(
    ("packing", "kwargs", "reason"),
    [
        (Others, {}, "it was made for another model"),
        (Wider, {}, r"another number of columns \(3, not 4\)"),
        (Twice, {}, "what the model makes of them have changed"),
        (Copies, {"seed": 1}, r"another seed \(0, not 1\)"),
        (Copies, {"shuffle": False}, "another choice of shuffle"),
        (Copies, {"dtype": "float32"}, r"another dtype \('float64', not 'float32'\)"),
    ],
)
def test_a_store_of_something_else_is_refused(kept, packing, kwargs, reason):
    data, folder, file = kept
    message = f"{re.escape(str(file))} cannot be used: .*{reason}.*Delete it"
    with pytest.raises(ValueError, match=message):
        make_store(data, packing(), folder=folder, **kwargs)


def test_a_store_of_other_rows_is_refused(kept):
    data, folder, _ = kept
    with pytest.raises(ValueError, match="the source has changed since"):
        make_store({n: a[:-1] for n, a in data.items()}, folder=folder)
    data["y"][-1] += 1
    with pytest.raises(ValueError, match="the source has changed since"):
        make_store(data, folder=folder)


def cut(file):
    with open(file, "r+b") as f:
        f.truncate(file.stat().st_size - 8)


def cut_header(file):
    with open(file, "r+b") as f:
        f.truncate(100)


def lengthen(file):
    with open(file, "ab") as f:
        f.write(b"more")


def empty(file):
    file.write_bytes(b"")


def other_file(file):
    file.write_bytes(b"x" * 10_000)


def flip_header(file):
    content = bytearray(file.read_bytes())
    content[60] ^= 1
    file.write_bytes(content)


def flip_row(file):
    content = bytearray(file.read_bytes())
    content[-1000] ^= 1
    file.write_bytes(content)


def other_format(file):
    with open(file, "r+b") as f:
        header = read_header(f)
        f.seek(0)
        f.write(encoded(header | {"format": 99}))


DAMAGE = {
    cut: "bytes, not the",
    cut_header: "its header is damaged",
    lengthen: "bytes, not the",
    empty: "it is no store of rows",
    other_file: "it is no store of rows",
    flip_header: "its header is damaged",
    flip_row: "its rows from 0 on are damaged",
    other_format: "format 99, this version reads format 2",
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda d: d.__name__)
def test_a_damaged_store_is_refused(kept, damage):
    data, folder, file = kept
    damage(file)
    with pytest.raises(ValueError, match=f"cannot be used: .*{DAMAGE[damage]}.*Delete it"):
        make_store(data, folder=folder)


def test_every_block_of_a_touched_store_is_checked(tmp_path):
    """One bit among 25 blocks; nobody looks at all of them if the file was not touched."""
    data = make_data(400_000)
    file = tmp_path / "rows.bin"
    make_store(data, folder=tmp_path, memory=8 * 2**20)
    with open(file, "r+b") as f:
        header = read_header(f)
        assert len(header["checksums"]) >= 5
        f.seek(header["offset"] + 3 * header["block_rows"] * 24 + 1000)
        f.write(b"!")
    later = time.time() + 100.0
    os.utime(file, (later, later))
    start = 3 * header["block_rows"]
    with pytest.raises(ValueError, match=f"its rows from {start:,} on are damaged"):
        make_store(data, folder=tmp_path, memory=8 * 2**20)


def test_a_header_has_room_for_its_checksums(kept):
    with open(kept[2], "rb") as f:
        header = read_header(f)
    assert header["offset"] % 4096 == 0
    assert len(json.dumps(header)) < header["offset"]


@pytest.mark.parametrize("keep", [True, False])
def test_a_pickled_store_is_the_same_file(keep, tmp_path):
    """In another process, too; and the pickle has no rows in it."""
    data = make_data(N)
    store = make_store(data, folder=tmp_path if keep else None)
    expected = np.array(store.data)
    text = pickle.dumps(store)
    assert len(text) < 5_000
    np.testing.assert_array_equal(pickle.loads(text).data, expected)
    (tmp_path / "pickle").write_bytes(text)
    code = (
        "import pickle, sys; s = pickle.load(open(sys.argv[1], 'rb'));"
        "print(s.data.sum().hex(), s.data.shape)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "pickle")], capture_output=True, text=True
    )
    assert out.stdout.split()[0] == expected.sum().hex(), out


def test_a_store_that_is_gone_is_named():
    store = make_store(make_data(N))
    text = pickle.dumps(store)
    del store
    with pytest.raises(ValueError, match=r"cannot be opened.*pass amc_pymc.Rows\(folder=\)"):
        _ = pickle.loads(text).data


def test_released_rows_are_read_again():
    data = make_data(N)
    store = make_store(data, shuffle=False)
    view = store.data
    store.release()
    np.testing.assert_array_equal(view, table_of(data))
    for _ in range(3):
        store.touch(5_000.0)
    np.testing.assert_array_equal(view, table_of(data))


def test_float32():
    data = make_data(N)
    store = make_store(data, shuffle=False, dtype="float32")
    assert store.data.dtype == np.float32
    np.testing.assert_array_equal(store.data, table_of(data).astype(np.float32))
    data["y"][77] = 2**24 + 1
    with pytest.raises(ValueError, match=r"cannot hold 16777217.0 in row 77; use 'float64'"):
        make_store(data, dtype="float32")
    data["y"][77] = 1
    data["X"][78, 0] = 1e300
    with pytest.raises(ValueError, match=r"cannot hold 1e\+300 in row 78"):
        make_store(data, dtype="float32")


def test_a_placeholder_of_a_smaller_type():
    """A model of floatX=float32 reads rows of float64, but not numbers that it cannot hold."""

    class Single(Copies):
        placeholders = (Placeholder("X", (2,), np.dtype(np.float32)), Copies.placeholders[1])

    data = make_data(N)
    make_store(data, Single())
    data["X"][5, 0] = 1e300
    with pytest.raises(ValueError, match=r"'X' at \[0\] must fit float32, got 1e\+300 in row 5"):
        make_store(data, Single())
