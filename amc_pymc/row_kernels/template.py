"""Rows of tall data: log-likelihoods, control variates, gradients and Hessians, as compiled loops.

Data are packed row by row, (N, C), so that a row that is read at random costs a cache line or two.
Rows are gathered in blocks of columns first, in which a processor computes several rows at once.

With parameters eta, l_i(eta) is the log-likelihood of row i. Its control variate is the second-order
Taylor polynomial around a centre c, in the coordinates in which ``mask`` is one; with u = eta' - eta
and v = eta' + eta - 2 c the residual changes by

    l_i(eta') - l_i(eta) - [d_u l_i(c) + d_u d_v l_i(c) / 2].

Derivatives of a row by its *leaves*, entries of eta and products of columns with consecutive ones,
are scattered into those by eta.

This file is a template: the functions between the two marks are printed anew for each model. Those
that stand there are a linear regression with unit variance, for tests: eta = (intercept, slope),
columns x and y.
"""

import math  # noqa: F401

import numpy as np

from numba import njit

from amc_pymc.expressions.functions import (  # noqa: F401
    bessel_ie,
    digamma,
    erfcx,
    exp,
    log,
    log1mexp,
    select,
    sigmoid,
    sign,
    softplus,
    tetragamma,
    trigamma,
)
from amc_pymc.row_kernels.pull_back import (  # noqa: F401
    pull_along,
    pull_gradient,
    pull_hessian,
)

#: Rows of a block.
_BLOCK = 256

# --- printed functions begin ----------------------------------------------------------------------
N_COLUMNS, N_ENTRIES, N_DOTS = 2, 2, 0
DOT_FIRST = np.zeros(1, np.int64)
DOT_SIZE = np.zeros(1, np.int64)
DOT_COLUMNS = np.zeros((1, 1), np.int64)
N_VALUE_SHARED, N_VALUE_KEPT = 1, 1
N_TAYLOR_SHARED, N_TAYLOR_KEPT = 1, 1
N_SLOPES_SHARED, N_CURVES_SHARED = 1, 1


@njit(cache=True, error_model="numpy")
def value_shared(eta, shared):
    """Write what depends on parameters only."""


@njit(cache=True, error_model="numpy")
def value_rows(eta, shared, rows, begin, n, kept):
    """Write log-likelihoods of rows begin, ..., begin + n - 1 of a block to kept[0]."""
    for j in range(begin, begin + n):
        r = rows[1, j] - eta[0] - rows[0, j] * eta[1]
        kept[0, j - begin] = -0.5 * r * r


@njit(cache=True, error_model="numpy")
def taylor_shared(eta, du, dv, dw, shared):
    """As ``value_shared``."""


@njit(cache=True, error_model="numpy")
def taylor_rows(eta, du, dv, dw, shared, rows, begin, n, kept):
    """Write derivatives along dw plus half of those along du and dv."""
    for j in range(begin, begin + n):
        r = rows[1, j] - eta[0] - rows[0, j] * eta[1]
        u = du[0] + rows[0, j] * du[1]
        kept[0, j - begin] = r * u - 0.5 * u * (dv[0] + rows[0, j] * dv[1])


@njit(cache=True, error_model="numpy")
def slopes_shared(eta, shared):
    """As ``value_shared``."""


@njit(cache=True, error_model="numpy")
def row_slopes(eta, shared, rows, i, out):
    """Write the log-likelihood of row i of a block and its derivatives by leaves."""
    r = rows[1, i] - eta[0] - rows[0, i] * eta[1]
    out[0, i] = -0.5 * r * r
    out[1, i] = r
    out[2, i] = r * rows[0, i]


@njit(cache=True, error_model="numpy")
def slopes_places(eta, shared, rows, i, at):
    """Write where in eta the entries of row i are."""
    at[0, i] = 0
    at[1, i] = 1


@njit(cache=True, error_model="numpy")
def curves_shared(eta, shared):
    """As ``value_shared``."""


@njit(cache=True, error_model="numpy")
def row_curves(eta, shared, rows, i, out):
    """The same with the lower triangle of second derivatives."""
    row_slopes(eta, shared, rows, i, out)
    out[3, i] = -1.0
    out[4, i] = -rows[0, i]
    out[5, i] = -rows[0, i] * rows[0, i]


@njit(cache=True, error_model="numpy")
def curves_places(eta, shared, rows, i, at):
    """As ``slopes_places``."""
    slopes_places(eta, shared, rows, i, at)


