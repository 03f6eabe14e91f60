"""Journal of a long run: a folder with one file per batch, from which a killed run resumes."""

from __future__ import annotations

import json
import os
import zipfile

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from numpy.lib import format as npy

from amc_pymc.rng import RandomSeed, as_generator, seed_words
from amc_pymc.running.fingerprints import differences, fingerprint

__all__ = ["Journal", "begin_journal", "words_to_store"]

_FORMAT = 1
_HEADER = "run.json"


class Journal:
    """Batches of arrays in a folder; finished batches are never written again.

    Each batch is a file ``000000.npz`` that NumPy can open without pickles. It is written atomically: a killed run
    leaves no incomplete batch. The file ``run.json`` identifies the run.

    Parameters
    ----------
    path : str, Path or None
        Folder, made by :meth:`begin` if its parent exists. None stores nothing.
    told : mapping
        Everything that the numbers depend on, except the seed, by the names that messages use; see
        :func:`amc_pymc.running.fingerprint`.
    words : list of int, optional
        Seed that the folder must have.

    Raises
    ------
    TypeError, ValueError
        If `path` is not a path, its parent does not exist, the folder holds other files, or it holds batches of a
        run with another seed or another fingerprint; the message names the difference.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from amc_pymc.running import Journal
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     journal = Journal(folder + "/run", {"epsilon": 0.1})
    ...     words = journal.begin([7])
    ...     journal.append({"distance": np.array([0.3, 0.2])})
    ...     again = Journal(folder + "/run", {"epsilon": 0.1})
    ...     again.begin([8]), again.load()
    ([7], [{'distance': array([0.3, 0.2])}])
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        told: Mapping[str, Any],
        words: Sequence[int] | None = None,
    ):
        if not isinstance(path, str | os.PathLike | None):
            raise TypeError(f"checkpoint must be a path, got {path!r}.")
        self.path = None if path is None else Path(path)
        self.words: list[int] | None = None
        self._fingerprint = fingerprint(told)
        self._n = 0
        if self.path is not None:
            self._look(self.path, words)

    def __len__(self) -> int:
        """Return the number of batches on disk."""
        return self._n

    def begin(self, words: Sequence[int]) -> list[int]:
        """Return the seed to continue with: that of the batches in the folder, else `words`."""
        if not self._n:
            self.words = [int(word) for word in words]
            if self.path is not None:
                self.path.mkdir(exist_ok=True)
                header = {
                    "format": _FORMAT,
                    "words": self.words,
                    "fingerprint": self._fingerprint,
                }
                _write(self.path / _HEADER, json.dumps(header, indent=1).encode())
        assert self.words is not None
        return self.words

    def load(self) -> list[dict[str, np.ndarray]]:
        """Return all batches in order."""
        return list(self.batches())

    def batches(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield one batch after the other.

        Raises
        ------
        ValueError
            If a file is damaged.
        """
        for k in range(self._n):
            assert self.path is not None
            file = self.path / _name(k)
            try:
                arrays = _read(file)
            except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
                raise ValueError(
                    f"checkpoint={str(self.path)!r}: {file.name} cannot be read ({error}); delete it and all "
                    "files with higher numbers."
                ) from error
            yield arrays

    def append(self, arrays: Mapping[str, Any]) -> None:
        """Write a batch; it is on disk when this returns.

        Raises
        ------
        TypeError
            For arrays of objects, which only a pickle could hold.
        ValueError
            If another run has written to the folder in the meantime.
        """
        if self.path is None:
            return
        assert self.words is not None, "begin comes first"
        found = {name: np.asarray(value) for name, value in arrays.items()}
        for name, array in found.items():
            if array.dtype.hasobject:
                raise TypeError(f"{name} is an array of objects: {array!r}.")
        file = self.path / _name(self._n)
        if file.exists():
            raise ValueError(
                f"checkpoint={str(self.path)!r}: another run is writing to this folder."
            )
        _write(file, found)
        self._n += 1

    def _look(self, path: Path, words: Sequence[int] | None) -> None:
        """Count the batches and check that they belong to this run."""
        if not path.parent.is_dir():
            raise ValueError(f"checkpoint={str(path)!r} is in a folder that does not exist.")
        if not path.exists():
            return
        known = self._header(path)
        if known is None:
            return
        self._n = _batches_in(path)
        if not self._n:
            return  # a folder without batches may be overwritten
        others = differences(known["fingerprint"], self._fingerprint)
        if others:
            raise ValueError(
                f"checkpoint={str(path)!r} is of another run: {'; '.join(others)}. Delete the folder or name "
                "another one."
            )
        self.words = known["words"]
        if words is not None and [int(word) for word in words] != self.words:
            raise ValueError(
                f"checkpoint={str(path)!r} is of a run with another random_seed; delete the folder or name "
                "another one."
            )

    def _header(self, path: Path) -> dict[str, Any] | None:
        """Return the header of the run in the folder; None if the folder is empty."""
        message = f"checkpoint={str(path)!r} is no checkpoint"
        if not path.is_dir():
            raise ValueError(f"{message}: it is not a folder.")
        file = path / _HEADER
        if not file.exists():
            if all(other.name == _partial(file).name for other in path.iterdir()):
                return None
            raise ValueError(f"{message}: it has files but not {_HEADER}.")
        try:
            header: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            if header["format"] != _FORMAT:
                raise ValueError(f"it has format {header['format']!r}")
            if not isinstance(header["words"], list) or not isinstance(header["fingerprint"], dict):
                raise ValueError(f"{_HEADER} is not of such a run")
            return header
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise ValueError(f"{message}: {error!r}.") from error


