"""Arrays as sources of rows: NumPy, ``numpy.memmap``, Zarr and Dask."""

from __future__ import annotations

import hashlib
import math
import mmap

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from amc_pymc.row_store.libraries import library
from amc_pymc.row_store.pages import release

__all__ = ["ArraySource", "Part", "computed", "file_stamp", "recut"]

#: Number of rows that are hashed at a time.
_CHUNK = 65_536


class ArraySource:
    """Arrays (N, ...) by the name of the ``pm.Data`` whose rows they hold.

    ``client`` is an optional Dask client that computes Dask arrays.
    """

    def __init__(self, arrays: Mapping[str, Any], client: Any = None):
        self.client, self._computed = client, partial(computed, client=client)
        self._arrays = {name: _as_array(name, a) for name, a in arrays.items()}
        lengths = {name: int(a.shape[0]) for name, a in self._arrays.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"rows must have one length, got {lengths}")
        self.n_rows = next(iter(lengths.values()))
        self.shapes = {n: tuple(int(k) for k in a.shape[1:]) for n, a in self._arrays.items()}
        self.dtypes = {n: np.dtype(a.dtype) for n, a in self._arrays.items()}
        self.labels: dict[str, Sequence[str]] = dict.fromkeys(self._arrays, ())

    def chunks(
        self, size: int, names: Sequence[str] | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield rows in order, at most ``size`` at a time, of all data or those in ``names``."""
        names = list(self._arrays) if names is None else names
        parts = [recut(self._blocks(self._arrays[n], size), size) for n in names]
        for chunk in zip(*parts, strict=True):
            yield dict(zip(names, chunk))

    def stamp(self) -> list[Any]:
        """Return shapes, types, and the file of a memory map or a hash of all rows."""
        return [
            [n, list(map(int, a.shape)), str(a.dtype), self._content(a)]
            for n, a in sorted(self._arrays.items())
        ]

    def parts(self) -> list[Part]:
        """Return the chunks of Dask arrays, all split like the array with the widest rows."""
        delayed = library("dask", "client=").delayed
        widest = max(self._arrays.values(), key=lambda a: a.dtype.itemsize * math.prod(a.shape[1:]))
        lengths = widest.chunks[0]
        columns = {
            name: a.rechunk({0: lengths, **dict.fromkeys(range(1, a.ndim), -1)}).to_delayed()
            for name, a in self._arrays.items()
        }
        blocks = zip(*(c.ravel() for c in columns.values()), strict=True)
        rows = (delayed(dict(zip(columns, own))) for own in blocks)
        return [Part(r, int(n)) for r, n in zip(rows, lengths, strict=True) if n]

    def _blocks(self, array: Any, size: int) -> Iterator[np.ndarray]:
        """Yield an array in blocks of whole chunks, so no chunk is read twice."""
        for start, stop in _bounds(array, size):
            block = array[start:stop]
            if isinstance(array, np.memmap):
                yield np.array(block)
                release(array)
            else:
                yield np.asarray(self._computed(block))

    def _content(self, array: Any) -> list[Any] | str:
        """Return values that identify the content of an array."""
        name = getattr(array, "filename", None)
        # Parts of a map, and maps that are changed in memory only, are not what the file says.
        whole = isinstance(array, np.memmap) and isinstance(array.base, mmap.mmap)
        if name is not None and whole and array.mode != "c":
            return [*file_stamp(Path(name)), int(array.offset), list(array.strides)]
        digest = hashlib.blake2b(digest_size=16)
        for block in self._blocks(array, _CHUNK):
            digest.update(np.ascontiguousarray(block))
        return digest.hexdigest()


def _as_array(name: str, given: Any) -> Any:
    """Return an array with a known number of rows, or raise an error."""
    if not (hasattr(given, "shape") and hasattr(given, "dtype") and hasattr(given, "__getitem__")):
        if isinstance(given, list | tuple):
            given = np.asarray(given)
        else:
            raise TypeError(
                f"rows[{name!r}] must be an array of NumPy, Zarr or Dask, got "
                f"{type(given).__name__}"
            )
    if isinstance(given, np.ma.MaskedArray):
        raise TypeError(f"rows[{name!r}] must not be a masked array: drop missing rows")
    if not given.shape:
        raise ValueError(f"rows[{name!r}] must have rows along its first axis, got a number")
    if not all(k == k and isinstance(k, int | np.integer) for k in given.shape):
        raise ValueError(
            f"rows[{name!r}] is a Dask array of unknown shape {given.shape}; call its "
            "compute_chunk_sizes() first"
        )
    return given


def _bounds(array: Any, size: int) -> Iterator[tuple[int, int]]:
    n_rows, own = int(array.shape[0]), getattr(array, "chunks", None)
    if own and not isinstance(own[0], int):  # Dask: the length of each chunk
        stops = np.cumsum(own[0])
        yield from zip([0, *stops[:-1].tolist()], stops.tolist())
        return
    each = size if not own else max(1, size // own[0]) * own[0]
    for start in range(0, n_rows, each):
        yield start, min(start + each, n_rows)


class Part(NamedTuple):
    """Consecutive rows of a source that a worker of a Dask cluster can compute.

    ``rows`` is a delayed dict of arrays (m, ...) by the name of their ``pm.Data``.
    """

    rows: Any
    n_rows: int


def computed(value: Any, client: Any = None) -> Any:
    """Compute a Dask collection by a client or in this process; return other values unchanged."""
    return value.compute(scheduler=client or "sync") if hasattr(value, "dask") else value


def recut(blocks: Iterator[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Yield the same rows in chunks of ``size``; the last one may be shorter."""
    held: list[np.ndarray] = []
    length = 0
    for block in blocks:
        while len(block):
            part = block[: size - length]
            held.append(part)
            length, block = length + len(part), block[len(part) :]
            if length == size:
                yield held[0] if len(held) == 1 else np.concatenate(held)
                held, length = [], 0
    if held:
        yield held[0] if len(held) == 1 else np.concatenate(held)


def file_stamp(path: Path) -> list[Any]:
    """Return path, size and modification time of a file."""
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]
