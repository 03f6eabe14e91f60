"""Partitions of the unit cube into boxes, the leaves of a binary tree."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from amc_pymc.engine.regression_trees import add_up, bounds, descend, shrunk

#: Minimum width of the boxes that a cut makes.
NARROWEST = 1e-9
#: Variances below this value count as zero.
_SMALLEST = 1e-100


@dataclass(frozen=True)
class Partition:
    """A binary tree that cuts the unit cube into half-open boxes [lower, upper).

    All cuts are in double precision, so a point drawn in a box is found in the same box.

    Attributes
    ----------
    feature : array of int (M,)
        Coordinate along which each of M nodes is cut, -1 at leaves. Node 0 is the cube; children come after
        their parents.
    threshold : array (M,)
        Position of each cut; points below it belong to the left child.
    left, right : arrays of int (M,)
        Child nodes, -1 at leaves.
    n_dim : int

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.partition import Partition
    >>> halves = Partition(
    ...     np.array([0, -1, -1]),
    ...     np.array([0.25, 0, 0]),
    ...     np.array([1, -1, -1]),
    ...     np.array([2, -1, -1]),
    ...     n_dim=2,
    ... )
    >>> halves.volumes, halves.find(np.array([[0.25, 0.5], [0.1, 0.9]]))
    (array([0.25, 0.75]), array([1, 0]))
    """

    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    right: np.ndarray
    n_dim: int

    @cached_property
    def leaves(self) -> np.ndarray:
        """Nodes (K,) that are boxes, in the order of box numbers."""
        return np.flatnonzero(self.feature < 0)

    @property
    def boxes(self) -> int:
        """Number of boxes K."""
        return len(self.leaves)

    @cached_property
    def parent(self) -> np.ndarray:
        """Parent of each node (M,), -1 for the root."""
        out = np.full(len(self.feature), -1)
        inner = np.flatnonzero(self.feature >= 0)
        out[self.left[inner]] = out[self.right[inner]] = inner
        return out

    @cached_property
    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        return bounds(self.feature, self.threshold, self.left, self.right, self.n_dim)

    @property
    def lower(self) -> np.ndarray:
        """Lower corners of the boxes (K, D)."""
        return self._bounds[0][self.leaves]

    @property
    def upper(self) -> np.ndarray:
        """Upper corners of the boxes (K, D)."""
        return self._bounds[1][self.leaves]

    @cached_property
    def volumes(self) -> np.ndarray:
        """Volumes of the boxes (K,), which are their masses under a uniform prior."""
        return np.prod(self.upper - self.lower, axis=1)

    def find(self, u: np.ndarray) -> np.ndarray:
        """Return boxes (n,) that contain points (n, D) of the cube; 1.0 counts as inside."""
        return self._box_of_node[self.find_nodes(u)]

    @cached_property
    def _box_of_node(self) -> np.ndarray:
        return np.cumsum(self.feature < 0) - 1

    def find_nodes(self, u: np.ndarray) -> np.ndarray:
        """Return leaf nodes (n,) that contain points (n, D)."""
        u = np.ascontiguousarray(u, dtype=float)
        return descend(u, self.feature, self.threshold, self.left, self.right)

    def sums(self, u: np.ndarray, *values: np.ndarray) -> list[np.ndarray]:
        """Return sums of values (n,) over the points (n, D) in each node (M,), including inner nodes."""
        nodes = self.find_nodes(u)
        out = [np.bincount(nodes, v, minlength=len(self.feature)) for v in values]
        for total in out:
            add_up(total, self.parent)
        return out

    def draw(self, boxes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw uniform points (n, D), one in each of the given boxes (n,)."""
        lower, upper = self.lower[boxes], self.upper[boxes]
        u = lower + (upper - lower) * rng.random(lower.shape)
        return np.minimum(u, np.nextafter(upper, lower))


