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
    assert sum(packing.sizes) == 1_200_000


def test_released_rows_are_read_again():
    data = make_data(N)
    store = make_store(data)
    view = store.data
    store.release()
    np.testing.assert_array_equal(view, table_of(data))
    for _ in range(3):
        store.touch(5_000.0)
    np.testing.assert_array_equal(view, table_of(data))


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_pickled_store_is_the_same_file(elsewhere, tmp_path):
    """In another process, too; and the pickle has no rows in it."""
    store = make_store(make_data(N), folder=tmp_path if elsewhere else None)
    expected, text = np.array(store.data), pickle.dumps(store)
    assert len(text) < 5_000
    np.testing.assert_array_equal(pickle.loads(text).data, expected)
    (tmp_path / "pickle").write_bytes(text)
    code = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).data.sum().hex())"
    out = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "pickle")], capture_output=True, text=True
    )
    assert out.stdout.split() == [expected.sum().hex()], out


def test_another_file_in_the_place_of_a_store_is_refused():
    first, second = (make_store(make_data(N)) for _ in range(2))
    lost = pickle.loads(pickle.dumps(first))
    lost.path = second.path
    with pytest.raises(ValueError, match="another file has taken its place"):
        _ = lost.data


def test_a_store_that_is_gone_is_named():
    store = make_store(make_data(N))
    text = pickle.dumps(store)
    del store
    others = [make_store(make_data(N)) for _ in range(3)]  # one may have its place
    with pytest.raises(ValueError, match=r"cannot be opened.*make it anew"):
        _ = pickle.loads(text).data
    del others
