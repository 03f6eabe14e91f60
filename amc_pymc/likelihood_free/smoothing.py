"""Draws from a kernel density of weighted points that preserves their mean and covariance."""

from __future__ import annotations

import math

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from scipy.linalg import solve_triangular
from scipy.spatial.distance import cdist
from scipy.special import ndtri

from amc_pymc.likelihood_free.adjust import LogDensity, modes
from amc_pymc.likelihood_free.proposal import from_normal

#: Candidate bandwidths, in standard deviations of the points in a neighbourhood.
_BANDWIDTHS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.45, 0.65, 0.9, 1.3, 2.0, 3.0)
#: Candidate shares of points in a neighbourhood, besides one kernel for all points.
_NEIGHBOURS = (0.03, 0.1, 0.3)
#: Maximum numbers of points that a kernel is fitted to, and that kernels are compared on.
_FITTED, _COMPARED = 1000, 300
#: Standard errors by which a kernel of local shape must be better than one of the same shape everywhere.
_BETTER = 2.0
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
#: Number of points processed at a time.
_BLOCK = 1000


@dataclass(frozen=True)
class SmoothingKernel:
    r"""Normal kernels around points that are shrunk towards their mean to preserve the covariance.

    The density is :math:`\sum_i w_i N(m + A (x_i - m), h^2 A C_i C_i^\top A^\top)`, where A is symmetric with
    :math:`A (S + h^2 \sum_i w_i C_i C_i^\top) A = S`, the covariance of the points. With the same C for all points and
    :math:`C C^\top = S` this is the kernel of Liu & West (2001), doi:10.1007/978-1-4757-3437-9_10.

    Attributes
    ----------
    mean : array (D,)
        Mean m of the points.
    shrink : array (D, D)
        Shrinkage matrix A.
    roots : array (n, D, D) or (1, D, D)
        Matrices h C; a single one if the kernel is the same everywhere.
    bandwidth : float
        Bandwidth h.
    neighbours : float
        Share of the points that C is estimated from; 1 if the kernel is the same everywhere.
    """

    mean: np.ndarray
    shrink: np.ndarray
    roots: np.ndarray
    bandwidth: float
    neighbours: float

    def sample(self, x: np.ndarray, parents: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw points (m, D) from the kernels of points x (n, D) with indices `parents` (m,)."""
        z = rng.standard_normal((len(parents), x.shape[1]))
        roots = self.roots[parents] if len(self.roots) > 1 else self.roots
        moved = x[parents] - self.mean + (roots @ z[..., None])[..., 0]
        return self.mean + moved @ self.shrink


def smooth_draws(
    u: np.ndarray,
    weight: np.ndarray,
    parents: np.ndarray,
    rng: np.random.Generator,
    log_density: LogDensity | None = None,
) -> tuple[np.ndarray, list[SmoothingKernel]]:
    """Draw from kernels around weighted points of the unit cube, on the scale of normal quantiles.

    Each of two modes of similar weight has a kernel of its own, which preserves its mean and covariance.

    Parameters
    ----------
    u : array (n, D)
    weight : array (n,)
        Weights that sum to one.
    parents : array of int (m,)
        Indices of the points around which to draw.
    rng : numpy.random.Generator
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
    x, out, kernels = ndtri(u), u[parents], []
    for own in modes(x, weight):
        kernel = fit_smoothing(x[own], weight[own] / weight[own].sum(), rng)
        if kernel is None:
            continue
        kernels.append(kernel)
        here = np.flatnonzero(np.isin(parents, own))
        out[here] = _smoothed(kernel, u[own], np.searchsorted(own, parents[here]), rng, log_density)
    return out, kernels


def _smoothed(
    kernel: SmoothingKernel,
    u: np.ndarray,
    parents: np.ndarray,
    rng: np.random.Generator,
    log_density: LogDensity | None,
) -> np.ndarray:
    """Draw points (m, D) of the cube from the kernels of points u (n, D) where the prior is positive."""
    x, out, left = ndtri(u), u[parents], np.arange(len(parents))
    for _ in range(_AGAIN):
        drawn = from_normal(kernel.sample(x, parents[left], rng))
        log = None if log_density is None else log_density(drawn)
        possible = np.ones(len(left), bool) if log is None else log > -math.inf
        out[left[possible]] = drawn[possible]
        left = left[~possible]
        if not len(left):
            break
    return out


def fit_smoothing(
    x: np.ndarray,
    weight: np.ndarray,
    rng: np.random.Generator,
    *,
    chosen: tuple[float, float] | None = None,
) -> SmoothingKernel | None:
    r"""Choose a kernel by leave-one-out likelihood.

    .. math:: \sum_i w_i \log \frac{\sum_{j \ne i} w_j K_j(x_i)}{1 - w_i}

    The narrowest kernel within one standard error of the best one is chosen. Kernels have the same shape everywhere,
    or that of the points in their neighbourhood if this is significantly better. Covariances of few points are shrunk
    (Schäfer & Strimmer 2005, doi:10.2202/1544-6115.1175). If there are more than 1,000 points, the kernel is chosen on
    1,000 of them, and the bandwidth is reduced by the factor :math:`(1000 / n)^{1 / (D + 4)}` for n effective points.

    Parameters
    ----------
    x : array (n, D)
        Points on an unbounded scale.
    weight : array (n,)
        Weights that sum to one.
    rng : numpy.random.Generator
    chosen : tuple (neighbours, bandwidth), optional
        Share of the points in a neighbourhood, and bandwidth for at most 1,000 points, of
        :class:`SmoothingKernel`. By default they are chosen.

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
    share, bandwidth = chosen or _choose(fitted, fitted_weight, rng)
    if len(x) > _FITTED:
        bandwidth *= min(1.0, (_FITTED / effective) ** (1.0 / (x.shape[1] + 4)))
    total = _covariance(x, weight)
    roots = next(_roots(x, fitted, fitted_weight, total, [share]))
    return next(_kernels(weight @ x, weight, total, roots, share, [bandwidth]))


def _choose(x: np.ndarray, weight: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """Return the share of points in a neighbourhood and the bandwidth."""
    compared = rng.permutation(len(x))[:_COMPARED]
    mean, total = weight @ x, _covariance(x, weight)
    d = x.shape[1]
    local = [
        s for s in _NEIGHBOURS if s * len(x) >= d * (d + 3) / 2
    ]  # parameters of a mean and covariance
    best: tuple[float, float] | None = None
    best_scores = np.full(len(compared), -math.inf)
    share_of_each = weight[compared] / weight[compared].sum()
    shares = (1.0, *local)
    for share, roots in zip(shares, _roots(x, x, weight, total, shares), strict=True):
        kernels = list(_kernels(mean, weight, total, roots, share, _BANDWIDTHS))
        scores = left_out_densities(kernels, x, weight, compared)
        top = int(np.argmax(scores @ share_of_each))
        if best is None or _beyond_chance(scores[top] - best_scores, share_of_each, _BETTER):
            as_good = [
                not _beyond_chance(scores[top] - score, share_of_each, _AS_GOOD) for score in scores
            ]
            best, best_scores = (share, _BANDWIDTHS[as_good.index(True)]), scores[top]
    assert best is not None
    return best


def _beyond_chance(gain: np.ndarray, weight: np.ndarray, errors: float) -> bool:
    """Whether a weighted mean gain is more than `errors` standard errors."""
    mean = weight @ gain
    return bool(mean > errors * math.sqrt(weight**2 @ (gain - mean) ** 2))


def _kernels(
    mean: np.ndarray,
    weight: np.ndarray,
    total: np.ndarray,
    roots: np.ndarray,
    share: float,
    bandwidths: Sequence[float],
) -> Iterator[SmoothingKernel]:
    """Yield the kernels of given bandwidths that preserve mean and covariance."""
    if len(roots) == 1:
        average = roots[0] @ roots[0].T
    else:
        average = np.einsum("n,nij,nkj->ik", weight, roots, roots, optimize=True)
    for h in bandwidths:
        yield SmoothingKernel(mean, _between(total + h**2 * average, total), h * roots, h, share)


def _between(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the symmetric matrix A with A source A = target."""
    root = _square_root(target)
    inner = _square_root(root @ source @ root)
    return root @ np.linalg.solve(inner, root)


def _square_root(a: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(a)
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T


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


def _roots(
    x: np.ndarray,
    others: np.ndarray,
    weight: np.ndarray,
    total: np.ndarray,
    shares: Sequence[float],
) -> Iterator[np.ndarray]:
    """Yield roots (n, D, D) of the covariances of neighbours for each share, or (1, D, D) of `total` for share 1."""
    root, mean = np.linalg.cholesky(total), weight @ others
    x, others = x - mean, others - mean  # or narrow modes far from zero lose their digits
    z, near_z = (solve_triangular(root, points.T, lower=True).T for points in (x, others))
    d = x.shape[1]
    for share in shares:
        if share == 1.0:
            yield root[None]
            continue
        k = max(d + 1, round(share * len(others)))
        parts = np.split(z, range(_BLOCK, len(z), _BLOCK))
        found = np.concatenate([neighbours_covariance(p, near_z, weight, k) for p in parts])
        # Shrink towards a sphere of the same size, more strongly for fewer points.
        size = np.trace(found, axis1=1, axis2=2) / d
        round_part = d / (d + k)
        found *= 1.0 - round_part
        found += (round_part * size + _RIDGE)[:, None, None] * np.eye(d)
        yield root @ np.linalg.cholesky(found)


def neighbours_covariance(
    z: np.ndarray, others: np.ndarray, weight: np.ndarray, k: int
) -> np.ndarray:
    """Return the covariances (n, D, D) of the k points nearest to each point."""
    squares = cdist(z, others, "sqeuclidean")
    nearest = squares <= np.partition(squares, k - 1, axis=1)[:, k - 1 : k]
    w = nearest * weight
    w /= w.sum(axis=1, keepdims=True)
    i, j = np.triu_indices(z.shape[1])
    mean, products = w @ others, w @ (others[:, i] * others[:, j])
    out = np.empty((len(z), z.shape[1], z.shape[1]))
    out[:, i, j] = out[:, j, i] = products - mean[:, i] * mean[:, j]
    return out


def left_out_densities(
    kernels: Sequence[SmoothingKernel], x: np.ndarray, weight: np.ndarray, compared: np.ndarray
) -> np.ndarray:
    """Return leave-one-out log densities (K, m) at the compared points, by kernels that differ in bandwidth only.

    Exponentials are taken in single precision, which is enough for sums of positive terms.
    """
    first, d = kernels[0], x.shape[1]
    inverse = np.linalg.inv(first.roots / first.bandwidth)
    precision = np.matmul(inverse.transpose(0, 2, 1), inverse)
    centres = x - first.mean
    along = (precision @ centres[..., None])[..., 0]
    # Squared lengths are linear in points and their products, so that one matrix product gives them all.
    i, j = np.triu_indices(d)
    squares = np.broadcast_to(precision[:, i, j] * np.where(i == j, -0.5, -1.0), (len(x), len(i)))
    terms = np.column_stack([along, squares, -0.5 * np.vecdot(along, centres)])
    with np.errstate(divide="ignore"):
        constant = np.log(weight) + np.linalg.slogdet(inverse)[1]
    out = np.empty((len(kernels), len(compared)))
    for kernel, log_density in zip(kernels, out, strict=True):
        at = np.linalg.solve(kernel.shrink, centres[compared].T)
        log_f = terms @ np.concatenate([at, at[i] * at[j], np.ones((1, len(compared)))])
        log_f /= kernel.bandwidth**2
        log_f += constant[:, None]
        log_f[compared, np.arange(len(compared))] = -math.inf
        top = log_f.max(axis=0)
        shares = np.exp((log_f - top).astype(np.float32))
        log_density[:] = top + np.log(shares.sum(axis=0, dtype=float))
        log_density -= np.linalg.slogdet(kernel.shrink)[1] + d * math.log(kernel.bandwidth)
    return out - np.log1p(-weight[compared])
