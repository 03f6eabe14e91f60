"""Checks and choice of the client of a Dask cluster."""

from __future__ import annotations

import sys

from collections.abc import Mapping
from typing import Any

from amc_pymc.row_store.libraries import library

__all__ = ["check_client", "client_of"]


def check_client(client: Any) -> None:
    """Raise an error unless the argument is a synchronous client, ``"auto"`` or None.

    Raises
    ------
    TypeError, ValueError
        If the client has another type or is asynchronous.
    ImportError
        If ``distributed`` is not installed.
    """
    if client is None or (isinstance(client, str) and client == "auto"):
        return
    if not isinstance(client, library("distributed", "client=").Client):
        raise TypeError(
            f"client must be a distributed.Client, 'auto' or None, got {type(client).__name__}"
        )
    if client.asynchronous:
        raise ValueError("client must not be asynchronous: steps wait for its results")


def client_of(rows: Any) -> Any:
    """Return the client whose workers hold the rows of :class:`Rows`, or None.

    Raises
    ------
    ValueError
        If a client is given, but not every source is a Dask collection.
    """
    other = _not_dask(rows.source)
    if not isinstance(rows.client, str):
        if rows.client is not None and other:
            raise ValueError(
                f"client is for Dask arrays and dataframes, and {other}; make it one (by "
                "dask.array.from_array or dask.dataframe.read_parquet), or leave client out"
            )
        return rows.client
    distributed: Any = sys.modules.get("distributed")  # not imported: there is no client
    if other or distributed is None:
        return None
    try:
        client = distributed.default_client()
    except ValueError:  # no default client
        return None
    return None if client.asynchronous else client


def _not_dask(source: Any) -> str:
    """Describe a part of a source that is no Dask collection; empty if there is none."""
    if isinstance(source, Mapping):
        others = [n for n, a in source.items() if not hasattr(a, "__dask_graph__")]
        return f"source[{others[0]!r}] is a {type(source[others[0]]).__name__}" if others else ""
    return "" if hasattr(source, "__dask_graph__") else f"source is a {type(source).__name__}"
