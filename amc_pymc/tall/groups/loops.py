"""Compiled loops for marginal log-likelihoods of groups with local effects integrated out.

Group g has rows first[g] <= i < first[g + 1] and q local effects u. Data are columns (C, N). With
parameters eta,

    log L_g(eta) = log integral p(u | eta) prod_i p(y_i | eta, u) du

is computed by adaptive Gauss-Hermite quadrature: nodes u_k = m + C z_k around the mode m of the
integrand, with C C' its inverse curvature there (Liu & Pierce 1994, Biometrika 81:624-629,
doi:10.1093/biomet/81.3.624; Pinheiro & Bates 1995, JCGS 4:12-35,
doi:10.1080/10618600.1995.10474663). With node weights p_k and derivatives s_k, c_k of the integrand's
logarithm at the nodes along directions a and b, Fisher's and Louis's identities are

    d_a log L = sum_k p_k s_k(a),
    d_a d_b log L = sum_k p_k (c_k(a, b) + s_k(a) s_k(b)) - sum_k p_k s_k(a) sum_k p_k s_k(b).

These loops are the same for all models and compiled once. The functions of a group's rows and of its
local effects are generated for each model (:mod:`amc_pymc.tall.groups.printed`); ``program`` holds their
addresses.
"""

from __future__ import annotations

import math

import numpy as np

from amc_pymc.engine.jit import njit
from amc_pymc.engine.leaves import (
    N_COLUMNS,
    N_DOTS,
    N_ENTRIES,
    add_gradient,
    add_hessian,
    add_transposed,
)
from amc_pymc.engine.machine import call
from amc_pymc.engine.stages import ROWS, of_parameters, room_of
from amc_pymc.tall.groups.blocks import (
    gather,
    jet_of,
    keep_rows,
    log_density,
    of_line,
)
from amc_pymc.tall.groups.climb import climb
from amc_pymc.tall.groups.climb import curvatures as curvatures_of_group
from amc_pymc.tall.groups.layout import (
    DISCRETE,
    JET,
    N_LOCAL,
    N_PRIOR_LEAVES,
    N_SLOPES,
    PRIOR_PLACES,
    PRIOR_SLOPES,
    ROWS_PLACES,
    ROWS_SLOPES,
    SLOPE,
    VALUE,
)
from amc_pymc.tall.groups.parts import (
    add_covariance,
    clear,
    copy_matrix,
    copy_vector,
    directions,
    log_sum,
    longest,
    node_weights,
    offsets,
    padded,
    spread,
)

__all__ = [
    "node_place",
    "rewards",
    "state_rewards",
    "sums",
    "value_and_terms",
    "values",
]

_compiled = njit(cache=True, error_model="numpy")


# --- nodes --------------------------------------------------------------------------------------------


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
def _log_terms(program, eta, shared, kept, size, group, mode, factor, nodes, log_weights, terms):
    """Write the logarithms of integrand times weight at nodes (K, q) around the mode."""
    u, total = np.empty(program[N_LOCAL]), np.empty(1)
    for k in range(log_weights.size):
        node_place(program, mode, factor, nodes[k], u)
        value = log_density(program, eta, shared, kept, size, group, u, total)
        terms[k] = value + log_weights[k]


@_compiled
def value_and_terms(
    program, eta, shared, kept, block, size, group, mode, factor, nodes, log_weights, terms
):
    """Return a group's marginal log-likelihood; mode (q,) and factor (q, q) are updated in place.

    Writes the logarithms of integrand times weight at the nodes to ``terms`` (K,).
    """
    keep_rows(program, VALUE, eta, shared, block, size, kept)
    log_det = 0.0
    if program[DISCRETE] == 0:
        log_det = climb(program, eta, shared, kept, size, group, mode, factor)
    _log_terms(
        program, eta, shared, kept, size, group, mode, factor, nodes, log_weights, terms
    )  # fmt: skip
    return log_det + log_sum(terms)


