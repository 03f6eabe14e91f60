"""Regression trees with the best or with random cuts, grown best first, and loops over the nodes of trees of boxes.

A tree has nodes `feature`, `threshold`, `left`, `right` (M,); `feature` is -1 at leaves, points below a threshold
belong to the left child, and children come after their parents.
"""

from __future__ import annotations

import heapq

from typing import Any

import numpy as np

from amc_pymc.engine.jit import njit

#: Variance below which a box is not cut, gap between neighbours that the best cut must exceed, width that a random
#: cut must exceed, and its least distance from the extreme points.
_NO_VARIANCE, _NO_GAP, _NO_WIDTH, _NARROWEST = 2.0**-52, np.float32(1e-7), 1e-7, 1e-9

type Nodes = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def exact_tree(
    u: np.ndarray,
    values: np.ndarray,
    weights: np.ndarray | None,
    rng: np.random.Generator,
    *,
    max_leaves: int,
    min_samples: int,
) -> Nodes:
    r"""Grow a regression tree (Breiman et al. 1984, doi:10.1201/9781315139470).

    The candidate of each box is the cut, among all cuts halfway between neighbouring points, that reduces the squared
    error most. The box whose candidate is best of all is cut next. The tree is that of scikit-learn's
    ``DecisionTreeRegressor``, which also compares points in single precision, except for ties. It takes a
    fraction of the time, because points are sorted once along each coordinate and not once in each box.

    Parameters
    ----------
    u : array (n, D)
        Points of the unit cube.
    values : array (n,)
    weights : array (n,), optional
        Weights of the points in squared errors; equal by default.
    rng : numpy.random.Generator
        Generator for the order of coordinates; the first of equally good cuts is chosen.
    max_leaves : int
    min_samples : int
        Minimum number of points in a box.

    Returns
    -------
    feature, threshold, left, right : arrays (M,)
        Nodes.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.engine.regression_trees import exact_tree
    >>> from amc_pymc.rng import as_generator
    >>> rng = as_generator(1)
    >>> u = rng.random((1000, 2))
    >>> found = exact_tree(u, (u[:, 0] < 0.3) * 1.0, None, rng, max_leaves=2, min_samples=15)
    >>> found[0], found[1].round(2)
    (array([ 0, -1, -1]), array([0.3, 0. , 0. ]))
    """
    tried = rng.permutation(u.shape[1])
    x = np.ascontiguousarray(u.T[tried], np.float32)
    order = np.argsort(x, axis=1)
    x = np.take_along_axis(x, order, axis=1)
    w = np.ones(len(u)) if weights is None else np.asarray(weights, float)
    y = np.asarray(values, float)
    sums = w * y, w * y * y
    feature, threshold, left, right = _grown(
        x, w, *sums, order.astype(np.int32), None, max_leaves, min_samples
    )
    return np.where(feature < 0, -1, tried[feature]), threshold, left, right


@njit(cache=True)
def _grown(
    x: np.ndarray,
    w: np.ndarray,
    y: np.ndarray,
    squares: Any,
    order: Any,
    uniforms: Any,
    max_leaves: int,
    min_samples: int,
) -> Nodes:
    """Grow a tree on points x (D, n), which are partitioned so that those of a node are adjacent.

    With an ``order`` (D, n), each coordinate is sorted, y and ``squares`` are weighted, and cuts are the best.
    With ``uniforms`` (2 max_leaves, D) cuts are random. The other arrays are None, and Numba leaves out
    what is for them.
    """
    m, n = 2 * max_leaves - 1, x.shape[1]
    feature, left, right = np.full(m, -1), np.full(m, -1), np.full(m, -1)
    threshold = np.zeros(m)
    begin, middle, end = np.zeros(m, np.int64), np.zeros(m, np.int64), np.zeros(m, np.int64)
    if order is not None:
        is_left = np.zeros(n, np.bool_)
        spare_order, spare_x = np.empty(n, np.int32), np.empty(n, np.float32)
    end[0], first, size = n, 0, 1
    queue = [(0.0, 0)]  # from which Numba infers its type
    queue.clear()
    while True:
        for k in range(first, size):
            if order is not None:
                feature[k], middle[k], gain = _best_cut(
                    order, x, w, y, squares, begin[k], end[k], min_samples
                )
            if uniforms is not None:
                feature[k], threshold[k], gain = _best_random_cut(
                    x, y, w, begin[k], end[k], uniforms[k], min_samples
                )
            if feature[k] >= 0:
                heapq.heappush(queue, (-gain, k))
        if len(queue) == 0 or size >= m:
            break
        _, node = heapq.heappop(queue)
        along, low, cut, high = feature[node], begin[node], middle[node], end[node]
        if order is not None:
            threshold[node] = 0.5 * float(x[along, cut - 1]) + 0.5 * float(x[along, cut])
            if max(cut - low, high - cut) >= 2 * min_samples:  # a child may be cut
                for p in range(low, high):
                    is_left[order[along, p]] = p < cut
                for c in range(len(x)):
                    if c != along:
                        _part(order[c], x[c], low, high, is_left, spare_order, spare_x)
        if uniforms is not None:
            cut = _parted(x, y, w, low, high, along, threshold[node])
        left[node], right[node] = size, size + 1
        begin[size], end[size] = low, cut
        begin[size + 1], end[size + 1] = cut, high
        first, size = size, size + 2
    for node in range(size):
        if left[node] < 0:
            feature[node], threshold[node] = -1, 0.0
    return feature[:size], threshold[:size], left[:size], right[:size]


