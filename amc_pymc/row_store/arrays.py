"""Arrays as sources of rows: NumPy, ``numpy.memmap``, Zarr and Dask."""

from __future__ import annotations

import hashlib

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from amc_pymc.row_store.pages import release

__all__ = ["ArraySource", "file_stamp", "recut"]

#: Rows at each end, and between, that tell whether an array is the same.
_SAMPLE = 64


class ArraySource:
    """Arrays (N, ...) by the name of the ``pm.Data`` whose rows they hold."""

    def __init__(self, arrays: Mapping[str, Any]):
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
        """Rows in order, at most ``size`` at a time, of all data or some."""
        names = list(self._arrays) if names is None else names
        parts = [recut(_blocks(self._arrays[n], size), size) for n in names]
        for chunk in zip(*parts, strict=True):
            yield dict(zip(names, chunk))

    def stamp(self) -> list:
        """Shapes, types, and the file of a memory map or a hash of some rows."""
        return [[n, list(map(int, a.shape)), str(a.dtype), _content(a)] for n, a in self._items()]

    def _items(self):
        return sorted(self._arrays.items())


def _as_array(name: str, given: Any):
    """An array with a known number of rows."""
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


def _blocks(array, size: int) -> Iterator[np.ndarray]:
    """An array in blocks of whole chunks, so that no chunk is read twice."""
    for start, stop in _bounds(array, size):
        block = array[start:stop]
        if isinstance(array, np.memmap):
            yield np.array(block)
            release(array)
        else:
            yield np.asarray(block.compute(scheduler="sync") if hasattr(block, "dask") else block)


def _bounds(array, size: int) -> Iterator[tuple[int, int]]:
    n_rows, own = int(array.shape[0]), getattr(array, "chunks", None)
    if own and not isinstance(own[0], int):  # Dask: the length of each chunk
        stops = np.cumsum(own[0])
        yield from zip([0, *stops[:-1].tolist()], stops.tolist())
        return
    each = size if not own else max(1, size // own[0]) * own[0]
    for start in range(0, n_rows, each):
        yield start, min(start + each, n_rows)


def recut(blocks: Iterator[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """The same rows in chunks of ``size``, the last one shorter."""
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


def file_stamp(path: Path) -> list:
    """Place, size and time of the last change of a file."""
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]


def _content(array) -> list | str:
    """What tells whether an array holds what it held."""
    name = getattr(array, "filename", None)
    if isinstance(array, np.memmap) and name is not None:
        return [*file_stamp(Path(name)), int(array.offset)]
    n_rows = int(array.shape[0])
    digest = hashlib.blake2b(digest_size=16)
    for start in sorted({0, max(0, n_rows // 2), max(0, n_rows - _SAMPLE)}):
        part = array[start : min(start + _SAMPLE, n_rows)]
        part = part.compute(scheduler="sync") if hasattr(part, "dask") else part
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()
