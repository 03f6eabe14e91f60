"""Remember the highest points of all that were evaluated."""

from __future__ import annotations

import threading

import numpy as np

from amc_pymc.kernels import Path

__all__ = ["Watch"]

#: Points looked at in each call, and those that are kept.
_EACH, _KEPT = 4, 1024


class Watch:
    """A path from a prior that remembers where prior times likelihood was highest.

    Most points at which samplers evaluate a density are forgotten: steps within Hamiltonian trajectories,
    proposals that were refused. A trajectory that crosses a narrow peak with steps made for a wide one is
    refused, although it has found the peak.

    Parameters
    ----------
    path : PriorPath

    Notes
    -----
    Pickled, it is the path alone: what is evaluated in other processes is not remembered.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence import Watch
    >>> class Peak:
    ...     n_dim = 1
    ...
    ...     def values(self, x):
    ...         return np.stack([0.0 * x[:, 0], -(x[:, 0] ** 2)])
    >>> seen = Watch(Peak())
    >>> seen.values(np.array([[3.0], [0.5], [-1.0]])).shape
    (2, 3)
    >>> seen.highest(2)[0].ravel()
    array([ 0.5, -1. ])
    """

    def __init__(self, path: Path):
        self.path = path
        self._lock = threading.Lock()
        self._x: list[np.ndarray] = []
        self._terms: list[np.ndarray] = []
        self._n, self._floor = 0, -np.inf

    @property
    def n_dim(self) -> int:
        """D."""
        return self.path.n_dim

    def values(self, x: np.ndarray) -> np.ndarray:
        """Base and slope (2, P) at the points x (P, D)."""
        terms = self.path.values(x)
        self._look(x, terms)
        return terms

    def gradients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Base and slope (2, P) and their gradients (2, P, D)."""
        terms, gradients = self.path.gradients(x)
        self._look(x, terms)
        return terms, gradients

    def draw_prior(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draws (n, D)."""
        return self.path.draw_prior(n, rng)  # type: ignore[attr-defined]

    def highest(self, n: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Different points (n, D) and their terms (2, n), the highest first; all that are kept by default."""
        with self._lock:
            self._prune()
            x = np.concatenate([np.empty((0, self.n_dim)), *self._x])
            terms = np.concatenate([np.empty((2, 0)), *self._terms], axis=1)
        x, first = np.unique(x, axis=0, return_index=True)
        terms = terms[:, first]
        order = np.argsort(-terms.sum(axis=0), kind="stable")[:n]
        return x[order], terms[:, order]

    def _look(self, x: np.ndarray, terms: np.ndarray) -> None:
        log_f = terms.sum(axis=0)
        best = np.arange(len(x))
        if len(x) > _EACH:
            best = np.argpartition(-log_f, _EACH)[:_EACH]
        best = best[log_f[best] > self._floor]
        if not best.size:
            return
        with self._lock:
            self._x.append(x[best])
            self._terms.append(terms[:, best])
            self._n += best.size
            if self._n > 2 * _KEPT:
                self._prune()

    def _prune(self) -> None:
        """Keep the highest."""
        if self._n <= _KEPT:
            return
        x, terms = np.concatenate(self._x), np.concatenate(self._terms, axis=1)
        log_f = terms.sum(axis=0)
        kept = np.argpartition(-log_f, _KEPT)[:_KEPT]
        self._x, self._terms = [x[kept]], [terms[:, kept]]
        self._n, self._floor = _KEPT, float(log_f[kept].min())

    def __reduce__(self):
        return _alone, (self.path,)


def _alone(path: Path) -> Path:
    return path
