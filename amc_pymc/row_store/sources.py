"""Sources of rows, read chunk by chunk."""

from __future__ import annotations

import os

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from amc_pymc.row_store.arrays import ArraySource, Part
from amc_pymc.row_store.chunks import Placeholder
from amc_pymc.row_store.clients import client_of
from amc_pymc.row_store.settings import Rows
from amc_pymc.row_store.tables import DaskTable, ParquetTable
from amc_pymc.row_store.zarr_groups import is_zarr_folder, is_zarr_group, opened_group

__all__ = ["RowSource", "open_source"]


class RowSource(Protocol):
    """N rows of several ``pm.Data``.

    Attributes
    ----------
    n_rows : int
    shapes : dict of str to tuple
        Shape of one row of each.
    dtypes : dict of str to numpy.dtype
    labels : dict of str to sequence of str
        Column names of a table, for messages; empty for arrays.
    client : distributed.Client or None
        Client of the Dask cluster whose workers compute parts of the source; None if there are no parts.
    """

    client: Any
    n_rows: int
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, np.dtype]
    labels: dict[str, Sequence[str]]

    def chunks(
        self, size: int, names: Sequence[str] | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield rows in order, at most ``size`` at a time, of all data or those in ``names``."""

    def parts(self) -> Sequence[Part]:
        """Return the rows as Dask partitions computed by workers; only with a client."""

    def stamp(self) -> list[Any]:
        """Return numbers and strings that identify the source."""


def open_source(rows: Rows, wanted: Sequence[Placeholder]) -> RowSource:
    """Open the source of rows, and check it against the placeholders of a model.

    Raises
    ------
    ValueError, TypeError
        If names are missing or not used, lengths differ, the source has fewer than two rows, or
        shapes or types differ from those of the placeholders.
    ImportError
        If the library that reads the source is not installed.
    """
    source = _source(rows, wanted)
    if source.n_rows < 2:
        raise ValueError(f"rows must have at least two rows, got {source.n_rows}")
    for each in wanted:
        _check(source, each)
    return source


def _source(rows: Rows, wanted: Sequence[Placeholder]) -> RowSource:
    given, names, client = rows.source, [w.name for w in wanted], client_of(rows)
    if isinstance(given, Mapping):
        _check_names("rows", given, names)
        return ArraySource({name: given[name] for name in names}, client)
    columns = _columns(rows.columns, names)
    if isinstance(given, str | os.PathLike) and not is_zarr_folder(given):
        return ParquetTable(given, columns)
    if isinstance(given, str | os.PathLike) or is_zarr_group(given):
        return _group_source(opened_group(given), columns)
    if hasattr(given, "columns") and hasattr(given, "partitions"):
        return DaskTable(given, columns, client)
    raise TypeError(
        "source must map names of pm.Data to arrays, or be the path of Parquet files or of a Zarr "
        f"group, a zarr.Group or a Dask dataframe, got {type(given).__name__}"
    )


def _group_source(group: Any, columns: Mapping[str, str | Sequence[str]]) -> RowSource:
    """Return the arrays of a Zarr group as a source."""
    several = [n for n, c in columns.items() if not isinstance(c, str)]
    if several:
        raise TypeError(
            f"columns must name one array of a Zarr group for each pm.Data, got a list for "
            f"{several[0]!r}"
        )
    missing = [c for c in columns.values() if c not in group]
    if missing:
        raise ValueError(
            f"columns names {missing}, which the Zarr group does not have; it has "
            f"{sorted(group.array_keys())}"
        )
    return ArraySource({name: group[c] for name, c in columns.items()})


def _columns(
    columns: Mapping[str, str | Sequence[str]] | None, names: Sequence[str]
) -> dict[str, str | list[str]]:
    """Return the column or columns of each ``pm.Data``."""
    if columns is None:
        return {name: name for name in names}
    _check_names("columns", columns, names)
    out: dict[str, str | list[str]] = {}
    for name in names:
        chosen: Any = columns[name]
        out[name] = chosen if isinstance(chosen, str) else list(chosen)
        several = out[name]
        if not several or not all(isinstance(c, str) for c in several):
            raise TypeError(f"columns[{name!r}] must be a name or names, got {chosen!r}")
    return out


def _check_names(argument: str, given: Mapping[str, Any], names: Sequence[str]) -> None:
    missing = [n for n in names if n not in given]
    if missing:
        raise ValueError(
            f"{argument} lacks {', '.join(map(repr, missing))}: the rows of the model read pm.Data "
            f"{', '.join(map(repr, names))}, got {', '.join(map(repr, given)) or 'none'}"
        )
    unknown = [n for n in given if n not in names]
    if unknown:
        raise ValueError(
            f"{argument} has {', '.join(map(repr, unknown))}, which the rows of the model do not "
            f"read row by row; they read pm.Data {', '.join(map(repr, names))}"
        )


def _check(source: RowSource, wanted: Placeholder) -> None:
    name, shape, dtype = wanted.name, source.shapes[wanted.name], source.dtypes[wanted.name]
    if shape != wanted.shape:
        raise ValueError(
            f"rows: {name!r} has the shape (N, {_sizes(shape)}), the placeholder pm.Data "
            f"(n, {_sizes(wanted.shape)})"
        )
    if dtype.kind not in "fiub":
        raise TypeError(f"rows: {name!r} must hold numbers, got {dtype}")


def _sizes(shape: Sequence[int]) -> str:
    return ", ".join(map(str, shape))