@njit(cache=True, error_model="numpy")
def extended(eta):
    """Parameters, and after them coefficients that are functions of them."""
    return eta


@njit(cache=True, error_model="numpy")
def extended_line(at, du, dv):
    """The same of a point and two directions, and the direction ``taylor_rows`` goes along first."""
    return at, du, dv, du


@njit(cache=True, error_model="numpy")
def gradient_by_parameters(eta, slopes):
    """Derivatives by parameters from those by parameters and coefficients."""
    return slopes


@njit(cache=True, error_model="numpy")
def hessian_by_parameters(eta, slopes, hessian):
    """The same of second derivatives."""
    return hessian


@njit(cache=True, error_model="numpy")
def line_by_parameters(eta, slopes, expanded, direction):
    """The same of first derivatives plus second ones along a direction."""
    return expanded


# --- printed functions end ------------------------------------------------------------------------

_LEAVES = N_ENTRIES + N_DOTS
_SECOND = _LEAVES * (_LEAVES + 1) // 2


@njit(cache=True, error_model="numpy")
def _gather(data, units, begin, n, block):
    """Write some rows of the data to the columns of a block."""
    for j in range(n):
        i = units[begin + j]
        for c in range(N_COLUMNS):
            block[c, j] = data[i, c]


@njit(cache=True, error_model="numpy")
def _size(units):
    """Rows of the largest block."""
    return min(_BLOCK, max(1, units.size))


@njit(cache=True, error_model="numpy")
def _line(x, x_new, centre, mask, at, du, dv):
    """Write where to expand and the directions u and v; whether there is anything to expand."""
    expands = False
    for a in range(x.size):
        if mask[a] > 0.0:
            at[a] = centre[a]
            du[a] = x_new[a] - x[a]
            dv[a] = x_new[a] + x[a] - 2.0 * centre[a]
            expands = True
        else:
            at[a] = x[a]
            du[a] = 0.0
            dv[a] = 0.0
    return expands


@njit(cache=True, error_model="numpy")
def _store(point, line, out):
    """Write a point, where it is expanded and three directions to the rows of an array."""
    at, du, dv, dw = line
    for a in range(point.size):
        out[0, a] = point[a]
        out[1, a] = at[a]
        out[2, a] = du[a]
        out[3, a] = dv[a]
        out[4, a] = dw[a]


@njit(cache=True, error_model="numpy")
def values(eta, units, data):
    """Log-likelihoods (m,) of some rows."""
    m = units.size
    out = np.empty(m)
    z = extended(eta)
    shared = np.empty(N_VALUE_SHARED)
    value_shared(z, shared)
    block = np.empty((N_COLUMNS, _size(units)))
    kept = np.empty((N_VALUE_KEPT, _size(units)))
    for begin in range(0, m, _BLOCK):
        n = min(_BLOCK, m - begin)
        _gather(data, units, begin, n, block)
        value_rows(z, shared, block, 0, n, kept)
        for j in range(n):
            out[begin + j] = kept[0, j]
    return out


@njit(cache=True, error_model="numpy")
def rewards(points, centre, units, mask, data):
    """Changes of residuals from points[0] to points[1], in row 1 of (2, m); row 0 is zero."""
    m, size = units.size, centre.size
    x, x_new = extended(points[0]), extended(points[1])
    out = np.empty((2, m))
    at, du, dv = np.empty(size), np.empty(size), np.empty(size)
    expands = _line(points[0], points[1], centre, mask, at, du, dv)
    z, zu, zv, zw = extended_line(at, du, dv)
    here, there = np.empty(N_VALUE_SHARED), np.empty(N_VALUE_SHARED)
    value_shared(x, here)
    value_shared(x_new, there)
    jet = np.empty(N_TAYLOR_SHARED)
    taylor_shared(z, zu, zv, zw, jet)
    block = np.empty((N_COLUMNS, _size(units)))
    kept = np.empty((N_VALUE_KEPT, _size(units)))
    terms = np.empty((N_TAYLOR_KEPT, _size(units)))
    for begin in range(0, m, _BLOCK):
        n = min(_BLOCK, m - begin)
        _gather(data, units, begin, n, block)
        value_rows(x_new, there, block, 0, n, kept)
        for j in range(n):
            out[0, begin + j] = 0.0
            out[1, begin + j] = kept[0, j]
        value_rows(x, here, block, 0, n, kept)
        for j in range(n):
            out[1, begin + j] -= kept[0, j]
        if expands:
            taylor_rows(z, zu, zv, zw, jet, block, 0, n, terms)
            for j in range(n):
                out[1, begin + j] -= terms[0, j]
    return out


