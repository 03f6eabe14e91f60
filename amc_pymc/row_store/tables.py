"""Tables as sources of rows: Parquet files and Dask dataframes."""

from __future__ import annotations

import hashlib
import os

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from amc_pymc.row_store.arrays import Part, computed, file_stamp
from amc_pymc.row_store.libraries import library

__all__ = ["DaskTable", "ParquetTable"]

Chosen = Mapping[str, str | Sequence[str]]


class Table:
    """Columns of a table by the name of the ``pm.Data`` whose rows they hold.

    A subclass sets ``n_rows`` and reads columns.
    """

    n_rows: int
    client: Any = None

    def __init__(self, columns: Chosen, known: Mapping[str, np.dtype]):
        self._columns = columns
        self.labels: dict[str, Sequence[str]] = {
            name: [c] if isinstance(c, str) else list(c) for name, c in columns.items()
        }
        self._names = list(dict.fromkeys(c for own in self.labels.values() for c in own))
        missing = [c for c in self._names if c not in known]
        if missing:
            raise ValueError(
                f"rows: the table has no column {', '.join(map(repr, missing))}; it has "
                f"{', '.join(map(repr, known))}"
            )
        for c in self._names:
            if known[c].kind not in "fiub":
                raise TypeError(f"rows: column {c!r} must hold numbers, got {known[c]}")
        self.shapes: dict[str, tuple[int, ...]] = {
            n: () if isinstance(c, str) else (len(c),) for n, c in columns.items()
        }
        self.dtypes = {n: np.result_type(*(known[c] for c in o)) for n, o in self.labels.items()}

    def chunks(
        self, size: int, names: Sequence[str] | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield rows in order, at most ``size`` at a time, of all data or those in ``names``."""
        chosen = {n: self._columns[n] for n in (self._columns if names is None else names)}
        wanted = list(dict.fromkeys(c for n in chosen for c in self.labels[n]))
        for read in self._read(size, wanted):
            first = next(iter(read.values()))
            for start in range(0, len(first), size):
                part = {c: a[start : start + size] for c, a in read.items()}
                yield _put_together(chosen, part)

    def _read(self, size: int, columns: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        raise NotImplementedError

    def parts(self) -> Sequence[Part]:
        """Return no parts, because no workers read this table."""
        return ()


class ParquetTable(Table):
    """A Parquet file, or all Parquet files of a folder in the order of their names."""

    def __init__(self, path: str | os.PathLike[str], columns: Chosen):
        self._files = _parquet_files(Path(path))
        parquet = library("pyarrow.parquet", "Parquet")
        self.n_rows, known = 0, {}
        for k, file in enumerate(self._files):
            try:
                with parquet.ParquetFile(file) as opened:
                    types = {f.name: _numpy_type(f.type) for f in opened.schema_arrow}
                    self.n_rows += opened.metadata.num_rows
            except (OSError, library("pyarrow", "Parquet").ArrowInvalid) as error:
                raise ValueError(f"rows: {file} is not a Parquet file: {error}") from error
            if k == 0:
                known = types
            lost = [c for c in _flat(columns) & set(known) if not _same(types, known, c)]
            if lost:
                raise ValueError(
                    f"rows: {file} lacks the columns {lost} or has them in other types than "
                    f"{self._files[0]}"
                )
        super().__init__(columns, known)

    def _read(self, size: int, columns: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        parquet, first = library("pyarrow.parquet", "Parquet"), 0
        for file in self._files:
            with parquet.ParquetFile(file, memory_map=False) as opened:
                batches = opened.iter_batches(size, columns=list(columns), use_threads=False)
                for batch in batches:
                    yield {c: _column(batch.column(c), c, first) for c in columns}
                    first += batch.num_rows

    def stamp(self) -> list[Any]:
        """Return paths, sizes and modification times of the files, and the columns."""
        return [[file_stamp(f) for f in self._files], _plain(self.labels)]


class DaskTable(Table):
    """A Dask dataframe, computed partition by partition by a client or in this process."""

    def __init__(self, frame: Any, columns: Chosen, client: Any = None):
        self._frame, self.client = frame, client
        super().__init__(columns, {c: _pandas_type(t) for c, t in frame.dtypes.items()})
        lengths = computed(frame[self._names[:1]].map_partitions(len), client)
        self._lengths = [int(n) for n in lengths]
        self.n_rows = sum(self._lengths)

    def _read(self, size: int, columns: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        chosen, first = self._frame[list(columns)], 0
        for k in range(chosen.npartitions):
            part = computed(chosen.partitions[k], self.client)
            yield _pandas_columns(part, first)
            first += len(part)

    def parts(self) -> list[Part]:
        """Return the partitions of the dataframe."""
        delayed = library("dask", "client=").delayed
        made = delayed(_partition_rows)
        partitions = self._frame[self._names].to_delayed()
        firsts = np.cumsum([0, *self._lengths]).tolist()
        return [
            Part(made(p, self._columns, first), n)
            for p, first, n in zip(partitions, firsts, self._lengths)
            if n
        ]

    def stamp(self) -> list[Any]:
        """Return lengths, types and a hash of each column."""
        types = {c: str(self._frame.dtypes[c]) for c in self._names}
        digests = {c: hashlib.blake2b(digest_size=16) for c in self._names}
        for part in self._read(0, self._names):
            for c, values in part.items():
                digests[c].update(np.ascontiguousarray(values))
        content = [digest.hexdigest() for digest in digests.values()]
        return [self._lengths, types, _plain(self.labels), content]


def _put_together(columns: Chosen, read: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the columns of a chunk by the name of their ``pm.Data``."""
    return {
        name: read[c] if isinstance(c, str) else np.stack([read[k] for k in c], axis=1)
        for name, c in columns.items()
    }


def _pandas_columns(part: Any, first: int) -> dict[str, np.ndarray]:
    """Return the columns of a pandas dataframe whose first row has the number ``first``."""
    for c in part.columns:
        missing = np.flatnonzero(part[c].isna().to_numpy())
        if missing.size:
            _refuse_missing(c, first + int(missing[0]))
    return {c: part[c].to_numpy(_pandas_type(part[c].dtype)) for c in part.columns}


def _partition_rows(part: Any, columns: Chosen, first: int) -> dict[str, np.ndarray]:
    """Return the rows of a partition, on a worker."""
    return _put_together(columns, _pandas_columns(part, first))


def _same(types: Mapping[str, np.dtype], known: Mapping[str, np.dtype], column: str) -> bool:
    return column in types and types[column] == known[column]


def _flat(columns: Chosen) -> set[str]:
    return {c for own in columns.values() for c in ([own] if isinstance(own, str) else own)}


def _plain(labels: Mapping[str, Sequence[str]]) -> list[Any]:
    return sorted([name, *own] for name, own in labels.items())


def _parquet_files(path: Path) -> list[Path]:
    if not path.exists():
        raise ValueError(f"rows: there is no file or folder {str(path)!r}")
    if path.is_file():
        return [path]
    found = sorted(p for p in path.rglob("*.parquet") if p.is_file())
    if not found:
        raise ValueError(f"rows: the folder {str(path)!r} has no Parquet files and no Zarr group")
    return found


def _numpy_type(kind: Any) -> np.dtype:
    """Return the NumPy type of an Arrow column, ``object`` if there is none."""
    try:
        found: np.dtype = np.dtype(kind.to_pandas_dtype())
        return found
    except (NotImplementedError, TypeError):
        return np.dtype(object)


def _pandas_type(kind: Any) -> np.dtype:
    """Return the NumPy type of a pandas column, including nullable ones."""
    kind = getattr(kind, "numpy_dtype", kind)
    return kind if isinstance(kind, np.dtype) else np.dtype(object)


def _column(column: Any, name: str, first: int) -> np.ndarray:
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        _refuse_missing(name, first + int(np.flatnonzero(~valid)[0]))
    values: np.ndarray = column.to_numpy(zero_copy_only=False)
    return values


def _refuse_missing(column: str, row: int) -> None:
    raise ValueError(f"rows: column {column!r} has a missing value in row {row}; drop such rows")
