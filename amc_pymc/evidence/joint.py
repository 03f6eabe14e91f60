"""Prior times likelihood of a path from the prior, and draws of the prior."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from amc_pymc.kernels import Path

__all__ = ["Joint", "PriorPath"]


class PriorPath(Path, Protocol):
    """A path from the prior to the posterior, with draws from the prior."""

    def draw_prior(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draws (n, D)."""


class Joint:
    """Log of prior times likelihood, and how often it was evaluated.

    Parameters
    ----------
    path : Path
        From the prior to the posterior.

    Attributes
    ----------
    evaluations, gradients : int
        Points at which they were asked for.
    """

    def __init__(self, path: Path):
        self._path = path
        self._last: tuple[np.ndarray, np.ndarray] | None = None
        self.evaluations = self.gradients = 0

    @property
    def n_dim(self) -> int:
        """D."""
        return self._path.n_dim

    def terms(self, x: np.ndarray) -> np.ndarray:
        """Log prior and log likelihood (2, P) at points (P, D)."""
        self.evaluations += len(x)
        return self._path.values(x)

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Their sum (P,)."""
        terms = self.terms(x)
        self._last = x, terms[0]
        return terms.sum(axis=0)

    def log_prior(self, x: np.ndarray) -> np.ndarray:
        """Log prior (P,), for nothing at the points of the last `log_density`."""
        if self._last is not None and self._last[0] is x:
            return self._last[1]
        self.evaluations += len(x)
        return self._path.values(x)[0]

    def with_gradient(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log density (P,) and gradient (P, D)."""
        terms, gradients = self._path.gradients(x)
        self.gradients += len(x)
        return terms.sum(axis=0), gradients.sum(axis=0)

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """Gradient (P, D)."""
        return self.with_gradient(x)[1]