@njit(cache=True, error_model="numpy")
def state_rewards(points, centre, units, mask, data):
    """Log-likelihoods (K, m) at several points less the Taylor polynomials around a centre."""
    m, n_points, size = units.size, points.shape[0], centre.size
    out = np.empty((n_points, m))
    block = np.empty((N_COLUMNS, _size(units)))
    kept = np.empty((N_VALUE_KEPT, _size(units)))
    terms = np.empty((N_TAYLOR_KEPT, _size(units)))
    at, du, dv = np.empty(size), np.empty(size), np.empty(size)
    # Of each point: itself, where it is expanded, and the directions of the expansion.
    z = np.empty((5, n_points, extended(centre).size))
    there = np.empty((n_points, N_VALUE_SHARED))
    middle = np.empty((n_points, N_VALUE_SHARED))
    jets = np.empty((n_points, N_TAYLOR_SHARED))
    expands = False
    for k in range(n_points):
        _line(points[k], points[k], centre, mask, at, du, dv)
        expands = _line(at, points[k], centre, mask, at, du, dv)
        _store(extended(points[k]), extended_line(at, du, du), z[:, k])
        value_shared(z[0, k], there[k])
        value_shared(z[1, k], middle[k])
        taylor_shared(z[1, k], z[2, k], z[3, k], z[4, k], jets[k])
    for begin in range(0, m, _BLOCK):
        n = min(_BLOCK, m - begin)
        _gather(data, units, begin, n, block)
        for k in range(n_points):
            value_rows(z[0, k], there[k], block, 0, n, kept)
            for j in range(n):
                out[k, begin + j] = kept[0, j]
            if expands:
                value_rows(z[1, k], middle[k], block, 0, n, kept)
                taylor_rows(z[1, k], z[2, k], z[3, k], z[4, k], jets[k], block, 0, n, terms)
                for j in range(n):
                    out[k, begin + j] -= kept[0, j] + terms[0, j]
    return out


@njit(cache=True, error_model="numpy")
def _add_gradient(part, at, block, n, out):
    """Add derivatives of n rows by leaves, part[1:], to a gradient by eta."""
    for a in range(N_ENTRIES):
        for j in range(n):
            out[at[a, j]] += part[1 + a, j]
    for b in range(N_DOTS):
        for k in range(DOT_SIZE[b]):
            column = DOT_COLUMNS[b, k]
            s = 0.0
            for j in range(n):
                s += part[1 + N_ENTRIES + b, j] * block[column, j]
            out[DOT_FIRST[b] + k] += s


@njit(cache=True, error_model="numpy")
def _add_pair(c, at, block, n, a, b, work, out):
    """Add second derivatives of n rows by leaves a and b <= a to a Hessian by eta."""
    if a < N_ENTRIES:
        for j in range(n):
            out[at[a, j], at[b, j]] += c[j]
        return
    left = a - N_ENTRIES
    for k in range(DOT_SIZE[left]):
        row, column = DOT_FIRST[left] + k, DOT_COLUMNS[left, k]
        for j in range(n):
            work[j] = c[j] * block[column, j]
        if b < N_ENTRIES:
            for j in range(n):
                out[row, at[b, j]] += work[j]
            continue
        right = b - N_ENTRIES
        # Of one product with itself the lower triangle is enough.
        for i in range(k + 1 if a == b else DOT_SIZE[right]):
            column = DOT_COLUMNS[right, i]
            s = 0.0
            for j in range(n):
                s += work[j] * block[column, j]
            out[row, DOT_FIRST[right] + i] += s
            if a == b and i < k:
                out[DOT_FIRST[right] + i, row] += s


@njit(cache=True, error_model="numpy")
def gradient(eta, units, data):
    """Sum of the log-likelihoods of some rows, and its gradient (E,)."""
    m = units.size
    z = extended(eta)
    total, out = 0.0, np.zeros(z.size)
    shared = np.empty(N_SLOPES_SHARED)
    slopes_shared(z, shared)
    block = np.empty((N_COLUMNS, _size(units)))
    part = np.empty((1 + _LEAVES, _size(units)))
    at = np.empty((max(1, N_ENTRIES), _size(units)), np.int64)
    for begin in range(0, m, _BLOCK):
        n = min(_BLOCK, m - begin)
        _gather(data, units, begin, n, block)
        for j in range(n):
            row_slopes(z, shared, block, j, part)
            slopes_places(z, shared, block, j, at)
            total += part[0, j]
        _add_gradient(part, at, block, n, out)
    return total, gradient_by_parameters(eta, out)


