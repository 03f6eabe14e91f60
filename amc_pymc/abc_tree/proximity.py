"""Proximities of simulations to data: how often both are in the same leaf of a random forest."""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from amc_pymc.abc_tree.learned import one_thread, parameter_moments
from amc_pymc.engine.jit import njit

__all__ = ["Shared", "proximities", "shared_leaves"]

#: Minimum number of simulations in a leaf.
_IN_LEAF = 5
#: Share of the features, if they are more than three, that each cut is chosen from.
_FEATURES = 1.0 / 3.0
#: Largest absolute value of a feature, for single precision.
_LARGEST = 1e38


class Shared(NamedTuple):
    """Simulations that share leaves with a data set.

    Attributes
    ----------
    index : array of int (k,)
    proximity : array (k,)
        Proximities, which are positive and sum to one.
    """

    index: np.ndarray  # type: ignore[assignment]
    proximity: np.ndarray

    def distance(self, n: int) -> np.ndarray:
        r"""Return distances (n,) from the data set, :math:`\sqrt{1 - p_i / \max_j p_j}`; inf without a shared leaf.

        The Epanechnikov kernel with tolerance 1 is therefore proportional to the proximity.
        """
        out = np.full(n, math.inf)
        out[self.index] = np.sqrt(1.0 - self.proximity / self.proximity.max())
        return out


def shared_leaves(
    data: np.ndarray,
    x: np.ndarray,
    train: np.ndarray,
    targets: np.ndarray,
    rng: np.random.Generator,
    *,
    trees: int = 150,
) -> list[Shared]:
    r"""Return the simulations that share leaves of a random forest with each target.

    The forest predicts parameters and their squares from data. With :math:`L_t(s)` the leaf of s in tree t, and
    :math:`O_t` the simulations that the tree was not grown on because they are not in its bootstrap sample,
    proximities are means over the T trees with some of these in the leaf,

    .. math:: p_i(s) = \frac1T \sum_t \frac{1\{i \in O_t, L_t(s_i) = L_t(s)\}}{|\{j \in O_t: L_t(s_j) = L_t(s)\}|}

    (Meinshausen 2006, JMLR 7, 983-999; Raynal et al. 2019, doi:10.1093/bioinformatics/bty867; they use the
    simulations in bootstrap samples, but leaves were chosen so that parameters of these are alike).

    Parameters
    ----------
    data : array (n, F)
        Features of simulated data, finite.
    x : array (n, D)
        Parameters, on the scale where the prior is standard normal.
    train : array of int (m,)
        Simulations that the forest is grown on; others have no proximity.
    targets : array (M, F)
        Features of data sets.
    rng : numpy.random.Generator
    trees : int, default 150
        Number of trees T.

    Returns
    -------
    list of Shared

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.abc_tree.proximity import shared_leaves
    >>> rng = np.random.default_rng(1)
    >>> x = rng.normal(size=(500, 1))
    >>> (near,) = shared_leaves(x, x, np.arange(500), np.array([[1.0]]), rng)
    >>> bool(abs(near.proximity @ x[near.index, 0] - 1.0) < 0.1)
    True
    """
    from sklearn.ensemble import RandomForestRegressor

    y = parameter_moments(x[train])
    spread = y.std(axis=0)
    y /= np.where(spread > 0.0, spread, 1.0)
    n_features = data.shape[1]
    forest = RandomForestRegressor(
        trees, min_samples_leaf=_IN_LEAF, random_state=int(rng.integers(2**31)),
        max_features=math.ceil(_FEATURES * n_features) if n_features > 3 else None,
    )  # fmt: skip
    own, targets = (np.clip(a, -_LARGEST, _LARGEST) for a in (data[train], targets))
    with one_thread():
        forest.fit(own, y)
        leaves, target_leaves = forest.apply(own), forest.apply(targets)
    unseen = np.ones(leaves.shape, bool)
    for tree, sample in enumerate(forest.estimators_samples_):
        unseen[sample, tree] = False
    out = []
    for target in target_leaves:
        found = proximities(leaves, unseen, target)
        near = np.flatnonzero(found)
        out.append(Shared(train[near], found[near]))
    return out


@njit(cache=True)
def proximities(leaves: np.ndarray, unseen: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return proximities (n,) from leaves (n, T), which of them count (n, T), and the leaves (T,) of a target."""
    n, trees = leaves.shape
    sizes = np.zeros(trees)
    for i in range(n):
        for t in range(trees):
            if unseen[i, t] and leaves[i, t] == target[t]:
                sizes[t] += 1.0
    some = (sizes > 0.0).sum()
    out = np.zeros(n)
    for i in range(n):
        for t in range(trees):
            if unseen[i, t] and leaves[i, t] == target[t]:
                out[i] += 1.0 / (sizes[t] * some)
    return out
