r"""A likelihood of single observations that is learned from simulations, for estimates that serve as summary statistics."""

from __future__ import annotations

import math

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scipy.interpolate import BSpline
from scipy.linalg import block_diag
from scipy.special import softmax

from amc_pymc.likelihood_free.problem import lengths
from amc_pymc.mixtures import StudentTMixture

#: Minimum number of observations, and maximum number of parameters, for which a likelihood is learned.
_OBSERVATIONS, _PARAMETERS = 30, 6
#: Maximum number of cells, number of basis functions of their coefficients, and degree of these.
_CELLS, _FUNCTIONS, _DEGREE = 200, 40, 3
#: Width of the gap around zero, in median distances of observations, that keeps signs apart.
_APART = 20.0
#: Simulations that the likelihood is learned from: those within this many posterior standard deviations, minimum number
#: and share, and maximum number; how often it is learned.
_FAR, _LEAST, _SHARE, _MOST, ROUNDS = 7.0, 300, 0.2, 2000, 3
#: Maximum Newton steps of a fit, the change of log probabilities at which it ends, and the maximum change of a step.
_ITERATIONS, _ENOUGH, _STEP = 15, 1e-3, 3.0
#: Scoring steps to an estimate, and the maximum length of each, in posterior standard deviations.
_CLIMBS, _LENGTH = 6, 2.0
#: Value that is added to variances, value that is added to the Hessian's diagonal, count that is added to all cells, and maximum log ratio of rates.
_TINY, _RIDGE, _COUNT, _LARGE = 1e-10, 1e-3, 0.5, 30.0
#: Factor by which the density of pseudo-observations is wider than the posterior, and its degrees of freedom.
_WIDER, _DOF = 1.5, 8.0
#: Differences of an estimate, in posterior standard deviations: from that of the data if a simulation is like these, and
#: from its own parameters if these are in another mode.
_ALIKE, _UNLIKE = 3.0, 6.0
#: Number of simulations whose estimates are computed at a time.
_AT_A_TIME = 10_000


class Cells(NamedTuple):
    """Cells of the real line that observations are counted in, one around each observed value if there are not too many.

    Attributes
    ----------
    edges : array (B - 1,)
    basis : array (B, F)
        Smooth functions of the place of a cell. The outer cells, and a gap between negative and positive values, have
        functions of their own.
    """

    edges: np.ndarray
    basis: np.ndarray

    def counts(self, data: np.ndarray) -> np.ndarray:
        """Return how many observations of each data set are in each cell, (n, B), for data sets (n, m)."""
        n, b = len(data), len(self.edges) + 1
        index = np.searchsorted(self.edges, data) + b * np.arange(n)[:, None]
        counts = np.bincount(index.ravel(), minlength=n * b).reshape(n, b)
        return counts.astype(np.min_scalar_type(data.shape[1]))


def cells_around(observed: np.ndarray, n_parameters: int) -> Cells | None:
    """Return cells around observations (m,); None if these are few or the parameters many.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.by_observation import cells_around
    >>> observed = np.random.default_rng(1).normal(size=50)
    >>> cells = cells_around(observed, 2)
    >>> cells.counts(observed[None]).sum(), len(cells.edges)
    (np.uint64(50), 51)
    """
    x = np.sort(observed)
    gaps = np.diff(np.unique(x))
    if len(x) < _OBSERVATIONS or not len(gaps) or n_parameters > _PARAMETERS:
        return None
    spacing, zero = np.median(gaps), int(np.searchsorted(x, 0.0))
    apart = 0 < zero < len(x) and x[zero] - x[zero - 1] > _APART * spacing
    edges, blocks = [], [np.eye(1)]
    for part in np.split(x, [zero] if apart else []):
        share = len(part) / len(x)
        n = min(len(part), math.ceil(_CELLS * share))
        values = np.unique(part[np.linspace(0, len(part) - 1, n).astype(int)])
        ends = values[[0, -1]] + np.array([-0.5, 0.5]) * spacing
        edges.append(np.concatenate([ends[:1], (values[1:] + values[:-1]) / 2, ends[1:]]))
        blocks += [_splines(len(values), max(_DEGREE + 1, round(_FUNCTIONS * share))), np.eye(1)]
    return Cells(np.concatenate(edges), block_diag(*blocks))


