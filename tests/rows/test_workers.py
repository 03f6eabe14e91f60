"""Rows that workers of a Dask cluster pack and hold, in a cluster inside this process."""

import pickle

import numpy as np
import pytest

from clusters import client_of_two, quiet_close
from rows.packings import COLUMNS, Copies, make_data, make_store, table_of
from rows.packings import frame as pandas_frame

from amc_pymc.rows import Rows, held_partitions, open_source, stored_rows
from amc_pymc.rows.store import packed_rows

pytestmark = quiet_close

pd = pytest.importorskip("pandas")
distributed = pytest.importorskip("distributed")
da = pytest.importorskip("dask.array")
dd = pytest.importorskip("dask.dataframe")

COLUMNS = {n: COLUMNS[n] for n in ("X", "y")}


@pytest.fixture(scope="module")
def client():
    with client_of_two(processes=False) as made:
        yield made


def arrays(data, chunks=((1000, 300, 1700), 900)):
    sizes = dict(zip(data, chunks))
    return {n: da.from_array(a, chunks=(sizes[n], -1)[: a.ndim]) for n, a in data.items()}


def frame(data, npartitions=4):
    return dd.from_pandas(pandas_frame(data), npartitions=npartitions)


def with_empty_partitions(data):
    whole = frame(data)
    return whole[whole["a"] > -np.inf].partitions[[0, 1, 2, 3]].map_partitions(
        lambda part: part.iloc[:0] if part.index[0] == whole.divisions[1] else part,
        meta=whole._meta,
    )  # fmt: skip


def held(source, columns=None, packing=None, **kwargs):
    packing = packing or Copies()
    rows = Rows(source, columns, **kwargs)
    opened = open_source(rows, packing.placeholders)
    return held_partitions(rows, opened, packing), opened


def sums(source, rows, power):
    return (rows**power).sum(axis=0), len(rows)


