"""Hierarchical optimistic optimisation of a posterior density."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from amc_pymc.bandits.hoo import HOO
from amc_pymc.simulators.kernels import gaussian_kernel

__all__ = ["OwnTree"]


class OwnTree:
    """Search by HOO at a fixed tolerance.

    Parameters
    ----------
    u : array (n, D)
        Points that set the scale of rewards, which are densities relative to the largest prior density at
        these points, at most 1.
    tolerance : float
    log_prior : callable
        Maps points (n, D) to the natural log prior density (n,).
    horizon : int
        Total number of simulations.
    """

    def __init__(
        self,
        u: np.ndarray,
        tolerance: float,
        log_prior: Callable[[np.ndarray], np.ndarray],
        horizon: int,
    ):
        self._hoo = HOO(np.tile([0.0, 1.0], (u.shape[1], 1)), horizon=horizon)
        self._log_prior, self._tolerance = log_prior, tolerance
        found = log_prior(u)
        self._top = float(found[np.isfinite(found)].max(initial=-np.inf))

    def ask(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Return the next points (n, D), without feedback in between."""
        self._pulls = self._hoo.ask(rng, n)
        return np.array([p.point for p in self._pulls])

    def tell(self, distance: np.ndarray) -> None:
        """Record the distances (n,) at the points asked for last."""
        u = np.array([p.point for p in self._pulls])
        prior = np.exp(np.minimum(self._log_prior(u) - self._top, 0.0))
        self._hoo.tell(self._pulls, prior * gaussian_kernel(distance, self._tolerance))
