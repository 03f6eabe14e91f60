"""Kinds of proposals, settings of audits, adaptation during tuning, and a measure of how slowly a chain moves."""

from __future__ import annotations

import math

from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np

from amc_pymc.arguments import positive_int
from amc_pymc.tall.samplers.raced import gaussian_factor

#: Kinds of proposals, in the order of arrays with one number for each: a Gaussian random walk with covariance and scale
#: adapted during tuning, and moves that are reversible for prior times surrogate, with a scale adapted in (0, 1].
KINDS = RANDOM_WALK, SURROGATE = 0, 1


@dataclass(frozen=True)
class Audits:
    """Settings of audits: decisions repeated on all rows to measure the error rate.

    They are a uniform sample of a chain's decisions.

    Parameters
    ----------
    number : int
        Maximum number of audited decisions per chain.
    max_share : float or None
        Maximum share of time spent on audits, estimated from row counts so a seed reproduces a run;
        None for no limit.
    chains : int
        Number of chains that share the time spent on setup. ``pm.sample`` does not tell step methods how
        many chains it runs; give the number if it is not four. ``sample_product_space`` sets it.
    """

    number: int = 200
    max_share: float | None = 0.1
    chains: int = 4

    def __post_init__(self) -> None:
        number, share = self.number, self.max_share
        if not isinstance(number, Integral) or isinstance(number, bool) or number < 0:
            raise ValueError(f"audits must be a non-negative integer, got {number!r}")
        if share is not None and not (isinstance(share, Real) and 0.0 < share <= 1.0):
            raise ValueError(f"max_share must lie in (0, 1] or be None, got {share!r}")
        positive_int("chains", self.chains)


# --- adaptation ------------------------------------------------------------------------------------


_SEARCH_SHARE = 0.1
#: Successive pieces of a chain whose means are compared, and the fewest points that are judged.
_PIECES, FEWEST = 10, 100


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


class Pieces:
    """Means of ten successive pieces of a chain of ``number`` points (D,), and the variance of all."""

    def __init__(self, number: int, size: int):
        self.number, self.length, self.count = number, max(1, number // _PIECES), 0
        self.first, self.squares = np.zeros(size), np.zeros(size)
        self.sums = np.zeros((_PIECES, size))

    def add(self, x: np.ndarray) -> None:
        """Add one point."""
        piece = self.count // self.length
        if not self.count:
            self.first = x.copy()
        if piece < _PIECES:
            shift = x - self.first
            self.sums[piece] += shift
            self.squares += shift * shift
        self.count += 1

    def between(self) -> np.ndarray | None:
        """Return the share (D,) of each coordinate's variance that lies between pieces.

        A chain whose draws are worth E independent ones has 10 / E if E is large, and about 0.4 if
        E is 20. A coordinate that has never moved has 1. None unless it is complete, and if
        there are too few points to judge.
        """
        if self.number < FEWEST or self.count != self.number:
            return None
        means = self.sums / self.length
        variance = self.squares / (_PIECES * self.length) - means.mean(axis=0) ** 2
        moved = variance > 0.0
        return np.where(moved, means.var(axis=0) / np.where(moved, variance, 1.0), 1.0)


def adapt_scale(scale: float, acceptance: float, target: float, tries: float, most: float) -> float:
    """Adapt a scale to a target acceptance rate by a Robbins-Monro step of its logarithm."""
    gain = min(0.5, 3.0 / (tries + 1.0) ** 0.6)
    return min(most, scale * math.exp(gain * (acceptance - target)))


def proposal_weights(jumps: np.ndarray) -> np.ndarray:
    """Return probabilities (K,) of the kinds of proposals from their mean squared jumps.

    The kind with the larger jumps gets nine tenths. The other gets the rest, because each kind
    may reach points that another cannot.
    """
    weights = np.full(len(KINDS), _SEARCH_SHARE)
    weights[np.argmax(jumps)] = 1.0 - _SEARCH_SHARE
    return weights
