"""Which adjustment, and at which tolerance: by prediction at simulations that are like the data."""

from __future__ import annotations

import math

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scipy.special import ndtri

from amc_pymc.abc_tree.accepted import effective_of_first
from amc_pymc.abc_tree.adjust import (
    Adjustment,
    LogDensity,
    coefficients,
    epanechnikov,
    regress,
)

__all__ = ["Candidate", "Choice", "Space", "best_candidate", "candidates", "kernel_score"]

#: Bandwidths to choose from, in standard deviations of the accepted points.
_BANDWIDTHS = np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0])
#: Share of the prior that is mixed into a predictive density, so that no single score decides.
_PRIOR_SHARE = 0.02
#: Points that a kernel density is made of, at most.
_POINTS = 1000
#: Pseudo-observed data after which candidates that are far behind are dropped, and how far that is, in
#: standard errors.
_LOOKS, _BEHIND = (10, 20, 40), 3.0
#: Standard errors, or nats, by which a candidate with more draws may be worse than the best of its kind. Standard
#: errors are too small, for the simulations that are accepted are much the same for all data.
_AS_GOOD, _ALIKE = 1.0, 0.03
#: Growth of the number of effective draws from one tolerance that is tried to the next.
_STEP = 3.0
#: Effective draws for each coefficient of a regression, at least.
_PER_COEFFICIENT = 2.0


