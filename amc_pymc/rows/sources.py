"""Sources of rows, read chunk by chunk: arrays of NumPy, ``numpy.memmap`` and Zarr, and Parquet files."""

from __future__ import annotations

import hashlib
import importlib
import mmap

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from amc_pymc.rows.files import release

__all__ = ["ArraySource", "Chosen", "ParquetSource", "Source", "library", "put_together"]

#: Number of rows that are hashed at a time.
_CHUNK = 65_536
#: Column, or columns, of each ``pm.Data``.
Chosen = Mapping[str, str | list[str]]


def library(name: str, what: str) -> ModuleType:
    """Import a module, or raise an error that says what to install.

    Examples
    --------
    >>> from amc_pymc.rows.sources import library
    >>> library("json", "JSON").__name__
    'json'
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.split(".")[0]
        raise ImportError(
            f"rows: {what} needs {package}; install it by pip install {package}, or all that rows "
            'may need by pip install "amc-pymc[rows]"'
        ) from error


class Source:
    """N rows of several ``pm.Data``; a subclass reads them.

    Attributes
    ----------
    n_rows : int
    shapes : dict of str to tuple
        Shape of one row of each.
    dtypes : dict of str to numpy.dtype
    labels : dict of str to list of str
        Column names of a table, for messages; empty for arrays.
    client : distributed.Client or None
        Client of the Dask cluster whose workers compute parts of the source; None if there are no parts.
    """

    n_rows: int
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, np.dtype]
    labels: dict[str, list[str]]
    client: Any = None

    def chunks(
        self, size: int, names: Sequence[str] | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield rows in order, at most ``size`` at a time, of all data or those in ``names``."""
        for block in self._blocks(size, list(self.shapes) if names is None else names):
            for start in range(0, len(next(iter(block.values()))), size):
                yield {n: a[start : start + size] for n, a in block.items()}

    def _blocks(self, size: int, names: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        """Yield rows of some data in blocks that are read at once, of ``size`` rows if possible."""
        raise NotImplementedError

    def stamp(self) -> list[Any]:
        """Return numbers and strings that identify the source."""
        return [self.n_rows, sorted(self.labels.items()), self._hashes(self.shapes)]

    def _hashes(self, names: Iterable[str]) -> dict[str, list[Any]]:
        """Return the types of some data and a hash of all their bytes."""
        digests = {n: hashlib.blake2b(digest_size=16) for n in sorted(names)}
        for chunk in self.chunks(_CHUNK, list(digests)) if digests else ():
            for name, digest in digests.items():
                digest.update(np.ascontiguousarray(chunk[name]))
        return {
            n: [str(self.dtypes[n]), *self.shapes[n], d.hexdigest()] for n, d in digests.items()
        }


class ArraySource(Source):
    """Arrays (N, ...) by the name of the ``pm.Data`` whose rows they hold."""

    def __init__(self, arrays: Mapping[str, Any]):
        self._arrays = arrays
        self.n_rows = int(next(iter(arrays.values())).shape[0])
        self.shapes = {n: a.shape[1:] for n, a in arrays.items()}
        self.dtypes = {n: np.dtype(a.dtype) for n, a in arrays.items()}
        self.labels = {n: [] for n in arrays}

    def _blocks(self, size: int, names: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        own = [getattr(self._arrays[n], "chunks", None) or (1,) for n in names]  # those of Zarr
        step = max(size, *(c[0] for c in own))
        for start in range(0, self.n_rows, step):
            yield {n: np.array(self._arrays[n][start : start + step]) for n in names}
            for name in names:
                release(self._arrays[name])

    def stamp(self) -> list[Any]:
        """Return the files of whole memory maps, and hashes of all other arrays."""
        # Parts of a map, and maps that are changed in memory only, are not what the file says.
        files = {
            n: [
                *file_stamp(Path(a.filename)),
                a.offset,
                list(a.strides),
                list(a.shape),
                str(a.dtype),
            ]
            for n, a in sorted(self._arrays.items())
            if isinstance(a, np.memmap) and isinstance(a.base, mmap.mmap)
            if a.filename is not None and a.mode != "c"
        }
        return [self.n_rows, files, self._hashes(n for n in self._arrays if n not in files)]


class TableSource(Source):
    """Columns of a table by the name of the ``pm.Data`` whose rows they hold.

    Missing values are read as NaN, which packing refuses.
    """

    def __init__(self, columns: Chosen, known: Mapping[str, np.dtype]):
        self.columns = columns
        self.labels = {n: [c] if isinstance(c, str) else c for n, c in columns.items()}
        self.names = list(dict.fromkeys(c for own in self.labels.values() for c in own))
        for c in self.names:
            if c not in known:
                raise ValueError(
                    f"rows: the table has no column {c!r}; it has {', '.join(map(repr, known))}"
                )
            if known[c].kind not in "fiub":
                raise TypeError(f"rows: column {c!r} must hold numbers, got {known[c]}")
        self.shapes = {n: () if isinstance(c, str) else (len(c),) for n, c in columns.items()}
        self.dtypes = {n: np.result_type(*(known[c] for c in o)) for n, o in self.labels.items()}


def put_together(read: Mapping[str, np.ndarray], columns: Chosen) -> dict[str, np.ndarray]:
    """Return the columns of a block by the name of their ``pm.Data``."""
    return {
        name: read[c] if isinstance(c, str) else np.stack([read[k] for k in c], axis=1)
        for name, c in columns.items()
    }


class ParquetSource(TableSource):
    """A Parquet file, or all Parquet files of a folder in the order of their names."""

    def __init__(self, path: Path, columns: Chosen):
        self._files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
        if not self._files:
            raise ValueError(f"rows: {str(path)!r} has no Parquet files and no Zarr group")
        dataset = library("pyarrow.dataset", "Parquet").dataset
        try:
            self._table = dataset(list(map(str, self._files)), format="parquet")
            self.n_rows = self._table.count_rows()
        except (OSError, ValueError) as error:
            raise ValueError(f"rows: {path} cannot be read as Parquet: {error}") from error
        super().__init__(columns, {f.name: _numpy_type(f.type) for f in self._table.schema})

    def _blocks(self, size: int, names: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        own = list(dict.fromkeys(c for n in names for c in self.labels[n]))
        ahead = {"batch_readahead": 0, "fragment_readahead": 0, "use_threads": False}
        for batch in self._table.to_batches(columns=own, batch_size=size, **ahead):
            read = {c: _column(batch.column(c)) for c in own}
            yield put_together(read, {n: self.columns[n] for n in names})

    def stamp(self) -> list[Any]:
        """Return paths, sizes and modification times of the files, and the columns."""
        return [[file_stamp(f) for f in self._files], sorted(self.labels.items())]


def _numpy_type(kind: Any) -> np.dtype:
    """Return the NumPy type of an Arrow column, ``object`` if there is none."""
    try:
        found: np.dtype = np.dtype(kind.to_pandas_dtype())
        return found
    except (NotImplementedError, TypeError):
        return np.dtype(object)


def _column(column: Any) -> np.ndarray:
    values: np.ndarray = column.to_numpy(zero_copy_only=False)
    return values.astype(float) if column.null_count else values


def file_stamp(path: Path) -> list[Any]:
    """Return path, size and modification time of a file."""
    status = path.stat()
    return [str(path.resolve()), status.st_size, status.st_mtime_ns]
