"""Compiled expectation-maximisation for Student t mixtures fitted to few draws, where calls would take most of the time."""

from __future__ import annotations

import math

import numpy as np

from amc_pymc.jit import njit

__all__ = ["climb", "nearest_after_moves", "squares"]


@njit(cache=True)
def climb(
    x: np.ndarray,
    w: np.ndarray,
    weights: np.ndarray,
    means: np.ndarray,
    factors: np.ndarray,
    dof: float,
    constant: float,
    strength: float,
    floor: np.ndarray,
    ess: float,
    n_iter: int,
    tolerance: float,
    min_draws: float,
    least_share: float,
) -> tuple[bool, int, np.ndarray, np.ndarray, np.ndarray]:
    """Iterate as :func:`amc_pymc.importance.expectation_maximisation.iterate` does, with the pooled matrix as target.

    Parameters
    ----------
    x, w : arrays (n, D), (n,)
        Draws and their normalised weights.
    weights, means, factors : arrays (K,), (K, D), (K, D, D)
        The initial mixture.
    dof : float
        Degrees of freedom, finite.
    constant : float
        Log density of a component of unit scale at its mean.
    strength, floor, ess, n_iter, tolerance, min_draws, least_share
        As there.

    Returns
    -------
    regular : bool
        False if iterations ended at a draw infinitely far from all components or at a singular matrix.
    n_done : int
        Number of iterations performed.
    weights, means, factors : arrays
        The mixture so far.
    """
    n, d = x.shape
    last, n_done = -math.inf, 0
    while n_done < n_iter:
        k = len(weights)
        terms, distances = np.empty((k, n)), np.empty((k, n))
        for j in range(k):
            z = np.dot(x - means[j], _whitener(factors[j]))
            at_mean = constant + math.log(weights[j])
            for i in range(d):
                at_mean -= math.log(factors[j, i, i])
            for i in range(n):
                total = 0.0
                for c in range(d):
                    total += z[i, c] * z[i, c]
                distances[j, i] = total
                terms[j, i] = at_mean - 0.5 * (dof + d) * math.log1p(total / dof)
        value = _responsibilities(terms, w)
        if not math.isfinite(value):
            return False, n_done, weights, means, factors
        share, counts = np.empty(k), np.empty(k)
        for j in range(k):
            total, square = 0.0, 0.0
            for i in range(n):
                member = terms[j, i] * w[i]
                total += member
                square += member * member
            share[j], counts[j] = total, total**2 / square if square > 0.0 else 0.0
        keep = (np.maximum(counts, share * ess) >= min_draws) & (share > least_share)
        keep[share.argmax()] = True
        n_done += 1
        if not keep.all():
            weights = weights[keep] / weights[keep].sum()
            means, factors = means[keep], factors[keep]
            last = -math.inf
            continue
        if value - last < tolerance:
            break
        last = value
        new_means, scatter = np.empty((k, d)), np.empty((k, d, d))
        for j in range(k):
            member, mass = np.empty(n), 0.0
            for i in range(n):
                member[i] = terms[j, i] * w[i] * (dof + d) / (dof + distances[j, i])
                mass += member[i]
            member /= mass
            new_means[j] = np.dot(member, x)
            root = x - new_means[j]
            for i in range(n):
                factor = math.sqrt(member[i])
                for c in range(d):
                    root[i, c] *= factor
            scatter[j] = np.dot(root.T, root)
        regular, new_factors = _shrunk(scatter, counts, share, strength, floor, ess)
        if not regular:
            return False, n_done - 1, weights, means, factors
        weights, means, factors = share / share.sum(), new_means, new_factors
    return True, n_done, weights, means, factors


@njit(cache=True)
def _responsibilities(terms: np.ndarray, w: np.ndarray) -> float:
    """Change log terms (K, n) to responsibilities; return the mean log density."""
    k, n = terms.shape
    value = 0.0
    for i in range(n):
        top = -math.inf
        for j in range(k):
            top = max(top, terms[j, i])
        if not top > -math.inf:
            return -math.inf
        total = 0.0
        for j in range(k):
            terms[j, i] = math.exp(terms[j, i] - top)
            total += terms[j, i]
        for j in range(k):
            terms[j, i] /= total
        value += w[i] * (math.log(total) + top)
    return value


@njit(cache=True)
def _shrunk(
    scatter: np.ndarray,
    counts: np.ndarray,
    share: np.ndarray,
    strength: float,
    floor: np.ndarray,
    ess: float,
) -> tuple[bool, np.ndarray]:
    """Return whether all matrices, shrunk towards the pooled one, are regular, and their Cholesky factors."""
    k, d = scatter.shape[:2]
    target = np.zeros((d, d))
    for j in range(k):
        target += share[j] / share.sum() * scatter[j]
    diagonal = np.maximum(np.diag(target), floor)
    target *= ess / (ess + strength)
    for c in range(d):
        target[c, c] += strength * diagonal[c] / (ess + strength) + floor[c]
    factors = np.zeros((k, d, d))
    for j in range(k):
        matrix = (counts[j] * scatter[j] + strength * target) / (counts[j] + strength)
        scale = np.sqrt(np.maximum(np.diag(matrix), floor))
        for a in range(d):
            for b in range(a + 1):
                left = matrix[a, b] / (scale[a] * scale[b])
                for c in range(b):
                    left -= factors[j, a, c] * factors[j, b, c]
                if a > b:
                    factors[j, a, b] = left / factors[j, b, b]
                elif left > 1e-16:
                    factors[j, a, a] = math.sqrt(left)
                else:
                    return False, factors
        for a in range(d):
            factors[j, a] *= scale[a]
    return True, factors


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


@njit(cache=True)
def squares(z: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return squared distances (K, n) of points (n, D) from centres (K, D)."""
    out = np.zeros((len(centres), len(z)))
    for k in range(len(centres)):
        for i in range(len(z)):
            total = 0.0
            for c in range(z.shape[1]):
                total += (z[i, c] - centres[k, c]) ** 2
            out[k, i] = total
    return out


@njit(cache=True)
def nearest_after_moves(
    z: np.ndarray, w: np.ndarray, centres: np.ndarray, n_moves: int
) -> np.ndarray:
    """Return the nearest centres (n,) of points (n, D) after iterations of Lloyd's algorithm with weights w (n,)."""
    k, d = centres.shape
    centres = centres.copy()
    labels = _nearest(z, centres)
    for _ in range(n_moves):
        mass, total = np.zeros(k), np.zeros((k, d))
        for i in range(len(z)):
            own = labels[i]
            mass[own] += w[i]
            for c in range(d):
                total[own, c] += w[i] * z[i, c]
        for j in range(k):
            if mass[j] > 0.0:
                centres[j] = total[j] / mass[j]
        labels = _nearest(z, centres)
    return labels


@njit(cache=True)
def _nearest(z: np.ndarray, centres: np.ndarray) -> np.ndarray:
    out, distances = np.empty(len(z), np.int64), squares(z, centres)
    for i in range(len(z)):
        out[i] = distances[:, i].argmin()
    return out