class Space(NamedTuple):
    """Statistics that simulations are compared by.

    Attributes
    ----------
    name : str
    statistics : array (N, S)
        Of all simulations.
    fold : array of int (N,)
        Which of several versions of the statistics it is: see :func:`amc_pymc.abc_tree.learned.cross_fitted`.
    targets : array (folds, M, S)
        The same of the M pseudo-observed data.
    root : array (S, Z)
        The distance is the Euclidean length of a gap times this.
    regressors : array (N, R), optional
        That regressions have instead of the statistics.
    regressor_targets : array (folds, M, R), optional
    """

    name: str
    statistics: np.ndarray
    fold: np.ndarray
    targets: np.ndarray
    root: np.ndarray
    regressors: np.ndarray | None = None
    regressor_targets: np.ndarray | None = None

    def distance(self, m: int) -> np.ndarray:
        """Distances (N,) from pseudo-observed data number m."""
        gaps = (self.statistics - self.targets[self.fold, m]) @ self.root
        return np.sqrt(np.einsum("ij,ij->i", gaps, gaps))

    def gaps(self, m: int, index: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Gaps (n, R) of regressors between simulations and pseudo-observed data number m."""
        if self.regressors is None or self.regressor_targets is None:
            return self.statistics[index] - self.targets[self.fold[index], m]
        return self.regressors[index] - self.regressor_targets[self.fold[index], m]


class Candidate(NamedTuple):
    """A space, a kind of regression and how many effective draws to accept."""

    space: str
    kind: Adjustment
    draws: float


class Choice(NamedTuple):
    """What was chosen.

    Attributes
    ----------
    candidate : Candidate
    gain : float
        Mean log score over that of the first candidate, in nats.
    error : float
        Its standard error.
    """

    candidate: Candidate
    gain: float
    error: float


def candidates(
    space: str,
    n_statistics: int,
    kinds: Sequence[Adjustment],
    fewest: float,
    most: float,
) -> list[Candidate]:
    """Kinds of regression at tolerances that accept more and more, as far as a regression is determined.

    Examples
    --------
    >>> from amc_pymc.abc_tree.choose import candidates
    >>> [c.draws for c in candidates("raw", 2, ["linear"], 100.0, 1000.0)]
    [100.0, 300.0, 1000.0]
    """
    steps = max(0, math.floor(math.log(most / fewest, _STEP)))
    levels = [fewest * _STEP**i for i in range(steps + 1)]
    # Up to the most, but not twice nearly the same.
    if most > 1.5 * levels[-1]:
        levels.append(most)
    elif steps:
        levels[-1] = most
    return [
        Candidate(space, kind, level)
        for kind in kinds
        for level in levels
        if level >= _PER_COEFFICIENT * coefficients(n_statistics, kind)
    ]


def best_candidate(
    tried: Sequence[Candidate],
    spaces: Sequence[Space],
    u: np.ndarray,
    log_weight: np.ndarray,
    pseudo: np.ndarray,
    log_density: LogDensity | None = None,
    *,
    better: float = 1.0,
) -> Choice:
    r"""The candidate of the best mean log score at pseudo-observed data.

    Simulations close to the data are taken for data in turn, all others adjusted to them, and a kernel density of
    what is accepted scored at the parameters that are behind,

    .. math:: \log \hat p(x_j \mid s_j).

    A proper score: it is highest, in expectation, for the posterior itself, and knows of location, spread and shape.
    The bandwidth is that of the best mean score. The first candidate stands unless another one is better by so many standard
    errors. Of one kind of regression, the candidate with most draws is taken of those that are within a standard error,
    or 0.03 nats, of the best. A hundred data tell gains of a few hundredths of a nat apart, not less.

    Parameters
    ----------
    tried : sequence of Candidate
    spaces : sequence of Space
    u : array (N, D)
        Simulations.
    log_weight : array (N,)
        Natural logarithms, without the prior's density.
    pseudo : array of int (M,)
        Simulations that are taken for data; those drawn twice count twice.
    log_density : callable, optional
    better : float
        Standard errors; zero gives the first candidate no privilege.

    Returns
    -------
    Choice
    """
    x = ndtri(u)
    places = {space.name: space for space in spaces}
    scores = np.full((len(tried), len(pseudo), len(_BANDWIDTHS)), -math.inf)
    alive = list(range(len(tried)))
    for m, j in enumerate(pseudo):
        for name, space in places.items():
            mine = [c for c in alive if tried[c].space == name]
            if not mine:
                continue
            near = _Near(space, m, int(j), log_weight)
            for c in mine:
                scores[c, m] = _score(tried[c], near, u, x, x[j], log_density)
        if m + 1 in _LOOKS:
            alive = _not_behind(scores[:, : m + 1], alive)
    best = _at_best_bandwidth(scores[alive])
    top = int(np.argmax(best.mean(axis=1)))
    gain = best[top] - best[0]
    error = float(gain.std() / math.sqrt(len(gain)))
    if better and not gain.mean() > better * error:
        return Choice(tried[0], 0.0, error)
    top = _with_more_draws(best, [tried[c] for c in alive], top)
    gain = best[top] - best[0]
    return Choice(tried[alive[top]], float(gain.mean()), float(gain.std() / math.sqrt(len(gain))))


def _with_more_draws(scores: np.ndarray, tried: Sequence[Candidate], top: int) -> int:
    """The candidate like the best one that accepts most, as far as chance explains why it is not better."""
    for c in sorted(range(len(tried)), key=lambda c: -tried[c].draws):
        alike = tried[c][:2] == tried[top][:2]
        gap = scores[top] - scores[c]
        if alike and gap.mean() <= max(_ALIKE, _AS_GOOD * gap.std() / math.sqrt(len(gap))):
            return c
    return top


class _Near:
    """Simulations by their distance from pseudo-observed data, without the one that these are."""

    def __init__(self, space: Space, m: int, own: int, log_weight: np.ndarray):
        self.space, self.m = space, m
        distance = space.distance(m)
        some = np.isfinite(distance) & (log_weight > -math.inf)
        some[own] = False
        order = np.flatnonzero(some)
        self.order = order[np.argsort(distance[order], kind="stable")]
        self.distance = distance[self.order]
        log = log_weight[self.order]
        self.weight = np.exp(log - log.max())
        self.reached = effective_of_first(self.weight)

    def closest(self, draws: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """Indices, weights and distances (n,) of so many effective draws, and the tolerance."""
        enough = np.flatnonzero(self.reached >= draws)
        n = int(enough[0]) + 1 if len(enough) else len(self.order)
        return self.order[:n], self.weight[:n], self.distance[:n], float(self.distance[n - 1])


def _score(
    candidate: Candidate,
    near: _Near,
    u: np.ndarray,
    x: np.ndarray,
    truth: np.ndarray,
    log_density: LogDensity | None,
) -> np.ndarray:
    """Log scores, one for each bandwidth."""
    index, weight, distance, tolerance = near.closest(candidate.draws)
    if candidate.kind == "none":
        moved, points = x[index], u[index]
    else:
        weight = weight * epanechnikov(distance, tolerance)
        gaps = near.space.gaps(near.m, index)
        points = regress(u[index], gaps, weight, candidate.kind).u
        moved = ndtri(points)
    log = None if log_density is None else log_density(points)
    if log is not None:
        top = log.max()
        weight = weight * np.exp(log - top) if top > -math.inf else np.zeros(len(weight))
    return kernel_score(moved, weight, truth, _BANDWIDTHS)


def kernel_score(
    x: np.ndarray, weight: np.ndarray, at: np.ndarray, bandwidths: np.ndarray
) -> np.ndarray:
    r"""Logarithm of a kernel density that keeps mean and covariance, at one point.

    Natural, and without the constant of the normal density, :math:`-\tfrac D2 \log 2 \pi`.

    .. math:: (1 - \lambda) \sum_i w_i N\bigl(m + a (x_i - m), a^2 h^2 S\bigr) + \lambda N(0, I),
        \qquad a^2 (1 + h^2) = 1

    Parameters
    ----------
    x : array (n, D)
    weight : array (n,)
        Not negative.
    at : array (D,)
    bandwidths : array (B,)
        h.

    Returns
    -------
    array (B,)
    """
    d = x.shape[1]
    prior = math.log(_PRIOR_SHARE) - 0.5 * at @ at
    total = weight.sum()
    if not total > 0.0:
        return np.full(len(bandwidths), prior)
    w = weight / total
    mean = w @ x
    centred = x - mean
    covariance = (centred * w[:, None]).T @ centred
    ridge = 1e-6 * np.diag(covariance).mean() + 1e-12
    root = np.linalg.cholesky(covariance + ridge * np.eye(d))
    if len(x) > _POINTS:
        # Every k-th of equal weight.
        at_levels = (np.arange(_POINTS) + 0.5) / _POINTS
        chosen = np.minimum(np.searchsorted(np.cumsum(w), at_levels), len(x) - 1)
        centred, w = centred[chosen], np.full(_POINTS, 1.0 / _POINTS)
    inverse = np.linalg.inv(root)
    z, z_at = centred @ inverse.T, inverse @ (at - mean)
    products, squares = z @ z_at, np.einsum("ij,ij->i", z, z)
    a = 1.0 / np.sqrt(1.0 + bandwidths**2)
    width = a * bandwidths
    gaps = z_at @ z_at - 2.0 * a * products[:, None] + a**2 * squares[:, None]
    log = -0.5 * gaps / width**2
    top = log.max(axis=0)
    with np.errstate(divide="ignore"):
        found = np.log(w @ np.exp(log - top)) + top - d * np.log(width)
    found -= np.log(np.diag(root)).sum()
    return np.logaddexp(math.log1p(-_PRIOR_SHARE) + found, prior)


def _at_best_bandwidth(scores: np.ndarray) -> np.ndarray:
    """Scores (C, M) at the bandwidth of each candidate's best mean."""
    best = scores.mean(axis=1).argmax(axis=1)
    return scores[np.arange(len(scores)), :, best]


def _not_behind(scores: np.ndarray, alive: Sequence[int]) -> list[int]:
    """Candidates that are not far behind the best one; the first always stays."""
    best = _at_best_bandwidth(scores[alive])
    top = best[int(np.argmax(best.mean(axis=1)))]
    gap = top - best
    error = gap.std(axis=1) / math.sqrt(best.shape[1])
    behind = gap.mean(axis=1) > _BEHIND * error
    return [c for c, far in zip(alive, behind, strict=True) if c == 0 or not far]