@_compiled
def _value(program, eta, shared, kept, block, size, group, mode, factor, nodes, log_weights):
    """Return a group's marginal log-likelihood only."""
    terms = np.empty(log_weights.size)
    return value_and_terms(
        program, eta, shared, kept, block, size, group, mode, factor, nodes, log_weights, terms
    )  # fmt: skip


@_compiled
def values(
    eta, units, rows, first, groups, modes, factors, nodes, log_weights, keep, counter, program
):
    """Return the marginal log-likelihoods (m,) of some groups.

    The search starts from ``modes`` (G, q) and ``factors`` (G, q, q), which are updated if ``keep``.
    """
    out = np.empty(units.size)
    shared = of_parameters(program, VALUE, eta)
    width = longest(first, units)
    block, kept = np.zeros((program[N_COLUMNS], width)), room_of(program, VALUE, width)
    q = program[N_LOCAL]
    mode, factor = np.empty(q), np.empty((q, q))
    for n in range(units.size):
        g = units[n]
        size = first[g + 1] - first[g]
        gather(rows, first[g], size, block)
        copy_vector(mode, modes[g])
        copy_matrix(factor, factors[g])
        out[n] = _value(
            program, eta, shared, kept, block, size, groups[g], mode, factor, nodes, log_weights
        )  # fmt: skip
        counter[0] += size
        if keep:
            copy_vector(modes[g], mode)
            copy_matrix(factors[g], factor)
    return out


@_compiled
def curvatures(eta, units, rows, first, groups, modes, factors, nodes, weights, program):
    """Return the sums over some groups of :func:`amc_pymc.tall.groups.climb.curvatures` at their modes.

    A group whose curvature is not finite is left out.
    """
    shared = of_parameters(program, VALUE, eta)
    width = longest(first, units)
    block, kept = np.zeros((program[N_COLUMNS], width)), room_of(program, VALUE, width)
    q = program[N_LOCAL]
    mode, factor = np.empty(q), np.empty((q, q))
    total = np.zeros(2)
    for g in units:
        size = first[g + 1] - first[g]
        copy_vector(mode, modes[g])
        copy_matrix(factor, factors[g])
        gather(rows, first[g], size, block)
        keep_rows(program, VALUE, eta, shared, block, size, kept)
        climb(program, eta, shared, kept, size, groups[g], mode, factor)
        measured, explained = curvatures_of_group(
            program, eta, shared, kept, size, groups[g], mode, factor, nodes, weights
        )
        if np.isfinite(measured + explained):
            total[0] += measured
            total[1] += explained
    return total


# --- residuals ----------------------------------------------------------------------------------------


@_compiled
def _expansion(
    program, at, du, dv, shared, kept, block, size, group, mode, factor, nodes, log_weights, terms
):
    """Return the derivatives of log L along du and dv, and the mixed second derivative.

    Writes the logarithms of integrand times weight at the nodes to ``terms`` (K,).
    """
    call(
        program[JET + ROWS], at, du, dv, shared, block, block.shape[1], padded(size), kept,
        kept.shape[1],
    )  # fmt: skip
    n_nodes = log_weights.size
    jets = np.empty((n_nodes, 4))
    u = np.empty(program[N_LOCAL])
    for k in range(n_nodes):
        node_place(program, mode, factor, nodes[k], u)
        jet_of(program, at, du, dv, shared, kept, size, group, u, jets[k])
        terms[k] = jets[k, 0] + log_weights[k]
    total = log_sum(terms)
    first_u, first_v, second = 0.0, 0.0, 0.0
    for k in range(n_nodes):
        weight = math.exp(terms[k] - total)
        if weight == 0.0:  # derivatives may be infinite there
            continue
        first_u += weight * jets[k, 1]
        first_v += weight * jets[k, 2]
        second += weight * (jets[k, 3] + jets[k, 1] * jets[k, 2])
    return first_u, first_v, second - first_u * first_v


