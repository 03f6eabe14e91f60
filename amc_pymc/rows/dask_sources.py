"""Dask arrays and dataframes as sources of rows, computed by a client or in this process."""

from __future__ import annotations

import math
import sys

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from amc_pymc.rows.libraries import library
from amc_pymc.rows.settings import Rows
from amc_pymc.rows.sources import ArraySource, Chosen, Source, TableSource, put_together

__all__ = ["DaskArrays", "DaskSource", "DaskTable", "client_of", "is_dask"]


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
    others = [
        f"source{[n] if n else ''} is a {type(a).__name__}" for n, a in each.items() if not is_dask(a)
    ]
    if not isinstance(rows.client, str):
        if rows.client is not None and others:
            raise ValueError(f"client is for Dask arrays and dataframes, and {others[0]}")
        return rows.client
    distributed: Any = sys.modules.get("distributed")  # not imported: there is no client
    if others or distributed is None:
        return None
    try:
        client = distributed.default_client()
    except ValueError:  # no default client
        return None
    return None if client.asynchronous else client
