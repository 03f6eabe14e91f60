"""Settings of rows that are larger than memory."""

from __future__ import annotations

import os

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal

from amc_pymc.arguments import positive_int
from amc_pymc.rows.sources import library

__all__ = ["Rows", "as_rows"]

#: Minimum and default memory of a pass, in bytes.
_LEAST, _DEFAULT = 8 * 2**20, 256 * 2**20


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows that a model reads through ``pm.Data`` placeholders, and their store on disk.

    The model is built on placeholders: ``pm.Data`` containers with a few hundred representative
    rows. One pass over the source writes the data that the likelihood needs to a store on disk. The
    source is not read again in this run. If group effects are integrated out, the rows of a group are
    stored together, in the order of the source, and a preceding pass over the group index alone
    counts them.

    Parameters
    ----------
    source : mapping of str to array, str, path, zarr.Group or Dask dataframe
        A mapping holds the rows (N, ...) of each ``pm.Data``: NumPy arrays, ``numpy.memmap``,
        Zarr or Dask arrays. A path is that of a Parquet file, a folder of them, or a Zarr group.
    columns : mapping of str to str or sequence of str, optional
        For tables and groups: the column of each ``pm.Data`` (N,), or the list of its columns
        (N, K). By default a column has the name of its ``pm.Data``.
    folder : str or path, optional
        Existing folder in which the store is kept, as ``rows.npy`` and ``rows.json``. Later runs reuse it if the
        source is the same: files are recognised by path, size and time of modification, all other
        sources are read once for a hash. By default the store is a temporary file, unnamed if the
        system allows that, and is removed with the last object that needs it.
    memory : int, default 256 MiB
        Bytes that the pass may use, in addition to those that the source uses to read a chunk.
    dtype : {"float64", "float32"}
        Type of the store. ``"float32"`` takes half the space and rounds the data to seven digits, so
        subtract large constants before; sums still use 64 bits.
    client : distributed.Client, "auto" or None
        Client whose workers hold the partitions of a Dask source and compute sums over all rows; if
        group effects are integrated out, they only read the source. ``"auto"`` is the current
        client, if there is one. None computes everything in this process.

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
    dtype: Literal["float64", "float32"] = "float64"
    client: Any = "auto"

    def __post_init__(self) -> None:
        source, columns = self.source, self.columns
        if columns is not None and not isinstance(columns, Mapping):
            raise TypeError(
                "columns must map names of pm.Data to names of columns, got "
                f"{type(columns).__name__}"
            )
        if isinstance(source, str | os.PathLike) and not Path(source).exists():
            raise ValueError(f"source: there is no file or folder {str(source)!r}")
        if columns is not None and isinstance(source, Mapping):
            raise ValueError("columns is for tables; the keys of source name its arrays already")
        if positive_int("memory", self.memory) < _LEAST:
            raise ValueError(f"memory must be at least {_LEAST:,} bytes, got {self.memory:,}")
        if self.dtype not in ("float64", "float32"):
            raise ValueError(f"dtype must be 'float64' or 'float32', got {self.dtype!r}")
        if self.folder is not None:
            _check_folder(self.folder)
        if self.client is not None and not (isinstance(self.client, str) and self.client == "auto"):
            _check_client(self.client)


def _check_folder(folder: object) -> None:
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"folder must be a path or None, got {folder!r}")
    path = Path(folder)
    if not path.is_dir():
        raise ValueError(f"folder must be an existing folder, got {str(path)!r}")
    if not os.access(path, os.W_OK | os.X_OK) and not (path / "rows.npy").exists():
        raise ValueError(f"folder {str(path)!r} cannot be written to")


def _check_client(client: Any) -> None:
    if not isinstance(client, library("distributed", "client=").Client):
        raise TypeError(
            f"client must be a distributed.Client, 'auto' or None, got {type(client).__name__}"
        )
    if client.asynchronous:
        raise ValueError("client must not be asynchronous: steps wait for its results")


def as_rows(rows: Any) -> Rows | None:
    """Convert the argument ``rows=`` of a step to settings."""
    if rows is None or isinstance(rows, Rows):
        return rows
    if isinstance(rows, Mapping | str | os.PathLike) or hasattr(rows, "columns"):
        return Rows(rows)
    if type(rows).__module__.startswith("zarr"):
        return Rows(rows)
    raise TypeError(
        "rows must map names of pm.Data to arrays, or be the path of Parquet files or of a Zarr "
        f"group, a zarr.Group, a Dask dataframe or amc_pymc.Rows, got {type(rows).__name__}"
    )
