"""Journal of a long run: a folder with one file per batch, from which a killed run resumes."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sys
import zipfile

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from amc_pymc.rng import RandomSeed
from amc_pymc.runs.fingerprints import fingerprint

_HEADER = "run.json"
#: Array of a batch that the journal adds: a digest of what it was made from.
_MADE_FROM = "journal.made_from"
_DELETE = "delete the folder or name another one"


class Journal:
    """Batches of arrays in a folder; finished batches are never written again.

    Each batch is a file ``000000.npz`` that NumPy can open without pickles. It is written atomically: a killed run
    leaves no incomplete batch. The file ``run.json`` identifies the run and the version of this package. Each batch
    has a digest of what it was made from, such as the points of simulations: a run that would draw others must not
    use it.

    Parameters
    ----------
    path : str, Path or None
        Folder, made by :meth:`begin` if its parent exists. None stores nothing.
    told : mapping
        Everything that the numbers depend on, except the seed, by the names that messages use; see
        :func:`amc_pymc.runs.fingerprint`.
    words : list of int, optional
        Seed that the folder must have.

    Raises
    ------
    TypeError, ValueError
        If `path` is not a path, its parent does not exist, the folder holds other files, or it holds batches of a
        run with another seed, another fingerprint or another version of this package; the message names what differs.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from amc_pymc.runs import Journal
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     journal = Journal(folder + "/run", {"epsilon": 0.1})
    ...     words = journal.begin([7])
    ...     points = np.array([0.5, 0.6])
    ...     journal.append({"distance": np.array([0.3, 0.2])}, points)
    ...     again = Journal(folder + "/run", {"epsilon": 0.1})
    ...     again.begin([8]), again.recall(points), again.recall(points)
    ([7], {'distance': array([0.3, 0.2])}, None)
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
        self._n = self._recalled = 0
        if self.path is not None:
            self._look(self.path, words)
        self._found = self._n

    def __len__(self) -> int:
        """Return the number of batches on disk."""
        return self._n

    def _look(self, path: Path, words: Sequence[int] | None) -> None:
        """Count the batches and check that they belong to this run."""
        if not path.parent.is_dir():
            raise self._refusal(" is in a folder that does not exist; make it or name another one")
        file = path / _HEADER
        if not path.exists() or (path.is_dir() and {*path.iterdir()} <= {_partial(file)}):
            return
        try:
            known = json.loads(file.read_bytes())
            version, before, seed = known["version"], known["fingerprint"], [*known["words"]]
            names = dict.fromkeys([*before.keys(), *self._fingerprint])
        except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
            raise self._refusal(
                f" is no checkpoint: {_HEADER} cannot be read ({error!r}); name a new or an empty folder"
            ) from error
        self._n = next(k for k in itertools.count() if not (path / _name(k)).exists())
        if self._n < len(list(path.glob("*.npz"))):
            raise self._refusal(
                f": {_name(self._n)} is missing, but there are later ones; delete these"
            )
        if not self._n:
            return  # a folder without batches may be overwritten
        changed = [n for n in names if before.get(n, ...) != self._fingerprint.get(n, ...)]
        if version != _version():
            changed.append(f"the version of amc_pymc (from {version} to {_version()})")
        if words is not None and [int(word) for word in words] != seed:
            changed.append("random_seed")
        if changed:
            raise self._refusal(f" is of another run: {', '.join(changed)} changed; {_DELETE}")
        self.words = seed

    def begin(self, words: Sequence[int]) -> list[int]:
        """Return the seed to continue with: that of the batches in the folder, else `words`."""
        if not self._n:
            self.words = [int(word) for word in words]
            if self.path is not None:
                self.path.mkdir(exist_ok=True)
                header = {
                    "version": _version(), "words": self.words, "fingerprint": self._fingerprint
                }  # fmt: skip
                _write(self.path / _HEADER, json.dumps(header, indent=1).encode())
        assert self.words is not None
        return self.words

    def batches(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield one batch after the other; a ValueError says that a file is damaged."""
        for k in range(self._n):
            yield self._batch(k)[0]

    def recall(self, made_from: Any = None) -> dict[str, np.ndarray] | None:
        """Return the next batch that was on disk at the beginning, None after the last one.

        Parameters
        ----------
        made_from : array_like, optional
            What was given to :meth:`append` with that batch.

        Raises
        ------
        ValueError
            If the batch was made from something else, or its file is damaged.
        """
        if self._recalled == self._found:
            return None
        k = self._recalled
        arrays, before = self._batch(k)
        if before != _digest(made_from):
            raise self._refusal(
                f": {_name(k)} was made from other draws than this run makes there. Has the code of the model, of "
                f"this package or of NumPy changed? Go on with the old one, or {_DELETE}"
            )
        self._recalled += 1
        return arrays

    def append(self, arrays: Mapping[str, Any], made_from: Any = None) -> None:
        """Write a batch; it is on disk when this returns.

        Parameters
        ----------
        arrays : mapping of str to array_like
            Numbers or strings.
        made_from : array_like, optional
            Numbers that the batch is a function of, but for random numbers; a resumed run must make the same.

        Raises
        ------
        ValueError
            If another run has written to the folder in the meantime.
        """
        if self.path is None:
            return
        found = {name: np.asarray(value) for name, value in arrays.items()}
        found[_MADE_FROM] = np.asarray(_digest(made_from))
        file = self.path / _name(self._n)
        if file.exists():
            raise self._refusal(
                f": another run is writing to this folder ({file.name}); name another one"
            )
        _write(file, found)
        self._n += 1

    def _batch(self, k: int) -> tuple[dict[str, np.ndarray], str]:
        """Return the arrays of a file, and the digest of what they were made from."""
        assert self.path is not None
        try:
            with (self.path / _name(k)).open("rb") as stream:
                arrays = dict(np.load(stream))
            return arrays, str(arrays.pop(_MADE_FROM))
        except (ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise self._refusal(
                f": {_name(k)} cannot be read ({error!r}); delete it and all files with higher numbers"
            ) from error

    def _refusal(self, what: str) -> ValueError:
        return ValueError(f"checkpoint={str(self.path)!r}{what}.")


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
    words : list of int
        Seed of a new run.
    random_seed : int, Generator or None
        Argument of the user; a seed that is an int must be that of the folder.

    Returns
    -------
    Journal
    list of int
        Seed to continue with.
    """
    named = not (random_seed is None or isinstance(random_seed, np.random.Generator))
    journal = Journal(checkpoint, {} if checkpoint is None else told(), words if named else None)
    return journal, journal.begin(words)


def _name(k: int) -> str:
    return f"{k:06d}.npz"


def _digest(made_from: Any) -> str:
    """Return a digest of numbers to single precision, because last digits depend on the machine."""
    numbers = np.asarray([] if made_from is None else made_from, np.float32)
    return hashlib.sha256(str(numbers.shape).encode() + numbers.tobytes()).hexdigest()


def _version() -> str:
    return str(sys.modules[__name__.partition(".")[0]].__version__)


def _partial(file: Path) -> Path:
    return file.with_name(file.name + ".partial")


def _write(file: Path, content: bytes | dict[str, np.ndarray]) -> None:
    """Write a file atomically, and flush it to disk."""
    partial = _partial(file)
    with partial.open("wb") as stream:
        if isinstance(content, bytes):
            stream.write(content)
        else:
            np.savez(stream, **content)  # type: ignore[arg-type]
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(partial, file)
