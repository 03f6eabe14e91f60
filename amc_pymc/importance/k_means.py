"""Initial components of draws by weighted k-means."""

from __future__ import annotations

import numpy as np

from amc_pymc.engine.jit import njit
from amc_pymc.importance.weighted_draws import WeightedDraws

__all__ = ["nearest_after_moves", "seeded_labels", "squares"]

#: Number of iterations of Lloyd's algorithm after seeding.
_LLOYD = 5

#: Number of candidates for each further centre.
_CANDIDATES = 4


def seeded_labels(draws: WeightedDraws, k: int, rng: np.random.Generator | None) -> np.ndarray:
    """Assign components (n,) by weighted k-means++ and a few iterations of Lloyd's algorithm."""
    x, w = draws
    if k == 1:
        return np.zeros(len(x), int)
    assert rng is not None
    spread = w @ (x - w @ x) ** 2
    z = (x - w @ x) / np.sqrt(np.maximum(spread, draws.variance_floor))
    centres = z[_draw(w, rng)]
    nearest = squares(z, centres)[0]
    while len(centres) < k and (w @ nearest) > 0.0:
        # Greedy k-means++: of a few candidates, keep the one with the smallest remaining distances.
        tries = z[_draw(w * nearest, rng, _CANDIDATES)]
        left = np.minimum(nearest, squares(z, tries))
        best = (left @ w).argmin()
        centres, nearest = np.vstack([centres, tries[best]]), left[best]
    return nearest_after_moves(z, w, centres, _LLOYD)


def _draw(mass: np.ndarray, rng: np.random.Generator, n: int = 1) -> np.ndarray:
    """Draw indices (n,) in proportion to a mass."""
    total = np.cumsum(mass)
    found = np.searchsorted(total, rng.random(n) * total[-1], side="right")
    return np.minimum(found, len(mass) - 1)


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
    """Return the nearest centres (n,) of points (n, D) after iterations of Lloyd's algorithm with weights w (n,).

    The centres are moved in place.
    """
    k, d = centres.shape
    labels = _nearest(z, centres)
    for _ in range(n_moves):
        mass, total = np.zeros(k), np.zeros((k, d))
        for i in range(len(z)):
            own = labels[i]
            mass[own] += w[i]
            for c in range(d):
                total[own, c] += w[i] * z[i, c]
        for j in range(k):
            for c in range(d):
                if mass[j] > 0.0:
                    centres[j, c] = total[j, c] / mass[j]
        labels = _nearest(z, centres)
    return labels


@njit(cache=True)
def _nearest(z: np.ndarray, centres: np.ndarray) -> np.ndarray:
    out, distances = np.empty(len(z), np.int64), squares(z, centres)
    for i in range(len(z)):
        out[i] = distances[:, i].argmin()
    return out
