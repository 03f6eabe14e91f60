"""Factors of Gaussian approximations."""

from __future__ import annotations

import numpy as np

from scipy import linalg

__all__ = ["gaussian_factor"]


def gaussian_factor(precision: np.ndarray, *, floor: float = 1e-10) -> tuple[np.ndarray, bool]:
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
    least = floor * max(values.max(initial=0.0), 1.0)
    definite = bool(np.all(values > least))
    covariance = (vectors / np.maximum(values, least)) @ vectors.T
    return np.ascontiguousarray(linalg.cholesky(covariance, lower=True)), definite
