"""Sources of rows, read chunk by chunk: arrays of NumPy, ``numpy.memmap``, Zarr and Dask, Parquet files, dataframes."""

from __future__ import annotations

import importlib
import os

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from amc_pymc.arguments import positive_int
from amc_pymc.rows.files import release

#: Column, or columns, of each ``pm.Data``.
Chosen = Mapping[str, str | list[str]]


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
    """

    n_rows: int
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, np.dtype]
    labels: dict[str, list[str]]

    def chunks(self, size: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield rows in order, at most ``size`` at a time."""
        for block in self._blocks(size):
            for start in range(0, len(next(iter(block.values()))), size):
                yield {n: a[start : start + size] for n, a in block.items()}

    def _blocks(self, size: int) -> Iterator[dict[str, np.ndarray]]:
        """Yield rows in blocks that are read at once, of ``size`` rows if possible."""
        raise NotImplementedError


class ArraySource(Source):
    """Arrays (N, ...) by the name of the ``pm.Data`` whose rows they hold."""

    def __init__(self, arrays: Mapping[str, Any]):
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
        self._arrays, self.n_rows = arrays, next(iter(lengths.values()))
        self.shapes = {n: a.shape[1:] for n, a in arrays.items()}
        self.dtypes = {n: np.dtype(a.dtype) for n, a in arrays.items()}
        self.labels = {n: [] for n in arrays}

    def _blocks(self, size: int) -> Iterator[dict[str, np.ndarray]]:
        arrays = self._arrays.values()
        chunk = max(map(_chunk_of, arrays))
        step = chunk * max(1, size // chunk)
        for start in range(0, self.n_rows, step):
            parts = computed([a[start : start + step] for a in arrays])
            yield {n: np.array(part) for n, part in zip(self._arrays, parts)}
            for array in arrays:
                release(array)


def _chunk_of(array: Any) -> int:
    """Return the number of rows that an array of Zarr or Dask reads at once, 1 for others."""
    chunks = getattr(array, "chunksize", None) or getattr(array, "chunks", None) or (1,)
    return int(chunks[0])


def is_dask(value: Any) -> bool:
    """Whether a value is a Dask collection."""
    return hasattr(value, "__dask_graph__")


def computed(parts: Sequence[Any]) -> Sequence[Any]:
    """Compute Dask collections among some objects together: on the current cluster, or else in this thread."""
    if not any(map(is_dask, parts)):
        return parts
    dask = importlib.import_module("dask")
    found: Sequence[Any] = dask.compute(*parts, scheduler=dask.config.get("scheduler", "sync"))
    return found


class TableSource(Source):
    """Columns of a table by the name of the ``pm.Data`` whose rows they hold.

    Missing values are read as NaN, which packing refuses.
    """

    def __init__(self, columns: Chosen, kinds: Mapping[str, Any]):
        known = {name: _numpy_type(kind) for name, kind in kinds.items()}
        self._columns = columns
        self.labels = {n: [c] if isinstance(c, str) else c for n, c in columns.items()}
        self._names = list(dict.fromkeys(c for own in self.labels.values() for c in own))
        for c in self._names:
            if c not in known:
                raise ValueError(
                    f"rows: the table has no column {c!r}; it has {', '.join(map(repr, known))}"
                )
            if known[c].kind not in "fiub":
                raise TypeError(f"rows: column {c!r} must hold numbers, got {known[c]}")
        self.shapes = {n: () if isinstance(c, str) else (len(c),) for n, c in columns.items()}
        self.dtypes = {n: np.result_type(*(known[c] for c in o)) for n, o in self.labels.items()}

    def _blocks(self, size: int) -> Iterator[dict[str, np.ndarray]]:
        for frame in self._frames(size):
            read = {c: _values(frame[c]) for c in self._names}
            yield {
                n: read[c] if isinstance(c, str) else np.stack([read[k] for k in c], axis=1)
                for n, c in self._columns.items()
            }

    def _frames(self, size: int) -> Iterator[Any]:
        """Yield the columns as dataframes of pandas that are read at once, of ``size`` rows if possible."""
        raise NotImplementedError


def _numpy_type(kind: Any) -> np.dtype:
    """Return the NumPy type of a pandas column, including nullable ones; ``object`` if there is none."""
    kind = getattr(kind, "numpy_dtype", kind)
    return kind if isinstance(kind, np.dtype) else np.dtype(object)


def _values(column: Any) -> np.ndarray:
    """Return the numbers of a pandas column."""
    if column.hasnans:
        found: np.ndarray = column.to_numpy(float, na_value=np.nan)
    else:
        found = column.to_numpy(_numpy_type(column.dtype))
    return found


class ParquetSource(TableSource):
    """A Parquet file, or all Parquet files of a folder in the order of their names."""

    def __init__(self, path: Path, columns: Chosen):
        files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
        if not files:
            raise ValueError(f"rows: {str(path)!r} has no Parquet files")
        try:
            dataset = importlib.import_module("pyarrow.dataset").dataset
            self._table = dataset(list(map(str, files)), format="parquet")
            self.n_rows = self._table.count_rows()
        except ImportError as error:
            raise ImportError(
                "rows: Parquet needs pyarrow; install it by pip install pyarrow, or all that rows may "
                'need by pip install "amc-pymc[rows]"'
            ) from error
        except (OSError, ValueError) as error:
            raise ValueError(f"rows: {path} cannot be read as Parquet: {error}") from error
        empty = self._table.schema.empty_table().to_pandas(ignore_metadata=True)
        super().__init__(columns, dict(empty.dtypes))

    def _frames(self, size: int) -> Iterator[Any]:
        ahead = {"batch_readahead": 0, "fragment_readahead": 0, "use_threads": False}
        for batch in self._table.to_batches(columns=self._names, batch_size=size, **ahead):
            yield batch.to_pandas(ignore_metadata=True)


class DaskTable(TableSource):
    """A Dask dataframe, read partition by partition."""

    def __init__(self, frame: Any, columns: Chosen):
        self._frame = frame
        super().__init__(columns, dict(frame.dtypes))
        (lengths,) = computed([frame[self._names[:1]].map_partitions(len)])
        self.n_rows = int(sum(lengths))

    def _frames(self, size: int) -> Iterator[Any]:
        for k in range(self._frame.npartitions):
            (frame,) = computed([self._frame[self._names].get_partition(k)])
            yield frame


# --- settings --------------------------------------------------------------------------------------


#: Minimum and default memory of a pass, in bytes.
_LEAST, _DEFAULT = 8 * 2**20, 256 * 2**20


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows that a model reads through ``pm.Data`` placeholders, and their store on disk.

    The model is built on placeholders: ``pm.Data`` containers with a few hundred representative
    rows. One pass over the source writes the data that the likelihood needs to a store on disk. The
    source is not read again in this run.

    Parameters
    ----------
    source : mapping of str to array, str, path or Dask dataframe
        A mapping holds the rows (N, ...) of each ``pm.Data``: NumPy arrays, ``numpy.memmap``,
        Zarr or Dask arrays. A path is that of a Parquet file or a folder of them. Dask computes its
        collections on its current cluster, if there is one.
    columns : mapping of str to str or sequence of str, optional
        For tables: the column of each ``pm.Data`` (N,), or the list of its columns (N, K). By default
        a column has the name of its ``pm.Data``.
    folder : str or path, optional
        Existing folder of the store, which is a temporary file, unnamed if the system allows that, and is
        removed with the last object that needs it. Default: the system's folder of temporary files.
    memory : int, default 256 MiB
        Bytes that the pass may use, in addition to those that the source uses to read a chunk.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range, or the folder does not exist or cannot be written to.

    Examples
    --------
    >>> import numpy as np, pymc as pm, amc_pymc as amc
    >>> rng = np.random.default_rng(1)
    >>> X = rng.normal(size=(20_000, 2))
    >>> y = rng.normal(X @ [1.0, -1.0], 1.0)
    >>> with pm.Model() as model:
    ...     X_, y_ = pm.Data("X", X[:500]), pm.Data("y", y[:500])
    ...     b = pm.Normal("b", 0, 10, shape=2)
    ...     obs = pm.Normal("obs", X_ @ b, 1.0, observed=y_)
    ...     rows = amc.Rows({"X": X, "y": y})  # or numpy.memmap, Zarr and Dask arrays
    ...     step = amc.RacingMetropolis(rows=rows)
    ...     idata = pm.sample(
    ...         200,
    ...         tune=100,
    ...         step=step,
    ...         chains=2,
    ...         cores=1,
    ...         random_seed=1,
    ...         progressbar=False,
    ...         quiet=True,
    ...     )
    >>> bool(abs(idata.posterior["b"].mean(("chain", "draw")) - [1, -1]).max() < 0.03)
    True
    """

    source: Any
    columns: Mapping[str, str | Sequence[str]] | None = None
    _: KW_ONLY
    folder: str | os.PathLike[str] | None = None
    memory: int = _DEFAULT

    def __post_init__(self) -> None:
        source, columns, folder = self.source, self.columns, self.folder
        frame = is_dask(source) and hasattr(source, "columns")
        if not (frame or isinstance(source, Mapping | str | os.PathLike)):
            raise TypeError(
                "rows must map names of pm.Data to arrays, or be the path of Parquet files, a Dask "
                f"dataframe or amc_pymc.Rows, got {type(source).__name__}"
            )
        if isinstance(source, str | os.PathLike) and not Path(source).exists():
            raise ValueError(f"source: there is no file or folder {str(source)!r}")
        if columns is not None and not isinstance(columns, Mapping):
            raise TypeError(
                "columns must map names of pm.Data to names of columns, got "
                f"{type(columns).__name__}"
            )
        if columns is not None and isinstance(source, Mapping):
            raise ValueError("columns is for tables; the keys of source name its arrays already")
        positive_int("memory", self.memory, _LEAST)
        if not (
            folder is None or (isinstance(folder, str | os.PathLike) and Path(folder).is_dir())
        ):
            raise ValueError(f"folder must be an existing folder or None, got {folder!r}")


# --- opening -------------------------------------------------------------------------------------------


class Placeholder(NamedTuple):
    """Shape and type that a model expects of the rows (N, *shape) of a ``pm.Data``."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype


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
    given, names = rows.source, [w.name for w in wanted]
    source: Source
    if isinstance(given, Mapping):
        _check_names("rows", given, names)
        source = ArraySource({name: given[name] for name in names})
    elif isinstance(given, str | os.PathLike):
        source = ParquetSource(Path(given), _columns(rows.columns, names))
    else:
        source = DaskTable(given, _columns(rows.columns, names))
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
