"""Measures of weighted draws against exact ones."""

from __future__ import annotations

import math
import warnings

from collections.abc import Callable

import numpy as np

from scipy.spatial import cKDTree
from scipy.special import ndtr, ndtri

from amc_pymc.logweights import systematic

#: Levels of quantiles that are compared.
LEVELS = np.array([0.05, 0.25, 0.5, 0.75, 0.95])


def c2st(
    draws: np.ndarray, reference: np.ndarray, *, classifier: str = "trees", seed: int = 1
) -> float:
    """Accuracy of a classifier that tells draws (n, D) from others (m, D): 1/2 for equal distributions.

    Both are centred and scaled by the reference; the accuracy is that on data that were not trained on. "published"
    is the network of Lueckmann et al. (2021), arXiv:2101.04653: two hidden layers of 10 D units, ReLU, five
    folds, in single precision; for 1000 epochs at most where they have 10,000.
    "mlp" has layers of 32 units at least, larger batches and a fixed number of epochs, on two folds; "trees" are boosted,
    which takes a tenth of the time of that and sees more.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.neural_network import MLPClassifier

    d, n_folds = draws.shape[1], 2
    centre, spread = reference.mean(axis=0), reference.std(axis=0)
    x = (np.concatenate([draws, reference]) - centre) / spread
    y = np.repeat([0, 1], [len(draws), len(reference)])
    if classifier == "published":
        x, n_folds = x.astype(np.float32), 5
        model = MLPClassifier((10 * d, 10 * d), max_iter=1000, random_state=seed)
    elif classifier == "trees":
        model = HistGradientBoostingClassifier(max_iter=60, random_state=seed)
    else:
        width = max(32, 10 * d)
        model = MLPClassifier(
            (width, width), batch_size=min(1000, len(x) // 4), learning_rate_init=0.01, max_iter=100,
            n_iter_no_change=1000, random_state=seed,
        )  # fmt: skip
    folds = StratifiedKFold(n_folds, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = cross_val_score(model, x, y, cv=folds, scoring="balanced_accuracy")
    return float(found.mean())


def sliced_wasserstein(
    draws: np.ndarray, reference: np.ndarray, rng: np.random.Generator, n_slices: int = 50
) -> float:
    """Mean Wasserstein-1 distance of projections on random directions, in reference standard deviations.

    Of n equal shifts by t in D dimensions it is the mean of abs(t . v) over directions v.
    """
    n = max(len(draws), len(reference))
    spread = reference.std(axis=0)
    direction = rng.standard_normal((draws.shape[1], n_slices))
    direction /= np.linalg.norm(direction, axis=0)
    at, parts = (np.arange(n) + 0.5) / n, []
    for x in (draws, reference):
        own = (np.arange(len(x)) + 0.5) / len(x)
        lines = np.sort((x / spread @ direction).T)
        parts.append(lines if len(x) == n else np.array([np.interp(at, own, y) for y in lines]))
    return float(np.abs(parts[0] - parts[1]).mean())


def weighted_quantiles(x: np.ndarray, weights: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Quantiles (Q, D) of points (n, D): where the middle of each point's weight lies at the level."""
    out = np.empty((len(levels), x.shape[1]))
    for j, column in enumerate(x.T):
        order = np.argsort(column)
        w = weights[order]
        out[:, j] = np.interp(levels, (np.cumsum(w) - 0.5 * w) / w.sum(), column[order])
    return out


def quantile_errors(x: np.ndarray, weights: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Absolute errors (Q, D) of quantiles in standard deviations of the reference (m, D)."""
    gaps = weighted_quantiles(x, weights, LEVELS) - np.quantile(reference, LEVELS, axis=0)
    return np.abs(gaps) / reference.std(axis=0)


def effective(weights: np.ndarray) -> float:
    """Effective draws of Kish."""
    return float(weights.sum() ** 2 / np.square(weights).sum())


def distinct(theta: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points (n, D) without repetition, with the sums of their weights."""
    points, place = np.unique(theta, axis=0, return_inverse=True)
    return points, np.bincount(place.ravel(), weights, len(points))


def to_cube(cube: Callable, theta: np.ndarray, n_steps: int = 48) -> np.ndarray:
    """Points (n, D) of the unit cube that are mapped to parameters (n, D), by bisection.

    Coordinate j of the parameters must increase with coordinate j of the cube and not depend on later ones.
    """
    u = np.full(theta.shape, 0.5)
    for j in range(theta.shape[1]):
        low, high = np.zeros(len(u)), np.ones(len(u))
        for _ in range(n_steps):
            u[:, j] = 0.5 * (low + high)
            below = cube(u)[:, j] < theta[:, j]
            low, high = np.where(below, u[:, j], low), np.where(below, high, u[:, j])
        u[:, j] = 0.5 * (low + high)
    return u


def resampled(weights: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Indices (n,) in random order, each as often as its weight asks, rounded up or down."""
    return rng.permutation(systematic(weights, n, rng))


def smoothed(u: np.ndarray, weights: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draws (n, D) of an adaptive kernel density of weighted points (m, D) of the unit cube.

    Kernels are normal on the unbounded scale of normal quantiles, as wide as half of the distance to the k-th
    neighbour over the root of D, with k the root of the number of effective draws.
    """
    edge = 2.0**-40
    x = ndtri(np.clip(u, edge, 1.0 - edge))
    index = resampled(weights, n, rng)
    k = min(max(2, round(math.sqrt(effective(weights)))), len(x) - 1)
    if k < 1:
        return u[index]
    distance, _ = cKDTree(x).query(x, k=[k + 1])
    width = 0.5 * distance[:, -1:] / math.sqrt(x.shape[1])
    return ndtr(x[index] + width[index] * rng.standard_normal((n, x.shape[1])))
