"""Checkpoint of annealed particles, from which a killed run can resume."""

from __future__ import annotations

import json
import os

from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from amc_pymc.annealing import Annealed
from amc_pymc.execution import raise_if_signalled

__all__ = ["Checkpoint"]

_ARRAYS = ("x", "log_weights", "log_likelihood", "paths", "log_sums", "acceptance")


class Checkpoint:
    """Results of blocks of particles, in memory and, if a path is given, in a netCDF file.

    Attributes
    ----------
    words : list of int or None
        Seed of the run in the file.
    done : dict of int to Annealed
        Finished blocks.
    """

    def __init__(self, path: Path | None, settings: str):
        self.path, self.settings = path, settings
        self.words: list[int] | None = None
        self.done: dict[int, Annealed] = {}
        self.extra: dict[int, tuple[float, int]] = {}

    @classmethod
    def open(cls, path: str | Path | None, *, settings: str, words: list[int] | None) -> Checkpoint:
        """Read a checkpoint file, if it exists.

        Parameters
        ----------
        path : str, Path or None
        settings : str
            Everything that the numbers depend on, except the seed.
        words : list of int or None
            Seed that the file must have; None accepts any.

        Raises
        ------
        TypeError, ValueError
            If `path` is not a path, its folder does not exist, or the file is not a checkpoint or comes from a run
            with other settings or another seed.
        """
        if not isinstance(path, str | os.PathLike | None):
            raise TypeError(f"checkpoint must be a path, got {path!r}.")
        out = cls(None if path is None else Path(path), settings)
        if out.path is None:
            return out
        if not out.path.parent.is_dir():
            raise ValueError(f"checkpoint={str(path)!r} is in a folder that does not exist.")
        if out.path.exists():
            out._read()
            if out.done and words not in (None, out.words):
                raise ValueError(
                    f"checkpoint={str(path)!r} is of a run with another random_seed; delete it or name "
                    "another file."
                )
        return out

    def begin(self, words: list[int]) -> list[int]:
        """Return the seed to continue with: that of the blocks in the file, else `words`."""
        if not self.done:
            self.words = words
            if self.path is not None:
                self._write()
        assert self.words is not None
        return self.words

    def add(self, block: int, found: tuple[Annealed, float, int]) -> None:
        """Store a finished block with its CPU seconds and its number of nan densities."""
        run, seconds, nan = found
        self.done[block], self.extra[block] = run, (seconds, nan)
        if self.path is not None:
            self._write()

    def in_order(self) -> dict[int, Annealed]:
        """Return the finished blocks in order."""
        return dict(sorted(self.done.items()))

    @property
    def seconds(self) -> float:
        """CPU seconds of all blocks."""
        return sum(s for s, _ in self.extra.values())

    def counts(self) -> np.ndarray:
        """Return the numbers of points without and with gradients and of nan densities in all blocks, (3,)."""
        evaluations = sum(run.evaluations for run in self.done.values())
        gradients = sum(run.gradients for run in self.done.values())
        return np.array([evaluations, gradients, sum(n for _, n in self.extra.values())])

    def _write(self) -> None:
        """Replace the file atomically: a process that is killed here leaves the old one."""
        data: dict[str, Any] = {}
        for i, run in self.done.items():
            for name in _ARRAYS:
                array = getattr(run, name)
                dims = [f"{name}_{i}_{k}" for k in range(array.ndim)]
                data[f"{name}_{i}"] = dims, array
        numbers = {
            i: [run.evaluations, run.gradients, *self.extra[i]] for i, run in self.done.items()
        }
        attrs = {
            "settings": self.settings,
            "words": json.dumps(self.words),
            "blocks": json.dumps(numbers),
        }
        assert self.path is not None
        partial = self.path.with_name(self.path.name + ".partial")
        xr.Dataset(data, attrs=attrs).to_netcdf(partial, engine="scipy")
        os.replace(partial, self.path)

    def _read(self) -> None:
        assert self.path is not None
        try:
            with xr.open_dataset(self.path, engine="scipy") as data:
                data.load()
            settings, self.words = data.attrs["settings"], json.loads(data.attrs["words"])
            for key, (evaluations, gradients, *extra) in json.loads(data.attrs["blocks"]).items():
                arrays = {name: data[f"{name}_{key}"].values.astype(float) for name in _ARRAYS}
                run = Annealed(**arrays, evaluations=evaluations, gradients=gradients)
                self.done[int(key)], self.extra[int(key)] = run, tuple(extra)
        except Exception as error:
            raise_if_signalled(error)
            raise ValueError(
                f"checkpoint={str(self.path)!r} is no checkpoint of sample_ais: {error}"
            ) from error
        # A file without finished blocks may be overwritten.
        if self.done and settings != self.settings:
            raise ValueError(
                f"checkpoint={str(self.path)!r} is of a run with other arguments or another model; delete "
                "it or name another file."
            )
