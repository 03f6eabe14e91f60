"""Weighted draws to which mixtures are fitted."""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from scipy.special import logsumexp

__all__ = ["WeightedDraws", "checked_draws", "used_draws"]


class WeightedDraws(NamedTuple):
    """Finite draws (n, D) and their normalised weights (n,)."""

    x: np.ndarray
    w: np.ndarray

    @property
    def ess(self) -> float:
        """Effective number of draws."""
        return 1.0 / float(self.w @ self.w)

    @property
    def variance_floor(self) -> np.ndarray:
        """Variances (D,) that count as zero: roughly the squared rounding error of a draw."""
        mean = self.w @ self.x
        spread = self.w @ (self.x - mean) ** 2
        return np.where((mean != 0.0) | (spread > 0.0), 1e-18 * mean**2, 1e-18)


def used_draws(x: np.ndarray, log_weights: np.ndarray | None) -> np.ndarray:
    """Return a mask (n,) of the draws whose weight is not negligible."""
    if log_weights is None:
        return np.ones(len(x), bool)
    lw = np.asarray(log_weights, float)
    # Together, the draws left out have at most 1e-10 of the total weight.
    return lw > logsumexp(lw) + math.log(1e-10 / len(lw))


def checked_draws(x: np.ndarray, log_weights: np.ndarray | None) -> WeightedDraws:
    """Return draws with normalised weights, or raise an error."""
    x = np.asarray(x, float, order="C")
    if x.ndim != 2 or x.size == 0:
        raise ValueError(f"x must have shape (n, D), got {x.shape}.")
    if log_weights is None:
        if not np.isfinite(x).all():
            raise ValueError("x must be finite.")
        return WeightedDraws(x, np.full(len(x), 1.0 / len(x)))
    lw = np.asarray(log_weights, float)
    if lw.shape != (len(x),):
        raise ValueError(f"log_weights must have shape ({len(x)},), got {lw.shape}.")
    if np.isnan(lw).any() or (lw == math.inf).any():
        raise ValueError("log_weights must be numbers or -inf, got nan or inf.")
    if not (lw > -math.inf).any():
        raise ValueError("log_weights are all -inf: there is nothing to fit.")
    used = used_draws(x, lw)
    x, lw = x[used], lw[used]
    if not np.isfinite(x).all():
        raise ValueError("x must be finite where weights are positive.")
    w = np.exp(lw - lw.max())
    return WeightedDraws(x, w / w.sum())
