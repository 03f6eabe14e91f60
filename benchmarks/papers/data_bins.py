"""Control variates in data space: bins of rows, their moments, and outlying rows.

The log-likelihood l(x; y_n) of row n is expanded to second order in its data vector y_n around the
reference row of its bin (Chen & Ghahramani 2016, section 3.4, eq. 11, and appendix C.2). The sum of
the expansion over all rows needs only the first two moments of the bins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from scipy import linalg


class BinMoments(NamedTuple):
    """Moments of the rows' data vectors y_n (Dy,) in B bins, d_n = y_n minus its bin's reference.

    ``count`` (B,) holds the numbers of rows, ``reference`` (B, Dy) the reference rows, ``first``
    (B, Dy) the sums of d_n. The sum of d_n d_n' over the rows of bin b is factor[b].T @ factor[b], with
    ``factor`` (B, Dy, Dy).
    """

    count: np.ndarray  # type: ignore[assignment]
    reference: np.ndarray
    first: np.ndarray
    factor: np.ndarray


def quantile_bins(
    summary: np.ndarray,
    bins: int,
    *,
    keys: Iterable[np.ndarray] = (),
    max_bins: int = 2_000,
) -> np.ndarray:
    """Assign rows to the non-empty cells of a grid of marginal quantiles.

    Parameters
    ----------
    summary : (N, S) array
        Finite summaries of the rows.
    bins : int
        Number of quantile bins of each axis.
    keys : iterable of (N,) arrays
        Cells are split until each key is constant within a bin.
    max_bins : int
        Maximum number of bins.

    Returns
    -------
    (N,) int32 array
        Labels 0..B-1, each in use.

    Raises
    ------
    ValueError
        If there are more than ``max_bins`` bins.

    Examples
    --------
    >>> import numpy as np
    >>> from benchmarks.papers.data_bins import quantile_bins
    >>> z = np.array([[0.0], [1.0], [2.0], [3.0], [4.0], [5.0]])
    >>> quantile_bins(z, 3)
    array([0, 0, 1, 1, 2, 2], dtype=int32)
    >>> quantile_bins(z, 2, keys=[np.array([0, 1, 0, 1, 1, 1])])
    array([0, 1, 0, 2, 2, 2], dtype=int32)
    """
    labels = np.zeros(summary.shape[0], dtype=np.int64)
    levels = np.arange(1, bins) / bins
    for z in summary.T:
        labels = labels * bins + np.searchsorted(np.quantile(z, levels), z, side="right")
    labels = _renumber(labels)
    for key in keys:
        values, code = np.unique(key, return_inverse=True)
        if values.size == 1:
            continue
        labels = _renumber(labels * values.size + code)
    n_bins = labels.max() + 1
    if n_bins > max_bins:
        raise ValueError(
            f"There are {n_bins} bins in use, more than max_bins={max_bins}. Integer data (labels, counts, "
            "group numbers) and infinite data must be constant within a bin: cast counts to float in the "
            "model, take fewer bins, or use another proxy."
        )
    return labels.astype(np.int32)


def outlying_rows(summary: np.ndarray, labels: np.ndarray, share: float) -> np.ndarray:
    """Return the rows farthest from the mean of their bin in the standardised summary.

    Parameters
    ----------
    summary : (N, S) array
        Each axis is divided by its standard deviation over all rows.
    labels : (N,) int array
        Bins, as returned by :func:`quantile_bins`.
    share : float
        Share of the rows, rounded down.

    Returns
    -------
    (n,) int64 array
        Sorted row numbers, without rows at their bin's mean.

    Examples
    --------
    >>> import numpy as np
    >>> from benchmarks.papers.data_bins import outlying_rows
    >>> outlying_rows(np.array([[0.0], [0.1], [0.2], [9.0], [5.0]]), np.array([0, 0, 0, 0, 1]), 0.2)
    array([3])
    """
    n_rows = summary.shape[0]
    n_out = int(share * n_rows)
    count = np.bincount(labels)
    square = np.zeros(n_rows)
    for z in summary.T:
        scale = z.std()
        if scale > 0.0:
            mean = np.bincount(labels, weights=z) / np.maximum(count, 1)
            square += np.square((z - mean[labels]) / scale)
    order = np.argsort(-square, kind="stable")[:n_out]
    return np.sort(order[square[order] > 0.0]).astype(np.int64)


def bin_moments(
    y: np.ndarray | Callable[[np.ndarray], np.ndarray],
    labels: np.ndarray,
) -> BinMoments:
    """Compute the moments of each bin.

    Second moments are factored by their eigenvectors, with entries of y scaled by their standard deviations over
    all rows. Rows of a factor that are zero but for rounding are zero.

    Parameters
    ----------
    y : (N, Dy) array or callable
        Data vectors, or a function of row numbers (m,) that returns (m, Dy).
    labels : (N,) int array
        Bins 0..B-1, each in use; rows with a negative label are ignored.

    Returns
    -------
    BinMoments

    Examples
    --------
    >>> import numpy as np
    >>> from benchmarks.papers.data_bins import bin_moments
    >>> y = np.array([[0.0], [2.0], [5.0], [7.0]])
    >>> m = bin_moments(y, np.array([0, 0, 1, 1]))
    >>> m.reference.ravel(), np.square(m.factor).ravel().round(12)
    (array([1., 6.]), array([2., 2.]))
    """
    get = y if callable(y) else y.__getitem__
    labels = np.asarray(labels)
    order = np.argsort(labels, kind="stable")
    order = order[np.searchsorted(labels[order], 0) :]
    count = np.bincount(labels[order])
    members = np.split(order, np.cumsum(count)[:-1])
    reference = np.stack([get(rows).mean(axis=0) for rows in members])
    first = np.empty_like(reference)
    second = np.empty((count.size, reference.shape[1], reference.shape[1]))
    for b, rows in enumerate(members):
        d = get(rows) - reference[b]
        first[b] = d.sum(axis=0)
        second[b] = d.T @ d
    factor = _factors(second, _scales(second, count, reference))
    return BinMoments(count, reference, first, factor)


def _scales(second: np.ndarray, count: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return standard deviations (Dy,) of y over all bins from the moments, 1 if constant."""
    spread = reference - np.average(reference, axis=0, weights=count)
    within = np.diagonal(second, axis1=1, axis2=2).sum(axis=0) / count.sum()
    variance = within + np.average(np.square(spread), axis=0, weights=count)
    return np.sqrt(np.where(variance > 0.0, variance, 1.0))


def _factors(second: np.ndarray, scale: np.ndarray) -> np.ndarray:
    dim, factor = scale.size, np.zeros(second.shape)
    for b, moments in enumerate(second):
        values, vectors = linalg.eigh(moments / np.outer(scale, scale))
        values, vectors = values[::-1], vectors[:, ::-1]
        used = values > dim * np.finfo(float).eps * max(values[0], 0.0)  # drop rounding errors
        root = np.sqrt(values[used])
        factor[b, used] = (scale[:, None] * vectors[:, used] * root).T
    return factor


def _renumber(labels: np.ndarray) -> np.ndarray:
    return np.unique(labels, return_inverse=True)[1].reshape(-1)
