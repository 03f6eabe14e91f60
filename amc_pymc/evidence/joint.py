"""Joint density of a path from the prior to the posterior, and prior draws."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from amc_pymc.evidence.mcmc import Path
from amc_pymc.evidence.symmetry import Symmetries
from amc_pymc.importance import Images

__all__ = ["Joint", "PriorPath"]


class PriorPath(Path, Protocol):
    """Path from the prior to the posterior that can draw from the prior."""

    def draw_prior(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw from the prior, (n, D)."""


class Joint:
    """Log of prior times likelihood, with counters of its evaluations.

    Parameters
    ----------
    path : Path
        Path from the prior to the posterior.

    Attributes
    ----------
    evaluations, gradients : int
        Number of points at which densities and gradients were evaluated.
    symmetries : Symmetries or None
        Labels and signs that can be exchanged.
    images : Images or None
        Exchanges that lead to all copies of the modes found so far.
    """

    def __init__(self, path: Path):
        self._path = path
        self.symmetries: Symmetries | None = None
        self.images: Images | None = None
        self._last: tuple[np.ndarray, np.ndarray] | None = None
        self.evaluations = self.gradients = 0

    @property
    def n_dim(self) -> int:
        """Number of dimensions D."""
        return self._path.n_dim

    def find_images(self, modes: np.ndarray, curvatures: np.ndarray) -> None:
        """Find all copies of modes (M, D) with Hessians (M, D, D)."""
        if self.symmetries is not None:
            self.images = self.symmetries.images(modes, -curvatures)

    def terms(self, x: np.ndarray) -> np.ndarray:
        """Evaluate log prior and log likelihood (2, P) at points (P, D)."""
        self.evaluations += len(x)
        return self._path.values(x)

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Evaluate log prior plus log likelihood (P,)."""
        terms = self.terms(x)
        self._last = x, terms[0]
        return terms.sum(axis=0)

    def log_prior(self, x: np.ndarray) -> np.ndarray:
        """Return the log prior (P,), cached for the points of the last `log_density`."""
        if self._last is not None and self._last[0] is x:
            return self._last[1]
        self.evaluations += len(x)
        return self._path.values(x)[0]

    def with_gradient(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate log density (P,) and gradient (P, D)."""
        terms, gradients = self._path.gradients(x)
        self.gradients += len(x)
        return terms.sum(axis=0), gradients.sum(axis=0)

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """Evaluate the gradient (P, D) of the log density."""
        return self.with_gradient(x)[1]
