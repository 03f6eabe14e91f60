"""Record the evaluated points of highest density."""

from __future__ import annotations

import threading

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from amc_pymc.evidence.mcmc import Path

__all__ = ["Highest", "RecordingPath", "collected"]

#: Number of points recorded per call.
_EACH = 4

_here = threading.local()


class Highest:
    """Points of highest density seen so far; the result does not depend on the order of the calls.

    Parameters
    ----------
    kept : int, default 1024
        Maximum number of points; up to twice as many are held between calls.
    """

    def __init__(self, kept: int = 1024) -> None:
        self.kept = kept
        self._lock = threading.Lock()
        self._x: list[np.ndarray] = []
        self._terms: list[np.ndarray] = []
        self._n, self._floor = 0, -np.inf

    def __len__(self) -> int:
        return self._n

    def look(self, x: np.ndarray, terms: np.ndarray) -> None:
        """Record the highest few of the points x (P, D) with their terms (2, P)."""
        log_f = terms.sum(axis=0)
        best = np.arange(len(x))
        if len(x) > _EACH:
            best = np.argpartition(-log_f, _EACH)[:_EACH]
        self.add(x[best], terms[:, best])

    def add(self, x: np.ndarray, terms: np.ndarray) -> None:
        """Record all points that are high enough."""
        best = terms.sum(axis=0) > self._floor
        if not best.any():
            return
        with self._lock:
            self._x.append(x[best])
            self._terms.append(terms[:, best])
            self._n += int(best.sum())
            if self._n > 2 * self.kept:
                self._prune()

    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the recorded points (n, D) and their terms (2, n); (0, 0) and (2, 0) if there are none."""
        with self._lock:
            self._prune()
            if not self._x:
                return np.empty((0, 0)), np.empty((2, 0))
            return np.concatenate(self._x), np.concatenate(self._terms, axis=1)

    def _prune(self) -> None:
        """Keep only the highest points."""
        if self._n <= self.kept:
            return
        x, terms = np.concatenate(self._x), np.concatenate(self._terms, axis=1)
        log_f = terms.sum(axis=0)
        kept = np.argpartition(-log_f, self.kept)[: self.kept]
        self._x, self._terms = [x[kept]], [terms[:, kept]]
        self._n, self._floor = self.kept, float(log_f[kept].min())


@contextmanager
def collected(kept: int = 1024) -> Iterator[Highest]:
    """Collect the highest points that any :class:`RecordingPath` evaluates in this thread.

    Jobs in other threads or processes use it to return the points that they have seen.
    """
    outer = getattr(_here, "memory", None)
    _here.memory = memory = Highest(kept)
    try:
        yield memory
    finally:
        _here.memory = outer


class RecordingPath:
    """Path from a prior that records where prior times likelihood was highest.

    Samplers discard most points at which they evaluate a density, such as leapfrog steps and rejected
    proposals. A trajectory that crosses a narrow peak with steps tuned for a wide one is rejected, although
    it has found the peak.

    Parameters
    ----------
    path : PriorPath
    kept : int, default 1024
        Maximum number of points that are recorded.

    Attributes
    ----------
    memory : Highest

    Notes
    -----
    Unpickling gives a recording path with an empty memory. Use :func:`collected` to collect the points evaluated in
    another process or thread.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence import RecordingPath
    >>> class Peak:
    ...     n_dim = 1
    ...
    ...     def values(self, x):
    ...         return np.stack([0.0 * x[:, 0], -(x[:, 0] ** 2)])
    >>> seen = RecordingPath(Peak())
    >>> seen.values(np.array([[3.0], [0.5], [-1.0]])).shape
    (2, 3)
    >>> seen.highest(2)[0].ravel()
    array([ 0.5, -1. ])
    """

    def __init__(self, path: Path, kept: int = 1024):
        self.path = path
        self.memory = Highest(kept)

    @property
    def n_dim(self) -> int:
        """Number of dimensions D."""
        return self.path.n_dim

    def values(self, x: np.ndarray) -> np.ndarray:
        """Evaluate base and slope (2, P) at the points x (P, D)."""
        terms = self.path.values(x)
        self._look(x, terms)
        return terms

    def gradients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate base and slope (2, P) and their gradients (2, P, D)."""
        terms, gradients = self.path.gradients(x)
        self._look(x, terms)
        return terms, gradients

    def draw_prior(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw from the prior, (n, D)."""
        return self.path.draw_prior(n, rng)  # type: ignore[attr-defined]

    def highest(self, n: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return distinct points (n, D) and their terms (2, n), the highest first; by default all recorded points."""
        x, terms = self.memory.points()
        x, first = np.unique(x.reshape(-1, self.n_dim), axis=0, return_index=True)
        terms = terms[:, first]
        order = np.argsort(-terms.sum(axis=0), kind="stable")[:n]
        return x[order], terms[:, order]

    def _look(self, x: np.ndarray, terms: np.ndarray) -> None:
        memory = getattr(_here, "memory", None)
        (self.memory if memory is None else memory).look(x, terms)

    def __reduce__(self) -> tuple[type[RecordingPath], tuple[Path, int]]:
        return RecordingPath, (self.path, self.memory.kept)
