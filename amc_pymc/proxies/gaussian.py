"""Factors of Gaussian approximations."""

from __future__ import annotations

import numpy as np

from scipy import linalg

__all__ = ["absolute_factor", "gaussian_factor"]

#: Default of the least eigenvalue of a precision, relative to the largest or to 1.
_FLOOR = 1e-10


def gaussian_factor(precision: np.ndarray, *, floor: float = _FLOOR) -> tuple[np.ndarray, bool]:
    """Return lower L with L L' = precision^-1, after raising small or negative eigenvalues.

    Also returns whether the precision was positive definite without this.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.proxies import gaussian_factor
    >>> gaussian_factor(np.diag([4.0, 1.0]))
    (array([[0.5, 0. ],
           [0. , 1. ]]), True)
    """
    values, vectors = linalg.eigh(precision)
    definite = bool(np.all(values > _least(values, floor)))
    return _factor(values, vectors, floor), definite


def absolute_factor(precision: np.ndarray) -> np.ndarray:
    """Return the same factor for the absolute values of the eigenvalues.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.proxies import absolute_factor
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
