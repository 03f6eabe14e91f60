"""Dask as an extra: its arrays and dataframes as sources of rows, and packed rows that its workers hold.

Dask places partitions, moves tasks to them, and recomputes the partitions of lost workers from the
source. A sum is a tree of tasks whose form depends on the number of partitions only. Its value
therefore does not depend on which worker runs which task.
"""

from __future__ import annotations

import math
import os
import pickle
import sys
import threading

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from amc_pymc.rows.sources import (
    ArraySource,
    Chosen,
    Rows,
    Source,
    TableSource,
    library,
    put_together,
)
from amc_pymc.rows.store import Packing, chunk_rows, packed_rows, rounded

#: Number of totals that a task adds up.
_FAN = 16


# --- sources --------------------------------------------------------------------------------------


class Part(NamedTuple):
    """Consecutive rows of a source that a worker of a Dask cluster can compute.

    ``rows`` is a delayed dict of arrays (m, ...) by the name of their ``pm.Data``.
    """

    rows: Any
    n_rows: int


class DaskSource(Source):
    """Partitions of rows; a subclass says how to compute them."""

    def parts(self, names: Sequence[str] | None = None) -> list[Part]:
        """Return the partitions that have rows, of all data or those in ``names``."""
        raise NotImplementedError

    def _blocks(self, size: int, names: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        for part in self.parts(names):
            yield part.rows.compute(scheduler=self.client or "sync")


class DaskArrays(DaskSource, ArraySource):
    """Dask arrays, all split like the one with the widest rows; other arrays may be among them."""

    def __init__(self, arrays: Mapping[str, Any], client: Any):
        super().__init__({n: library("dask.array", "Dask").asarray(a) for n, a in arrays.items()})
        self.client = client

    def parts(self, names: Sequence[str] | None = None) -> list[Part]:
        """Return the partitions that have rows, of all data or those in ``names``."""
        delayed, arrays = library("dask", "Dask").delayed, self._arrays
        widest = max(arrays.values(), key=lambda a: a.dtype.itemsize * math.prod(a.shape[1:]))
        lengths = widest.chunks[0]
        columns = {
            n: arrays[n].rechunk({0: lengths, **dict.fromkeys(range(1, arrays[n].ndim), -1)})
            for n in (arrays if names is None else names)
        }
        blocks = zip(*(c.to_delayed().ravel() for c in columns.values()), strict=True)
        rows = (delayed(dict(zip(columns, own))) for own in blocks)
        return [Part(r, int(n)) for r, n in zip(rows, lengths, strict=True) if n]


class DaskTable(DaskSource, TableSource):
    """A Dask dataframe."""

    def __init__(self, frame: Any, columns: Chosen, client: Any):
        self._frame, self.client = frame, client
        super().__init__(columns, {c: _numpy_type(t) for c, t in frame.dtypes.items()})
        lengths = frame[self.names[:1]].map_partitions(len).compute(scheduler=client or "sync")
        self._lengths = [int(n) for n in lengths]
        self.n_rows = sum(self._lengths)

    def parts(self, names: Sequence[str] | None = None) -> list[Part]:
        """Return the partitions that have rows, of all data or those in ``names``."""
        columns = {n: self.columns[n] for n in (self.columns if names is None else names)}
        own = list(dict.fromkeys(c for n in columns for c in self.labels[n]))
        rows = library("dask", "Dask").delayed(_rows_of)
        each = zip(self._frame[own].to_delayed(), self._lengths)
        return [Part(rows(part, columns), n) for part, n in each if n]


def _rows_of(frame: Any, columns: Chosen) -> dict[str, np.ndarray]:
    """Return the rows of a pandas dataframe."""
    read = {
        c: frame[c].to_numpy(float, na_value=np.nan)
        if frame[c].hasnans
        else frame[c].to_numpy(_numpy_type(frame[c].dtype))
        for c in frame.columns
    }
    return put_together(read, columns)


def _numpy_type(kind: Any) -> np.dtype:
    """Return the NumPy type of a pandas column, including nullable ones."""
    kind = getattr(kind, "numpy_dtype", kind)
    return kind if isinstance(kind, np.dtype) else np.dtype(object)


def is_dask(value: Any) -> bool:
    """Whether a value is a Dask collection."""
    return hasattr(value, "__dask_graph__")


def client_of(rows: Rows) -> Any:
    """Return the client whose workers hold the rows, or None.

    Raises
    ------
    ValueError
        If a client is given, but not every source is a Dask collection.
    """
    each = rows.source if isinstance(rows.source, Mapping) else {"": rows.source}
    others = [(n, type(a).__name__) for n, a in each.items() if not is_dask(a)]
    if not isinstance(rows.client, str):
        if rows.client is not None and others:
            where = f"source{[others[0][0]] if others[0][0] else ''}"
            raise ValueError(
                f"client is for Dask arrays and dataframes, and {where} is a {others[0][1]}"
            )
        return rows.client
    distributed: Any = sys.modules.get("distributed")  # not imported: there is no client
    if others or distributed is None:
        return None
    try:
        client = distributed.default_client()
    except ValueError:  # no default client
        return None
    return None if client.asynchronous else client


# --- partitions that workers hold -----------------------------------------------------------------


def held_partitions(rows: Rows, source: Source, packing: Packing) -> Partitions:
    """Pack the parts of a source on the workers, and keep them there.

    Parameters
    ----------
    rows, source, packing
        As for :func:`~amc_pymc.rows.writer.stored_rows`; the source must have a client.
    """
    assert isinstance(source, DaskSource), "only Dask collections have a client"
    delayed = library("dask", "client=").delayed
    # Values passed through the graph can be recomputed when a worker is lost.
    shared = delayed(cloudpickle.dumps((packing, source.labels)))
    pack, dtype, size = delayed(_pack_part), np.dtype(rows.dtype), chunk_rows(rows.memory, packing)
    first, kept = 0, [delayed(packing.printed)]
    for part in source.parts():
        kept.append(pack(shared, part.rows, part.n_rows, dtype, size, first))
        first += part.n_rows
    with _reached(source.client.scheduler.address):
        return Partitions(source.client, source.client.compute(kept))


def added(totals: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Add tuples of numbers and arrays element by element, in order."""
    out = totals[0]
    for other in totals[1:]:
        out = tuple(a + b for a, b in zip(out, other, strict=True))
    return out


class Partitions:
    """Packed rows (m, C) of each partition, in the memory of workers.

    The object can be pickled. In another process or in a task of a worker, it connects to the
    cluster by its address. Rows are kept as long as the object in the first process exists.

    Parameters
    ----------
    client : distributed.Client
    futures : sequence of distributed.Future
        The functions that read rows, and the rows of each partition.
    """

    def __init__(self, client: Any, futures: Sequence[Any]):
        self._futures, self._client, self._process = list(futures), client, os.getpid()
        self._address, self._security = client.scheduler.address, client.security

    def __getstate__(self) -> dict[str, Any]:
        security = {"_address": self._address, "_security": self._security}
        return security | {"_futures": self._pickled(), "_client": None, "_process": None}

    def fetched(self) -> Iterator[np.ndarray]:
        """Yield the rows of each partition in order."""
        with self._connected() as (_, (_, *parts)):
            for part in parts:
                with _reached(self._address, part):
                    rows = part.result()
                yield rows

    def total(
        self,
        function: Callable[..., tuple[Any, ...]],
        *args: Any,
        merge: Callable[[Sequence[tuple[Any, ...]]], tuple[Any, ...]] = added,
    ) -> tuple[Any, ...]:
        """Sum ``function(printed, rows, *args)`` over partitions.

        Parameters
        ----------
        function : callable
            Must be importable by workers. It returns a tuple of numbers and arrays.
        merge : callable
            Merges several such tuples, given in the order of the partitions.

        Raises
        ------
        RuntimeError
            If the cluster cannot be reached.
        """
        with self._connected() as (client, (printed, *parts)):
            with _reached(self._address):
                call = partial(_call, function, args)
                totals = client.map(call, [printed] * len(parts), parts, pure=False)
                while len(totals) > 1:
                    groups = [totals[k : k + _FAN] for k in range(0, len(totals), _FAN)]
                    totals = client.map(merge, groups, pure=False)
            with _reached(self._address, totals[0]):
                whole: tuple[Any, ...] = totals[0].result()
            return whole

    @contextmanager
    def _connected(self) -> Iterator[tuple[Any, list[Any]]]:
        """Yield a client of this process and its futures."""
        distributed = library("distributed", "rows that a Dask cluster holds")
        if _inside_worker(distributed):  # worker_client frees the thread for the sum
            with distributed.worker_client() as client, client.as_current():
                yield client, pickle.loads(self._pickled())
            return
        if self._process != os.getpid():
            self._connect(distributed)
        if self._client.status == "closed":
            raise _gone(self._address)
        yield self._client, self._futures

    def _connect(self, distributed: ModuleType) -> None:
        """Connect this process, which received the object from another one."""
        if self._address.startswith("inproc:"):
            raise RuntimeError(
                f"rows: the Dask cluster at {self._address} lives in the process that made the "
                "step, and others cannot reach it. Pass cores=1, or use a cluster of processes."
            )
        try:
            client = distributed.Client(
                self._address, security=self._security, set_as_default=False
            )
        except OSError as error:
            raise _gone(self._address) from error
        # A forked process must neither use nor delete the inherited client.
        self._inherited = self._client, self._futures
        with client.as_current():
            self._futures = pickle.loads(self._pickled())
        self._client, self._process = client, os.getpid()

    def _pickled(self) -> bytes:
        held = self._futures
        return held if isinstance(held, bytes) else pickle.dumps(held)


def _inside_worker(distributed: ModuleType) -> bool:
    try:
        distributed.get_worker()
    except ValueError:
        return False
    return True


# --- tasks of workers -----------------------------------------------------------------------------

#: Lock of packing: PyTensor is not thread-safe, and the functions of a packing are compiled once.
_packing_now = threading.Lock()
_unpickled: list[Any] = [None, None]


def _pack_part(
    text: bytes, part: Mapping[str, Any], n_rows: int, dtype: np.dtype, size: int, first: int
) -> np.ndarray:
    """Return the packed rows (m, C) of a part."""
    with _packing_now:
        if _unpickled[0] != text:
            _unpickled[:] = text, pickle.loads(text)
        packing, labels = _unpickled[1]
        out = np.empty((n_rows, packing.n_columns), dtype)
        for start in range(0, n_rows, size):
            chunk = {name: np.asarray(a[start : start + size]) for name, a in part.items()}
            packed = packed_rows(packing, labels, chunk, first + start)
            out[start : start + size] = rounded(packing, dtype, packed, first + start)
    return out


def _call(
    function: Callable[..., tuple[Any, ...]], args: tuple[Any, ...], printed: Any, rows: np.ndarray
) -> tuple[Any, ...]:
    return function(printed, rows, *args)


# --- lost clusters --------------------------------------------------------------------------------


@contextmanager
def _reached(address: str, future: Any = None) -> Iterator[None]:
    """Raise an error with advice if the cluster is gone; an error of the future's task is raised unchanged."""
    try:
        yield
    except (CancelledError, OSError, _closed_error()) as error:
        if future is not None and future.status == "error":
            raise
        raise _gone(address) from error


def _closed_error() -> type[Exception]:
    return getattr(library("distributed.client", "client="), "ClosedClientError", CancelledError)


def _gone(address: str) -> RuntimeError:
    return RuntimeError(
        f"rows: the Dask cluster at {address} is gone, and with it the partitions that it held. "
        "Start it again and make the step anew. amc_pymc.Rows(folder=) keeps the store, and "
        "Rows(client=None) computes everything in this process."
    )
