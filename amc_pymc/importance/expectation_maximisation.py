"""Compiled expectation-maximisation for mixtures of Student t distributions."""

from __future__ import annotations

import math

import numpy as np

from amc_pymc.engine.jit import njit

__all__ = ["iterate", "normalise"]

#: Weight below which a component is dropped, regardless of its number of draws.
_LEAST_SHARE = 1e-6

#: Smallest square of a pivot of a scaled matrix that counts as regular, and the first addition to its diagonal.
_LEAST_PIVOT, _LIFT = 1e-16, 1e-14

#: Squared distance in the place of an infinite one.
_FAR = 1e300

#: Numbers in a block of points; two blocks fit in the L2 cache.
_BLOCK = 32_768


@njit(cache=True)
def iterate(
    x: np.ndarray,
    w: np.ndarray,
    ess: float,
    labels: np.ndarray,
    weights: np.ndarray,
    means: np.ndarray,
    factors: np.ndarray,
    chosen: int,
    dofs: np.ndarray,
    peaks: np.ndarray,
    target: np.ndarray,
    strength: float,
    floor: np.ndarray,
    n_iter: int,
    tolerance: float,
    min_draws: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Repeat steps of expectation-maximisation until the log likelihood hardly increases.

    Parameters
    ----------
    x, w : arrays (n, D), (n,)
        Draws and their normalised weights.
    ess : float
        Effective number of draws.
    labels : array (n,) or (0,)
        If not empty, components of the draws, to which a first mixture is fitted.
    weights, means, factors : arrays (K,), (K, D), (K, D, D)
        The initial mixture; with labels, only its shape matters.
    chosen : int
        Index of its degrees of freedom.
    dofs, peaks : arrays (M,)
        Degrees of freedom to choose from, and the log density of a component of unit scale at its mean with each.
    target : array (K, D, D) or (0, D, D)
        Cholesky factors towards which scale matrices are shrunk, each rescaled; if empty, the pooled matrix.
    strength : float
        Number of draws that the target is worth.
    floor : array (D,)
        Variances that count as zero.
    n_iter : int
        Maximum number of iterations.
    tolerance : float
        Gain of the mean log density per draw below which iterations stop.
    min_draws : float
        Number of draws below which a component is dropped.

    Returns
    -------
    weights, means, factors : arrays
        The mixture, possibly with fewer components.
    chosen : int
        Index of its degrees of freedom.
    """
    last, first = -math.inf, 0 if len(labels) == 0 else -1
    for number in range(first, n_iter):
        if number < 0:
            member = _labelled(labels, w, len(weights))
            share, counts = _draws_of(member)
        else:
            distances = _distances(x, means, factors)
            member, value = _members(distances, weights, factors, dofs[chosen], peaks[chosen], w)
            share, counts = _draws_of(member)
            keep = _kept(share, counts, ess, min_draws)
            if not keep.all():
                weights, means, factors = weights[keep], means[keep], factors[keep]
                normalise(weights)
                if len(target) > 0:
                    target = target[keep]
                last = -math.inf
                continue
            if value - last < tolerance:
                best = _likeliest(distances, weights, factors, chosen, dofs, peaks, w)
                if best == chosen:
                    break
                chosen, last = best, -math.inf
                continue
            last = value
            if math.isfinite(dofs[chosen]):
                # Common factors of the precision do not matter.
                for j in range(len(share)):
                    for i in range(len(w)):
                        member[j, i] /= dofs[chosen] + distances[j, i]
        normalise(share)
        means, scatter = _moments(x, member)
        factors = _shrunk(scatter, counts, share, ess, target, strength, floor)
        weights = share
    return weights, means, factors, chosen


@njit(cache=True)
def normalise(weights: np.ndarray) -> None:
    """Divide weights by their sum; make them equal if all are zero."""
    total = weights.sum()
    for j in range(len(weights)):
        weights[j] = weights[j] / total if total > 0.0 else 1.0 / len(weights)


@njit(cache=True)
def _labelled(labels: np.ndarray, w: np.ndarray, k: int) -> np.ndarray:
    """Return weights of draws (K, n) in their own component."""
    member = np.zeros((k, len(w)))
    for i in range(len(w)):
        member[labels[i], i] = w[i]
    return member


@njit(cache=True)
def _kept(share: np.ndarray, counts: np.ndarray, ess: float, min_draws: float) -> np.ndarray:
    """Return a mask (K,) of the components with enough draws; the heaviest is always kept."""
    keep = np.empty(len(share), np.bool_)
    for j in range(len(share)):
        keep[j] = max(counts[j], share[j] * ess) >= min_draws and share[j] > _LEAST_SHARE
    keep[share.argmax()] = True
    return keep


@njit(cache=True)
def _distances(x: np.ndarray, means: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Return squared Mahalanobis distances (K, n), inf for nan."""
    n, d = x.shape
    out, size = np.empty((len(means), n)), _block(d)
    for j in range(len(means)):
        whitener = _whitener(factors[j])
        for first in range(0, n, size):
            rows = slice(first, min(first + size, n))
            _squared_norms(np.dot(x[rows] - means[j], whitener), out[j, rows])
    return out


@njit(cache=True)
def _block(d: int) -> int:
    """Return a number of points whose coordinates fit in the cache."""
    return max(_BLOCK // d, 64)


@njit(cache=True, fastmath={"reassoc"})
def _squared_norms(z: np.ndarray, out: np.ndarray) -> None:
    for i in range(len(z)):
        total = 0.0
        for c in range(z.shape[1]):
            total += z[i, c] * z[i, c]
        out[i] = math.inf if math.isnan(total) else total


@njit(cache=True)
def _log_terms(
    distances: np.ndarray, weights: np.ndarray, factors: np.ndarray, dof: float, peak: float
) -> np.ndarray:
    """Return the log of weight times density (K, n)."""
    k, n = distances.shape
    d = factors.shape[1]
    terms = np.empty((k, n))
    for j in range(k):
        at_mean = peak + np.log(weights[j])
        for c in range(d):
            at_mean -= math.log(factors[j, c, c])
        for i in range(n):
            if math.isinf(dof):
                terms[j, i] = at_mean - 0.5 * distances[j, i]
            else:
                terms[j, i] = at_mean - 0.5 * (dof + d) * math.log1p(distances[j, i] / dof)
    return terms


@njit(cache=True)
def _members(
    distances: np.ndarray,
    weights: np.ndarray,
    factors: np.ndarray,
    dof: float,
    peak: float,
    w: np.ndarray,
) -> tuple[np.ndarray, float]:
    """Return responsibilities times weights of draws (K, n), and the mean log density.

    A draw infinitely far from all components belongs to the heaviest; its distances are made finite.
    """
    terms = _log_terms(distances, weights, factors, dof, peak)
    k, n = terms.shape
    value = 0.0
    for i in range(n):
        top = -math.inf
        for j in range(k):
            top = max(top, terms[j, i])
        if top == -math.inf:
            top = 0.0
            for j in range(k):
                distances[j, i] = _FAR
                terms[j, i] = 0.0 if weights[j] == weights.max() else -math.inf
        if k == 1:
            value += w[i] * top
            terms[0, i] = w[i]
            continue
        total = 0.0
        for j in range(k):
            terms[j, i] = math.exp(terms[j, i] - top)
            total += terms[j, i]
        for j in range(k):
            terms[j, i] *= w[i] / total
        value += w[i] * (math.log(total) + top)
    return terms, value


@njit(cache=True)
def _draws_of(member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of weights and the effective number of draws (K,) of each component."""
    k, n = member.shape
    share, counts = np.zeros(k), np.zeros(k)
    for j in range(k):
        square = 0.0
        for i in range(n):
            share[j] += member[j, i]
            square += member[j, i] ** 2
        if square > 0.0:
            counts[j] = share[j] ** 2 / square
    return share, counts


@njit(cache=True)
def _likeliest(
    distances: np.ndarray,
    weights: np.ndarray,
    factors: np.ndarray,
    chosen: int,
    dofs: np.ndarray,
    peaks: np.ndarray,
    w: np.ndarray,
) -> int:
    """Return the index of the degrees of freedom with the highest likelihood."""
    if len(dofs) == 1:
        return chosen
    best, highest = chosen, -math.inf
    for m in range(len(dofs)):
        _, value = _members(distances, weights, factors, dofs[m], peaks[m], w)
        if value > highest:
            best, highest = m, value
    return best


@njit(cache=True)
def _moments(x: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means (K, D) and matrices of scatter (K, D, D) with weights proportional to rows of `member`."""
    n, d = x.shape
    k = len(member)
    means, scatter, size = np.empty((k, d)), np.zeros((k, d, d)), _block(d)
    for j in range(k):
        share = member[j] / member[j].sum()
        means[j] = np.dot(share, x)
        for first in range(0, n, size):
            root = x[first : first + size] - means[j]
            for i in range(len(root)):
                factor = math.sqrt(share[first + i])
                for c in range(d):
                    root[i, c] *= factor
            scatter[j] += np.dot(root.T, root)
    return means, scatter


@njit(cache=True)
def _shrunk(
    scatter: np.ndarray,
    counts: np.ndarray,
    share: np.ndarray,
    ess: float,
    target: np.ndarray,
    strength: float,
    floor: np.ndarray,
) -> np.ndarray:
    """Return Cholesky factors (K, D, D) of matrices shrunk towards the target."""
    k, d = scatter.shape[:2]
    factors = np.empty((k, d, d))
    goal = _pooled(scatter, share, ess, strength, floor)
    # The size uses all d coordinates, so it is shrunk d + 1 times less. One draw does not determine it.
    few = strength / (d + 1.0)
    for j in range(k):
        size = 1.0
        if len(target) > 0:
            np.dot(target[j], target[j].T, goal)
            if few > 0.0:
                whitener = _whitener(target[j])
                own = (np.dot(scatter[j], whitener) * whitener).sum() / d
                size = (counts[j] * own + few) / (max(counts[j] - 1.0, 0.0) + few)
        for a in range(d):
            for b in range(d):
                shrunk = counts[j] * scatter[j, a, b] + strength * size * goal[a, b]
                scatter[j, a, b] = shrunk / (counts[j] + strength)
        _regular_factor(scatter[j], floor, factors[j])
    return factors


@njit(cache=True)
def _pooled(
    scatter: np.ndarray, share: np.ndarray, ess: float, strength: float, floor: np.ndarray
) -> np.ndarray:
    """Return the mean matrix (D, D), shrunk towards its diagonal."""
    k, d = scatter.shape[:2]
    out = np.zeros((d, d))
    for a in range(d):
        for b in range(d):
            for j in range(k):
                out[a, b] += share[j] * scatter[j, a, b]
        diagonal = max(out[a, a], floor[a])
        for b in range(d):
            out[a, b] *= ess / (ess + strength)
        out[a, a] += strength * diagonal / (ess + strength) + floor[a]
    return out


@njit(cache=True)
def _regular_factor(matrix: np.ndarray, floor: np.ndarray, factor: np.ndarray) -> None:
    """Write the Cholesky factor, after adding to the scaled diagonal if the matrix is singular. Overwrites the matrix."""
    d = len(matrix)
    scale, lift = np.empty(d), 0.0
    for a in range(d):
        scale[a] = math.sqrt(max(matrix[a, a], floor[a]))
    for a in range(d):
        for b in range(d):
            matrix[a, b] /= scale[a] * scale[b]
            factor[a, b] = 0.0
    while not _factored(matrix, lift, factor):
        lift = max(10.0 * lift, _LIFT)
    for a in range(d):
        for b in range(a + 1):
            factor[a, b] *= scale[a]


@njit(cache=True)
def _factored(unit: np.ndarray, lift: float, factor: np.ndarray) -> bool:
    """Write the lower Cholesky factor after adding to the diagonal; return whether all pivots are large enough."""
    for a in range(len(unit)):
        for b in range(a + 1):
            left = unit[a, b]
            for c in range(b):
                left -= factor[a, c] * factor[b, c]
            if a > b:
                factor[a, b] = left / factor[b, b]
            elif left + lift > _LEAST_PIVOT:
                factor[a, a] = math.sqrt(left + lift)
            else:
                return False
    return True


@njit(cache=True)
def _whitener(factor: np.ndarray) -> np.ndarray:
    """Return the transposed inverse of a lower triangular matrix (D, D)."""
    d = len(factor)
    out = np.zeros((d, d))
    for c in range(d):
        out[c, c] = 1.0 / factor[c, c]
        for a in range(c + 1, d):
            total = 0.0
            for b in range(c, a):
                total += factor[a, b] * out[c, b]
            out[c, a] = -total / factor[a, a]
    return out