@njit(cache=True, error_model="numpy")
def hessian(eta, units, data):
    """Hessian (E, E) of the sum of the log-likelihoods of some rows."""
    z = extended(eta)
    m, size = units.size, z.size
    slopes = np.zeros(size)
    same, other = np.zeros((size, size)), np.zeros((size, size))
    shared = np.empty(N_CURVES_SHARED)
    curves_shared(z, shared)
    block = np.empty((N_COLUMNS, _size(units)))
    part = np.empty((1 + _LEAVES + _SECOND, _size(units)))
    at = np.empty((max(1, N_ENTRIES), _size(units)), np.int64)
    work = np.empty(_size(units))
    for begin in range(0, m, _BLOCK):
        n = min(_BLOCK, m - begin)
        _gather(data, units, begin, n, block)
        for j in range(n):
            row_curves(z, shared, block, j, part)
            curves_places(z, shared, block, j, at)
        _add_gradient(part, at, block, n, slopes)
        t = 1 + _LEAVES
        for a in range(_LEAVES):
            for b in range(a + 1):
                _add_pair(part[t], at, block, n, a, b, work, same if a == b else other)
                t += 1
    for a in range(size):
        for b in range(size):
            same[a, b] += other[a, b] + other[b, a]
    return hessian_by_parameters(eta, slopes, same)


@njit(cache=True, error_model="numpy")
def row_gradient(points, centre, units, mask, data):
    """Sums over some rows of the gradients (K, E) of residuals at several points."""
    size, n_points = centre.size, points.shape[0]
    out = np.empty((n_points, size))
    where, du, dv = np.empty(size), np.empty(size), np.empty(size)
    for k in range(n_points):
        _, slopes = gradient(points[k], units, data)
        for a in range(size):
            out[k, a] = slopes[a]
        if _line(centre, points[k], centre, mask, where, du, dv):
            expanded = _expanded_gradient(centre, du, units, data)
            for a in range(size):
                out[k, a] -= mask[a] * expanded[a]
    return out


@njit(cache=True, error_model="numpy")
def _expanded_gradient(centre, du, units, data):
    """Gradient (E,) at a centre plus the Hessian there along a direction, of the sum of some rows."""
    m = units.size
    z, zu, _, _ = extended_line(centre, du, du)
    shared = np.empty(N_CURVES_SHARED)
    curves_shared(z, shared)
    slopes, expanded = np.zeros(z.size), np.zeros(z.size)
    block = np.empty((N_COLUMNS, _size(units)))
    part = np.empty((1 + _LEAVES + _SECOND, _size(units)))
    at = np.empty((max(1, N_ENTRIES), _size(units)), np.int64)
    direction = np.empty(max(1, _LEAVES))
    for begin in range(0, m, _BLOCK):
        n = min(_BLOCK, m - begin)
        _gather(data, units, begin, n, block)
        for j in range(n):
            row_curves(z, shared, block, j, part)
            curves_places(z, shared, block, j, at)
        _add_gradient(part, at, block, n, slopes)
        for j in range(n):
            _along(zu, at, block, j, direction)
            _add_curvature(part, j, direction)
        _add_gradient(part, at, block, n, expanded)
    return line_by_parameters(centre, slopes, expanded, du)


@njit(cache=True, error_model="numpy")
def _along(du, at, block, j, out):
    """Write how the leaves of row j change along a direction of eta."""
    for a in range(N_ENTRIES):
        out[a] = du[at[a, j]]
    for b in range(N_DOTS):
        s = 0.0
        for k in range(DOT_SIZE[b]):
            s += block[DOT_COLUMNS[b, k], j] * du[DOT_FIRST[b] + k]
        out[N_ENTRIES + b] = s


@njit(cache=True, error_model="numpy")
def _add_curvature(part, j, direction):
    """Add second derivatives by leaves along a direction to the first ones of row j."""
    t = 1 + _LEAVES
    for a in range(_LEAVES):
        for b in range(a + 1):
            c = part[t, j]
            t += 1
            part[1 + a, j] += c * direction[b]
            if a != b:
                part[1 + b, j] += c * direction[a]
