"""Search for modes from dispersed points, and by scanning for unexpectedly high density."""

from __future__ import annotations

import math

import numpy as np

from scipy.spatial import cKDTree

from amc_pymc.evidence.joint import Joint
from amc_pymc.evidence.settings import DEFAULTS, PilotSettings
from amc_pymc.importance import (
    StudentTMixture,
    distinct_modes,
    hessians,
    laplace_components,
    maximise,
)

__all__ = [
    "distinct_ends",
    "finite",
    "modes_and_mixture",
    "prior_searches",
    "prior_summits",
    "scan",
    "searched",
    "spread",
    "unexplained_residuals",
]


def finite(x: np.ndarray) -> np.ndarray:
    """Return the finite points among x (P, D)."""
    return x[np.isfinite(x).all(axis=1)]


def spread(x: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Choose n points far from each other; each next one is the furthest from those chosen."""
    x = np.unique(finite(x), axis=0)
    if len(x) <= n:
        return x
    z = (x - np.median(x, axis=0)) / np.maximum(x.std(axis=0), 1e-300)
    chosen = [int(rng.integers(len(x)))]
    distance = np.full(len(x), math.inf)
    for _ in range(n - 1):
        distance = np.minimum(distance, ((z - z[chosen[-1]]) ** 2).sum(axis=1))
        chosen.append(int(distance.argmax()))
    return x[chosen]


def modes_and_mixture(
    joint: Joint, starts: np.ndarray, settings: PilotSettings = DEFAULTS
) -> tuple[StudentTMixture | None, np.ndarray, np.ndarray]:
    """Return a mixture with a component at each main mode found, these modes, and their log Laplace evidence."""
    none = None, np.empty((0, starts.shape[1])), np.empty(0)
    x, values, curvature = distinct_ends(joint, *searched(joint, starts), settings)
    if not len(x):
        return none
    joint.find_images(x, curvature)
    x, values, curvature = distinct_ends(joint, x, values, settings)
    keep = distinct_modes(x, values, -curvature)[: settings.modes]
    mixture = laplace_components(joint.with_gradient, x[keep], curvatures=curvature[keep])
    # Laplace evidence of a component: log f at its centre over its share of the mixture's density.
    log_evidence = values[keep] + _log_volumes(mixture)
    return mixture, x[keep], log_evidence


def searched(joint: Joint, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Maximise from the starts; return the end points of successful searches and their log densities."""
    found = maximise(joint.with_gradient, starts, max_iter=100)
    good = np.isfinite(found.values) & np.isfinite(found.x).all(axis=1)
    return found.x[good], found.values[good]


def distinct_ends(
    joint: Joint, x: np.ndarray, values: np.ndarray, settings: PilotSettings = DEFAULTS
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return distinct end points of searches, the highest first, with log densities and Hessians.

    Most searches end at the same modes or at copies of them. These are removed before their Hessians are computed;
    they would otherwise crowd out lower modes.
    """
    left = np.argsort(-values)
    kept: list[int] = []
    curvatures: list[np.ndarray] = []
    while left.size and len(kept) < 3 * settings.modes:
        i, left = left[0], left[1:]
        curvature = hessians(joint.gradient, x[[i]])[0]
        if not np.isfinite(curvature).all() or not curvature.any():
            continue
        kept.append(i)
        curvatures.append(curvature)
        eigenvalues, vectors = np.linalg.eigh(curvature)
        copies = x[left][None] if joint.images is None else joint.images.every(x[left])
        away = (copies - x[i]) @ vectors * np.sqrt(np.abs(eigenvalues))
        left = left[np.linalg.norm(away, axis=2).min(axis=0) > settings.same]
    d = x.shape[1]
    return x[kept], values[kept], np.array(curvatures).reshape(-1, d, d)


def prior_searches(n_dim: int, spent: float, settings: PilotSettings = DEFAULTS) -> int:
    """Return the number of searches from prior draws, limited to a fraction of the cost of the pilot run."""
    affordable = settings.search_share * spent / (settings.search_cost * math.sqrt(n_dim))
    most = max(
        settings.most_searches // max(n_dim // settings.cheap_dimensions, 1), 2 * settings.starts
    )
    return int(min(max(affordable, 2 * settings.starts), most))


def prior_summits(joint: Joint, x: np.ndarray, settings: PilotSettings = DEFAULTS) -> np.ndarray:
    """Return the local maxima among points (P, D) that stand out most, those furthest above all their neighbours.

    A narrow mode far from a wide one is lower than the slopes of the wide one nearly everywhere, but the point
    closest to it is much higher than its neighbours.
    """
    x = finite(x)
    log_f = joint.log_density(x)
    x, log_f = x[log_f > -np.inf], log_f[log_f > -np.inf]
    n_neighbours = settings.neighbours * joint.n_dim + 1
    if len(x) <= n_neighbours:
        return x
    z = (x - np.median(x, axis=0)) / np.maximum(x.std(axis=0), 1e-300)
    _, near = cKDTree(z).query(z, k=n_neighbours)
    prominence = log_f - log_f[near[:, 1:]].max(axis=1)
    summits = np.flatnonzero(prominence >= 0.0)
    return x[summits[np.argsort(-prominence[summits])][: 2 * settings.starts]]


def scan(
    joint: Joint,
    mixture: StudentTMixture,
    log_evidence: np.ndarray,
    rng: np.random.Generator,
    settings: PilotSettings = DEFAULTS,
) -> np.ndarray:
    """Return points near modes with a density far above the Gaussian approximation, which suggests another mode.

    Searches rarely end at a narrow peak close to a wide mode. Points are therefore scattered around each mode
    on a fraction of its scale, where the chance to hit such a peak is largest. Half of the points returned
    have the largest residuals from the approximation, half the largest ones from a polynomial fitted to these.
    """
    parts, residual, excess = [], [], []
    scanned = (
        settings.scanned
        * max(mixture.n_dim, settings.scanned_dimensions)
        // settings.scanned_dimensions
    )
    n = scanned // (mixture.components * len(settings.scan_scales))
    tops = log_evidence - _log_volumes(mixture)
    for top, mean, chol in zip(tops, mixture.means, mixture.choleskys, strict=True):
        for scale in settings.scan_scales:
            for i in range(0, n, settings.scan_block):
                z = scale * rng.standard_normal((min(settings.scan_block, n - i), mixture.n_dim))
                near = mean + z @ chol.T
                above = joint.log_density(near) - top + 0.5 * np.vecdot(z, z)
                odd = unexplained_residuals(z, above, settings)
                best = _best_of_both(above, odd, settings)
                parts.append(near[best])
                residual.append(above[best])
                excess.append(odd[best])
    x = np.concatenate(parts)
    return x[_best_of_both(np.concatenate(residual), np.concatenate(excess), settings)]


def _best_of_both(
    one: np.ndarray, other: np.ndarray, settings: PilotSettings = DEFAULTS
) -> np.ndarray:
    """Return the indices of the largest values of both arrays, without duplicates."""
    half = settings.starts // 2
    return np.union1d(np.argsort(-one)[:half], np.argsort(-other)[:half])


def unexplained_residuals(
    z: np.ndarray, residual: np.ndarray, settings: PilotSettings = DEFAULTS
) -> np.ndarray:
    """Subtract a polynomial in the coordinates z (n, D) from residuals (n,), and divide by their typical size.

    The residuals of a smooth log density that is not quadratic can hide those of a peak. The result is -inf at
    points of density zero, and everywhere if there are too few points for a fit.
    """
    good = np.flatnonzero(residual > -np.inf)
    out = np.full(len(z), -np.inf)
    n_terms = 3 * z.shape[1] + 2
    low, high = np.quantile(residual[good], [0.01, 0.99]) if good.size else (0.0, 0.0)
    usual = good[(residual[good] >= low) & (residual[good] <= high)][: 10 * n_terms]
    if usual.size < 4 * n_terms:
        return out
    terms = _polynomial(z)
    fitted = terms[usual]
    scale = np.maximum(np.sqrt(np.vecdot(fitted.T, fitted.T)), 1e-300)
    fitted = fitted / scale
    coefficients = np.linalg.lstsq(fitted.T @ fitted, fitted.T @ residual[usual])[0] / scale
    left = residual[good] - terms[good] @ coefficients
    out[good] = left / (settings.faint + np.quantile(np.abs(left), 0.9))
    return out


def _polynomial(z: np.ndarray) -> np.ndarray:
    """Return powers of the coordinates and of the radius (n, 3 D + 2)."""
    squares = z * z
    radius = squares.mean(axis=1, keepdims=True)
    return np.hstack([np.ones_like(radius), squares, squares * z, squares**2, radius**2])


def _log_volumes(mixture: StudentTMixture) -> np.ndarray:
    """Return the logarithms (K,) of (2 pi)^(D/2) |S|^(1/2)."""
    diagonals = np.diagonal(mixture.choleskys, axis1=1, axis2=2)
    return np.log(diagonals).sum(axis=1) + 0.5 * mixture.n_dim * math.log(2.0 * math.pi)