@njit(cache=True)
def _best_cut(
    order: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    wy: np.ndarray,
    wyy: np.ndarray,
    begin: int,
    end: int,
    min_samples: int,
) -> tuple[int, int, float]:
    """Return coordinate, first point on the right and gain of the best cut; coordinate -1 if there is none."""
    if end - begin < 2 * min_samples:
        return -1, 0, 0.0
    mass, total, squares = 0.0, 0.0, 0.0
    for p in range(begin, end):
        i = order[0, p]
        mass += w[i]
        total += wy[i]
        squares += wyy[i]
    before = total * total / mass
    if squares - before <= _NO_VARIANCE * mass:
        return -1, 0, 0.0
    best, cut, gain = -1, 0, -np.inf
    for c in range(len(x)):
        if x[c, end - 1] <= x[c, begin] + _NO_GAP:
            continue
        part, sums = 0.0, 0.0
        for p in range(begin, begin + min_samples - 1):
            i = order[c, p]
            part += w[i]
            sums += wy[i]
        for p in range(begin + min_samples - 1, end - min_samples):
            i = order[c, p]
            part += w[i]
            sums += wy[i]
            rest, other = mass - part, total - sums
            found = (sums * sums * rest + other * other * part) / (part * rest)
            if found > gain and x[c, p + 1] > x[c, p] + _NO_GAP:
                best, cut, gain = c, p + 1, found
    return best, cut, gain - before


@njit(cache=True)
def _part(
    order: np.ndarray,
    x: np.ndarray,
    begin: int,
    end: int,
    is_left: np.ndarray,
    spare_order: np.ndarray,
    spare_x: np.ndarray,
) -> None:
    """Move the points of the left child to the front, and keep their order otherwise."""
    left, right = begin, 0
    for p in range(begin, end):
        i, value = order[p], x[p]
        # Both are written, and one of the two counts, which is faster than a branch.
        order[left], x[left] = i, value
        spare_order[right], spare_x[right] = i, value
        left += is_left[i]
        right += not is_left[i]
    order[left:end] = spare_order[:right]
    x[left:end] = spare_x[:right]


