"""Features of simulated data from which parameters are learned."""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence

import numpy as np

__all__ = ["Features", "exchangeable_features", "joined_features", "plain_features"]

#: Function from data (n, S) to features (n, F).
Features = Callable[[np.ndarray], np.ndarray]

#: Number of quantiles of exchangeable observations, if there are more observations than this.
_QUANTILES = 9
#: Maximum number of columns of an observation for which third moments mix different columns.
_FEW = 3
#: Absolute value at which correlations are clipped before they are transformed.
_CORRELATED = 1.0 - 1e-9
_TINY = 1e-300


def plain_features(data: np.ndarray) -> np.ndarray:
    """Return the data (n, S) unchanged."""
    return data


def exchangeable_features(shape: tuple[int, ...]) -> Features:
    r"""Return a function that computes order-independent features of exchangeable observations.

    Features are means, log standard deviations, Fisher's z of correlations, covariances, cube roots of third central
    moments, and the sorted values of each column, or nine quantiles if there are more than nine observations.

    Parameters
    ----------
    shape : tuple of int
        Shape of the data: the number of observations m, then the shape of one observation.

    Returns
    -------
    callable
        Maps flattened data (n, S), with S the product of `shape`, to features (n, F).

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.abc_tree.features import exchangeable_features
    >>> features = exchangeable_features((3,))
    >>> x = np.array([[1.0, 2.0, 6.0], [6.0, 1.0, 2.0]])
    >>> bool(np.array_equal(*features(x)))
    True
    """
    m, d = shape[0], math.prod(shape[1:])
    rows, columns = np.triu_indices(d, 1)
    third = [(i, j) for i in range(d) for j in range(d) if i == j or d <= _FEW]
    levels = (np.arange(_QUANTILES) + 0.5) / _QUANTILES

    def features(data: np.ndarray) -> np.ndarray:
        # Sort first to make rounding independent of the order, too.
        x = data.reshape(len(data), m, d)
        x = np.take_along_axis(x, _ordered(x)[..., None], axis=1)
        mean = x.mean(axis=1)
        gap = x - mean[:, None]
        covariance = np.einsum("nmi,nmj->nij", gap, gap) / m
        sd = np.sqrt(np.einsum("nii->ni", covariance))
        across = covariance[:, rows, columns]
        size = np.maximum(sd[:, rows] * sd[:, columns], _TINY)
        moments = [np.einsum("nm,nm->n", gap[..., i] ** 2, gap[..., j]) / m for i, j in third]
        ordered = np.sort(x, axis=1)
        if m > _QUANTILES:
            ordered = np.quantile(ordered, levels, axis=1).swapaxes(0, 1)
        return np.concatenate(
            [
                mean,
                np.log(np.maximum(sd, _TINY)),
                np.arctanh(np.clip(across / size, -_CORRELATED, _CORRELATED)),
                np.einsum("nii->ni", covariance),
                across,
                np.cbrt(np.stack(moments, axis=1)),
                ordered.reshape(len(x), -1),
            ],
            axis=1,
        )

    return features


def joined_features(each: Sequence[Features], sizes: Sequence[int]) -> Features:
    """Return a function that concatenates the features of data sets of the given sizes."""
    ends = np.cumsum(sizes)[:-1]

    def features(data: np.ndarray) -> np.ndarray:
        parts = np.split(data, ends, axis=1)
        return np.concatenate([f(part) for f, part in zip(each, parts, strict=True)], axis=1)

    return features


def _ordered(x: np.ndarray) -> np.ndarray:
    """Return the order (n, m) of observations (n, m, d), by the first column, then the second, ..."""
    return np.lexsort(np.moveaxis(x, 2, 0)[::-1], axis=1)
