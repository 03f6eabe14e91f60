"""Parts of the loops over groups, shared by all models: rows of a group, nodes, and the search for the mode."""

from __future__ import annotations

import math

import numpy as np

from amc_pymc.engine.jit import njit
from amc_pymc.engine.leaves import N_COLUMNS
from amc_pymc.engine.machine import call
from amc_pymc.engine.printer import ROWS, room_of
from amc_pymc.tall.groups.printed import (
    DISCRETE,
    PRIOR_NEWTON,
    PRIOR_VALUE,
    ROWS_NEWTON,
    ROWS_VALUE,
    VALUE,
)

#: Number of rows computed at once.
_AT_ONCE = 16
#: Degrees of freedom of the t proposals of local effects.
_FREEDOM = 7

_compiled = njit(cache=True, error_model="numpy")


# --- rows of a group ------------------------------------------------------------------------------


@_compiled
def padded(size):
    """Return the number of rows rounded up to a multiple of the rows computed at once."""
    return (size + _AT_ONCE - 1) // _AT_ONCE * _AT_ONCE


@_compiled
def rooms(program, first, units):
    """Allocate the columns (C, width) of the largest of some groups, and values that do not depend on effects."""
    most = 0
    for g in units:
        most = max(most, first[g + 1] - first[g])
    return np.zeros((program[N_COLUMNS], padded(most))), room_of(program, VALUE, padded(most))


@_compiled
def gather(rows, first, g, block):
    """Copy the rows of a group to a block (C, width); return their number."""
    size = first[g + 1] - first[g]
    for c in range(block.shape[0]):
        for j in range(size):
            block[c, j] = rows[c, first[g] + j]
    return size


@_compiled
def keep_rows(program, stage, eta, shared, block, size, kept):
    """Write the values of a block's rows that do not depend on local effects."""
    call(
        program[stage + ROWS], eta, shared, block, block.shape[1], padded(size), kept, kept.shape[1]
    )  # fmt: skip


@_compiled
def log_density(program, eta, shared, kept, size, group, u, total):
    """Return the log density of a group's rows and local effects; ``total`` (1,) is a work array."""
    call(program[PRIOR_VALUE], eta, shared, group, u, total)
    call(
        program[ROWS_VALUE], eta, shared, kept, kept.shape[1], size, padded(size), u, total
    )  # fmt: skip
    return total[0]


# --- nodes ----------------------------------------------------------------------------------------


@_compiled
def node_place(program, mode, factor, z, u):
    """Write u = m + C z."""
    discrete = program[DISCRETE] != 0
    for a in range(u.size):
        u[a] = z[a] if discrete else mode[a]
        if not discrete:
            for b in range(u.size):
                u[a] += factor[a, b] * z[b]


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


# --- search for the mode ---------------------------------------------------------------------------


#: Maximum number of Newton steps, and squared length of a step, in standard deviations, that ends them.
_MOST_STEPS = 30
_CLOSE = 1e-2
#: Maximum length of the first step, in standard deviations. It doubles with each further step in the
#: same direction, because the mode is many standard deviations away if the effects' variance is small.
_LONGEST = 2.0


@_compiled
def _newton_sums(program, eta, shared, kept, size, group, u, out):
    """Write gradient and lower Hessian triangle of the log integrand in the local effects."""
    call(program[PRIOR_NEWTON], eta, shared, group, u, out)
    call(
        program[ROWS_NEWTON], eta, shared, kept, kept.shape[1], size, padded(size), u, out
    )  # fmt: skip


@_compiled
def _climb_line(program, eta, shared, kept, size, group, u, factor):
    """Move u to the mode as :func:`climb` does, for one local effect.

    Once the mode is bracketed, steps that are too long, leave the bracket or start from a point where
    the density overflows are replaced by bisection.
    """
    sums = np.empty(2)
    longest, before = _LONGEST, 0.0
    low, high = -math.inf, math.inf
    for _ in range(_MOST_STEPS):
        _newton_sums(program, eta, shared, kept, size, group, u, sums)
        curvature = -sums[1]
        if not curvature > 0.0:
            curvature = max(1.0, abs(curvature))
        sd = 1.0 / math.sqrt(curvature)
        w = sd * sums[0]
        overflow = not np.isfinite(w)
        if overflow and before == 0.0:
            return math.nan
        if before > 0.0 if overflow else w < 0.0:
            high = u[0]
        else:
            low = u[0]
        if not overflow and w * before < 0.0:
            longest = _LONGEST
        new = u[0] + sd * min(longest, max(-longest, w))
        between = high - low < math.inf
        if overflow or (between and (abs(w) > longest or not low <= new <= high)):
            if not between:
                return math.nan
            u[0] = 0.5 * (low + high)
            continue
        u[0] = new
        longest, before = 2.0 * longest if abs(w) > longest else _LONGEST, w
        factor[0, 0] = sd
        if w * w < _CLOSE:
            break
    return math.log(factor[0, 0])


@_compiled
def climb(program, eta, shared, kept, size, group, u, factor):
    """Move u (q,) to the integrand's mode; write ``factor`` C and return log |C|.

    C C' is the inverse curvature, whose diagonal is increased if it is not positive definite.
    """
    q = u.size
    if q == 1:
        return _climb_line(program, eta, shared, kept, size, group, u, factor)
    sums = np.empty(q + q * (q + 1) // 2)
    curvature = np.empty((q, q))
    w = np.empty(q)
    step, before = np.zeros(q), np.zeros(q)
    longest, shorter = _LONGEST, 0.0
    log_det = math.nan
    for _ in range(_MOST_STEPS):
        _newton_sums(program, eta, shared, kept, size, group, u, sums)
        if not np.isfinite(sums).all():
            if shorter == 0.0:
                return math.nan
            for a in range(q):  # a quarter of the last step
                u[a] -= 0.75 * shorter * step[a]
            shorter *= 0.25
            continue
        place = q
        for a in range(q):
            for b in range(a + 1):
                curvature[a, b] = -sums[place]
                place += 1
        log_det = factor_of(curvature, factor)
        lift = 0.0
        while not np.isfinite(log_det):
            lift = max(1.0, 4.0 * lift)
            if lift > 1e12:
                return math.nan
            for a in range(q):
                curvature[a, a] += lift
            log_det = factor_of(curvature, factor)
        length = 0.0
        for a in range(q):
            w[a] = 0.0
            for b in range(q):
                w[a] += factor[b, a] * sums[b]
            length += w[a] * w[a]
        onwards = 0.0
        for a in range(q):
            step[a] = 0.0
            for b in range(q):
                step[a] += factor[a, b] * w[b]
            onwards += step[a] * before[a]
        if onwards < 0.0:
            longest = _LONGEST
        shorter = min(1.0, longest / math.sqrt(length)) if length > 0.0 else 1.0
        for a in range(q):
            u[a] += shorter * step[a]
            before[a] = step[a]
        longest = 2.0 * longest if shorter < 1.0 else _LONGEST
        if length < _CLOSE:
            break
    return log_det
