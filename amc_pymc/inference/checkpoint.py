"""Blocks of annealed particles on disk, so that a run that is killed can go on."""

from __future__ import annotations

import json
import os

from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from amc_pymc.annealing import Annealed
from amc_pymc.inference.evidence_model import seed_words
from amc_pymc.rng import RandomSeed

__all__ = ["Checkpoint"]

_ARRAYS = ("x", "log_weights", "log_likelihood", "paths", "log_sums", "acceptance")


class Checkpoint:
    """Results of blocks of particles, in memory and, if there is a path, in a netCDF file.

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
    def open(cls, path: str | Path | None, *, settings: str, seed: RandomSeed) -> Checkpoint:
        """Read what a file holds, if there is one.

        Raises
        ------
        ValueError
            If the file is of a run with other settings or another seed, or no checkpoint.
        """
        out = cls(None if path is None else Path(path), settings)
        if out.path is None:
            return out
        if not out.path.parent.is_dir():
            raise ValueError(f"checkpoint={str(path)!r} is in a folder that does not exist.")
        if out.path.exists():
            out._read()
            if seed is not None and not isinstance(seed, np.random.Generator):
                if seed_words(seed) != out.words:
                    raise ValueError(
                        f"checkpoint={str(path)!r} is of a run with another random_seed; delete it or name "
                        "another file."
                    )
        return out

    def begin(self, words: list[int]) -> None:
        """Remember the seed."""
        self.words = words
        if self.path is not None and not self.done:
            self._write()

    def add(self, block: int, found: tuple[Annealed, float, int]) -> None:
        """Take in a finished block, with its CPU seconds and the number of nan met."""
        run, seconds, nan = found
        self.done[block], self.extra[block] = run, (seconds, nan)
        if self.path is not None:
            self._write()

    def in_order(self) -> dict[int, Annealed]:
        """Finished blocks by their numbers."""
        return dict(sorted(self.done.items()))

    @property
    def seconds(self) -> float:
        """CPU seconds of all blocks."""
        return sum(s for s, _ in self.extra.values())

    @property
    def nan(self) -> int:
        """Points at which a density was nan."""
        return sum(n for _, n in self.extra.values())

    def _write(self) -> None:
        """Replace the file in one step: whoever is killed here leaves the old one."""
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
            settings, words = data.attrs["settings"], json.loads(data.attrs["words"])
            numbers = json.loads(data.attrs["blocks"])
        except Exception as error:
            raise ValueError(
                f"checkpoint={str(self.path)!r} is no checkpoint of sample_ais: {error}"
            ) from error
        if settings != self.settings:
            raise ValueError(
                f"checkpoint={str(self.path)!r} is of a run with other arguments or another model; delete "
                "it or name another file."
            )
        self.words = words
        for key, (evaluations, gradients, seconds, nan) in numbers.items():
            arrays = {name: data[f"{name}_{key}"].values.astype(float) for name in _ARRAYS}
            self.done[int(key)] = Annealed(**arrays, evaluations=evaluations, gradients=gradients)
            self.extra[int(key)] = seconds, nan
