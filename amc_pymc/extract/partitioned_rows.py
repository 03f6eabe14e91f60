"""Rows in a store whose sums are computed where workers hold the same rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from amc_pymc.expressions.kernels import load_kernels
from amc_pymc.extract.native_rows import StoredRows
from amc_pymc.extract.row_sums import (
    change_sum,
    consecutive,
    gradient_sum,
    hessian_sum,
    impossible_rows,
)
from amc_pymc.row_store import Partitions, as_writable

__all__ = ["PartitionedRows"]


@dataclass(frozen=True, eq=False)
class PartitionedRows(StoredRows):
    """The rows of a store, and the same rows in the partitions of a cluster.

    Races read rows at random from the store; only sums over all rows travel.

    Attributes
    ----------
    partitions : Partitions
    """

    partitions: Partitions

    def gradient(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Sum of the log-likelihoods of all rows, and its gradient (D,)."""
        return self._total(gradient_sum, x)

    def hessian(self, x: np.ndarray) -> np.ndarray:
        """Hessian (D, D) of that sum."""
        return self._total(hessian_sum, x)[0]

    def change(self, x: np.ndarray, x_new: np.ndarray) -> float:
        """Sum over all rows of the changes of log-likelihoods."""
        return self._total(change_sum, x, x_new)[0]

    def impossible(self, x: np.ndarray) -> int:
        """Number of rows whose log-likelihoods are not finite."""
        return self._total(impossible_rows, x)[0]

    def _total(self, function: Callable, *points: np.ndarray) -> tuple:
        return self.partitions.total(_on_worker, function, *points)

    def __getstate__(self):
        return super().__getstate__() | {"partitions": self.partitions}


def _on_worker(source: str, data: np.ndarray, function: Callable, *points: Any) -> tuple:
    """A sum over the rows of a partition; kernels are compiled once in a process."""
    data = as_writable(data)  # arrays that have travelled are marked as read-only
    with np.errstate(all="ignore"):
        out = function(load_kernels(source), data, consecutive(len(data)), *points)
    return out if isinstance(out, tuple) else (out,)
