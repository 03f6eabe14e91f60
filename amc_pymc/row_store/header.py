"""The beginning of a store: what it holds, of which source and model, with checksums."""

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

#: Version of the format.
FORMAT = 1
_MAGIC = b"amc_rows"
_PREFIX = struct.Struct("<8sQI")
_PAGE = 4096
_FIRST = np.dtype("<i8")


def digest_of(value: Any) -> str:
    """Hash of what JSON can hold."""
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=16).hexdigest()


def room_for(header: dict[str, Any], n_blocks: int) -> int:
    """Bytes at the beginning of a store, whatever its checksums are."""
    longest = header | {"checksums": ["f" * 8] * n_blocks, "made": 10**20, "offset": 10**20}
    size = _PREFIX.size + len(json.dumps(longest))
    return -(-size // _PAGE) * _PAGE


def encoded(header: dict[str, Any]) -> bytes:
    """The beginning of a store, ``header["offset"]`` bytes."""
    text = json.dumps(header).encode()
    out = _PREFIX.pack(_MAGIC, len(text), zlib.crc32(text)) + text
    return out.ljust(header["offset"], b"\0")


def read_header(file: BinaryIO) -> dict[str, Any]:
    """The header of a store.

    Raises
    ------
    ValueError
        It is not whole, or of another format.
    """
    file.seek(0)
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size or not prefix.startswith(_MAGIC):
        raise ValueError("it is no store of rows")
    _, length, checksum = _PREFIX.unpack(prefix)
    text = file.read(min(length, 2**32))
    if len(text) != length or zlib.crc32(text) != checksum:
        raise ValueError("its header is damaged")
    header = json.loads(text)
    if header["format"] != FORMAT:
        raise ValueError(f"it has format {header['format']}, this version reads format {FORMAT}")
    return header


def n_stored(header: dict[str, Any]) -> int:
    """Rows of a store, with the copies of the last one that kernels of groups read beyond it."""
    return header["n_rows"] + header.get("beyond", 0)


def end_of_rows(header: dict[str, Any]) -> int:
    """Where the rows of a store end."""
    width = header["n_columns"] * np.dtype(header["dtype"]).itemsize
    return header["offset"] + n_stored(header) * width


def size_of(header: dict[str, Any]) -> int:
    """Bytes of a store: its header, its rows, and where each group begins if there are groups."""
    levels = header.get("levels")
    return end_of_rows(header) + (0 if levels is None else (levels + 1) * _FIRST.itemsize)


def read_first(file: BinaryIO, header: dict[str, Any]) -> np.ndarray:
    """Where the rows of each group of a store begin, and the end (G + 1,).

    Raises
    ------
    ValueError
        It is not what was written.
    """
    start = end_of_rows(header)
    file.seek(start)
    text = file.read(size_of(header) - start)
    if f"{zlib.crc32(text):08x}" != header["first_checksum"]:
        raise ValueError("its table of groups is damaged")
    return np.frombuffer(text, _FIRST).astype(np.int64)


#: What must agree for a store to be used again, and what to say if it does not.
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
    """Why a store is not the one expected; empty if it is."""
    for name, reason in _MUST_AGREE.items():
        found, wanted = header.get(name), expected.get(name)
        if found != wanted:
            shown = "" if name in ("program", "source") else f" ({found!r}, not {wanted!r})"
            return f"{reason}{shown}"
    same = np.allclose(header["sample"], expected["sample"], rtol=1e-9, atol=1e-12, equal_nan=True)
    return "" if same else "rows of the source or what the model makes of them have changed"
