"""Header of a store: its content, source and model, with checksums."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib

from typing import Any, BinaryIO

import numpy as np

__all__ = [
    "FORMAT",
    "difference",
    "digest_of",
    "encoded",
    "end_of_rows",
    "n_stored",
    "read_first",
    "read_header",
    "room_for",
    "size_of",
]

#: Version of the file format.
FORMAT = 2
_MAGIC = b"amc_rows"
_PREFIX = struct.Struct("<8sQI")
_PAGE = 4096
_FIRST = np.dtype("<i8")


def digest_of(value: Any) -> str:
    """Return a hash of a value that JSON can represent."""
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=16).hexdigest()


def room_for(header: dict[str, Any], n_blocks: int) -> int:
    """Return the bytes reserved for a header, independent of its checksums."""
    longest = header | {"checksums": ["f" * 8] * n_blocks, "made": 10**20, "offset": 10**20}
    size = _PREFIX.size + len(json.dumps(longest))
    return -(-size // _PAGE) * _PAGE


def encoded(header: dict[str, Any]) -> bytes:
    """Return the first ``header["offset"]`` bytes of a store."""
    text = json.dumps(header).encode()
    out = _PREFIX.pack(_MAGIC, len(text), zlib.crc32(text)) + text
    return out.ljust(header["offset"], b"\0")


def read_header(file: BinaryIO) -> dict[str, Any]:
    """Read the header of a store.

    Raises
    ------
    ValueError
        If it is damaged or has another format.
    """
    file.seek(0)
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size or not prefix.startswith(_MAGIC):
        raise ValueError("it is no store of rows")
    _, length, checksum = _PREFIX.unpack(prefix)
    text = file.read(min(length, 2**32))
    if len(text) != length or zlib.crc32(text) != checksum:
        raise ValueError("its header is damaged")
    header: dict[str, Any] = json.loads(text)
    if header["format"] != FORMAT:
        raise ValueError(f"it has format {header['format']}, this version reads format {FORMAT}")
    return header


def n_stored(header: dict[str, Any]) -> int:
    """Return the rows of a store, including copies of the last one that group kernels may read."""
    stored: int = header["n_rows"] + header.get("beyond", 0)
    return stored


def end_of_rows(header: dict[str, Any]) -> int:
    """Return the offset of the end of the rows of a store."""
    width = header["n_columns"] * np.dtype(header["dtype"]).itemsize
    end: int = header["offset"] + n_stored(header) * width
    return end


def size_of(header: dict[str, Any]) -> int:
    """Return the bytes of a store: its header, its rows, and the table of groups if there is one."""
    levels = header.get("levels")
    return end_of_rows(header) + (0 if levels is None else (levels + 1) * _FIRST.itemsize)


def read_first(file: BinaryIO, header: dict[str, Any]) -> np.ndarray:
    """Read the first row of each group of a store, and the end (G + 1,).

    Raises
    ------
    ValueError
        If the table of groups is damaged, or does not increase from 0 to the number of rows.
    """
    start = end_of_rows(header)
    file.seek(start)
    text = file.read(size_of(header) - start)
    if f"{zlib.crc32(text):08x}" != header["first_checksum"]:
        raise ValueError("its table of groups is damaged")
    first = np.frombuffer(text, _FIRST).astype(np.int64)
    if first[0] != 0 or first[-1] != header["n_rows"] or np.any(np.diff(first) < 0):
        raise ValueError(
            f"its table of groups does not increase from 0 to its {header['n_rows']:,} rows"
        )
    return first


#: Fields that must agree for a store to be reused, and the message if they do not.
_MUST_AGREE = {
    "levels": "its rows lie in another number of groups, or in none",
    "index": "its rows are grouped by other data",
    "program": "it was made for another model: rows read other columns, or in another way",
    "n_columns": "it was made for another model, whose rows read another number of columns",
    "source": "the source has changed since it was made, or it was made from another one",
    "n_rows": "the source had another number of rows when it was made",
    "dtype": "it holds numbers of another dtype",
    "seed": "it was shuffled with another seed",
    "shuffle": "it was made with another choice of shuffle",
}


def difference(header: dict[str, Any], expected: dict[str, Any]) -> str:
    """Return why a store is not the expected one; empty if it is."""
    for name, reason in _MUST_AGREE.items():
        found, wanted = header.get(name), expected.get(name)
        if found != wanted:
            shown = "" if name in ("program", "source") else f" ({found!r}, not {wanted!r})"
            return f"{reason}{shown}"
    same = np.allclose(header["sample"], expected["sample"], rtol=1e-9, atol=1e-12, equal_nan=True)
    return "" if same else "rows of the source or what the model makes of them have changed"
