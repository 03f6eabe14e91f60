"""Common refinement: one partition with the cuts of several."""

from __future__ import annotations

import heapq

from collections.abc import Sequence

import numpy as np

from amc_pymc.abc_tree.partition import NARROWEST, Partition, from_cuts

__all__ = ["common_refinement"]


def common_refinement(
    partitions: Sequence[Partition],
    u: np.ndarray,
    heights: np.ndarray,
    *,
    max_leaves: int = 1000,
    min_samples: int = 1,
) -> Partition:
    r"""Overlay partitions; the new boxes are intersections of their boxes.

    Cuts are made in the order of how much of the squared error of heights h they explain,

    .. math:: \frac{n_l n_r}{n_l + n_r} (\bar h_l - \bar h_r)^2,

    until there are `max_leaves` boxes, so the least important cuts are left out. A cut that would leave too few
    points on one side of a box is skipped there, but deeper cuts on the other side are made.

    Parameters
    ----------
    partitions : sequence of Partition
        Partitions of the same cube; at least one.
    u : array (n, D)
        Points of the unit cube.
    heights : array (n,)
        Values of a function that changes between boxes, for example a sum of trees.
    max_leaves : int
    min_samples : int
        Minimum points in a box.

    Returns
    -------
    Partition

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.abc_tree.common_refinement import common_refinement
    >>> from amc_pymc.abc_tree.partition import from_cuts
    >>> halves, thirds = from_cuts([(0, 0, 0.5)], 2), from_cuts([(0, 1, 0.3)], 2)
    >>> u = np.array([[0.2, 0.1], [0.8, 0.1], [0.2, 0.9], [0.8, 0.9]])
    >>> common_refinement([halves, thirds], u, u[:, 0]).volumes
    array([0.15, 0.35, 0.15, 0.35])
    """
    n_dim = partitions[0].n_dim
    first = _Box(np.arange(len(u)), np.zeros(n_dim), np.ones(n_dim), [0] * len(partitions))
    cuts: list[tuple[int, int, float]] = []
    waiting: list[tuple[float, int, _Box, tuple[int, float]]] = []
    new = [(0, first)]
    while True:
        for number, box in new:
            best = _best_cut(box, partitions, u, heights, max(1, min_samples))
            if best is not None:
                gain, cut = best
                heapq.heappush(waiting, (-gain, number, box, cut))
        if not waiting or len(cuts) + 1 >= max_leaves:
            return from_cuts(cuts, n_dim)
        _, number, box, (along, at) = heapq.heappop(waiting)
        children = box.halves(u, along, at)
        new = [(2 * len(cuts) + 1 + i, child) for i, child in enumerate(children)]
        cuts.append((number, along, at))


class _Box:
    """A box: its points (rows of u), its corners, and the node of each partition that contains it."""

    def __init__(self, rows: np.ndarray, lower: np.ndarray, upper: np.ndarray, nodes: list[int]):
        self.rows, self.lower, self.upper, self.nodes = rows, lower, upper, nodes

    def halves(self, u: np.ndarray, along: int, at: float) -> tuple[_Box, _Box]:
        below = u[self.rows, along] < at
        lower, upper = self.lower.copy(), self.upper.copy()
        lower[along] = upper[along] = at
        return (
            _Box(self.rows[below], self.lower, upper, list(self.nodes)),
            _Box(self.rows[~below], lower, self.upper, list(self.nodes)),
        )


def _best_cut(
    box: _Box, partitions: Sequence[Partition], u: np.ndarray, heights: np.ndarray, min_samples: int
) -> tuple[float, tuple[int, float]] | None:
    """Return the cut that explains most and its gain, or None if no cut is left; moves the nodes down."""
    n = len(box.rows)
    if n < 2 * min_samples:
        return None
    h = heights[box.rows]
    mean, best = h.mean(), None
    for t, partition in enumerate(partitions):
        node = box.nodes[t]
        while partition.feature[node] >= 0:
            along, at = int(partition.feature[node]), float(partition.threshold[node])
            below = u[box.rows, along] < at
            left = int(below.sum())
            if at - box.lower[along] < NARROWEST:
                node = int(partition.right[node])
            elif box.upper[along] - at < NARROWEST:
                node = int(partition.left[node])
            elif min(left, n - left) < min_samples:
                node = int((partition.left if 2 * left >= n else partition.right)[node])
            else:
                gain = n * left / (n - left) * (h[below].mean() - mean) ** 2
                if best is None or gain > best[0]:
                    best = gain, (along, at)
                break
        box.nodes[t] = node
    return best