@_compiled
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
    program,
):
    """Return residual changes of groups from points[0] to points[1], in row 1 of (2, m).

    With u = points[1] - points[0] and v = points[1] + points[0] - 2 centre over the coordinates in
    ``mask`` (1 or 0), the control variate changes by d_u log L + d_u d_v log L / 2 at the centre, with
    ``nodes`` at the stored modes. Log-likelihoods use the same nodes, unless changes of the log
    integrand from the centre range over more than ``most_spread`` (1,) between nodes; then they use
    ``moved_nodes`` around the modes at both points.
    """
    at, du, dv = np.empty(mask.size), np.empty(mask.size), np.empty(mask.size)
    directions(points[0], points[1], centre, mask, at, du, dv)
    here, there = of_parameters(program, VALUE, points[0]), of_parameters(program, VALUE, points[1])
    jets = of_line(program, at, du, dv)
    width, q = longest(first, units), program[N_LOCAL]
    block = np.zeros((program[N_COLUMNS], width))
    kept, kept_there = room_of(program, VALUE, width), room_of(program, VALUE, width)
    kept_jets = room_of(program, JET, width)
    mode, factor = np.empty(q), np.empty((q, q))
    at_centre = np.empty(log_weights.size)
    old, new = np.empty(log_weights.size), np.empty(log_weights.size)
    out = np.zeros((2, units.size))
    for n in range(units.size):
        g = units[n]
        size = first[g + 1] - first[g]
        counter[0] += size
        gather(rows, first[g], size, block)
        slope, _, curvature = _expansion(
            program, at, du, dv, jets, kept_jets, block, size, groups[g], modes[g], factors[g],
            nodes, log_weights, at_centre,
        )  # fmt: skip
        near = most_spread[0] > 0.0
        if near:
            keep_rows(program, VALUE, points[0], here, block, size, kept)
            keep_rows(program, VALUE, points[1], there, block, size, kept_there)
            held = (size, groups[g], modes[g], factors[g], nodes, log_weights)
            _log_terms(program, points[0], here, kept, *held, old)
            _log_terms(program, points[1], there, kept_there, *held, new)
            near = spread(old, at_centre) <= most_spread[0] >= spread(new, at_centre)
        if near:
            change = log_sum(new) - log_sum(old)
        else:
            moved = (block, size, groups[g], mode, factor, moved_nodes, moved_log_weights)
            copy_vector(mode, modes[g])
            copy_matrix(factor, factors[g])
            before = _value(program, points[0], here, kept, *moved)
            after = _value(program, points[1], there, kept, *moved)
            change = -math.inf if after == -math.inf else after - before
        out[1, n] = change if change == -math.inf else change - slope - 0.5 * curvature
    return out


@_compiled
def state_rewards(
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
    counter,
    program,
):
    """Return log-likelihoods of groups at K points minus their Taylor polynomials, (K, m).

    The polynomials around ``centre`` omit their constants, which are the same for all points.
    """
    out = np.empty((points.shape[0], units.size))
    at, du = np.empty(mask.size), np.empty(mask.size)
    width = longest(first, units)
    block, kept = np.zeros((program[N_COLUMNS], width)), room_of(program, JET, width)
    terms = np.empty(log_weights.size)
    for k in range(points.shape[0]):
        offsets(points[k], centre, mask, at, du)
        found = values(
            points[k], units, rows, first, groups, modes, factors, nodes, log_weights, False,
            counter, program,
        )  # fmt: skip
        copy_vector(out[k], found)
        jets = of_line(program, at, du, du)
        for n in range(units.size):
            g = units[n]
            size = first[g + 1] - first[g]
            gather(rows, first[g], size, block)
            slope, _, curvature = _expansion(
                program, at, du, du, jets, kept, block, size, groups[g], modes[g], factors[g],
                nodes, log_weights, terms,
            )  # fmt: skip
            out[k, n] -= slope + 0.5 * curvature
    return out


# --- sums and their derivatives -------------------------------------------------------------------------


