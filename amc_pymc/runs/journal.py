"""Journal of a long run: a folder with one file per batch, from which a killed run resumes."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import zipfile

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from amc_pymc.rng import RandomSeed, as_generator, seed_words
from amc_pymc.runs.fingerprints import differences, fingerprint

_FORMAT = 2
_HEADER = "run.json"
#: Arrays of a batch that the journal adds: a digest of what it was made from, and a checksum.
_MADE_FROM, _CHECKSUM = "journal.made_from", "journal.checksum"
_DELETE = "delete the folder or name another one"


class Journal:
    """Batches of arrays in a folder; finished batches are never written again.

    Each batch is a file ``000000.npz`` that NumPy can open without pickles. It is written atomically: a killed run
    leaves no incomplete batch. The file ``run.json`` identifies the run and the version of this package. Each batch
    has a checksum of its content, its number and ``run.json``, and a digest of what it was made from, such as the
    points of simulations: a run that would draw others must not use it.

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
        run with another seed, another fingerprint or another version of this package; the message names the
        difference.

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
        self._header = b""
        self._n = self._recalled = 0
        if self.path is not None:
            self._look(self.path, words)
        self._found = self._n

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
                    "version": _version(),
                    "words": self.words,
                    "fingerprint": self._fingerprint,
                }
                self._header = json.dumps(header, indent=1).encode()
                _write(self.path / _HEADER, self._header)
        assert self.words is not None
        return self.words

    def batches(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield one batch after the other.

        Raises
        ------
        ValueError
            If a file is damaged, or of another run or another place.
        """
        for k in range(self._n):
            yield self._batch(k)[0]

    def recall(self, made_from: Any = None) -> dict[str, np.ndarray] | None:
        """Return the next batch that was on disk at the beginning, None after the last one.

        Parameters
        ----------
        made_from : array, optional
            What this run would make the batch from; compared, to single precision, with that of :meth:`append`.

        Raises
        ------
        ValueError
            If they differ, or the file is damaged, or of another run or another place.
        """
        if self._recalled == self._found:
            return None
        arrays, before = self._batch(self._recalled)
        if before != _digest(made_from):
            raise self.other(self._recalled, "was made from other draws than this run makes there")
        self._recalled += 1
        return arrays

    def other(self, k: int, what: str) -> ValueError:
        """Return the error that batch k is not that of this run."""
        return self._refusal(
            f": {_name(k)} {what}. Has the code of the model, of an estimator, of this package or of a library changed? "
            f"Go on with the old one, or {_DELETE}"
        )

    def _batch(self, k: int) -> tuple[dict[str, np.ndarray], str]:
        """Return the arrays of a file, and the digest of what they were made from."""
        assert self.path is not None
        try:
            with (self.path / _name(k)).open("rb") as stream:
                arrays = dict(np.load(stream))
            checksum = arrays.pop(_CHECKSUM, None)
            if checksum is None or str(checksum) != self._checksum(k, arrays):
                raise ValueError("its checksum is not that of this batch of this run")
        except (ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise self._refusal(
                f": {_name(k)} cannot be read ({error}); delete it and all files with higher numbers"
            ) from error
        return arrays, str(arrays.pop(_MADE_FROM))

    def _checksum(self, k: int, arrays: Mapping[str, np.ndarray]) -> str:
        found = hashlib.sha256(self._header + str(k).encode())
        for name, array in arrays.items():
            found.update(f"{name} {array.dtype.str} {array.shape}".encode() + array.tobytes())
        return found.hexdigest()

    def _refusal(self, what: str) -> ValueError:
        return ValueError(f"checkpoint={str(self.path)!r}{what}.")

    def append(self, arrays: Mapping[str, Any], made_from: Any = None) -> None:
        """Write a batch; it is on disk when this returns.

        Parameters
        ----------
        arrays : mapping
        made_from : array, optional
            Numbers from which the batch was made, if a resumed run makes them again; see :meth:`recall`.

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
            raise self._refusal(
                f": another run is writing to this folder ({file.name}); name another one"
            )
        found[_MADE_FROM] = np.asarray(_digest(made_from))
        found[_CHECKSUM] = np.asarray(self._checksum(self._n, found))
        _write(file, found)
        self._n += 1

    def _look(self, path: Path, words: Sequence[int] | None) -> None:
        """Count the batches and check that they belong to this run."""
        if not path.parent.is_dir():
            raise self._refusal(" is in a folder that does not exist; make it or name another one")
        if not path.exists():
            return
        known = self._known(path)
        if known is None:
            return
        self._n = self._batches_in(path)
        if not self._n:
            return  # a folder without batches may be overwritten
        made_by, this = (known["format"], known.get("version") or "?"), (_FORMAT, _version())
        if made_by != this:
            raise self._refusal(
                f" is of amc_pymc {made_by[1]} (format {made_by[0]}), this is {this[1]} (format {this[0]}). "
                f"Finish the run with that version, or {_DELETE}"
            )
        others = differences(known["fingerprint"], self._fingerprint)
        if others:
            raise self._refusal(f" is of another run: {'; '.join(others)}. {_DELETE.capitalize()}")
        self.words = known["words"]
        if words is not None and [int(word) for word in words] != self.words:
            raise self._refusal(f" is of a run with another random_seed; {_DELETE}")

    def _known(self, path: Path) -> dict[str, Any] | None:
        """Return the header of the run in the folder; None if the folder is empty."""
        what, new = " is no checkpoint", "name a new or an empty folder"
        if not path.is_dir():
            raise self._refusal(f"{what}: it is not a folder; {new}")
        file = path / _HEADER
        if not file.exists():
            if all(other.name == _partial(file).name for other in path.iterdir()):
                return None
            raise self._refusal(f"{what}: it has files but not {_HEADER}; {new}")
        try:
            self._header = file.read_bytes()
            header: dict[str, Any] = json.loads(self._header)
            words, facts = header["words"], header["fingerprint"]
            if "format" in header and isinstance(words, list) and isinstance(facts, dict):
                return header
            raise ValueError("it is not of such a run")
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise self._refusal(f"{what}: {_HEADER} cannot be read ({error!r}); {new}") from error

    def _batches_in(self, path: Path) -> int:
        names = {file.name for file in path.glob("*.npz")}
        missing = next(k for k in range(len(names) + 1) if _name(k) not in names)
        if missing < len(names):
            raise self._refusal(
                f": {_name(missing)} is missing, but there are later ones; delete these"
            )
        return missing


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
    with _partial(file).open("wb") as stream:
        if isinstance(content, bytes):
            stream.write(content)
        else:
            np.savez(stream, **content)  # type: ignore[arg-type]
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(_partial(file), file)