def whole_cube(n_dim: int) -> Partition:
    """Return the partition with a single box."""
    leaf = np.array([-1])
    return Partition(leaf, np.zeros(1), leaf, leaf, n_dim)


def cut_boxes(partition: Partition, chosen: np.ndarray, along: np.ndarray) -> Partition:
    """Halve the chosen boxes (k,), each along a coordinate (k,)."""
    middle = 0.5 * (partition.lower + partition.upper)[chosen, along]
    m, nodes = len(partition.feature), partition.leaves[chosen]
    new = np.full(2 * len(chosen), -1)
    feature, left, right = (
        np.concatenate([a, new]) for a in (partition.feature, partition.left, partition.right)
    )
    threshold = np.concatenate([partition.threshold, np.zeros(len(new))])
    feature[nodes], threshold[nodes] = along, middle
    left[nodes] = m + 2 * np.arange(len(chosen))
    right[nodes] = left[nodes] + 1
    return Partition(feature, threshold, left, right, partition.n_dim)


def separation(
    partition: Partition, u: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return by how many standard errors parts of each box differ, and along which coordinate, both (K,).

    Parts are halves, or the middle half and the rest, to detect a peak in the middle. Coordinates along
    which a box is too narrow to be halved count as -1.
    """
    k, found = partition.boxes, partition.find(u)
    n, total = np.bincount(found, minlength=k), np.bincount(found, labels, minlength=k)
    mean = total / np.maximum(n, 1)
    variance = np.bincount(found, (labels - mean[found]) ** 2, minlength=k) / np.maximum(n, 1)
    widths = partition.upper - partition.lower
    at = (u - partition.lower[found]) / widths[found]
    best, along = np.full(k, -1.0), np.zeros(k, int)
    for d in range(partition.n_dim):
        for part in (at[:, d] < 0.5, np.abs(at[:, d] - 0.5) < 0.25):
            inside = np.bincount(found[part], minlength=k)
            sums = np.bincount(found[part], labels[part], minlength=k)
            outside = n - inside
            known = (inside > 1) & (outside > 1) & (variance > _SMALLEST)
            known &= widths[:, d] > 2.0 * NARROWEST
            i, o = np.maximum(inside, 1), np.maximum(outside, 1)
            error = np.sqrt(np.where(known, variance, 1.0) * (1.0 / i + 1.0 / o))
            score = np.where(known, np.abs(sums / i - (total - sums) / o) / error, -1.0)
            along[score > best] = d
            best = np.maximum(best, score)
    return best, along


def shrunk_rates(
    partition: Partition, u: np.ndarray, accepted: np.ndarray, *, strength: float = 1.0
) -> np.ndarray:
    r"""Return posterior means of acceptance rates under Beta priors centred at the parents' rates.

    .. math:: \eta_k = \frac{A_k + c\, \eta_{\mathrm{parent}(k)}}{N_k + c}

    from the root down. With a flat prior in each of a thousand boxes, boxes without a single acceptance would
    hold most of the posterior mass.

    Parameters
    ----------
    partition : Partition
    u : array (n, D)
        Simulated points of the unit cube.
    accepted : array (n,)
        Whether each simulation was accepted, or kernel values from 0 to 1.
    strength : float
        Number c of simulations that the parent's rate counts for.

    Returns
    -------
    array (K,)
        Rates of the boxes, positive unless no simulation was accepted.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.partition import cut_boxes, shrunk_rates, whole_cube
    >>> halves = cut_boxes(whole_cube(1), np.array([0]), np.array([0]))
    >>> u = np.array([[0.1], [0.2], [0.7], [0.9]])
    >>> shrunk_rates(halves, u, np.array([0, 0, 1, 1]))
    array([0.16666667, 0.83333333])
    """
    accepts, totals = partition.sums(u, np.asarray(accepted, float), np.ones(len(u)))
    return shrunk(accepts, totals, partition.parent, float(strength))[partition.leaves]
