"""Measures of weighted draws against exact ones."""

from __future__ import annotations

import math
import warnings

from collections.abc import Callable

import numpy as np

from scipy.spatial import cKDTree
from scipy.special import ndtr, ndtri

from amc_pymc.logweights import systematic


def c2st(
    draws: np.ndarray, reference: np.ndarray, *, published: bool = False, seed: int = 1
) -> float:
    """Accuracy of a classifier that tells draws (n, D) from others (m, D): 1/2 for equal distributions.

    Both are centred and scaled by the reference; the accuracy is that on data that were not trained on. The classifier
    is made of boosted trees, or that of a `published` protocol: the network of Lueckmann et al. (2021),
    arXiv:2101.04653, with two hidden layers of 10 D units, ReLU, five folds, in single precision; for 1000 epochs at
    most where they have 10,000.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.neural_network import MLPClassifier

    d, n_folds = draws.shape[1], 2
    centre, spread = reference.mean(axis=0), reference.std(axis=0)
    x = (np.concatenate([draws, reference]) - centre) / spread
    y = np.repeat([0, 1], [len(draws), len(reference)])
    if published:
        x, n_folds = x.astype(np.float32), 5
        model = MLPClassifier((10 * d, 10 * d), max_iter=1000, random_state=seed)
    else:
        model = HistGradientBoostingClassifier(max_iter=60, random_state=seed)
    folds = StratifiedKFold(n_folds, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = cross_val_score(model, x, y, cv=folds, scoring="balanced_accuracy")
    return float(found.mean())


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
