"""A store holds its rows; processes share it."""

import pickle
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from rows.packings import Copies, make_data, make_store, table_of

N = 5_000


# --- what is stored -------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 400_000])
def test_rows_keep_the_order_of_the_source(n):
    data = make_data(n)
    store = make_store(data, memory=8 * 2**20)
    np.testing.assert_array_equal(store.data, table_of(data))


def test_memory_is_bounded(tmp_path):
    """A pass over 40 MB of arrays on disk takes what it was allowed, for all rows alike."""
    for name, a in make_data(1_200_000).items():
        np.save(tmp_path / f"{name}.npy", a)
    source = {
        p.name: np.load(tmp_path / f"{p.name}.npy", mmap_mode="r") for p in Copies.placeholders
    }
    packing, memory = Copies(), 8 * 2**20
    tracemalloc.start()
    try:
        make_store(source, packing, memory=memory)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < memory
    assert max(packing.sizes) * 8 * 6 < memory / 8
    assert sum(packing.sizes) == 1_200_000 + 16


def test_released_rows_are_read_again():
    data = make_data(N)
    store = make_store(data)
    view = store.data
    store.release()
    np.testing.assert_array_equal(view, table_of(data))
    for _ in range(3):
        store.touch(5_000.0)
    np.testing.assert_array_equal(view, table_of(data))


@pytest.mark.parametrize("keep", [True, False])
def test_a_pickled_store_is_the_same_file(keep, tmp_path):
    """In another process, too; and the pickle has no rows in it."""
    store = make_store(make_data(N), folder=tmp_path if keep else None)
    expected, text = np.array(store.data), pickle.dumps(store)
    assert len(text) < 5_000
    np.testing.assert_array_equal(pickle.loads(text).data, expected)
    (tmp_path / "pickle").write_bytes(text)
    code = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).data.sum().hex())"
    out = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "pickle")], capture_output=True, text=True
    )
    assert out.stdout.split() == [expected.sum().hex()], out


def test_a_store_that_is_gone_is_named():
    store = make_store(make_data(N))
    text = pickle.dumps(store)
    del store
    others = [make_store(make_data(N)) for _ in range(3)]  # one may have its place
    with pytest.raises(ValueError, match=r"cannot be opened.*pass amc_pymc.Rows\(folder=\)"):
        _ = pickle.loads(text).data
    del others


# --- stores that are kept -------------------------------------------------------------------------


def in_files(data, folder):
    """Arrays as memory maps of new files."""
    for name, a in data.items():
        (folder / f"{name}.npy").unlink(missing_ok=True)
        np.save(folder / f"{name}.npy", a)
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in data}


@pytest.fixture
def kept(tmp_path):
    """Data, and the file of their store."""
    data = in_files(make_data(N), tmp_path)
    make_store(data, folder=tmp_path)
    (file,) = tmp_path.glob("rows-*.npy")
    return data, file


def test_a_kept_store_is_read_again(kept):
    """And NumPy reads it, too."""
    data, file = kept
    before, packing = file.stat().st_mtime_ns, Copies()
    store = make_store(data, packing, folder=file.parent)
    assert packing.sizes == [16]  # the sample that tells a packing
    assert file.stat().st_mtime_ns == before
    np.testing.assert_array_equal(store.data, make_store(data).data)
    np.testing.assert_array_equal(store.data, np.load(file, mmap_mode="r"))


OTHERS = {
    "model": {"digest": "others"},
    "columns": {
        "n_columns": 4,
        "pack": lambda self, c, first: np.column_stack([c["X"], c["y"], c["y"]]),
    },
    "values": {"pack": lambda self, c, first: 2.0 * np.column_stack([c["X"], c["y"]])},
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_store_of_something_else_is_another_file(kept, case):
    data, file = kept
    packing = type("Other", (Copies,), OTHERS[case])()
    make_store(data, packing, folder=file.parent)
    assert len(packing.sizes or [16, N]) == 2 and len(list(file.parent.glob("rows-*.npy"))) == 2


def test_a_store_of_other_rows_is_another_file(kept):
    data, file = kept
    y = np.array(data["y"])
    y[-1] += 1
    for other in ({n: a[:-1] for n, a in data.items()}, in_files(data | {"y": y}, file.parent)):
        store = make_store(other, folder=file.parent)
        np.testing.assert_array_equal(store.data, make_store(other).data)
    assert len(list(file.parent.glob("rows-*.npy"))) == 3


def test_another_store_in_the_place_of_a_pickled_one_is_refused(kept):
    data, file = kept
    text = pickle.dumps(make_store(data, folder=file.parent))
    file.unlink()
    make_store(data, folder=file.parent)
    with pytest.raises(ValueError, match="cannot be opened: another file has taken its place"):
        _ = pickle.loads(text).data
