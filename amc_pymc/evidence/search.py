"""Search for modes: from points that are spread out, and by scanning for places that are too high."""

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
]


def finite(x: np.ndarray) -> np.ndarray:
    """Those of some points (P, D) that are finite."""
    return x[np.isfinite(x).all(axis=1)]


def spread(x: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Some points, far from each other: each next one is the furthest of those left."""
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
    """Modes reached from the starts, the important ones as components, Laplace evidences of these."""
    none = None, np.empty((0, starts.shape[1])), np.empty(0)
    x, values, curvature = distinct_ends(joint, *searched(joint, starts), settings)
    if not len(x):
        return none
    keep = distinct_modes(x, values, -curvature)[: settings.modes]
    mixture = laplace_components(joint.with_gradient, x[keep], curvatures=curvature[keep])
    # Laplace evidence of a component: log f at its centre over its share of the mixture's density.
    log_evidence = values[keep] + _log_volumes(mixture)
    return mixture, x[keep], log_evidence


def searched(joint: Joint, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where searches ended, and values."""
    found = maximise(joint.with_gradient, starts, max_iter=100)
    good = np.isfinite(found.values) & np.isfinite(found.x).all(axis=1)
    return found.x[good], found.values[good]


def distinct_ends(
    joint: Joint, x: np.ndarray, values: np.ndarray, settings: PilotSettings = DEFAULTS
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where searches ended, the highest first, with values and Hessians; few of those at one place.

    Most searches end at the same modes. They are left out before their curvature is looked at, so that a
    lower mode is not crowded out by those that found a higher one.
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
        away = (x[left] - x[i]) @ vectors * np.sqrt(np.abs(eigenvalues))
        left = left[np.linalg.norm(away, axis=1) > settings.same]
    d = x.shape[1]
    return x[kept], values[kept], np.array(curvatures).reshape(-1, d, d)


def prior_searches(n_dim: int, spent: float, settings: PilotSettings = DEFAULTS) -> int:
    """Number of searches from prior draws: as many as a part of what the climb has spent pays for."""
    affordable = settings.search_share * spent / (settings.search_cost * math.sqrt(n_dim))
    most = max(
        settings.most_searches // max(n_dim // settings.cheap_dimensions, 1), 2 * settings.starts
    )
    return int(min(max(affordable, 2 * settings.starts), most))


def prior_summits(joint: Joint, x: np.ndarray, settings: PilotSettings = DEFAULTS) -> np.ndarray:
    """Local maxima among points (P, D), the highest ones: those that are higher than their neighbours.

    A narrow mode far from a wide one is below the slopes of the wide one nearly everywhere, but the point closest to
    it is higher than those around it.
    """
    x = finite(x)
    log_f = joint.log_density(x)
    x, log_f = x[log_f > -np.inf], log_f[log_f > -np.inf]
    n_neighbours = settings.neighbours * joint.n_dim + 1
    if len(x) <= n_neighbours:
        return x
    z = (x - np.median(x, axis=0)) / np.maximum(x.std(axis=0), 1e-300)
    _, near = cKDTree(z).query(z, k=n_neighbours)
    summits = np.flatnonzero(log_f >= log_f[near].max(axis=1))
    return x[summits[np.argsort(-log_f[summits])][: 2 * settings.starts]]


def scan(
    joint: Joint,
    mixture: StudentTMixture,
    log_evidence: np.ndarray,
    rng: np.random.Generator,
    settings: PilotSettings = DEFAULTS,
) -> np.ndarray:
    """Points near modes where the density is far above its Gaussian approximation: another mode's.

    A narrow peak close to a wide mode is on no search's way up. Points are scattered about each mode
    on a fraction of its scale, where those close to the peak are least rare. Half of those returned are
    the highest above the approximation, half of them above a polynomial fitted to what it leaves.
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
                odd = _unexplained(z, above, settings)
                best = _best_of_both(above, odd, settings)
                parts.append(near[best])
                residual.append(above[best])
                excess.append(odd[best])
    x = np.concatenate(parts)
    return x[_best_of_both(np.concatenate(residual), np.concatenate(excess), settings)]


def _best_of_both(
    one: np.ndarray, other: np.ndarray, settings: PilotSettings = DEFAULTS
) -> np.ndarray:
    """Indices of the largest of two kinds, each once."""
    half = settings.starts // 2
    return np.union1d(np.argsort(-one)[:half], np.argsort(-other)[:half])


def _unexplained(
    z: np.ndarray, residual: np.ndarray, settings: PilotSettings = DEFAULTS
) -> np.ndarray:
    """Residuals (n,) less a polynomial in the coordinates z (n, D), over their usual size.

    A log density that is smooth but not quadratic has residuals that hide those of a peak. Points without
    density have -inf; so have all where there are too few points for a fit.
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
    """Powers of the coordinates and of the radius (n, 3 D + 2)."""
    squares = z * z
    radius = squares.mean(axis=1, keepdims=True)
    return np.hstack([np.ones_like(radius), squares, squares * z, squares**2, radius**2])


def _log_volumes(mixture: StudentTMixture) -> np.ndarray:
    """Logarithms of (2 pi)^(D/2) |S|^(1/2), (K,)."""
    diagonals = np.diagonal(mixture.choleskys, axis1=1, axis2=2)
    return np.log(diagonals).sum(axis=1) + 0.5 * mixture.n_dim * math.log(2.0 * math.pi)
