"""Draws from a kernel density of weighted points that preserves their mean and covariance."""

from __future__ import annotations

import math

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scipy.linalg import solve_triangular
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

from amc_pymc.likelihood_free.adjust import LogDensity, modes
from amc_pymc.likelihood_free.proposal import NONCENTRED, Parametrisation

#: Candidate bandwidths, in standard deviations of the points.
_BANDWIDTHS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.45, 0.65, 0.9, 1.3, 2.0, 3.0)
#: Maximum numbers of points that a kernel is fitted to, and that bandwidths are compared on.
_FITTED, _COMPARED = 1000, 300
#: Standard errors by which a narrower kernel may be worse than the best one.
_AS_GOOD = 1.0
#: Minimum effective points for estimating a covariance.
_FEWEST = 3.0
#: Maximum attempts to draw a point of positive prior density.
_AGAIN = 30
#: Minimum weight of a point, relative to the largest.
_LIGHTEST = 1e-12
#: Fraction of the variance that is added to the diagonal of a covariance.
_RIDGE = 1e-9


@dataclass(frozen=True)
class SmoothingKernel:
    r"""Normal kernels around points that are shrunk towards their mean to preserve the covariance.

    The density is :math:`\sum_i w_i N(m + a (x_i - m), (a h)^2 S)` with the covariance :math:`S = C C^\top` of the
    points and :math:`a = (1 + h^2)^{-1/2}` (Liu & West 2001, doi:10.1007/978-1-4757-3437-9_10).

    Attributes
    ----------
    mean : array (D,)
        Mean m of the points.
    root : array (D, D)
        Lower factor C.
    bandwidth : float
        Bandwidth h.
    """

    mean: np.ndarray
    root: np.ndarray
    bandwidth: float

    def sample(self, x: np.ndarray, parents: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw points (m, D) from the kernels of points x (n, D) with indices `parents` (m,)."""
        z = rng.standard_normal((len(parents), x.shape[1]))
        moved = x[parents] - self.mean + self.bandwidth * z @ self.root.T
        return self.mean + moved / math.hypot(1.0, self.bandwidth)


def smooth_draws(
    u: np.ndarray,
    weight: np.ndarray,
    parents: np.ndarray,
    rng: np.random.Generator,
    log_density: LogDensity | None = None,
    coordinates: Parametrisation = NONCENTRED,
) -> tuple[np.ndarray, list[SmoothingKernel]]:
    """Draw from kernels around weighted points of the unit cube, on the scale of normal quantiles or in other coordinates.

    Each of two modes of similar weight has a kernel of its own, which preserves its mean and covariance.

    Parameters
    ----------
    u : array (n, D)
    weight : array (n,)
        Weights that sum to one.
    parents : array of int (m,)
        Indices of the points around which to draw.
    rng : numpy.random.Generator
    coordinates : Parametrisation
        Coordinates of the kernels.
    log_density : callable, optional
        Log prior density in the cube. Draws of density zero are repeated; after 30 attempts the point itself is
        returned.

    Returns
    -------
    draws : array (m, D)
        Draws in the open unit cube.
    kernels : list of SmoothingKernel
        One for each mode with enough points; in other modes draws are copies of the points.
    """
    x, out, fitted = coordinates.to(u), u[parents], []
    left = np.zeros(len(parents), bool)
    for own in modes(x, weight):
        kernel = fit_smoothing(x[own], weight[own] / weight[own].sum(), rng)
        if kernel is not None:
            fitted.append((own, kernel))
            left |= np.isin(parents, own)
    for _ in range(_AGAIN):
        at = np.flatnonzero(left)
        if not len(at):
            break
        moved = x[parents[at]]
        for own, kernel in fitted:
            here = np.isin(parents[at], own)
            moved[here] = kernel.sample(x, parents[at[here]], rng)
        drawn = coordinates.back(moved)
        log = None if log_density is None else log_density(drawn)
        possible = np.ones(len(at), bool) if log is None else log > -math.inf
        out[at[possible]] = drawn[possible]
        left[at[possible]] = False
    return out, [kernel for _, kernel in fitted]


def fit_smoothing(
    x: np.ndarray, weight: np.ndarray, rng: np.random.Generator, *, bandwidth: float | None = None
) -> SmoothingKernel | None:
    r"""Choose a kernel by leave-one-out likelihood.

    .. math:: \sum_i w_i \log \frac{\sum_{j \ne i} w_j K_j(x_i)}{1 - w_i}

    The narrowest kernel within one standard error of the best one is chosen. Covariances of few points are shrunk
    (Schäfer & Strimmer 2005, doi:10.2202/1544-6115.1175). If there are more than 1,000 points, the bandwidth is chosen
    on 1,000 of them, and reduced by the factor :math:`(1000 / n)^{1 / (D + 4)}` for n effective points.

    Parameters
    ----------
    x : array (n, D)
        Points on an unbounded scale.
    weight : array (n,)
        Weights that sum to one.
    rng : numpy.random.Generator
    bandwidth : float, optional
        Bandwidth for at most 1,000 points. By default it is chosen.

    Returns
    -------
    SmoothingKernel or None
        None if there are fewer than three effective points, or all points are equal.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.smoothing import fit_smoothing
    >>> rng = np.random.default_rng(1)
    >>> x = rng.normal(size=(100, 2))
    >>> kernel = fit_smoothing(x, np.full(100, 0.01), rng)
    >>> draws = kernel.sample(x, rng.integers(100, size=20_000), rng)
    >>> bool(np.allclose(draws.std(axis=0), x.std(axis=0), rtol=0.1))
    True
    """
    effective = 1.0 / float(weight @ weight)
    if effective < _FEWEST or not np.ptp(x, axis=0).any():
        return None
    weight = np.maximum(weight, _LIGHTEST * weight.max())
    weight = weight / weight.sum()
    fitted, fitted_weight = x, weight
    if len(x) > _FITTED:
        some = rng.choice(len(x), _FITTED, p=weight)
        fitted, fitted_weight = x[some], np.full(_FITTED, 1.0 / _FITTED)
    chosen = bandwidth or _best_bandwidth(fitted, fitted_weight, rng)
    if len(x) > _FITTED:
        chosen *= min(1.0, (_FITTED / effective) ** (1.0 / (x.shape[1] + 4)))
    return SmoothingKernel(weight @ x, np.linalg.cholesky(_covariance(x, weight)), chosen)


def _best_bandwidth(x: np.ndarray, weight: np.ndarray, rng: np.random.Generator) -> float:
    """Return the narrowest bandwidth whose leave-one-out likelihood is about the best."""
    compared = rng.permutation(len(x))[:_COMPARED]
    share = weight[compared] / weight[compared].sum()
    scores = left_out_densities(x, weight, compared, _BANDWIDTHS)
    top = scores[int(np.argmax(scores @ share))]
    for h, score in zip(_BANDWIDTHS, scores, strict=True):
        gain = top - score
        mean = share @ gain
        if mean <= _AS_GOOD * math.sqrt(share**2 @ (gain - mean) ** 2):
            break
    return h


def left_out_densities(
    x: np.ndarray, weight: np.ndarray, compared: np.ndarray, bandwidths: Sequence[float]
) -> np.ndarray:
    """Return leave-one-out log densities (H, m) at the compared points, up to a constant, by bandwidth."""
    root = np.linalg.cholesky(_covariance(x, weight))
    z = solve_triangular(root, (x - weight @ x).T, lower=True).T
    out = np.empty((len(bandwidths), len(compared)))
    for h, log_density in zip(bandwidths, out, strict=True):
        shrink = 1.0 / math.hypot(1.0, h)
        squares = cdist(z[compared], shrink * z, "sqeuclidean") / (shrink * h) ** 2
        log_f = np.log(weight) - 0.5 * squares
        log_f[np.arange(len(compared)), compared] = -math.inf
        log_density[:] = logsumexp(log_f, axis=1) - x.shape[1] * math.log(shrink * h)
    return out - np.log1p(-weight[compared])


def _covariance(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the covariance (D, D) of weighted points, with correlations shrunk towards zero."""
    centred = x - weight @ x
    found = (centred * weight[:, None]).T @ centred
    sd = np.sqrt(np.diag(found))
    sd[sd == 0.0] = 1.0
    r = found / np.outer(sd, sd)
    beside = r[~np.eye(len(r), dtype=bool)]
    squares = beside @ beside
    if squares > 0.0:
        r *= 1.0 - min(1.0, float(weight @ weight) * np.sum((1.0 - beside**2) ** 2) / squares)
    np.fill_diagonal(r, 1.0 + _RIDGE)
    return r * np.outer(sd, sd)
