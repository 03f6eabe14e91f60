"""Regression trees with random cuts, grown best first."""

from __future__ import annotations

import heapq

import numpy as np

from amc_pymc.jit import njit

__all__ = ["random_tree"]

#: Variance, and width, below which a box is not cut.
_NO_VARIANCE, _NO_WIDTH = 2.0**-52, 1e-7


def random_tree(
    u: np.ndarray,
    values: np.ndarray,
    weights: np.ndarray | None,
    rng: np.random.Generator,
    *,
    max_leaves: int,
    min_samples: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    r"""Grow an extremely randomised regression tree (Geurts, Ernst & Wehenkel 2006, doi:10.1007/s10994-006-6226-1).

    In each box one cut of every coordinate is drawn, uniform between the extreme points, and the one that
    reduces the squared error most is a candidate. The box whose candidate is best of all is cut next.

    Parameters
    ----------
    u : array (n, D)
        Points of the unit cube.
    values : array (n,)
    weights : array (n,), optional
        Weights of the points in squared errors; equal by default.
    rng : numpy.random.Generator
    max_leaves : int
    min_samples : int
        Minimum number of points in a box.

    Returns
    -------
    feature, threshold, left, right : arrays (M,)
        Nodes as in :class:`amc_pymc.abc_tree.Partition`; points below a threshold belong to the left child.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.abc_tree.random_tree import random_tree
    >>> from amc_pymc.rng import as_generator
    >>> rng = as_generator(1)
    >>> u = rng.random((1000, 2))
    >>> found = random_tree(u, (u[:, 0] < 0.3) * 1.0, None, rng, max_leaves=2, min_samples=15)
    >>> found[0], bool(abs(found[1][0] - 0.3) < 0.5)
    (array([ 0, -1, -1]), True)
    """
    n = len(u)
    w = np.ones(n) if weights is None else np.asarray(weights, float)
    uniforms = rng.random((2 * max_leaves, u.shape[1]))
    x = np.array(u, float, order="C")  # the order of the points is changed
    y = np.array(values, float)
    return _grown(x, y, w.copy(), uniforms, max_leaves, min_samples)


@njit(cache=True)
def _grown(
    x: np.ndarray,
    y: np.ndarray,
    w: np.ndarray,
    uniforms: np.ndarray,
    max_leaves: int,
    min_samples: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    m = 2 * max_leaves - 1
    feature, left, right = np.full(m, -1), np.full(m, -1), np.full(m, -1)
    threshold = np.zeros(m)
    begin, end, size = np.zeros(m, np.int64), np.zeros(m, np.int64), 1
    end[0] = len(x)
    along, at, gain = _best_cut(x, y, w, uniforms[0], min_samples)
    feature[0], threshold[0] = along, at
    queue = [(-gain, 0)]
    while len(queue) > 0 and size < m:
        _, node = heapq.heappop(queue)
        along, at = feature[node], threshold[node]
        if along < 0:
            continue
        first, last = begin[node], end[node]
        middle = first + _parted(x[first:last], y[first:last], w[first:last], along, at)
        left[node], right[node] = size, size + 1
        begin[size], end[size] = first, middle
        begin[size + 1], end[size + 1] = middle, last
        for child in (size, size + 1):
            a, b = begin[child], end[child]
            feature[child], threshold[child], gain = _best_cut(
                x[a:b], y[a:b], w[a:b], uniforms[child], min_samples
            )
            if feature[child] >= 0:
                heapq.heappush(queue, (-gain, child))
        size += 2
    for node in range(size):
        if left[node] < 0:
            feature[node], threshold[node] = -1, 0.0
    return feature[:size], threshold[:size], left[:size], right[:size]


@njit(cache=True)
def _best_cut(
    x: np.ndarray, y: np.ndarray, w: np.ndarray, uniforms: np.ndarray, min_samples: int
) -> tuple[int, float, float]:
    """Return coordinate, position and gain of the best of D random cuts; coordinate -1 if there is none."""
    n, d = x.shape
    if n < 2 * min_samples:
        return -1, 0.0, 0.0
    low, high = x[0].copy(), x[0].copy()
    mass, total, squares = 0.0, 0.0, 0.0
    for i in range(n):
        for c in range(d):
            low[c] = min(low[c], x[i, c])
            high[c] = max(high[c], x[i, c])
        mass += w[i]
        total += w[i] * y[i]
        squares += w[i] * y[i] * y[i]
    before = total * total / mass
    if squares - before <= _NO_VARIANCE * mass:
        return -1, 0.0, 0.0
    cuts = low + uniforms * (high - low)
    points, masses, totals = np.zeros(d), np.zeros(d), np.zeros(d)
    for i in range(n):
        wi = w[i]
        wy = wi * y[i]
        for c in range(d):
            below = 1.0 if x[i, c] < cuts[c] else 0.0
            points[c] += below
            masses[c] += below * wi
            totals[c] += below * wy
    best, gain = -1, -np.inf
    for c in range(d):
        if high[c] - low[c] <= _NO_WIDTH or not min_samples <= points[c] <= n - min_samples:
            continue
        other = total - totals[c]
        found = totals[c] * totals[c] / masses[c] + other * other / (mass - masses[c]) - before
        if found > gain:
            best, gain = c, found
    return best, cuts[best] if best >= 0 else 0.0, gain


@njit(cache=True)
def _parted(x: np.ndarray, y: np.ndarray, w: np.ndarray, along: int, at: float) -> int:
    """Move points below a cut to the front; return their number."""
    i, j = 0, len(x) - 1
    while True:
        while i <= j and x[i, along] < at:
            i += 1
        while i <= j and not x[j, along] < at:
            j -= 1
        if i >= j:
            return i
        for c in range(x.shape[1]):
            x[i, c], x[j, c] = x[j, c], x[i, c]
        y[i], y[j] = y[j], y[i]
        w[i], w[j] = w[j], w[i]
