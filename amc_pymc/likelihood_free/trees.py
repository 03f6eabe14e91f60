"""Partitions of the unit cube by trees: CART and dyadic halving."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from amc_pymc.engine.regression_trees import exact_tree, random_tree
from amc_pymc.likelihood_free.partition import (
    NARROWEST,
    Partition,
    cut_boxes,
    separation,
    shrunk_rates,
    whole_cube,
)

#: Kernel value below which simulations are far, and maximum number of near and of far ones that a tree is fitted to.
_NEAR, _MOST = 0.01, 20_000


class Partitioner(Protocol):
    """Interface of functions that make boxes from simulations; implement it to add other trees."""

    def __call__(
        self,
        u: np.ndarray,
        kernel_values: np.ndarray,
        before: Partition | None,
        rng: np.random.Generator,
    ) -> Partition:
        """Return a partition from points (n, D), kernel values (n,) and the last batch's partition, if any."""


# --- CART -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cart:
    """Partitioner that fits a regression tree to how close simulations came to the data.

    The tree is fitted to square roots of kernel values, because the optimal proposal depends on square roots of
    acceptance rates. Of the simulations with kernel values below 0.01, at most 20,000, drawn at random, are used. If
    more than 20,000 have larger values, as in many dimensions, the 10,000 with the largest are used, and 10,000 drawn
    at random from all others.

    Attributes
    ----------
    max_leaves : int
    min_samples : int
        Minimum simulations in a box.
    random_beyond : int or None
        Number of simulations above which one random cut of each coordinate is tried instead of all cuts (extremely
        randomised trees; Geurts, Ernst & Wehenkel 2006, doi:10.1007/s10994-006-6226-1); None for never, 0 for always.

    Examples
    --------
    >>> from amc_pymc.likelihood_free import Cart
    >>> from amc_pymc.rng import as_generator
    >>> rng = as_generator(1)
    >>> u = rng.random((1000, 2))
    >>> fitted = Cart(max_leaves=2)(u, (u[:, 0] < 0.3).astype(float), None, rng)
    >>> fitted.boxes, fitted.volumes.round(2)
    (2, array([0.3, 0.7]))
    """

    max_leaves: int = 1000
    min_samples: int = 15
    random_beyond: int | None = None

    def __call__(
        self,
        u: np.ndarray,
        kernel_values: np.ndarray,
        before: Partition | None,
        rng: np.random.Generator,
    ) -> Partition:
        """Return a new partition; `before` is ignored."""
        if self.max_leaves < 2 or len(u) < 2 * self.min_samples:
            return whole_cube(u.shape[1])
        kept, weights = _thinned(kernel_values, rng)
        many = self.random_beyond is not None and len(u) > self.random_beyond
        nodes = (random_tree if many else exact_tree)(
            u[kept], np.sqrt(kernel_values[kept]), weights, rng, max_leaves=self.max_leaves,
            min_samples=self.min_samples,
        )  # fmt: skip
        return Partition(*nodes, u.shape[1])


def _thinned(
    kernel_values: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray | slice, np.ndarray | None]:
    """Select the closest simulations and a sample of the others, weighted to represent all of them."""
    n, near = len(kernel_values), int((kernel_values >= _NEAR).sum())
    closest, sampled = (near, _MOST) if near <= _MOST else (_MOST // 2, _MOST // 2)
    if n - closest <= sampled:
        return slice(None), None
    order = np.argpartition(-kernel_values, closest)
    others = rng.choice(order[closest:], sampled, replace=False)
    kept = np.concatenate([order[:closest], others])
    return kept, np.repeat([1.0, (n - closest) / sampled], [closest, sampled])


# --- dyadic halving -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dyadic:
    """Partitioner that halves the boxes with most posterior mass, along the coordinate whose parts differ most.

    Attributes
    ----------
    cuts : int
        Number of boxes halved per round, r.
    """

    cuts: int = 20

    def __call__(
        self,
        u: np.ndarray,
        kernel_values: np.ndarray,
        before: Partition | None,
        rng: np.random.Generator,
    ) -> Partition:
        """Refine the partition of the last batch."""
        found = whole_cube(u.shape[1]) if before is None else before
        for _ in range(self.cuts):
            widths = found.upper - found.lower
            worth = found.volumes * shrunk_rates(found, u, kernel_values)
            worth[widths.max(axis=1) <= 2.0 * NARROWEST] = 0.0
            score, along = separation(found, u, kernel_values)
            chosen = np.array([int(worth.argmax())])
            if not worth[chosen[0]] > 0.0:
                break
            widest = widths[chosen].argmax(axis=1)
            found = cut_boxes(found, chosen, np.where(score[chosen] > 0.0, along[chosen], widest))
        return found
