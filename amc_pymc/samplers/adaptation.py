"""Adaptation of racing steps during tuning: scales, a covariance, and proposal weights."""

from __future__ import annotations

import math

import numpy as np

from amc_pymc.proxies import gaussian_factor

__all__ = ["Moments", "adapt_scale", "proposal_weights"]

_SEARCH_SHARE = 0.1


class Moments:
    """Running mean (D,) and covariance (D, D) of the points visited."""

    def __init__(self, size: int):
        self.count = 0
        self.mean = np.zeros(size)
        self.comoment = np.zeros((size, size))

    def add(self, x: np.ndarray) -> None:
        """Add one point."""
        self.count += 1
        shift = x - self.mean
        self.mean += shift / self.count
        self.comoment += np.outer(shift, x - self.mean)

    def covariance(self) -> np.ndarray:
        """Return the unbiased covariance; requires two points."""
        return self.comoment / (self.count - 1)

    def factor(self, coordinates: np.ndarray, prior: np.ndarray, weight: float) -> np.ndarray:
        """Return the Cholesky factor of some coordinates' covariance, shrunk to prior @ prior.T."""
        inner = self.covariance()[np.ix_(coordinates, coordinates)]
        mixed = (self.count * inner + weight * prior @ prior.T) / (self.count + weight)
        factor, _ = gaussian_factor(np.linalg.inv(mixed))
        return factor


def adapt_scale(scale: float, acceptance: float, target: float, tries: float, most: float) -> float:
    """Adapt a scale to a target acceptance rate by a Robbins-Monro step of its logarithm."""
    gain = min(0.5, 3.0 / (tries + 1.0) ** 0.6)
    return min(most, scale * math.exp(gain * (acceptance - target)))


def proposal_weights(kinds: tuple[int, ...], jumps: np.ndarray) -> np.ndarray:
    """Return probabilities (K,) of the kinds of proposals from their mean squared jumps.

    The kind with the largest jumps gets nine tenths. The others share the rest, because each kind
    may reach points that another cannot.
    """
    weights = np.zeros(jumps.size)
    kinds_ = list(kinds)
    if len(kinds_) == 1:
        weights[kinds_] = 1.0
        return weights
    weights[kinds_] = _SEARCH_SHARE / (len(kinds_) - 1)
    weights[max(kinds_, key=lambda k: jumps[k])] = 1.0 - _SEARCH_SHARE
    return weights
