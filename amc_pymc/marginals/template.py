"""Marginal log-likelihoods of groups, their local effects integrated out, as compiled loops.

Group g has rows first[g] <= i < first[g + 1] and q local effects u. Data are
columns (C, N), with a few rows more than there are. With parameters eta,

    log L_g(eta) = log integral p(u | eta) prod_i p(y_i | eta, u) du

is found by adaptive Gauss-Hermite quadrature: nodes u_k = m + C z_k around the mode m of the
integrand, C C' its inverse curvature there (Liu & Pierce 1994, Biometrika 81:624-629,
doi:10.1093/biomet/81.3.624; Pinheiro & Bates 1995, JCGS 4:12-35,
doi:10.1080/10618600.1995.10474663). With weights p_k of the nodes and derivatives s_k, c_k of the
integrand's logarithm along directions a and b at each (Fisher's and Louis's identities),

    d_a log L = sum_k p_k s_k(a),
    d_a d_b log L = sum_k p_k (c_k(a, b) + s_k(a) s_k(b)) - sum_k p_k s_k(a) sum_k p_k s_k(b).

This file is a template: the functions between the two marks are printed anew for each model. Those
that stand there are a Gaussian random intercept, for tests: eta = (mean, log sd of the intercepts),
one column y with unit variance.
"""

import math

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
from amc_pymc.marginals.loops import (
    add_covariance,
    clear,
    copy_matrix,
    copy_vector,
    directions,
    draw_student,
    factor_of,
    log_student,
    log_sum,
    longest,
    node_weights,
    offsets,
    padded,
    spread,
)

#: Sums of rows may be taken in any order, which lets a processor add several at once.
FAST = {"contract", "nsz", "reassoc"}


# --- printed functions begin ----------------------------------------------------------------------
N_LOCAL, DISCRETE = 1, False
N_VALUE_SHARED, N_VALUE_KEPT = 2, 1
N_JET_SHARED, N_JET_KEPT = 6, 1
N_SLOPE_SHARED, N_SLOPE_KEPT = 2, 1
N_ROW_LEAVES, N_ROW_DOTS = 1, 0
N_PRIOR_LEAVES = 1
DOT_FIRST = np.zeros(1, np.int64)
DOT_SIZE = np.zeros(1, np.int64)
DOT_COLUMNS = np.zeros((1, 1), np.int64)


@njit(cache=True, error_model="numpy")
def value_shared(eta, shared):
    """Write what depends on parameters only."""
    shared[0] = eta[0]
    shared[1] = eta[1]


@njit(cache=True, error_model="numpy")
def value_kept(eta, shared, rows, begin, n, kept):
    """Write what depends on rows begin, ..., begin + n - 1, but not on local effects."""
    for j in range(n):
        kept[0, j] = rows[0, begin + j]


@njit(cache=True, error_model="numpy")
def row_value(eta, shared, kept, j, u):
    """Log-likelihood of a row."""
    r = kept[0, j] - shared[0] - u[0]
    return (-0.5 * r * r,)


@njit(cache=True, error_model="numpy")
def row_newton(eta, shared, kept, j, u):
    """Its gradient and the lower triangle of its Hessian by local effects."""
    return (kept[0, j] - shared[0] - u[0], -1.0)


@njit(cache=True, error_model="numpy", fastmath=FAST)
def add_newton(eta, shared, kept, size, u, out):
    """Add those of all rows of a group."""
    s0, s1 = 0.0, 0.0
    for j in range(padded(size)):
        a0, a1 = row_newton(eta, shared, kept, j, u)
        s0 += select(j < size, a0, 0.0)
        s1 += select(j < size, a1, 0.0)
    out[0] += s0
    out[1] += s1


@njit(cache=True, error_model="numpy")
def prior_value(eta, shared, groups, g, u):
    """Log density of the local effects of group g."""
    return (-0.5 * u[0] * u[0] * math.exp(-2.0 * shared[1]) - shared[1],)


