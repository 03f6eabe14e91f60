"""Loops over rows, bound to a model's generated functions."""

from __future__ import annotations

import numpy as np

from amc_pymc.engine.machine import Printed
from amc_pymc.engine.row_kernels import loops

__all__ = ["RowKernels"]


class RowKernels:
    """Compiled loops over rows of packed data (N, C).

    Parameters
    ----------
    printed : Printed
        Result of :func:`~amc_pymc.engine.row_kernels.printed_rows`.
    """

    #: Compiled functions ``(points, centre, units, mask, data, *arrays)``.
    rewards, state_rewards = staticmethod(loops.rewards), staticmethod(loops.state_rewards)

    def __init__(self, printed: Printed):
        self.arrays = printed.arrays[:1]

    def values(self, eta: np.ndarray, units: np.ndarray, data: np.ndarray) -> np.ndarray:
        """Return log-likelihoods (m,) of some rows."""
        return loops.values(eta, units, data, *self.arrays)

    def residuals(self, points, centre, units, mask, data) -> np.ndarray:
        """Return changes of residuals (m,) of some rows from points[0] to points[1]."""
        return loops.rewards(points, centre, units, mask, data, *self.arrays)[1]

    def gradient(
        self, eta: np.ndarray, units: np.ndarray, data: np.ndarray
    ) -> tuple[float, np.ndarray]:
        """Return the summed log-likelihood of some rows and its gradient (E,)."""
        return loops.gradient(eta, units, data, *self.arrays)

    def hessian(self, eta: np.ndarray, units: np.ndarray, data: np.ndarray) -> np.ndarray:
        """Return the Hessian (E, E) of the summed log-likelihood of some rows."""
        return loops.hessian(eta, units, data, *self.arrays)

    def totals(self, etas: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return summed log-likelihoods (P,) of all rows of columns (C, N) at points (P, E)."""
        return loops.totals(etas, columns, *self.arrays)

    def total_gradients(
        self, etas: np.ndarray, columns: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the same sums (P,) and their gradients (P, E)."""
        return loops.total_gradients(etas, columns, *self.arrays)