def _splines(n: int, functions: int) -> np.ndarray:
    """Return B-splines (n, F) at n places, with knots that are dense at both ends."""
    if n <= functions:
        return np.eye(n)
    inner = 0.5 - 0.5 * np.cos(np.linspace(0.0, np.pi, functions - _DEGREE + 1))
    knots = np.pad(inner, _DEGREE, mode="edge")
    return BSpline.design_matrix((np.arange(n) + 0.5) / n, knots, _DEGREE).toarray()


class Likelihood(NamedTuple):
    r"""Probabilities of cells as functions of parameters near the mode of the posterior.

    .. math:: \log p_b(z) = a_b + g_b^\top z + \tfrac12 z^\top H_b z - \mathrm{const}(z), \qquad x = c + L z

    Parameters x are standard normal a priori.

    Attributes
    ----------
    centre, root : arrays (D,), (D, D)
        c and L: centre and Cholesky factor of the covariance of the posterior.
    level, slopes, curvature : arrays (B,), (B, D), (B, D, D)
        a, g and H.
    reach : float
        Length of z up to which the likelihood is learned.
    n : int
        Number of observations in a data set.
    """

    centre: np.ndarray
    root: np.ndarray
    level: np.ndarray
    slopes: np.ndarray
    curvature: np.ndarray
    reach: float
    n: int

    @property
    def information(self) -> np.ndarray:
        """Expected information (D, D) of the observations and the prior, at the centre."""
        weighted = self.slopes * softmax(self.level)[:, None]
        return self.n * weighted.T @ self.slopes + self.root.T @ self.root

    @property
    def posterior(self) -> StudentTMixture:
        """A density that is wider than the posterior by a half, around its centre."""
        return StudentTMixture(np.ones(1), self.centre[None], _WIDER * self.root[None], _DOF)

    def modes(self, counts: np.ndarray) -> np.ndarray:
        """Return z (n, D) with the highest posterior density given counts (n, B), by Fisher scoring."""
        parts = np.array_split(counts, math.ceil(len(counts) / _AT_A_TIME))
        return np.concatenate([self._climb(part) for part in parts])

    def _climb(self, counts: np.ndarray) -> np.ndarray:
        inverse, z = np.linalg.inv(self.information), np.zeros((len(counts), len(self.centre)))
        for _ in range(_CLIMBS):
            bend = np.einsum("bij,nj->nbi", self.curvature, z)
            p = softmax(self.level + np.einsum("nbi,ni->nb", self.slopes + 0.5 * bend, z), axis=1)
            slope = np.einsum("nb,nbi->ni", counts - self.n * p, self.slopes + bend)
            slope -= (self.centre + z @ self.root.T) @ self.root
            z = _shortened(z + _shortened(slope @ inverse, _LENGTH), self.reach)
        return z

    def distances(self, x: np.ndarray, z: np.ndarray | float = 0.0) -> np.ndarray:
        """Return distances (n,) of parameters (n, D) from the centre, or from z (n, D), in posterior standard deviations."""
        own: np.ndarray = np.linalg.solve(self.root, (x - self.centre).T).T
        return lengths(own - z)

    def misses_modes(self, x: np.ndarray, counts: np.ndarray, observed: np.ndarray) -> bool:
        """Return whether one of n simulations has an estimate like that of the data, and parameters (n, D) far from it."""
        found = self.modes(counts)
        alike = lengths(found - self.modes(observed)) < _ALIKE
        return bool((alike & (self.distances(x, found) > _UNLIKE)).any())

    def estimates(self, x: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return modes (n, D), in posterior standard deviations; infinite where parameters (n, D) are out of reach."""
        out, near = np.full(x.shape, np.inf), self.distances(x) <= self.reach
        out[near] = self.modes(counts[near])
        return out


def _shortened(z: np.ndarray, most: float) -> np.ndarray:
    return z * np.minimum(1.0, most / np.maximum(lengths(z), 1e-300))[:, None]


def locate(
    x: np.ndarray,
    counts: np.ndarray,
    basis: np.ndarray,
    near: np.ndarray,
    weight: np.ndarray,
    each: Callable[[], object] = lambda: None,
) -> Likelihood:
    r"""Learn the likelihood of an observation near the posterior mode, which it locates.

    If observations are independent and identically distributed, counts in cells around the observed values have nearly
    all information in them: their likelihood is that of spacings (Cheng & Amin 1983,
    doi:10.1111/j.2517-6161.1983.tb01268.x). Its probabilities are learned from all observations of simulations whose
    parameters are close; a choice by their data would change the distribution of these. Estimates under such an
    auxiliary likelihood are summary statistics, and an adjustment for the gap between simulations
    and data corrects its errors (Drovandi, Pettitt & Faddy 2011, doi:10.1111/j.1467-9876.2010.00747.x).

    Parameters
    ----------
    x : array (N, D)
        Parameters of simulations, on the scale where the prior is standard normal.
    counts : array (1 + N, B)
        Counts of the data and of simulations.
    basis : array (B, F)
        Functions of cells, see :class:`Cells`.
    near, weight : arrays (A, D), (A,)
        Parameters of accepted simulations and their weights, a first guess of the posterior.
    each : callable
        Called after each of three fits.

    Returns
    -------
    Likelihood

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.by_observation import cells_around, locate
    >>> rng = np.random.default_rng(1)
    >>> x, data = rng.normal(size=(1000, 1)), rng.normal(0.5, 1.0, 50)
    >>> cells = cells_around(data, 1)
    >>> counts = cells.counts(np.vstack([data, x + rng.normal(size=(1000, 50))]))
    >>> found = locate(x, counts, cells.basis, x, np.full(1000, 0.001))
    >>> bool(abs(found.centre - 50 / 51 * data.mean()) < 0.05), bool(abs(found.root - 0.14) < 0.01)
    (True, True)
    """
    d, centre = x.shape[1], weight @ near
    covariance = np.cov(near, rowvar=False, aweights=weight).reshape(d, d)
    rows, columns = np.triu_indices(d)
    for _ in range(ROUNDS):
        root = np.linalg.cholesky(covariance + _TINY * np.eye(d))
        z = np.linalg.solve(root, (x - centre).T).T
        length = lengths(z)
        k = max(_LEAST, round(_SHARE * len(x)), int((length < _FAR).sum()))
        closest = np.argsort(length)[:k]
        reach, near = float(length[closest[-1]]), closest[:: math.ceil(len(closest) / _MOST)]
        scaled = z[near] / reach
        design = np.concatenate([scaled, scaled[:, rows] * scaled[:, columns]], axis=1)
        level, found = _fit(design, counts[1:][near].astype(float), basis)
        curvature = np.zeros((len(level), d, d))
        curvature[:, rows, columns] = found[:, d:] / reach**2
        curvature += curvature.swapaxes(1, 2)
        slopes, n = found[:, :d] / reach, int(counts[0].sum())
        learned = Likelihood(centre, root, level, slopes, curvature, reach, n)
        centre = centre + root @ learned.modes(counts[:1])[0]
        covariance = root @ np.linalg.solve(learned.information, root.T)
        each()
    return learned


def _fit(
    design: np.ndarray, counts: np.ndarray, basis: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return log rates (B,) and their slopes (B, p) of a Poisson regression of counts (n, B) on a design (n, p)."""
    total = counts.sum(axis=0) + _COUNT
    slopes = np.zeros((basis.shape[1], design.shape[1]))
    ridge = _RIDGE * np.eye(slopes.size)
    for _ in range(_ITERATIONS):
        rate = np.exp(np.clip(design @ (basis @ slopes).T, -_LARGE, _LARGE))
        level = np.log(total / rate.sum(axis=0))
        expected = rate * np.exp(level)
        mean = expected.T @ design / total[:, None]
        hessian = np.einsum("ni,nj,nb->bij", design, design, expected, optimize=True)
        hessian -= np.einsum("b,bi,bj->bij", total, mean, mean)
        whole = np.einsum("bf,bg,bij->figj", basis, basis, hessian, optimize=True)
        gradient = basis.T @ (counts - expected).T @ design - _RIDGE * slopes
        step = np.linalg.solve(whole.reshape(ridge.shape) + ridge, gradient.ravel())
        step = step.reshape(slopes.shape)
        size = float(np.abs(design @ (basis @ step).T).max())
        slopes += step * min(1.0, _STEP / max(size, _ENOUGH))
        if size < _ENOUGH:
            break
    return level, basis @ slopes
