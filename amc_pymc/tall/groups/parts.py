"""Compiled helper functions of the loops over groups, shared by all models.

The last functions copy arrays entry by entry: for assignments to slices, Numba would compile shape
checks and their messages for every model.
"""

from __future__ import annotations

import math

import numpy as np

from amc_pymc.engine.jit import njit

__all__: list[str] = []

#: Number of rows computed at once.
_AT_ONCE = 16
#: Degrees of freedom of the t proposals of local effects.
_FREEDOM = 7

_compiled = njit(cache=True, error_model="numpy")


@_compiled
def padded(size):
    """Return the number of rows rounded up to a multiple of the rows computed at once."""
    return (size + _AT_ONCE - 1) // _AT_ONCE * _AT_ONCE


@_compiled
def longest(first, units):
    """Return the padded size of the largest of some groups."""
    out = 0
    for g in units:
        out = max(out, first[g + 1] - first[g])
    return padded(out)


# --- nodes ----------------------------------------------------------------------------------------


@_compiled
def log_sum(terms):
    """Return the logarithm of the sum of exponentials; nan if a term is nan."""
    top = -math.inf
    for t in terms:
        if math.isnan(t):
            return math.nan
        top = max(top, t)
    if top == -math.inf or top == math.inf:
        return top
    total = 0.0
    for t in terms:
        total += math.exp(t - top)
    return top + math.log(total)


@_compiled
def node_weights(terms):
    """Replace logarithms of weights by normalised weights, in place."""
    total = log_sum(terms)
    for k in range(terms.size):
        terms[k] = math.exp(terms[k] - total)


@_compiled
def spread(terms, others):
    """Return the range over nodes of changes of the log integrand; nan if one is nan."""
    low, high = math.inf, -math.inf
    for k in range(terms.size):
        change = terms[k] - others[k]
        if math.isnan(change):
            return math.nan
        low = min(low, change)
        high = max(high, change)
    return high - low


@_compiled
def add_covariance(hessian, at_node, weights):
    """Add the covariance over nodes of the gradients (K, E) to a matrix (E, E)."""
    size = hessian.shape[0]
    mean = np.zeros(size)
    touched = np.empty(size, np.int64)
    n = 0
    for a in range(size):
        used = False
        for k in range(weights.size):
            if at_node[k, a] != 0.0:
                used = True
                mean[a] += weights[k] * at_node[k, a]
        if used:
            touched[n] = a
            n += 1
    for k in range(weights.size):
        for x in range(n):
            a = touched[x]
            left = weights[k] * (at_node[k, a] - mean[a])
            for y in range(n):
                b = touched[y]
                hessian[a, b] += left * (at_node[k, b] - mean[b])


# --- Gaussians and t distributions around a mode ----------------------------------------------------


@_compiled
def factor_of(curvature, factor):
    """Write upper C with C C' = curvature^-1; return log |C|, nan if not positive definite."""
    q = curvature.shape[0]
    lower = np.zeros((q, q))
    log_det = 0.0
    for a in range(q):
        for b in range(a + 1):
            s = curvature[a, b]
            for c in range(b):
                s -= lower[a, c] * lower[b, c]
            if a == b:
                if not s > 0.0:
                    return math.nan
                lower[a, a] = math.sqrt(s)
                log_det -= math.log(lower[a, a])
            else:
                lower[a, b] = s / lower[b, b]
    for c in range(q):  # C = L^-T, one column of L^-1 after the other
        for a in range(q):
            s = 1.0 if a == c else 0.0
            for b in range(c, a):
                s -= lower[a, b] * factor[c, b]
            factor[c, a] = s / lower[a, a] if a >= c else 0.0
    return log_det


@_compiled
def log_student(mode, factor, u):
    """Return the log density, up to a constant, of a multivariate t with upper factor C."""
    q = mode.size
    square = 0.0
    z = np.empty(q)
    for a in range(q - 1, -1, -1):
        s = u[a] - mode[a]
        for b in range(a + 1, q):
            s -= factor[a, b] * z[b]
        z[a] = s / factor[a, a]
        square += z[a] * z[a]
    return -0.5 * (_FREEDOM + q) * math.log1p(square / _FREEDOM)


@_compiled
def draw_student(mode, factor, rng, u):
    """Draw u (q,) from that multivariate t."""
    q = mode.size
    square = 0.0
    for _ in range(_FREEDOM):
        square += rng.standard_normal() ** 2
    scale = math.sqrt(_FREEDOM / square)
    z = np.empty(q)
    for a in range(q):
        z[a] = scale * rng.standard_normal()
    for a in range(q):
        u[a] = mode[a]
        for b in range(q):
            u[a] += factor[a, b] * z[b]


# --- arrays entry by entry --------------------------------------------------------------------------


@_compiled
def directions(begin, end, centre, mask, at, du, dv):
    """Write the expansion point, the centre where ``mask`` is 1, and u and v of a control variate."""
    for k in range(mask.size):
        at[k] = centre[k] if mask[k] > 0.0 else begin[k]
        du[k] = mask[k] * (end[k] - begin[k])
        dv[k] = mask[k] * (end[k] + begin[k] - 2.0 * centre[k])


@_compiled
def offsets(point, centre, mask, at, du):
    """Write the expansion point, the centre where ``mask`` is 1, and its difference from a point."""
    for k in range(mask.size):
        at[k] = centre[k] if mask[k] > 0.0 else point[k]
        du[k] = mask[k] * (point[k] - centre[k])


@_compiled
def copy_vector(target, source):
    """Copy a vector to another."""
    for a in range(source.size):
        target[a] = source[a]


@_compiled
def copy_matrix(target, source):
    """Copy a matrix to another."""
    for a in range(source.shape[0]):
        for b in range(source.shape[1]):
            target[a, b] = source[a, b]


@_compiled
def clear(vector):
    """Fill a vector with zeros."""
    for a in range(vector.size):
        vector[a] = 0.0