def begin_journal(
    checkpoint: str | os.PathLike[str] | None,
    told: Callable[[], Mapping[str, Any]],
    words: Sequence[int],
    random_seed: RandomSeed,
) -> tuple[Journal, list[int]]:
    """Open the journal of a run.

    Parameters
    ----------
    checkpoint : str, Path or None
    told : callable
        Returns what identifies the run; not called without a checkpoint.
    words : sequence of int
        Seed of the run, made from `random_seed`. The batches in the folder must have it, unless that is None or a
        generator, which do not name a seed.
    random_seed : int, sequence of int, SeedSequence, Generator or None

    Returns
    -------
    Journal
    list of int
        Seed to continue with.
    """
    named = not (random_seed is None or isinstance(random_seed, np.random.Generator))
    journal = Journal(checkpoint, {} if checkpoint is None else told(), words if named else None)
    return journal, journal.begin(words)


def words_to_store(random_seed: RandomSeed) -> list[int]:
    """Return integers that give the generators of a seed; they are the seed itself if it consists of integers."""
    if random_seed is None or isinstance(random_seed, np.random.SeedSequence | np.random.Generator):
        return seed_words(random_seed)
    as_generator(random_seed)  # raises an error if it is no seed
    words: list[int] = np.atleast_1d(random_seed).tolist()
    return words


def _name(k: int) -> str:
    return f"{k:06d}.npz"


def _batches_in(path: Path) -> int:
    names = {file.name for file in path.glob("*.npz")}
    missing = next(k for k in range(len(names) + 1) if _name(k) not in names)
    if missing < len(names):
        raise ValueError(
            f"checkpoint={str(path)!r}: {_name(missing)} is missing, but there are later ones."
        )
    return missing


def _partial(file: Path) -> Path:
    return file.with_name(file.name + ".partial")


def _write(file: Path, content: bytes | dict[str, np.ndarray]) -> None:
    """Write a file atomically, and flush it to disk."""
    with _partial(file).open("wb") as stream:
        if isinstance(content, bytes):
            stream.write(content)
        else:
            with zipfile.ZipFile(stream, "w") as archive:
                for name, array in content.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        npy.write_array(member, array, allow_pickle=False)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(_partial(file), file)


def _read(file: Path) -> dict[str, np.ndarray]:
    arrays = {}
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            with archive.open(name) as member:
                arrays[name.removesuffix(".npy")] = npy.read_array(member, allow_pickle=False)
    return arrays
