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

from amc_pymc.engine.jit import fill, njit
from amc_pymc.engine.leaves import (
    N_DOTS,
    N_ENTRIES,
    add_gradient,
    add_hessian,
    add_transposed,
)
from amc_pymc.engine.machine import call
from amc_pymc.engine.printer import N_SHARED, ROWS, SHARED, of_parameters, room_of
from amc_pymc.engine.row_kernels.loops import line
from amc_pymc.tall.groups.parts import (
    add_covariance,
    clear,
    climb,
    copy_matrix,
    draw_student,
    gather,
    keep_rows,
    log_density,
    log_student,
    log_sum,
    node_place,
    node_weights,
    padded,
    rooms,
    spread,
)
from amc_pymc.tall.groups.printed import (
    DISCRETE,
    JET,
    N_LOCAL,
    N_PRIOR_LEAVES,
    N_SLOPES,
    PRIOR_JET,
    PRIOR_PLACES,
    PRIOR_SLOPES,
    ROWS_JET,
    ROWS_PLACES,
    ROWS_SLOPES,
    SLOPE,
    VALUE,
)

_compiled = njit(cache=True, error_model="numpy")


# --- nodes --------------------------------------------------------------------------------------------


@_compiled
def _log_terms(program, eta, shared, kept, size, group, mode, factor, nodes, log_weights, terms):
    """Write the logarithms of integrand times weight at nodes (K, q) around the mode."""
    u, total = np.empty(program[N_LOCAL]), np.empty(1)
    for k in range(log_weights.size):
        node_place(program, mode, factor, nodes[k], u)
        value = log_density(program, eta, shared, kept, size, group, u, total)
        terms[k] = value + log_weights[k]


@_compiled
def _value(program, eta, shared, kept, block, size, group, mode, factor, nodes, log_weights):
    """Return a group's marginal log-likelihood; mode (q,) and factor (q, q) are updated in place."""
    terms = np.empty(log_weights.size)
    keep_rows(program, VALUE, eta, shared, block, size, kept)
    log_det = 0.0
    if program[DISCRETE] == 0:
        log_det = climb(program, eta, shared, kept, size, group, mode, factor)
    _log_terms(
        program, eta, shared, kept, size, group, mode, factor, nodes, log_weights, terms
    )  # fmt: skip
    return log_det + log_sum(terms)


@_compiled
def values(
    eta, units, rows, first, groups, modes, factors, nodes, log_weights, keep, counter, program
):
    """Return the marginal log-likelihoods (m,) of some groups.

    The search starts from ``modes`` (G, q) and ``factors`` (G, q, q), which are updated if ``keep``.
    """
    out = np.empty(units.size)
    shared, q = of_parameters(program, VALUE, eta), program[N_LOCAL]
    block, kept = rooms(program, first, units)
    mode, factor = np.empty(q), np.empty((q, q))
    for n in range(units.size):
        g = units[n]
        size = gather(rows, first, g, block)
        fill(mode, modes[g])
        copy_matrix(factor, factors[g])
        out[n] = _value(
            program, eta, shared, kept, block, size, groups[g], mode, factor, nodes, log_weights
        )  # fmt: skip
        counter[0] += size
        if keep:
            fill(modes[g], mode)
            copy_matrix(factors[g], factor)
    return out


# --- residuals ----------------------------------------------------------------------------------------


@_compiled
def _expansion(
    program, at, du, dv, shared, kept, block, size, group, mode, factor, nodes, log_weights, terms
):
    """Return the derivatives of log L along du, and the mixed second derivative along du and dv.

    Writes the logarithms of integrand times weight at the nodes to ``terms`` (K,).
    """
    width, whole = kept.shape[1], padded(size)
    call(program[JET + ROWS], at, du, dv, shared, block, block.shape[1], whole, kept, width)
    n_nodes = log_weights.size
    jets = np.empty((n_nodes, 4))
    u = np.empty(program[N_LOCAL])
    for k in range(n_nodes):
        node_place(program, mode, factor, nodes[k], u)
        call(program[PRIOR_JET], at, du, dv, shared, group, u, jets[k])
        call(program[ROWS_JET], at, du, dv, shared, kept, width, size, whole, u, jets[k])
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
    return first_u, second - first_u * first_v


