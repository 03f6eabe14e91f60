"""Sums over rows by printed kernels, some rows at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import ModuleType

import numpy as np

__all__ = ["CHUNK", "change_sum", "consecutive", "gradient_sum", "hessian_sum", "impossible_rows"]

#: Rows of a full pass that are evaluated at once.
CHUNK = 16_384


def consecutive(n_rows: int) -> Iterator[np.ndarray]:
    """Numbers of all rows, some at a time."""
    for start in range(0, n_rows, CHUNK):
        yield np.arange(start, min(start + CHUNK, n_rows))


def gradient_sum(
    kernels: ModuleType, data: np.ndarray, chunks: Iterable[np.ndarray], x: np.ndarray
) -> tuple[float, np.ndarray]:
    """Sum of the log-likelihoods of the rows of all chunks, and its gradient (D,)."""
    total, gradient = 0.0, np.zeros(x.size)
    for idx in chunks:
        value, slope = kernels.gradient(x, idx, data)
        total += value
        gradient += slope
    return total, gradient


def hessian_sum(
    kernels: ModuleType, data: np.ndarray, chunks: Iterable[np.ndarray], x: np.ndarray
) -> np.ndarray:
    """Hessian (D, D) of that sum."""
    out = np.zeros((x.size, x.size))
    for idx in chunks:
        out += kernels.hessian(x, idx, data)
    return out


def change_sum(
    kernels: ModuleType,
    data: np.ndarray,
    chunks: Iterable[np.ndarray],
    x: np.ndarray,
    x_new: np.ndarray,
) -> float:
    """Sum of the changes of log-likelihoods from x to x_new."""
    out = 0.0
    for idx in chunks:
        out += np.sum(kernels.values(x_new, idx, data) - kernels.values(x, idx, data))
    return float(out)


def impossible_rows(
    kernels: ModuleType, data: np.ndarray, chunks: Iterable[np.ndarray], x: np.ndarray
) -> int:
    """Number of rows whose log-likelihoods are not finite."""
    return sum(int((~np.isfinite(kernels.values(x, idx, data))).sum()) for idx in chunks)
