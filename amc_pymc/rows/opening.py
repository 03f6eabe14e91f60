"""Opening of the sources of rows, with checks against the placeholders of a model."""

from __future__ import annotations

import os

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from amc_pymc.rows.sources import (
    ArraySource,
    DaskTable,
    ParquetSource,
    Rows,
    Source,
    library,
)
from amc_pymc.rows.store import Placeholder

#: Files that identify the folder of a Zarr group or array, of format 2 or 3.
_ZARR = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")


def open_source(rows: Rows, wanted: Sequence[Placeholder]) -> Source:
    """Open the source of rows, and check it against the placeholders of a model.

    Raises
    ------
    ValueError, TypeError
        If names are missing or not used, lengths differ, the source has fewer than two rows, or
        shapes or types differ from those of the placeholders.
    ImportError
        If the library that reads the source is not installed.
    """
    source = _source(rows, [w.name for w in wanted])
    if source.n_rows < 2:
        raise ValueError(f"rows must have at least two rows, got {source.n_rows}")
    for name, expected, _ in wanted:
        shape, dtype = source.shapes[name], source.dtypes[name]
        if shape != expected:
            raise ValueError(
                f"rows: one row of {name!r} has the shape {shape}, that of the pm.Data {expected}"
            )
        if dtype.kind not in "fiub":
            raise TypeError(f"rows: {name!r} must hold numbers, got {dtype}")
    return source


def _source(rows: Rows, names: Sequence[str]) -> Source:
    given = rows.source
    if isinstance(given, Mapping):
        _check_names("rows", given, names)
        return _arrays({name: given[name] for name in names})
    columns = _columns(rows.columns, names)
    if isinstance(given, str | os.PathLike):
        if not any((Path(given) / mark).exists() for mark in _ZARR):
            return ParquetSource(Path(given), columns)
        given = library("zarr", "a Zarr group").open(str(given), mode="r")
    if hasattr(given, "array_keys"):
        return _group(given, columns)
    return DaskTable(given, columns)


def _arrays(arrays: Mapping[str, Any]) -> Source:
    """Return arrays as a source, or raise an error."""
    arrays = {n: np.asarray(a) if isinstance(a, list | tuple) else a for n, a in arrays.items()}
    for name, array in arrays.items():
        if not all(hasattr(array, a) for a in ("shape", "dtype", "__getitem__")):
            kind = type(array).__name__
            raise TypeError(f"rows[{name!r}] must be an array of NumPy, Zarr or Dask, got {kind}")
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError(f"rows[{name!r}] must not be a masked array: drop missing rows")
        if not array.shape:
            raise ValueError(f"rows[{name!r}] must have rows along its first axis, got a number")
        if np.isnan(array.shape).any():
            raise ValueError(
                f"rows[{name!r}] is a Dask array of unknown shape {array.shape}; call its "
                "compute_chunk_sizes() first"
            )
    lengths = {name: int(a.shape[0]) for name, a in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"rows must have one length, got {lengths}")
    return ArraySource(arrays)


def _group(group: Any, columns: Mapping[str, str | list[str]]) -> Source:
    """Return the arrays of a Zarr group as a source."""
    for name, column in columns.items():
        if not isinstance(column, str):
            raise TypeError(f"columns must name one array of a Zarr group for {name!r}, got a list")
        if column not in group:
            known = sorted(group.array_keys())
            raise ValueError(f"columns names {column!r}, and the Zarr group has {known}")
    return _arrays({name: group[column] for name, column in columns.items()})


def _columns(columns: Mapping[str, Any] | None, names: Sequence[str]) -> dict[str, str | list[str]]:
    """Return the column or columns of each ``pm.Data``."""
    if columns is None:
        return {name: name for name in names}
    _check_names("columns", columns, names)
    out = {n: c if isinstance(c := columns[n], str) else list(c) for n in names}
    for name, several in out.items():
        if not several or not all(isinstance(c, str) for c in several):
            raise TypeError(f"columns[{name!r}] must be a name or names, got {columns[name]!r}")
    return out


def _check_names(argument: str, given: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise an error unless the keys are the names."""
    for title, wrong in {
        "lacks": [n for n in names if n not in given],
        "has": [n for n in given if n not in names],
    }.items():
        if wrong:
            raise ValueError(
                f"{argument} {title} {', '.join(map(repr, wrong))}; the rows of the model read "
                f"pm.Data {', '.join(map(repr, names))} row by row"
            )
