"""Sums over rows by printed kernels, in chunks of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from amc_pymc.tall.proxies import summarise_residuals

__all__ = [
    "CHUNK",
    "change_sum",
    "consecutive",
    "gradient_sum",
    "hessian_sum",
    "impossible_rows",
    "largest_residuals",
    "merged_residuals",
]

#: Number of rows that a full pass evaluates at once.
CHUNK = 16_384


def consecutive(n_rows: int) -> Iterator[np.ndarray]:
    """Yield the numbers of all rows in chunks."""
    for start in range(0, n_rows, CHUNK):
        yield np.arange(start, min(start + CHUNK, n_rows))


def gradient_sum(
    kernels: ModuleType, data: np.ndarray, chunks: Iterable[np.ndarray], x: np.ndarray
) -> tuple[float, np.ndarray]:
    """Return the sum of the log-likelihoods of the rows of all chunks, and its gradient (D,)."""
    total, gradient = 0.0, np.zeros(x.size)
    for idx in chunks:
        value, slope = kernels.gradient(x, idx, data)
        total += value
        gradient += slope
    return total, gradient


def hessian_sum(
    kernels: ModuleType, data: np.ndarray, chunks: Iterable[np.ndarray], x: np.ndarray
) -> np.ndarray:
    """Return the Hessian (D, D) of the sum of the log-likelihoods."""
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
    """Return the sum of the changes of log-likelihoods from x to x_new."""
    out = 0.0
    for idx in chunks:
        out += np.sum(kernels.values(x_new, idx, data) - kernels.values(x, idx, data))
    return float(out)


def impossible_rows(
    kernels: ModuleType, data: np.ndarray, chunks: Iterable[np.ndarray], x: np.ndarray
) -> int:
    """Return the number of rows whose log-likelihoods are not finite."""
    return sum(int((~np.isfinite(kernels.values(x, idx, data))).sum()) for idx in chunks)


def largest_residuals(
    kernels: ModuleType,
    data: np.ndarray,
    chunks: Iterable[np.ndarray],
    probes: Sequence[np.ndarray],
    centre: np.ndarray,
    mask: np.ndarray,
    number: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """Summarise residuals of rows over Q probe moves (2, D), see :class:`~amc_pymc.tall.proxies.ResidualSummary`.

    Returns
    -------
    tuple of arrays
        Sums (Q,) and sums of squares (Q,) over all rows; root mean squares (T,) and numbers (T,) of
        the ``number`` rows with the largest root mean squares; the number of rows.
    """

    def residuals(points, rows):
        changes = kernels.residuals(points, centre, rows, mask, data)
        return np.nan_to_num(changes, nan=0.0)

    found = summarise_residuals(residuals, list(probes), len(data), CHUNK, n_largest=number)
    return found.totals, found.squares, found.scale, found.largest, len(data)


def merged_residuals(parts: Sequence[tuple], number: int) -> tuple[Any, ...]:
    """Merge the results of :func:`largest_residuals` for consecutive parts of the rows."""
    totals, squares, scales, rows, sizes = zip(*parts, strict=True)
    scale, firsts = np.concatenate(scales), np.cumsum([0, *sizes])
    order = np.argsort(-scale, kind="stable")[:number]
    numbers = np.concatenate([r + first for r, first in zip(rows, firsts)])
    return sum(totals), sum(squares), scale[order], numbers[order], int(firsts[-1])