@_compiled
def sums(
    eta, units, rows, first, groups, modes, factors, nodes, log_weights, climbs, second, counter,
    program,
):  # fmt: skip
    """Return the sum of log L over some groups, its gradient (E,) and, if ``second``, Hessian (E, E).

    ``climbs`` says whether nodes are centred at each group's mode at eta or at the stored mode.
    """
    size_eta = eta.size
    total = 0.0
    gradient = np.zeros(size_eta)
    hessian = np.zeros((size_eta, size_eta)) if second else np.zeros((0, 0))
    other = np.zeros(hessian.shape)
    shared, slope = of_parameters(program, VALUE, eta), of_parameters(program, SLOPE, eta)
    width, q, n_nodes = longest(first, units), program[N_LOCAL], log_weights.size
    block = np.zeros((program[N_COLUMNS], width))
    kept, kept_slope = room_of(program, VALUE, width), room_of(program, SLOPE, width)
    n_leaves, n_prior = program[N_ENTRIES] + program[N_DOTS], program[N_PRIOR_LEAVES]
    part = np.empty((n_leaves + n_leaves * (n_leaves + 1) // 2, width))
    found = np.empty((max(1, program[N_SLOPES]), width))
    places = np.empty((max(1, program[N_ENTRIES]), width), np.int64)
    prior_part = np.empty(n_prior + n_prior * (n_prior + 1) // 2)
    prior_found, prior_at = np.empty(max(1, prior_part.size)), np.empty(max(1, n_prior), np.int64)
    at_node = np.empty((n_nodes, size_eta))
    terms, u, work = np.empty(n_nodes), np.empty(q), np.empty(width)
    mode, factor = np.empty(q), np.empty((q, q))
    for g in units:
        size = first[g + 1] - first[g]
        group = groups[g]
        counter[0] += size
        copy_vector(mode, modes[g])
        copy_matrix(factor, factors[g])
        gather(rows, first[g], size, block)
        keep_rows(program, VALUE, eta, shared, block, size, kept)
        keep_rows(program, SLOPE, eta, slope, block, size, kept_slope)
        call(program[ROWS_PLACES], eta, slope, block, width, size, places, width)
        for a in range(part.shape[0]):
            clear(part[a, :size])
        clear(prior_part)
        log_det = 0.0
        if program[DISCRETE] == 0:
            if climbs:
                log_det = climb(program, eta, shared, kept, size, group, mode, factor)
            else:
                for a in range(q):
                    log_det += math.log(abs(factor[a, a]))
        _log_terms(
            program, eta, shared, kept, size, group, mode, factor, nodes, log_weights, terms
        )  # fmt: skip
        total += log_det + log_sum(terms)
        node_weights(terms)
        call(program[PRIOR_PLACES], eta, slope, group, prior_at)
        for k in range(n_nodes):
            w = terms[k]
            node_place(program, mode, factor, nodes[k], u)
            s = at_node[k]
            clear(s)
            if w == 0.0:  # derivatives may be infinite there
                continue
            call(program[PRIOR_SLOPES], eta, slope, group, u, prior_found)
            for a in range(prior_part.size):
                prior_part[a] += w * prior_found[a]
            for a in range(n_prior):
                s[prior_at[a]] += prior_found[a]
            call(program[ROWS_SLOPES], eta, slope, kept_slope, width, size, u, found, width)
            for a in range(part.shape[0]):
                for j in range(size):
                    part[a, j] += w * found[a, j]
            if second:
                add_gradient(program, found, places, block, size, s)
        if second:
            add_covariance(hessian, at_node, terms)
            _add_prior(prior_part, prior_at, n_prior, hessian)
            add_hessian(program, part[n_leaves:], places, block, size, work, hessian, other)
        for a in range(n_prior):
            gradient[prior_at[a]] += prior_part[a]
        add_gradient(program, part, places, block, size, gradient)
    if second:
        add_transposed(hessian, other)
    return total, gradient, hessian


@_compiled
def _add_prior(part, at, n_leaves, hessian):
    """Add second derivatives of the local effects' log density (lower triangle) to the Hessian."""
    n = n_leaves
    for a in range(n_leaves):
        for b in range(a + 1):
            hessian[at[a], at[b]] += part[n]
            if a != b:
                hessian[at[b], at[a]] += part[n]
            n += 1
