"""Factors of Gaussian approximations."""

from __future__ import annotations

import numpy as np

from scipy import linalg

__all__ = ["absolute_factor", "gaussian_factor"]

#: Least eigenvalue of a precision with a unit diagonal, relative to the largest.
_FLOOR = 1e-10


def gaussian_factor(
    precision: np.ndarray, *, floor: float | None = None
) -> tuple[np.ndarray, bool]:
    """Return lower L with L L' = precision^-1, after raising small or negative eigenvalues.

    Also returns whether the precision was positive definite without this. Eigenvalues are raised to `floor`, relative
    to the largest or to 1. By default those are raised that are numerically zero whatever the units of coordinates.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.tall.proxies import gaussian_factor
    >>> gaussian_factor(np.diag([4.0, 1.0]))
    (array([[0.5, 0. ],
           [0. , 1. ]]), True)
    """
    diagonal, scale = np.diag(precision), np.ones(len(precision))
    if floor is None and np.all(diagonal > 0.0):
        scale = np.sqrt(diagonal)
    floor = _FLOOR if floor is None else floor
    values, vectors = linalg.eigh(precision / np.outer(scale, scale))
    definite = bool(np.all(values > _least(values, floor)))
    return _factor(values, vectors, floor) / scale[:, None], definite


def absolute_factor(precision: np.ndarray) -> np.ndarray:
    """Return the same factor for the absolute values of the eigenvalues.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.tall.proxies import absolute_factor
    >>> absolute_factor(np.diag([4.0, -1.0]))
    array([[0.5, 0. ],
           [0. , 1. ]])
    """
    values, vectors = linalg.eigh(precision)
    return _factor(np.abs(values), vectors, _FLOOR)


def _least(values: np.ndarray, floor: float) -> float:
    return floor * max(float(values.max(initial=0.0)), 1.0)


def _factor(values: np.ndarray, vectors: np.ndarray, floor: float) -> np.ndarray:
    covariance = (vectors / np.maximum(values, _least(values, floor))) @ vectors.T
    return np.ascontiguousarray(linalg.cholesky(covariance, lower=True))
