"""Opening of the sources of rows, with checks against the placeholders of a model."""

from __future__ import annotations

import os

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from amc_pymc.rows.sources import ArraySource, DaskTable, ParquetSource, Rows, Source
from amc_pymc.rows.store import Placeholder


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
        return ParquetSource(Path(given), columns)
    return DaskTable(given, columns)


def _arrays(arrays: Mapping[str, Any]) -> Source:
    """Return arrays as a source, or raise an error."""
    arrays = {n: np.asarray(a) if isinstance(a, list | tuple) else a for n, a in arrays.items()}
    for name, array in arrays.items():
        if not getattr(array, "shape", ()) or not hasattr(array, "dtype"):
            raise TypeError(
                f"rows[{name!r}] must be an array of NumPy, Zarr or Dask with rows along its first "
                f"axis, got {type(array).__name__}"
            )
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError(f"rows[{name!r}] must not be a masked array: drop missing rows")
        if np.isnan(array.shape).any():
            raise ValueError(
                f"rows[{name!r}] is a Dask array of unknown shape {array.shape}; call its "
                "compute_chunk_sizes() first"
            )
    lengths = {name: int(a.shape[0]) for name, a in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"rows must have one length, got {lengths}")
    return ArraySource(arrays)


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
    missing, unknown = [n for n in names if n not in given], [n for n in given if n not in names]
    if wrong := missing or unknown:
        raise ValueError(
            f"{argument} {'lacks' if missing else 'has'} {', '.join(map(repr, wrong))}; the rows of the "
            f"model read pm.Data {', '.join(map(repr, names))} row by row"
        )
