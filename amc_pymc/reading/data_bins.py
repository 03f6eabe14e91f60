"""Rows that can be binned by their data, and the axes along which bins are made."""

from __future__ import annotations

import numpy as np

from amc_pymc.reading.rows import RowLogp

__all__ = ["BIN_CHUNK", "all_finite", "check_rows", "leading_axes", "row_chunks"]


BIN_CHUNK = 16_384

#: Share of the gradient's variance below which a direction is considered a rounding error.
_NEGLIGIBLE = 1e-10


def all_finite(array: np.ndarray) -> bool:
    """Whether all entries are finite, checked in chunks."""
    starts = range(0, array.shape[0], BIN_CHUNK)
    return all(bool(np.isfinite(array[k : k + BIN_CHUNK]).all()) for k in starts)


def row_chunks(rows: np.ndarray) -> list[np.ndarray]:
    """Split row numbers into chunks."""
    return [rows[start : start + BIN_CHUNK] for start in range(0, len(rows), BIN_CHUNK)]


def check_rows(rows) -> None:
    """Raise an error unless rows have a graph and differ in their data only."""
    if not isinstance(rows, RowLogp):
        raise ValueError(
            "A control variate in data space needs the graph of the rows' log-likelihood; "
            f"{type(rows).__name__} (row_logp=) gives values only. Use proxy=None."
        )
    if rows.row_local:
        raise ValueError(
            "A control variate in data space needs rows that differ in their data only; "
            f"{', '.join(rows.row_local)} has one value per row. Integrate it out, or use "
            "another proxy."
        )


def leading_axes(y: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """Return directions (Dy, S) in data space along which the gradient in the data varies.

    If it does not vary, the log-likelihood is linear in the data and needs no bins.
    """
    scale = y.std(axis=0)
    scale[scale == 0.0] = 1.0
    if y.shape[1] <= 2:
        return np.diag(1.0 / scale)
    spread = (gradients - gradients.mean(axis=0)) * scale
    values, vectors = np.linalg.eigh(spread.T @ spread)
    used = values[-2:] > _NEGLIGIBLE * np.square(gradients * scale).sum()
    axes = vectors[:, -2:][:, used][:, ::-1]
    return axes / scale[:, None] if used.any() else np.zeros((y.shape[1], 1))