@njit(cache=True, error_model="numpy")
def prior_newton(eta, shared, groups, g, u, out):
    """Write its gradient and the lower triangle of its Hessian by local effects."""
    precision = math.exp(-2.0 * shared[1])
    out[0] = -u[0] * precision
    out[1] = -precision


@njit(cache=True, error_model="numpy")
def jet_shared(eta, du, dv, shared):
    """As ``value_shared``, for directional derivatives."""
    shared[:2] = eta
    shared[2:4] = du
    shared[4:6] = dv


@njit(cache=True, error_model="numpy")
def jet_kept(eta, du, dv, shared, rows, begin, n, kept):
    """As ``value_kept``, for directional derivatives."""
    for j in range(n):
        kept[0, j] = rows[0, begin + j]


@njit(cache=True, error_model="numpy")
def row_jet(eta, du, dv, shared, kept, j, u):
    """Log-likelihood of a row, its derivatives along du and dv, and the second one along both."""
    r = kept[0, j] - shared[0] - u[0]
    return (-0.5 * r * r, r * shared[2], r * shared[4], -shared[2] * shared[4])


@njit(cache=True, error_model="numpy")
def prior_jet(eta, du, dv, shared, groups, g, u):
    """The same of the local effects' log density."""
    a = u[0] * u[0] * math.exp(-2.0 * shared[1])
    first = a - 1.0
    return (
        -0.5 * a - shared[1],
        first * shared[3],
        first * shared[5],
        -2.0 * a * shared[3] * shared[5],
    )


@njit(cache=True, error_model="numpy")
def slope_shared(eta, shared):
    """As ``value_shared``, for derivatives by leaves."""
    shared[:2] = eta


@njit(cache=True, error_model="numpy")
def slope_kept(eta, shared, rows, begin, n, kept):
    """As ``value_kept``, for derivatives by leaves."""
    for j in range(n):
        kept[0, j] = rows[0, begin + j]


@njit(cache=True, error_model="numpy")
def row_places(eta, shared, rows, i, at):
    """Write the positions in eta of the entries that row i reads."""
    at[0] = 0


@njit(cache=True, error_model="numpy")
def row_slopes(eta, shared, kept, j, u, out):
    """Write first and (lower triangle) second derivatives of a row by leaves.

    Leaves are entries of eta, then products of data with consecutive entries.
    """
    out[0] = kept[0, j] - shared[0] - u[0]
    out[1] = -1.0


@njit(cache=True, error_model="numpy")
def prior_places(eta, shared, groups, g, at):
    """Write the positions in eta of the entries that the local effects' log density reads."""
    at[0] = 1


@njit(cache=True, error_model="numpy")
def prior_slopes(eta, shared, groups, g, u, out):
    """Write derivatives of the local effects' log density by leaves."""
    a = u[0] * u[0] * math.exp(-2.0 * shared[1])
    out[0] = a - 1.0
    out[1] = -2.0 * a


# --- printed functions end ------------------------------------------------------------------------

#: Newton steps towards a mode, at most, and the squared length (in standard deviations) of the last.
_MOST_STEPS = 30
_CLOSE = 1e-2
#: Standard deviations that a first step is cut to. Further ones in the same direction may be twice
#: as long each: where a hyperparameter makes the effects' variance small, a mode is far away in
#: standard deviations.
_LONGEST = 2.0
_LEAVES = N_ROW_LEAVES + N_ROW_DOTS


@njit(cache=True, error_model="numpy")
def _newton_sums(eta, shared, kept, size, groups, g, u, out):
    """Gradient and lower triangle of the Hessian of the integrand's logarithm by local effects."""
    prior_newton(eta, shared, groups, g, u, out)
    add_newton(eta, shared, kept, size, u, out)


