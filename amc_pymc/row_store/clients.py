"""The client of a Dask cluster that a user means."""

from __future__ import annotations

import sys

from collections.abc import Mapping
from typing import Any

from amc_pymc.row_store.libraries import library

__all__ = ["check_client", "client_of"]


def check_client(client: Any) -> None:
    """Refuse what is neither a client that waits for results, ``"auto"`` nor None.

    Raises
    ------
    TypeError, ValueError
        The client is something else or asynchronous.
    ImportError
        There is no ``distributed``.
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
    """The client whose workers hold the rows of :class:`Rows`, or None.

    Raises
    ------
    ValueError
        A client has been passed, but not every source is a Dask collection.
    """
    other = _not_dask(rows.source)
    if not isinstance(rows.client, str):
        if rows.client is not None and other:
            raise ValueError(
                f"client is for Dask arrays and dataframes, and {other}; make it one (by "
                "dask.array.from_array or dask.dataframe.read_parquet), or leave client out"
            )
        return rows.client
    distributed: Any = sys.modules.get("distributed")  # a client can only come from there
    if other or distributed is None:
        return None
    try:
        client = distributed.default_client()
    except ValueError:  # there is none
        return None
    return None if client.asynchronous else client


def _not_dask(source: Any) -> str:
    """What of a source is no Dask collection; empty if all of it is one."""
    if isinstance(source, Mapping):
        others = [n for n, a in source.items() if not hasattr(a, "__dask_graph__")]
        return f"source[{others[0]!r}] is a {type(source[others[0]]).__name__}" if others else ""
    return "" if hasattr(source, "__dask_graph__") else f"source is a {type(source).__name__}"
