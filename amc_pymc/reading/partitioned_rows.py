"""Rows in a store, with sums computed by the workers that hold the same rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from amc_pymc.engine.machine import Printed
from amc_pymc.engine.row_kernels import RowKernels
from amc_pymc.reading.native_rows import StoredRows
from amc_pymc.reading.row_sums import (
    change_sum,
    consecutive,
    gradient_sum,
    hessian_sum,
    impossible_rows,
    largest_residuals,
    merged_residuals,
)
from amc_pymc.rows import Partitions, as_writable
from amc_pymc.tall.proxies import ResidualSummary

__all__ = ["PartitionedRows"]


@dataclass(frozen=True, eq=False)
class PartitionedRows(StoredRows):
    """Rows of a store, with the same rows in the partitions of a cluster.

    Races read rows at random from the store; sums over all rows are computed on the cluster.

    Attributes
    ----------
    partitions : Partitions
    """

    partitions: Partitions

    def gradient(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the sum of the log-likelihoods of all rows, and its gradient (D,)."""
        return self._total(gradient_sum, x)

    def hessian(self, x: np.ndarray) -> np.ndarray:
        """Return the Hessian (D, D) of the sum of the log-likelihoods of all rows."""
        return self._total(hessian_sum, x)[0]

    def change(self, x: np.ndarray, x_new: np.ndarray) -> float:
        """Return the sum over all rows of the changes of log-likelihoods."""
        return self._total(change_sum, x, x_new)[0]

    def impossible(self, x: np.ndarray) -> int:
        """Return the number of rows whose log-likelihoods are not finite."""
        return self._total(impossible_rows, x)[0]

    def residuals(
        self, probes: Sequence[np.ndarray], centre: np.ndarray, mask: np.ndarray, number: int
    ) -> ResidualSummary:
        """Summarise the residuals of all rows."""
        merge = partial(merged_residuals, number=number)
        totals, squares, scale, largest, n_rows = self.partitions.total(
            _on_worker, largest_residuals, probes, centre, mask, number, merge=merge
        )
        power = float(squares.sum() / len(probes))
        return ResidualSummary(n_rows, largest, scale, power, totals, squares)

    def _total(self, function: Callable, *points: np.ndarray) -> tuple:
        return self.partitions.total(_on_worker, function, *points)

    def __getstate__(self):
        return super().__getstate__() | {"partitions": self.partitions}


def _on_worker(printed: Printed, data: np.ndarray, function: Callable, *points: Any) -> tuple:
    """Compute a sum over the rows of a partition; kernels are compiled once per process."""
    # Arrays received from another process are marked as read-only and may be unaligned.
    data = as_writable(np.require(data, requirements=["A"]))
    with np.errstate(all="ignore"):
        out = function(RowKernels(printed), data, consecutive(len(data)), *points)
    return out if isinstance(out, tuple) else (out,)
