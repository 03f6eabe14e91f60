"""Rows in a store, with sums computed by the workers that hold the same rows."""

from __future__ import annotations

import logging

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from amc_pymc.expressions.machine import Printed
from amc_pymc.extract.native_rows import StoredRows
from amc_pymc.extract.row_sums import (
    change_sum,
    consecutive,
    gradient_sum,
    hessian_sum,
    impossible_rows,
    largest_residuals,
    merged_residuals,
)
from amc_pymc.proxies import ResidualSummary
from amc_pymc.row_kernels import RowKernels
from amc_pymc.row_store import Partitions, as_writable

__all__ = ["PartitionedRows", "row_digests"]

_log = logging.getLogger("amc_pymc")


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
    ) -> ResidualSummary | None:
        """Summarise the residuals of all rows; None if the largest cannot be found in the store."""
        merge = partial(merged_residuals, number=number)
        totals, squares, scale, rows = self.partitions.total(
            _on_worker, largest_residuals, probes, centre, mask, number, merge=merge
        )
        largest = self.places(rows)
        if largest is None:
            _log.debug("Rows that workers have packed are not to the bit those of the store.")
            return None
        power = float(squares.sum() / len(probes))
        return ResidualSummary(len(self.data), largest, scale, power, totals, squares)

    def places(self, rows: np.ndarray) -> np.ndarray | None:
        """Return the positions of rows in the store, whose order differs; None if one is not found."""
        wanted: dict[int, list[int]] = {}
        for k, digest in enumerate(row_digests(rows).tolist()):
            wanted.setdefault(digest, []).append(k)
        places, left = np.zeros(len(rows), np.int64), len(rows)
        for idx in consecutive(len(self.data)):
            if not left:
                break
            found = row_digests(self.data[idx[0] : idx[-1] + 1])
            hits = np.flatnonzero(np.isin(found, np.array(list(wanted), np.uint64)))
            for place, digest in zip(idx[hits].tolist(), found[hits].tolist()):
                if wanted.get(digest):
                    places[wanted[digest].pop(0)] = place
                    left -= 1
            wanted = {digest: ks for digest, ks in wanted.items() if ks}
            self.release()
        return None if left else places

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


def row_digests(rows: np.ndarray) -> np.ndarray:
    """Return hashes (m,) of the bits of rows."""
    bits = np.ascontiguousarray(rows).view(f"u{rows.itemsize}").astype(np.uint64)
    out = np.zeros(len(rows), np.uint64)
    for column in bits.T:  # as in Fowler, Noll and Vo's hash, a word at a time
        out = ((out ^ column) * np.uint64(0x9E3779B97F4A7C15)) ^ (out >> np.uint64(29))
    return out
