"""Boxes from regression trees fitted to how close simulations came to the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from amc_pymc.abc_tree.exact_tree import exact_tree
from amc_pymc.abc_tree.partition import NARROWEST, Partition, whole_cube
from amc_pymc.abc_tree.random_tree import random_tree
from amc_pymc.engine.jit import njit
from amc_pymc.rng import as_generator

#: Kernel value below which simulations are far, and maximum number of near and of far ones that a tree is fitted to.
_NEAR, _MOST = 0.01, 20_000
#: Quantiles of the complexity costs to try, and number of cross-validation folds.
_PRUNING, _FOLDS = (0.0, 0.5, 0.75, 0.9, 0.97), 5

__all__ = ["Cart", "fit_cart"]


@dataclass(frozen=True)
class Cart:
    """Partitioner that calls :func:`fit_cart`.

    Attributes
    ----------
    max_leaves, min_samples : int
    random_cuts, prune : bool
    random_beyond : int or None
        Number of simulations above which cuts are random.
    """

    max_leaves: int = 1000
    min_samples: int = 15
    random_cuts: bool = False
    prune: bool = False
    random_beyond: int | None = None

    def __call__(
        self,
        u: np.ndarray,
        kernel_values: np.ndarray,
        before: Partition | None,
        rng: np.random.Generator,
    ) -> Partition:
        """Return a new partition; `before` is ignored."""
        many = self.random_beyond is not None and len(u) > self.random_beyond
        return fit_cart(
            u, kernel_values, rng, max_leaves=self.max_leaves, min_samples=self.min_samples,
            random_cuts=self.random_cuts or many, prune=self.prune,
        )  # fmt: skip


def fit_cart(
    u: np.ndarray,
    kernel_values: np.ndarray,
    rng: np.random.Generator,
    *,
    max_leaves: int = 1000,
    min_samples: int = 10,
    random_cuts: bool = False,
    prune: bool = False,
) -> Partition:
    """Fit a regression tree to how close simulations came to the data.

    The tree is fitted to square roots of kernel values, because the optimal proposal depends on square roots of
    acceptance rates.

    Parameters
    ----------
    u : array (n, D)
        Points of the unit cube.
    kernel_values : array (n,)
        1 if the simulation was accepted, else 0, or values in between. Of the simulations with values below
        0.01, at most 20,000, drawn at random, are used. If more than 20,000 have larger values, as in many dimensions,
        the 10,000 with the largest are used, and 10,000 drawn at random from all others.
    rng : numpy.random.Generator
        Generator for ties and random cuts.
    max_leaves : int
    min_samples : int
        Minimum simulations in a box.
    random_cuts : bool
        Try one random cut of each coordinate instead of all cuts (extremely randomised trees; Geurts,
        Ernst & Wehenkel 2006, doi:10.1007/s10994-006-6226-1).
    prune : bool
        Prune the tree at the complexity cost chosen by five-fold cross-validation (Breiman et al. 1984,
        doi:10.1201/9781315139470), which takes about thirty fits.

    Returns
    -------
    Partition
        The boxes of the fitted tree in double precision, without cuts that would leave boxes too narrow to
        draw from.

    Examples
    --------
    >>> from amc_pymc.abc_tree import fit_cart
    >>> from amc_pymc.rng import as_generator
    >>> rng = as_generator(1)
    >>> u = rng.random((1000, 2))
    >>> fitted = fit_cart(u, (u[:, 0] < 0.3).astype(float), rng, max_leaves=2)
    >>> fitted.boxes, fitted.volumes.round(2)
    (2, array([0.3, 0.7]))
    """
    if max_leaves < 2 or len(u) < 2 * min_samples:
        return whole_cube(u.shape[1])
    seed = int(rng.integers(2**31)) if prune or not random_cuts else 0
    kept, weights = _thinned(kernel_values, _MOST, rng)
    points, values = u[kept], np.sqrt(kernel_values[kept])
    if prune:
        tree = _pruned(u, np.sqrt(kernel_values), seed, max_leaves, min_samples, random_cuts)
        fitted = tree.fit(points, values, sample_weight=weights).tree_
        nodes = (fitted.feature, fitted.threshold, fitted.children_left, fitted.children_right)
    elif random_cuts:
        nodes = random_tree(
            points, values, weights, rng, max_leaves=max_leaves, min_samples=min_samples
        )
    else:
        nodes = exact_tree(
            points, values, weights, as_generator(seed), max_leaves=max_leaves, min_samples=min_samples
        )  # fmt: skip
    return _in_double(*nodes, u.shape[1])


def _pruned(
    u: np.ndarray,
    values: np.ndarray,
    seed: int,
    max_leaves: int,
    min_samples: int,
    random_cuts: bool,
) -> Any:
    """Return a tree, not yet fitted, with the complexity cost that has the least cross-validated squared error."""
    from sklearn.model_selection import GridSearchCV, KFold
    from sklearn.tree import DecisionTreeRegressor, ExtraTreeRegressor

    tree = (ExtraTreeRegressor if random_cuts else DecisionTreeRegressor)(
        max_leaf_nodes=max_leaves, min_samples_leaf=min_samples, max_features=None, random_state=seed
    )  # fmt: skip
    costs = tree.cost_complexity_pruning_path(u, values).ccp_alphas
    costs = np.unique(np.maximum(np.quantile(costs, _PRUNING), 0.0))
    folds = KFold(_FOLDS, shuffle=True, random_state=seed)
    search = GridSearchCV(
        tree, {"ccp_alpha": costs}, cv=folds, scoring="neg_mean_squared_error", refit=False
    )
    return tree.set_params(**search.fit(u, values).best_params_)


def _thinned(
    kernel_values: np.ndarray, most: int, rng: np.random.Generator
) -> tuple[np.ndarray | slice, np.ndarray | None]:
    """Select the closest simulations and a sample of the others, weighted to represent all of them."""
    n = len(kernel_values)
    near = int((kernel_values >= _NEAR).sum())
    closest, sampled = (near, most) if near <= most else (most // 2, most - most // 2)
    if n - closest <= sampled:
        return slice(None), None
    if near <= most:
        is_closest = kernel_values >= _NEAR
    else:
        is_closest = np.zeros(n, bool)
        is_closest[np.argpartition(-kernel_values, closest)[:closest]] = True
    others = np.flatnonzero(~is_closest)
    chosen = rng.choice(others, sampled, replace=False)
    some = is_closest.copy()
    some[chosen] = True
    kept = np.flatnonzero(some)
    return kept, np.where(is_closest[kept], 1.0, len(others) / sampled)


def _in_double(
    feature: np.ndarray, threshold: np.ndarray, left: np.ndarray, right: np.ndarray, n_dim: int
) -> Partition:
    """Convert the nodes of a tree to a Partition, without cuts on or too near to the edge of a box."""
    feature, left, right = (a.astype(np.int32) for a in (feature, left, right))
    found = _rebuilt(feature, threshold.astype(float), left, right, n_dim, NARROWEST)
    return Partition(*found, n_dim)


@njit(cache=True)
def _rebuilt(
    feature: np.ndarray,
    threshold: np.ndarray,
    left: np.ndarray,
    right: np.ndarray,
    n_dim: int,
    narrowest: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    m = len(feature)
    new_feature, new_left, new_right = np.full(m, -1), np.full(m, -1), np.full(m, -1)
    new_threshold = np.zeros(m)
    lower, upper = np.zeros((m, n_dim)), np.ones((m, n_dim))
    theirs = np.zeros(m, np.int64)
    size, ours = 1, 0
    while ours < size:
        node = theirs[ours]
        while left[node] >= 0:
            along, at = feature[node], threshold[node]
            if at - lower[ours, along] < narrowest:
                node = right[node]
            elif upper[ours, along] - at < narrowest:
                node = left[node]
            else:
                break
        if left[node] >= 0:
            new_feature[ours], new_threshold[ours] = along, at
            new_left[ours], new_right[ours] = size, size + 1
            theirs[size], theirs[size + 1] = left[node], right[node]
            for child in (size, size + 1):
                lower[child], upper[child] = lower[ours], upper[ours]
            upper[size, along] = at
            lower[size + 1, along] = at
            size += 2
        ours += 1
    return new_feature[:size], new_threshold[:size], new_left[:size], new_right[:size]
