"""Partitions of the unit cube into boxes, the leaves of a binary tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from amc_pymc.engine.jit import njit

__all__ = ["NARROWEST", "Partition", "cut_boxes", "whole_cube"]

#: Minimum width of the boxes that a cut makes.
NARROWEST = 1e-9
#: Number of points that descend a tree in turns.
_LANES = 8


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
    >>> from amc_pymc.abc_tree import Partition
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
        out[self.left[inner]] = inner
        out[self.right[inner]] = inner
        return out

    @cached_property
    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        return _bounds(self.feature, self.threshold, self.left, self.right, self.n_dim)

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
        out = np.full(len(self.feature), -1)
        out[self.leaves] = np.arange(self.boxes)
        return out

    def find_nodes(self, u: np.ndarray) -> np.ndarray:
        """Return leaf nodes (n,) that contain points (n, D)."""
        u = np.ascontiguousarray(u, dtype=float)
        return _descend(u, self.feature, self.threshold, self.left, self.right)

    def sums(self, u: np.ndarray, *values: np.ndarray) -> list[np.ndarray]:
        """Return sums of values (n,) over the points (n, D) in each node (M,), including inner nodes."""
        nodes = self.find_nodes(u)
        out = [np.bincount(nodes, v, minlength=len(self.feature)) for v in values]
        for total in out:
            _add_up(total, self.parent)
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


def from_cuts(cuts: Sequence[tuple[int, int, float]], n_dim: int) -> Partition:
    """Apply successive cuts (node, coordinate, threshold); new nodes get the next two numbers."""
    m = 1 + 2 * len(cuts)
    feature, left, right = (np.full(m, -1) for _ in range(3))
    threshold = np.zeros(m)
    for i, (node, along, at) in enumerate(cuts):
        feature[node], threshold[node] = along, at
        left[node], right[node] = 2 * i + 1, 2 * i + 2
    return Partition(feature, threshold, left, right, n_dim)


@njit(cache=True)
def _descend(
    u: np.ndarray, feature: np.ndarray, threshold: np.ndarray, left: np.ndarray, right: np.ndarray
) -> np.ndarray:
    """Return the leaves of points; several points descend in turns, as the processor waits less then."""
    m, n = len(feature), len(u)
    child = np.empty(2 * m, np.int32)
    along = feature.astype(np.int32)
    for node in range(m):
        child[2 * node], child[2 * node + 1] = left[node], right[node]
    out = np.empty(n, np.int64)
    lanes = min(_LANES, n)
    nodes, points, following = np.zeros(_LANES, np.int32), np.arange(_LANES), lanes
    while lanes > 0:
        lane = 0
        while lane < lanes:
            node, i = nodes[lane], points[lane]
            if along[node] >= 0:
                above = 0 if u[i, along[node]] < threshold[node] else 1
                nodes[lane] = child[2 * node + above]
                lane += 1
                continue
            out[i] = node
            if following < n:
                points[lane], nodes[lane] = following, 0
                following += 1
                lane += 1
            else:
                lanes -= 1
                points[lane], nodes[lane] = points[lanes], nodes[lanes]
    return out


@njit(cache=True)
def _add_up(totals: np.ndarray, parent: np.ndarray) -> None:
    """Add the totals of children to those of parents, which come before them."""
    for node in range(len(totals) - 1, 0, -1):
        totals[parent[node]] += totals[node]


@njit(cache=True)
def _bounds(
    feature: np.ndarray, threshold: np.ndarray, left: np.ndarray, right: np.ndarray, n_dim: int
) -> tuple[np.ndarray, np.ndarray]:
    lower, upper = np.zeros((len(feature), n_dim)), np.ones((len(feature), n_dim))
    for node in range(len(feature)):
        if feature[node] < 0:
            continue
        for child in (left[node], right[node]):
            lower[child], upper[child] = lower[node], upper[node]
        upper[left[node], feature[node]] = threshold[node]
        lower[right[node], feature[node]] = threshold[node]
    return lower, upper