def random_tree(
    u: np.ndarray,
    values: np.ndarray,
    weights: np.ndarray | None,
    rng: np.random.Generator,
    *,
    max_leaves: int,
    min_samples: int,
) -> Nodes:
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
        Nodes.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.engine.regression_trees import random_tree
    >>> from amc_pymc.rng import as_generator
    >>> rng = as_generator(1)
    >>> u = rng.random((1000, 2))
    >>> feature, threshold, left, right = random_tree(
    ...     u, (u[:, 0] < 0.3) * 1.0, None, rng, max_leaves=8, min_samples=15
    ... )
    >>> int((feature < 0).sum()), bool(np.abs(threshold[feature == 0] - 0.3).min() < 0.05)
    (6, True)
    """
    n = len(u)
    w = np.ones(n) if weights is None else np.asarray(weights, float)
    uniforms = rng.random((2 * max_leaves, u.shape[1]))
    x = np.array(u.T, float, order="C")  # the order of the points is changed
    y = np.array(values, float)
    return _grown(x, w.copy(), y, None, None, uniforms, max_leaves, min_samples)


@njit(cache=True)
def _best_random_cut(
    x: np.ndarray,
    y: np.ndarray,
    w: np.ndarray,
    begin: int,
    end: int,
    uniforms: np.ndarray,
    min_samples: int,
) -> tuple[int, float, float]:
    """Return coordinate, position and gain of the best of D random cuts; coordinate -1 if there is none."""
    d, n = len(x), end - begin
    if n < 2 * min_samples:
        return -1, 0.0, 0.0
    own_y, own_w = y[begin:end], w[begin:end]
    mass, total, squares = _moments(own_y, own_w)
    before = total * total / mass
    if squares - before <= _NO_VARIANCE * mass:
        return -1, 0.0, 0.0
    best, cut, gain = -1, 0.0, -np.inf
    for c in range(d):
        low, high = _extremes(x[c, begin:end])
        if high - low <= _NO_WIDTH:
            continue
        at = low + uniforms[c] * (high - low)
        if min(at - low, high - at) < _NARROWEST:
            continue
        points, part, sums = _below(x[c, begin:end], own_y, own_w, at)
        if not min_samples <= points <= n - min_samples:
            continue
        other = total - sums
        found = sums * sums / part + other * other / (mass - part) - before
        if found > gain:
            best, cut, gain = c, at, found
    return best, cut, gain


@njit(cache=True, fastmath=True)
def _moments(y: np.ndarray, w: np.ndarray) -> tuple[float, float, float]:
    """Return sums of weights, weighted values and weighted squares."""
    mass, total, squares = 0.0, 0.0, 0.0
    for i in range(len(y)):
        mass += w[i]
        total += w[i] * y[i]
        squares += w[i] * y[i] * y[i]
    return mass, total, squares


@njit(cache=True, fastmath=True)
def _extremes(values: np.ndarray) -> tuple[float, float]:
    # Two chains of comparisons, which do not wait for each other.
    low, high, other_low, other_high = values[0], values[0], values[-1], values[-1]
    half = len(values) // 2
    for i in range(half):
        low, other_low = min(values[i], low), min(values[half + i], other_low)
        high, other_high = max(values[i], high), max(values[half + i], other_high)
    return min(low, other_low), max(high, other_high)


@njit(cache=True, fastmath=True)
def _below(
    values: np.ndarray, y: np.ndarray, w: np.ndarray, at: float
) -> tuple[float, float, float]:
    """Return number, weight and weighted sum of the points below a cut."""
    points, mass, total = 0.0, 0.0, 0.0
    for i in range(len(values)):
        below = 1.0 if values[i] < at else 0.0
        weight = below * w[i]
        points += below
        mass += weight
        total += weight * y[i]
    return points, mass, total


@njit(cache=True)
def _parted(
    x: np.ndarray, y: np.ndarray, w: np.ndarray, begin: int, end: int, along: int, at: float
) -> int:
    """Move points below a cut to the front; return where the others begin."""
    i, j = begin, end - 1
    while True:
        while i <= j and x[along, i] < at:
            i += 1
        while i <= j and not x[along, j] < at:
            j -= 1
        if i >= j:
            return i
        for c in range(len(x)):
            x[c, i], x[c, j] = x[c, j], x[c, i]
        y[i], y[j] = y[j], y[i]
        w[i], w[j] = w[j], w[i]


# --- nodes of trees of boxes --------------------------------------------------------------------------


@njit(cache=True)
def descend(
    u: np.ndarray, feature: np.ndarray, threshold: np.ndarray, left: np.ndarray, right: np.ndarray
) -> np.ndarray:
    """Return the leaves (n,) of points (n, D)."""
    out = np.zeros(len(u), np.int64)
    for i in range(len(u)):
        node = 0
        while feature[node] >= 0:
            node = left[node] if u[i, feature[node]] < threshold[node] else right[node]
        out[i] = node
    return out


@njit(cache=True)
def add_up(totals: np.ndarray, parent: np.ndarray) -> None:
    """Add the totals of children to those of parents, which come before them."""
    for node in range(len(totals) - 1, 0, -1):
        totals[parent[node]] += totals[node]


@njit(cache=True)
def bounds(
    feature: np.ndarray, threshold: np.ndarray, left: np.ndarray, right: np.ndarray, n_dim: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return lower and upper corners (M, D) of all nodes."""
    lower, upper = np.zeros((len(feature), n_dim)), np.ones((len(feature), n_dim))
    for node in range(len(feature)):
        if feature[node] < 0:
            continue
        for child in (left[node], right[node]):
            lower[child], upper[child] = lower[node], upper[node]
        upper[left[node], feature[node]] = threshold[node]
        lower[right[node], feature[node]] = threshold[node]
    return lower, upper


@njit(cache=True)
def shrunk(
    accepts: np.ndarray, totals: np.ndarray, parent: np.ndarray, strength: float
) -> np.ndarray:
    """Return rates (M,) of nodes, shrunk towards those of their parents."""
    rates = np.empty(len(accepts))
    rates[0] = accepts[0] / totals[0] if totals[0] > 0.0 else 0.5
    for node in range(1, len(accepts)):
        above = rates[parent[node]]
        rates[node] = (accepts[node] + strength * above) / (totals[node] + strength)
    return rates