@_compiled
def rewards(
    points, centre, units, mask, rows, first, groups, modes, factors, nodes, log_weights, most_spread,
    moved_nodes, moved_log_weights, counter, program,
):  # fmt: skip
    """Return residual changes of groups from points[0] to points[1], in row 1 of (2, m).

    With u = points[1] - points[0] and v = points[1] + points[0] - 2 centre over the coordinates in
    ``mask`` (1 or 0), the control variate changes by d_u log L + d_u d_v log L / 2 at the centre, with
    ``nodes`` at the stored modes. Log-likelihoods use the same nodes, unless changes of the log
    integrand from the centre range over more than ``most_spread`` (1,) between nodes; then they use
    ``moved_nodes`` around the modes at both points.
    """
    at, du, dv, _ = line(points[0], points[1], centre, mask)
    here, there = of_parameters(program, VALUE, points[0]), of_parameters(program, VALUE, points[1])
    jets = np.empty(max(1, program[JET + N_SHARED]))
    call(program[JET + SHARED], at, du, dv, jets)
    q = program[N_LOCAL]
    block, kept = rooms(program, first, units)
    kept_there, kept_jets = np.empty(kept.shape), room_of(program, JET, kept.shape[1])
    mode, factor = np.empty(q), np.empty((q, q))
    at_centre = np.empty(log_weights.size)
    old, new = np.empty(log_weights.size), np.empty(log_weights.size)
    out = np.zeros((2, units.size))
    for n in range(units.size):
        g = units[n]
        size = gather(rows, first, g, block)
        counter[0] += size
        slope, curvature = _expansion(
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
            fill(mode, modes[g])
            copy_matrix(factor, factors[g])
            before = _value(program, points[0], here, kept, *moved)
            after = _value(program, points[1], there, kept, *moved)
            change = -math.inf if after == -math.inf else after - before
        out[1, n] = change if change == -math.inf else change - slope - 0.5 * curvature
    return out


# --- sums and their derivatives -------------------------------------------------------------------------


@_compiled
def sums(
    etas, units, rows, first, groups, modes, factors, nodes, log_weights, climbs, order, counter,
    program,
):  # fmt: skip
    """Return sums (P,) of log L over some groups at points (P, E), gradients (P, E) and Hessians (P, E, E).

    Derivatives are empty above the ``order`` 0, 1 or 2. ``climbs`` says whether nodes are centred at each
    group's mode at eta or at the stored mode. A sum stops at the first group that is not finite.
    """
    n_points, size_eta = etas.shape
    totals = np.zeros(n_points)
    gradients = np.zeros((n_points if order > 0 else 0, size_eta))
    hessians = np.zeros((n_points if order > 1 else 0, size_eta, size_eta))
    block, kept = rooms(program, first, units)
    width, q, n_nodes = kept.shape[1], program[N_LOCAL], log_weights.size
    kept_slope = room_of(program, SLOPE, width)
    n_leaves, n_prior = program[N_ENTRIES] + program[N_DOTS], program[N_PRIOR_LEAVES]
    n_row, n_group = n_leaves, n_prior
    if order > 1:
        n_row += n_leaves * (n_leaves + 1) // 2
        n_group += n_prior * (n_prior + 1) // 2
    part = np.empty((n_row, width))
    found = np.empty((max(1, program[N_SLOPES]), width))
    places = np.empty((max(1, program[N_ENTRIES]), width), np.int64)
    prior_part = np.empty(n_group)
    prior_found = np.empty(max(1, n_prior + n_prior * (n_prior + 1) // 2))
    prior_at = np.empty(max(1, n_prior), np.int64)
    at_node = np.empty((n_nodes, size_eta))
    terms, u, work = np.empty(n_nodes), np.empty(q), np.empty(width)
    mode, factor = np.empty(q), np.empty((q, q))
    for p in range(n_points):
        eta = etas[p]
        shared, slope = of_parameters(program, VALUE, eta), of_parameters(program, SLOPE, eta)
        other = np.zeros(hessians.shape[1:] if order > 1 else (0, 0))
        for g in units:
            group = groups[g]
            size = gather(rows, first, g, block)
            counter[0] += size
            fill(mode, modes[g])
            copy_matrix(factor, factors[g])
            keep_rows(program, VALUE, eta, shared, block, size, kept)
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
            totals[p] += log_det + log_sum(terms)
            if not math.isfinite(totals[p]):
                break
            if order == 0:
                continue
            node_weights(terms)
            keep_rows(program, SLOPE, eta, slope, block, size, kept_slope)
            call(program[ROWS_PLACES], eta, slope, block, width, size, places, width)
            call(program[PRIOR_PLACES], eta, slope, group, prior_at)
            for a in range(n_row):
                clear(part[a, :size])
            clear(prior_part)
            for k in range(n_nodes):
                w, s = terms[k], at_node[k]
                clear(s)
                if w == 0.0:  # derivatives may be infinite there
                    continue
                node_place(program, mode, factor, nodes[k], u)
                call(program[PRIOR_SLOPES], eta, slope, group, u, prior_found)
                for a in range(n_group):
                    prior_part[a] += w * prior_found[a]
                call(program[ROWS_SLOPES], eta, slope, kept_slope, width, size, u, found, width)
                for a in range(n_row):
                    for j in range(size):
                        part[a, j] += w * found[a, j]
                if order > 1:
                    for a in range(n_prior):
                        s[prior_at[a]] += prior_found[a]
                    add_gradient(program, found, places, block, size, s)
            for a in range(n_prior):
                gradients[p, prior_at[a]] += prior_part[a]
            add_gradient(program, part, places, block, size, gradients[p])
            if order > 1:
                add_covariance(hessians[p], at_node, terms)
                _add_prior(prior_part, prior_at, n_prior, hessians[p])
                add_hessian(
                    program, part[n_leaves:], places, block, size, work, hessians[p], other
                )  # fmt: skip
        if order > 1:
            add_transposed(hessians[p], other)
    return totals, gradients, hessians


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


# --- local effects ---------------------------------------------------------------------------------


@_compiled
def complete(eta, effects, rows, first, groups, program):
    """Return the sum over all groups of the log density of rows and local effects (G, q)."""
    shared = of_parameters(program, VALUE, eta)
    units = np.arange(first.size - 1)
    block, kept = rooms(program, first, units)
    total, room = 0.0, np.empty(1)
    for g in units:
        size = gather(rows, first, g, block)
        keep_rows(program, VALUE, eta, shared, block, size, kept)
        total += log_density(program, eta, shared, kept, size, groups[g], effects[g], room)
    return total


@_compiled
def draw_effects(
    eta, effects, tries, rng, rows, first, groups, modes, factors, nodes, log_weights, counter,
    program,
):  # fmt: skip
    """Draw the local effects (G, q) of all groups given eta, in place.

    Discrete effects are drawn exactly. Others are updated by ``tries`` independence Metropolis-Hastings
    steps with multivariate t proposals around the mode. Returns the acceptance rate.
    """
    shared = of_parameters(program, VALUE, eta)
    units, q = np.arange(first.size - 1), program[N_LOCAL]
    block, kept = rooms(program, first, units)
    mode, factor, u = np.empty(q), np.empty((q, q)), np.empty(q)
    terms, room = np.empty(log_weights.size), np.empty(1)
    accepted = 0
    for g in units:
        group = groups[g]
        size = gather(rows, first, g, block)
        counter[0] += size
        keep_rows(program, VALUE, eta, shared, block, size, kept)
        if program[DISCRETE] != 0:
            for k in range(terms.size):
                terms[k] = log_density(program, eta, shared, kept, size, group, nodes[k], room)
            node_weights(terms)
            fill(effects[g], nodes[_drawn(terms, rng)])
            accepted += tries
            continue
        fill(mode, modes[g])
        copy_matrix(factor, factors[g])
        climb(program, eta, shared, kept, size, group, mode, factor)
        here = log_density(program, eta, shared, kept, size, group, effects[g], room)
        here -= log_student(mode, factor, effects[g])
        for _ in range(tries):
            draw_student(mode, factor, rng, u)
            there = log_density(program, eta, shared, kept, size, group, u, room)
            there -= log_student(mode, factor, u)
            if there > here + math.log(1.0 - rng.random()) or math.isnan(here):
                fill(effects[g], u)
                here = there
                accepted += 1
    return accepted / max(1, tries * units.size)


@_compiled
def _drawn(weights, rng):
    """Draw an index with the given probabilities."""
    left = rng.random()
    k = 0
    while k < weights.size - 1 and left >= weights[k]:
        left -= weights[k]
        k += 1
    return k
