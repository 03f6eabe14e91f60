"""Zarr groups as sources of rows."""

from __future__ import annotations

import os

from pathlib import Path
from typing import Any

from amc_pymc.row_store.libraries import library

__all__ = ["is_zarr_folder", "is_zarr_group", "opened_group"]

#: Files that identify the folder of a Zarr group or array, of format 2 or 3.
_MARKS = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")


def is_zarr_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path is the folder of a Zarr group or array."""
    return any((Path(path) / mark).exists() for mark in _MARKS)


def is_zarr_group(given: Any) -> bool:
    """Whether an object is a Zarr group."""
    return type(given).__module__.startswith("zarr") and hasattr(given, "array_keys")


def opened_group(given: Any) -> Any:
    """Open the group at a path; return a group unchanged."""
    if is_zarr_group(given):
        return given
    group = library("zarr", "a Zarr group").open(str(given), mode="r")
    if not is_zarr_group(group):
        raise ValueError(
            f"source {str(given)!r} is a Zarr array, not a group; pass it as {{name: zarr.open(...)}}"
        )
    return group