SOURCES = {
    "arrays": lambda data: (arrays(data), None),
    "frame": lambda data: (frame(data), COLUMNS),
    "many": lambda data: (frame(data, 20), COLUMNS),
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_partitions_hold_the_rows_in_order(make, client):
    data = make_data()
    source, columns = make(data)
    partitions, opened = held(source, columns, client=client)
    parts = list(partitions.fetched())
    assert len(parts) == len(opened.parts()) > 2
    np.testing.assert_array_equal(np.concatenate(parts), table_of(data))
    total, number = partitions.total(sums, 2)
    assert number == 3_000
    np.testing.assert_allclose(total, (table_of(data) ** 2).sum(axis=0), rtol=1e-12)


def test_partitions_without_rows_are_left_out(client):
    data = make_data()
    source = with_empty_partitions(data)
    partitions, opened = held(source, COLUMNS, client=client)
    kept = np.r_[0:750, 1500:3000]
    np.testing.assert_array_equal(np.concatenate(list(partitions.fetched())), table_of(data)[kept])
    assert opened.n_rows == 2_250
    assert len(opened.parts()) == 3


def test_the_order_of_sums_does_not_depend_on_who_is_first(client):
    """More partitions than a task adds up; one cancels another."""
    data = make_data()
    data["X"][:] = np.random.default_rng(1).normal(size=(3_000, 2)) * 10.0 ** np.arange(2) * 1e12
    first = held(frame(data, 20), COLUMNS, client=client)[0].total(sums, 1)[0]
    for _ in range(3):
        again = held(frame(data, 20), COLUMNS, client=client)[0].total(sums, 1)[0]
        np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_store_is_that_of_a_local_pass(dtype, client, tmp_path):
    """To the bit: each can be used by the other."""
    data = make_data(200_000)
    kwargs = {"folder": tmp_path, "dtype": dtype, "memory": 8 * 2**20}
    rows, packing = Rows(frame(data), COLUMNS, client=client, **kwargs), Copies()
    source = open_source(rows, packing.placeholders)
    partitions = held_partitions(rows, source, packing)
    far = stored_rows(rows, source, packing, partitions=partitions, progressbar=False)
    assert packing.sizes[0] == 16  # to tell the packing
    again = make_store(frame(data), columns=COLUMNS, client=None, **kwargs)
    np.testing.assert_array_equal(far.data, again.data)
    (tmp_path / "rows.npy").unlink()
    near = make_store(frame(data), columns=COLUMNS, client=None, **kwargs)
    np.testing.assert_array_equal(far.data, near.data)
    assert next(iter(partitions.fetched())).dtype == dtype


def test_the_current_client_is_used(client):
    placeholders, data = Copies.placeholders, make_data()
    auto, no = Rows(arrays(data)), Rows(arrays(data), client=None)
    assert open_source(auto, placeholders).client is None
    with client.as_current():
        assert open_source(auto, placeholders).client is client
        assert open_source(no, placeholders).client is None
        assert open_source(Rows(data), placeholders).client is None
        mixed = Rows({**arrays(data), "y": data["y"]})
        assert open_source(mixed, placeholders).client is None
    assert open_source(Rows(arrays(data), client=client), placeholders).client is client


# --- what is refused ------------------------------------------------------------------------------


def test_bad_rows_are_named_by_their_numbers_in_the_source(client):
    data = make_data()
    data["X"][2_000, 1] = np.nan
    partitions, _ = held(arrays(data), client=client)
    with pytest.raises(ValueError, match=r"'X' at \[1\] must be finite, got nan in row 2000"):
        list(partitions.fetched())
    with pytest.raises(ValueError, match="row 2000"):
        partitions.total(sums, 1)

    table = pd.DataFrame({"a": np.arange(90.0), "b": 1.0, "y": pd.array(range(90), "Int64")})
    table.loc[70, "y"] = pd.NA
    partitions, _ = held(dd.from_pandas(table, npartitions=3), COLUMNS, client=client)
    with pytest.raises(ValueError, match=r"'y'.* must be finite, got nan in row 70"):
        list(partitions.fetched())


def test_a_client_is_for_dask_collections(client):
    data = make_data()
    for source in (data, {**arrays(data), "y": data["y"]}):
        with pytest.raises(ValueError, match=r"client is for .* and source\['[Xy]'\] is a ndarray"):
            open_source(Rows(source, client=client), Copies.placeholders)


@pytest.mark.parametrize("client", ["tcp://127.0.0.1:8786", 3, True])
def test_what_is_no_client(client):
    with pytest.raises(TypeError, match=r"client must be a distributed\.Client, 'auto' or None"):
        Rows(make_data(), client=client)


def test_a_client_that_is_closed():
    with distributed.Client(
        processes=False, n_workers=1, dashboard_address=":0", set_as_default=False
    ) as client:
        partitions, _ = held(arrays(make_data()), client=client)
        text = pickle.dumps(partitions)
    for function in (lambda: partitions.total(sums, 1), lambda: list(partitions.fetched())):
        with pytest.raises(RuntimeError, match=r"cluster at inproc://.* is gone.*client=None"):
            function()
    other = pickle.loads(text)
    with pytest.raises(RuntimeError, match=r"others cannot reach it\. Pass cores=1"):
        other.total(sums, 1)


def test_rows_that_have_travelled_can_be_packed():
    """Arrays that come out of a message may be unaligned."""
    data = make_data(10)
    raw = np.zeros(10 * 16 + 1, np.uint8)
    X = raw[1:].view(float).reshape(10, 2)
    X[:] = data["X"]
    assert not X.flags.aligned
    seen = []
    packing = Copies()
    packing.pack = lambda chunk, first: seen.append(chunk["X"].flags.aligned) or chunk["X"]
    packed_rows(packing, {"X": (), "y": ()}, {"X": X, "y": data["y"]}, 0)
    assert seen == [True]