@njit(cache=True, error_model="numpy")
def _climb_line(eta, shared, kept, size, groups, g, u, factor):
    """``_climb`` for one local effect."""
    sums = np.empty(2)
    longest, before = _LONGEST, 0.0
    for _ in range(_MOST_STEPS):
        _newton_sums(eta, shared, kept, size, groups, g, u, sums)
        curvature = -sums[1]
        if not curvature > 0.0:
            curvature = max(1.0, abs(curvature))
        sd = 1.0 / math.sqrt(curvature)
        w = sd * sums[0]
        if not np.isfinite(w):
            return math.nan
        if w * before < 0.0:
            longest = _LONGEST
        u[0] += sd * min(longest, max(-longest, w))
        longest, before = 2.0 * longest if abs(w) > longest else _LONGEST, w
        factor[0, 0] = sd
        if w * w < _CLOSE:
            break
    return math.log(factor[0, 0])


@njit(cache=True, error_model="numpy")
def _climb(eta, shared, kept, size, groups, g, u, factor):
    """Move u (q,) to the integrand's mode; return log |C| of the curvature there.

    Curvatures that are not positive are lifted.
    """
    if N_LOCAL == 1:
        return _climb_line(eta, shared, kept, size, groups, g, u, factor)
    q = N_LOCAL
    sums = np.empty(q + q * (q + 1) // 2)
    curvature = np.empty((q, q))
    w = np.empty(q)
    step, before = np.empty(q), np.zeros(q)
    longest = _LONGEST
    log_det = math.nan
    for _ in range(_MOST_STEPS):
        _newton_sums(eta, shared, kept, size, groups, g, u, sums)
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


@njit(cache=True, error_model="numpy")
def _node(mode, factor, z, u):
    """Write u = m + C z."""
    for a in range(N_LOCAL):
        u[a] = z[a] if DISCRETE else mode[a]
        if not DISCRETE:
            for b in range(N_LOCAL):
                u[a] += factor[a, b] * z[b]


@njit(cache=True, error_model="numpy", fastmath=FAST)
def _sum_of_rows(eta, shared, kept, size, u):
    """Log-likelihood of a group's rows given its local effects."""
    total = 0.0
    for j in range(padded(size)):
        total += select(j < size, row_value(eta, shared, kept, j, u)[0], 0.0)
    return total


@njit(cache=True, error_model="numpy", fastmath=FAST)
def _sum_of_jets(eta, du, dv, shared, kept, size, u):
    """The same with its derivatives along du and dv, and the second one along both."""
    total, a, b, c = 0.0, 0.0, 0.0, 0.0
    for j in range(padded(size)):
        v, va, vb, vc = row_jet(eta, du, dv, shared, kept, j, u)
        total += select(j < size, v, 0.0)
        a += select(j < size, va, 0.0)
        b += select(j < size, vb, 0.0)
        c += select(j < size, vc, 0.0)
    return total, a, b, c


@njit(cache=True, error_model="numpy")
def _log_terms(eta, shared, kept, size, groups, g, mode, factor, nodes, log_weights, terms):
    """Write logarithms of the integrand at nodes (K, q) around the mode times their weights."""
    u = np.empty(N_LOCAL)
    for k in range(log_weights.size):
        _node(mode, factor, nodes[k], u)
        total = prior_value(eta, shared, groups, g, u)[0]
        terms[k] = total + _sum_of_rows(eta, shared, kept, size, u) + log_weights[k]


@njit(cache=True, error_model="numpy")
def _value(eta, shared, kept, rows, first, groups, g, mode, factor, nodes, log_weights):
    """Marginal log-likelihood of group g; mode (q,) and factor (q, q) are moved to its own."""
    begin = first[g]
    size = first[g + 1] - begin
    value_kept(eta, shared, rows, begin, padded(size), kept)
    log_det = 0.0
    if not DISCRETE:
        log_det = _climb(eta, shared, kept, size, groups, g, mode, factor)
    terms = np.empty(log_weights.size)
    _log_terms(eta, shared, kept, size, groups, g, mode, factor, nodes, log_weights, terms)
    return log_det + log_sum(terms)


@njit(cache=True, error_model="numpy")
def values(eta, units, rows, first, groups, modes, factors, nodes, log_weights, keep, counter):
    """Marginal log-likelihoods (m,) of some groups.

    Modes (G, q) and factors (G, q, q) are starts; if ``keep`` they are overwritten by those found.
    """
    out = np.empty(units.size)
    shared = np.empty(N_VALUE_SHARED)
    value_shared(eta, shared)
    kept = np.empty((N_VALUE_KEPT, longest(first, units)))
    mode = np.empty(N_LOCAL)
    factor = np.empty((N_LOCAL, N_LOCAL))
    for n in range(units.size):
        g = units[n]
        copy_vector(mode, modes[g])
        copy_matrix(factor, factors[g])
        out[n] = _value(eta, shared, kept, rows, first, groups, g, mode, factor, nodes, log_weights)
        counter[0] += first[g + 1] - first[g]
        if keep:
            copy_vector(modes[g], mode)
            copy_matrix(factors[g], factor)
    return out


@njit(cache=True, error_model="numpy")
def _expansion(
    eta, du, dv, shared, kept, rows, first, groups, g, modes, factors, nodes, log_weights, terms
):
    """First derivatives of log L_g along du and dv, and the second one along both.

    Writes the logarithms of the integrand at the nodes to ``terms`` (K,).
    """
    begin = first[g]
    size = first[g + 1] - begin
    jet_kept(eta, du, dv, shared, rows, begin, padded(size), kept)
    n_nodes = log_weights.size
    jets = np.empty((n_nodes, 3))
    u = np.empty(N_LOCAL)
    for k in range(n_nodes):
        _node(modes[g], factors[g], nodes[k], u)
        total, a, b, c = _sum_of_jets(eta, du, dv, shared, kept, size, u)
        prior, prior_a, prior_b, prior_c = prior_jet(eta, du, dv, shared, groups, g, u)
        terms[k] = prior + total + log_weights[k]
        jets[k, 0] = a + prior_a
        jets[k, 1] = b + prior_b
        jets[k, 2] = c + prior_c
    total = log_sum(terms)
    first_u, first_v, second = 0.0, 0.0, 0.0
    for k in range(n_nodes):
        weight = math.exp(terms[k] - total)
        if weight == 0.0:  # derivatives may be infinite there
            continue
        first_u += weight * jets[k, 0]
        first_v += weight * jets[k, 1]
        second += weight * (jets[k, 2] + jets[k, 0] * jets[k, 1])
    return first_u, first_v, second - first_u * first_v


@njit(cache=True, error_model="numpy")
def rewards(
    points,
    centre,
    units,
    mask,
    rows,
    first,
    groups,
    modes,
    factors,
    nodes,
    log_weights,
    most_spread,
    moved_nodes,
    moved_log_weights,
    counter,
):
    """Changes of groups from points[0] to points[1] less those of their control variates, (2, m).

    With u = points[1] - points[0] and v = points[1] + points[0] - 2 centre over the coordinates in
    ``mask`` (1 or 0), the control variate is d_u log L + d_u d_v log L / 2 at the centre. Both are
    those of ``nodes`` held where they are stored. Where the integrand's logarithm changes by amounts
    that differ between nodes by more than ``most_spread`` (1,), ``moved_nodes`` take their places
    around the modes at both points.
    """
    at, du, dv = np.empty(mask.size), np.empty(mask.size), np.empty(mask.size)
    directions(points[0], points[1], centre, mask, at, du, dv)
    here = np.empty(N_VALUE_SHARED)
    there = np.empty(N_VALUE_SHARED)
    value_shared(points[0], here)
    value_shared(points[1], there)
    jets = np.empty(N_JET_SHARED)
    jet_shared(at, du, dv, jets)
    most = longest(first, units)
    kept = np.empty((N_VALUE_KEPT, most))
    kept_there = np.empty((N_VALUE_KEPT, most))
    kept_jets = np.empty((N_JET_KEPT, most))
    mode = np.empty(N_LOCAL)
    factor = np.empty((N_LOCAL, N_LOCAL))
    at_centre = np.empty(log_weights.size)
    old = np.empty(log_weights.size)
    new = np.empty(log_weights.size)
    out = np.zeros((2, units.size))
    for n in range(units.size):
        g = units[n]
        size = first[g + 1] - first[g]
        counter[0] += size
        slope, _, curvature = _expansion(
            at, du, dv, jets, kept_jets, rows, first, groups, g, modes, factors, nodes, log_weights,
            at_centre,
        )  # fmt: skip
        near = most_spread[0] > 0.0
        if near:
            value_kept(points[0], here, rows, first[g], padded(size), kept)
            value_kept(points[1], there, rows, first[g], padded(size), kept_there)
            held = (groups, g, modes[g], factors[g], nodes, log_weights)
            _log_terms(points[0], here, kept, size, *held, old)
            _log_terms(points[1], there, kept_there, size, *held, new)
            near = spread(old, at_centre) <= most_spread[0] >= spread(new, at_centre)
        if near:
            change = log_sum(new) - log_sum(old)
        else:
            moved = (rows, first, groups, g, mode, factor, moved_nodes, moved_log_weights)
            copy_vector(mode, modes[g])
            copy_matrix(factor, factors[g])
            before = _value(points[0], here, kept, *moved)
            after = _value(points[1], there, kept, *moved)
            change = -math.inf if after == -math.inf else after - before
        out[1, n] = change if change == -math.inf else change - slope - 0.5 * curvature
    return out


@njit(cache=True, error_model="numpy")
def state_rewards(
    points, centre, units, mask, rows, first, groups, modes, factors, nodes, log_weights, counter
):
    """Log-likelihoods of groups at several points less their Taylor polynomials, (K, m).

    The polynomials are those around ``centre`` but for their constants, which all points share.
    """
    out = np.empty((points.shape[0], units.size))
    at, du = np.empty(mask.size), np.empty(mask.size)
    for k in range(points.shape[0]):
        offsets(points[k], centre, mask, at, du)
        found = values(
            points[k],
            units,
            rows,
            first,
            groups,
            modes,
            factors,
            nodes,
            log_weights,
            False,
            counter,
        )
        copy_vector(out[k], found)
        jets = np.empty(N_JET_SHARED)
        jet_shared(at, du, du, jets)
        kept = np.empty((N_JET_KEPT, longest(first, units)))
        terms = np.empty(log_weights.size)
        for n in range(units.size):
            slope, _, curvature = _expansion(
                at, du, du, jets, kept, rows, first, groups, units[n], modes, factors, nodes,
                log_weights, terms,
            )  # fmt: skip
            out[k, n] -= slope + 0.5 * curvature
    return out


@njit(cache=True, error_model="numpy")
def _scatter_gradient(out, slopes, places, rows, i):
    """Add derivatives by leaves of a row to a gradient by eta."""
    for a in range(N_ROW_LEAVES):
        out[places[a]] += slopes[a]
    for b in range(N_ROW_DOTS):
        s = slopes[N_ROW_LEAVES + b]
        for k in range(DOT_SIZE[b]):
            out[DOT_FIRST[b] + k] += s * rows[DOT_COLUMNS[b, k], i]


@njit(cache=True, error_model="numpy")
def _leaf(a, places, rows, i, at, by):
    """Write positions and factors of a leaf in eta; return how many."""
    if a < N_ROW_LEAVES:
        at[0] = places[a]
        by[0] = 1.0
        return 1
    b = a - N_ROW_LEAVES
    for k in range(DOT_SIZE[b]):
        at[k] = DOT_FIRST[b] + k
        by[k] = rows[DOT_COLUMNS[b, k], i]
    return DOT_SIZE[b]


@njit(cache=True, error_model="numpy")
def _scatter_hessian(out, curves, places, rows, i, work):
    """Add second derivatives by leaves of a row (lower triangle) to a Hessian by eta."""
    at, by, at2, by2 = work
    n = 0
    for a in range(_LEAVES):
        size = _leaf(a, places, rows, i, at, by)
        for b in range(a + 1):
            c = curves[n]
            n += 1
            if c == 0.0:
                continue
            size2 = _leaf(b, places, rows, i, at2, by2)
            for k in range(size):
                for m in range(size2):
                    out[at[k], at2[m]] += c * by[k] * by2[m]
                    if a != b:
                        out[at2[m], at[k]] += c * by[k] * by2[m]


@njit(cache=True, error_model="numpy")
def sums(
    eta, units, rows, first, groups, modes, factors, nodes, log_weights, climb, second, counter
):
    """Sum of log L over some groups, its gradient (E,) and, if ``second``, its Hessian (E, E).

    ``climb`` says whether each group's nodes are moved to its mode at eta, or are those stored.
    """
    size_eta = eta.size
    total = 0.0
    gradient = np.zeros(size_eta)
    hessian = np.zeros((size_eta, size_eta)) if second else np.zeros((0, 0))
    shared = np.empty(N_VALUE_SHARED)
    value_shared(eta, shared)
    slope = np.empty(N_SLOPE_SHARED)
    slope_shared(eta, slope)
    most = longest(first, units)
    kept = np.empty((N_VALUE_KEPT, most))
    kept_slope = np.empty((N_SLOPE_KEPT, most))
    n_nodes = log_weights.size
    n_row = _LEAVES + _LEAVES * (_LEAVES + 1) // 2
    n_prior = N_PRIOR_LEAVES + N_PRIOR_LEAVES * (N_PRIOR_LEAVES + 1) // 2
    part = np.empty((most, n_row))
    at_node = np.empty((n_nodes, size_eta))
    places = np.empty((most, max(1, N_ROW_LEAVES)), np.int64)
    prior_at = np.empty(max(1, N_PRIOR_LEAVES), np.int64)
    widest = max(1, DOT_SIZE.max())
    work = (
        np.empty(widest, np.int64), np.empty(widest), np.empty(widest, np.int64), np.empty(widest),
    )  # fmt: skip
    found = np.empty(max(n_row, n_prior, 1))
    terms = np.empty(n_nodes)
    u = np.empty(N_LOCAL)
    mode = np.empty(N_LOCAL)
    factor = np.empty((N_LOCAL, N_LOCAL))
    for g in units:
        begin = first[g]
        size = first[g + 1] - begin
        counter[0] += size
        copy_vector(mode, modes[g])
        copy_matrix(factor, factors[g])
        value_kept(eta, shared, rows, begin, padded(size), kept)
        slope_kept(eta, slope, rows, begin, padded(size), kept_slope)
        for j in range(size):
            row_places(eta, slope, rows, begin + j, places[j])
            clear(part[j])
        log_det = 0.0
        if not DISCRETE:
            if climb:
                log_det = _climb(eta, shared, kept, size, groups, g, mode, factor)
            else:
                for a in range(N_LOCAL):
                    log_det += math.log(abs(factor[a, a]))
        for k in range(n_nodes):
            _node(mode, factor, nodes[k], u)
            terms[k] = prior_value(eta, shared, groups, g, u)[0] + log_weights[k]
            terms[k] += _sum_of_rows(eta, shared, kept, size, u)
        total += log_det + log_sum(terms)
        node_weights(terms)
        prior_part = np.zeros(n_prior)
        prior_places(eta, slope, groups, g, prior_at)
        for k in range(n_nodes):
            w = terms[k]
            _node(mode, factor, nodes[k], u)
            s = at_node[k]
            clear(s)
            if w == 0.0:  # derivatives may be infinite there
                continue
            prior_slopes(eta, slope, groups, g, u, found)
            for a in range(n_prior):
                prior_part[a] += w * found[a]
            for a in range(N_PRIOR_LEAVES):
                s[prior_at[a]] += found[a]
            for j in range(size):
                row_slopes(eta, slope, kept_slope, j, u, found)
                for a in range(n_row):
                    part[j, a] += w * found[a]
                if second:
                    _scatter_gradient(s, found, places[j], rows, begin + j)
        if second:
            add_covariance(hessian, at_node, terms)
            n = N_PRIOR_LEAVES
            for a in range(N_PRIOR_LEAVES):
                for b in range(a + 1):
                    hessian[prior_at[a], prior_at[b]] += prior_part[n]
                    if a != b:
                        hessian[prior_at[b], prior_at[a]] += prior_part[n]
                    n += 1
        for a in range(N_PRIOR_LEAVES):
            gradient[prior_at[a]] += prior_part[a]
        for j in range(size):
            _scatter_gradient(gradient, part[j], places[j], rows, begin + j)
            if second:
                _scatter_hessian(hessian, part[j, _LEAVES:], places[j], rows, begin + j, work)
    return total, gradient, hessian


@njit(cache=True, error_model="numpy")
def _complete(eta, shared, kept, size, groups, g, u):
    """Log density of a group's rows and local effects."""
    return prior_value(eta, shared, groups, g, u)[0] + _sum_of_rows(eta, shared, kept, size, u)


@njit(cache=True, error_model="numpy")
def complete(eta, effects, rows, first, groups):
    """Sum over all groups of the log density of rows and local effects (G, q)."""
    shared = np.empty(N_VALUE_SHARED)
    value_shared(eta, shared)
    n_groups = first.size - 1
    kept = np.empty((N_VALUE_KEPT, longest(first, np.arange(n_groups))))
    total = 0.0
    for g in range(n_groups):
        size = first[g + 1] - first[g]
        value_kept(eta, shared, rows, first[g], padded(size), kept)
        total += _complete(eta, shared, kept, size, groups, g, effects[g])
    return total


@njit(cache=True, error_model="numpy")
def row_values(eta, effects, levels, rows):
    """Log-likelihoods (m,) of rows given the local effects (G, q), each row's those of its level."""
    shared = np.empty(N_VALUE_SHARED)
    value_shared(eta, shared)
    kept = np.empty((N_VALUE_KEPT, 1))
    out = np.empty(levels.size)
    for i in range(levels.size):
        value_kept(eta, shared, rows, i, 1, kept)
        out[i] = row_value(eta, shared, kept, 0, effects[levels[i]])[0]
    return out


@njit(cache=True, error_model="numpy")
def draw_effects(
    eta, effects, tries, rng, rows, first, groups, modes, factors, nodes, log_weights, counter
):
    """Draw the local effects (G, q) of all groups given eta, in place.

    Discrete ones are drawn exactly. Others make ``tries`` independence Metropolis-Hastings steps from
    where they are, with proposals from a multivariate t around the mode. Returns the share of the
    proposals that were accepted.
    """
    shared = np.empty(N_VALUE_SHARED)
    value_shared(eta, shared)
    n_groups = first.size - 1
    kept = np.empty((N_VALUE_KEPT, longest(first, np.arange(n_groups))))
    mode = np.empty(N_LOCAL)
    factor = np.empty((N_LOCAL, N_LOCAL))
    u = np.empty(N_LOCAL)
    terms = np.empty(log_weights.size)
    accepted = 0
    for g in range(n_groups):
        size = first[g + 1] - first[g]
        counter[0] += size
        value_kept(eta, shared, rows, first[g], padded(size), kept)
        if DISCRETE:
            for k in range(terms.size):
                terms[k] = _complete(eta, shared, kept, size, groups, g, nodes[k])
            node_weights(terms)
            left = rng.random()
            k = 0
            while k < terms.size - 1 and left >= terms[k]:
                left -= terms[k]
                k += 1
            copy_vector(effects[g], nodes[k])
            accepted += tries
            continue
        copy_vector(mode, modes[g])
        copy_matrix(factor, factors[g])
        _climb(eta, shared, kept, size, groups, g, mode, factor)
        here = _complete(eta, shared, kept, size, groups, g, effects[g])
        here -= log_student(mode, factor, effects[g])
        for _ in range(tries):
            draw_student(mode, factor, rng, u)
            there = _complete(eta, shared, kept, size, groups, g, u)
            there -= log_student(mode, factor, u)
            if there > here + math.log(1.0 - rng.random()) or math.isnan(here):
                copy_vector(effects[g], u)
                here = there
                accepted += 1
    return accepted / max(1, tries * n_groups)
