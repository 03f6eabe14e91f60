"""What a store of rows was made from, and packing of rows into its columns.

``rows.npy`` holds the rows (N, C) in NumPy's format, ``rows.json`` beside it says what they were made from.
"""

from __future__ import annotations

import json
import os

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from amc_pymc.rows.files import Draft, RowStore

#: Maximum rows of a chunk, and divisor of the memory for it, because several copies are held.
_MOST, _SHARE = 65_536, 32
#: Version of the format.
_FORMAT = 7


def publish(draft: Draft, target: Path, facts: dict[str, Any]) -> None:
    """Give a complete store its name, and write the facts that identify it beside it.

    Raises
    ------
    FileExistsError
        If another run has made a store in this place.
    """
    described, n_bytes = Draft(target.parent), os.fstat(draft.file.fileno()).st_size
    try:
        described.file.write(json.dumps(facts | {"format": _FORMAT, "bytes": n_bytes}).encode())
        draft.publish(target)
        target.with_suffix(".json").unlink(missing_ok=True)  # of a store that was deleted
        described.publish(target.with_suffix(".json"))
    finally:
        described.discard()


def open_store(path: Path, expected: dict[str, Any]) -> RowStore:
    """Open the store at a path, and check that it was made from ``expected`` facts.

    Raises
    ------
    ValueError
        If it is damaged or belongs to another source, model or settings.
    """
    try:
        facts = json.loads(path.with_suffix(".json").read_bytes())
        reason = _difference(path, facts, expected)
    except FileNotFoundError:
        reason = "there is no rows.json beside it"
    except (KeyError, TypeError, ValueError):
        reason = "rows.json beside it is damaged"
    if not reason:
        return RowStore(path)
    raise ValueError(
        f"The store of rows {path} cannot be used: {reason}. Delete it, and it is made anew, or pass "
        "another folder."
    )


def _difference(path: Path, facts: dict[str, Any], expected: dict[str, Any]) -> str:
    """Return what is wrong with a store; empty if nothing is."""
    if facts["format"] != _FORMAT:
        return f"it has format {facts['format']}, this version reads format {_FORMAT}"
    n_bytes = path.stat().st_size
    if n_bytes != facts["bytes"]:
        return f"it has {n_bytes:,} bytes, not {facts['bytes']:,}"
    for name, reason in _MUST_AGREE.items():
        if facts[name] != expected[name]:
            shown = (
                "" if name in ("program", "source") else f" ({facts[name]}, not {expected[name]})"
            )
            return reason + shown
    if not np.allclose(facts["sample"], expected["sample"], rtol=1e-9, atol=1e-12, equal_nan=True):
        return "rows of the source or what the model makes of them have changed"
    return ""


#: Facts that must agree for a store to be used again, and the message if they do not.
_MUST_AGREE = {
    "program": "it was made for another model",
    "n_columns": "it was made for another model, whose rows read another number of columns",
    "source": "the source has changed since it was made, or it was made from another one",
    "n_rows": "the source had another number of rows when it was made",
}


# --- packing --------------------------------------------------------------------------------------


class Placeholder(NamedTuple):
    """Shape and type that a model expects of the rows (N, *shape) of a ``pm.Data``."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype


class Packing(Protocol):
    """Definition of the columns of a store.

    Attributes
    ----------
    placeholders : tuple of Placeholder
        Data from which the columns are computed.
    n_columns : int
    digest : str
        Hash of the functions that read the columns.
    """

    placeholders: tuple[Placeholder, ...]
    n_columns: int
    digest: str

    def pack(self, chunk: dict[str, np.ndarray], first: int) -> np.ndarray:
        """Return the columns (m, C) of a chunk whose first row has the number ``first``."""


def chunk_rows(memory: int, packing: Packing) -> int:
    """Return the number of rows packed at once with ``memory`` bytes."""
    shapes = [p.shape for p in packing.placeholders]
    wide = 8 * packing.n_columns + sum(8 * int(np.prod(s, dtype=int)) for s in shapes)
    return int(np.clip(memory // (_SHARE * wide), 16, _MOST))


def packed_rows(
    packing: Packing, labels: Mapping[str, Sequence[str]], chunk: Mapping[str, Any], first: int
) -> np.ndarray:
    """Return the columns (m, C) of a chunk of the source.

    ``first`` is the number of its first row in the source, ``labels`` name columns of tables.

    Raises
    ------
    ValueError
        If rows are not finite or do not fit the type of the placeholder; the message names the
        first such row.
    """
    own = {p.name: _placed(chunk[p.name], p, labels[p.name], first) for p in packing.placeholders}
    return packing.pack(own, first)


def _placed(
    chunk: np.ndarray, wanted: Placeholder, labels: Sequence[str], first: int
) -> np.ndarray:
    """Convert a chunk (m, ...) to the type of a placeholder."""
    where = chunk, wanted.name, labels, first
    if chunk.dtype.kind == "f":
        _refuse(~np.isfinite(chunk), *where, "must be finite")
    if chunk.dtype == wanted.dtype:
        return np.require(chunk, requirements=["C", "A"])  # arrays from workers may be unaligned
    with np.errstate(all="ignore"):
        out = np.ascontiguousarray(chunk, dtype=wanted.dtype)
    if wanted.dtype.kind != "f":
        _refuse(out != chunk, *where, f"must fit the placeholder, which holds {wanted.dtype}")
    elif chunk.dtype.kind == "f":
        _refuse(~np.isfinite(out), *where, f"must fit {wanted.dtype}")
    return out


def _refuse(
    bad: np.ndarray, chunk: np.ndarray, name: str, labels: Sequence[str], first: int, reason: str
) -> None:
    """Raise an error that names the first bad entry, if there is one."""
    if not bad.any():
        return
    row, *place = (int(i) for i in np.argwhere(bad)[0])
    value = chunk[row, *place]
    if labels:
        where = f"column {labels[place[0] if place else 0]!r} ({name!r})"
    else:
        where = f"{name!r}" + (f" at {place}" if place else "")
    raise ValueError(f"rows: {where} {reason}, got {value} in row {first + row}")
