"""Compiled loops for the total marginal log-likelihood of all groups at many points.

Totals are sums of the values of :mod:`amc_pymc.tall.groups.loops`. A sum stops at the first group whose
value is not finite.
"""

from __future__ import annotations

import math

import numpy as np

from amc_pymc.engine.jit import njit
from amc_pymc.engine.leaves import N_COLUMNS, N_DOTS, N_ENTRIES, add_gradient
from amc_pymc.engine.machine import call
from amc_pymc.engine.stages import of_parameters, room_of
from amc_pymc.tall.groups.blocks import gather, keep_rows
from amc_pymc.tall.groups.layout import (
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
from amc_pymc.tall.groups.loops import node_place, value_and_terms
from amc_pymc.tall.groups.parts import clear, copy_matrix, copy_vector, longest, node_weights

__all__ = ["total_gradients", "totals"]

_compiled = njit(cache=True, error_model="numpy")


@_compiled
def totals(etas, rows, first, groups, modes, factors, nodes, log_weights, program):
    """Return sums (P,) of all groups' marginal log-likelihoods at points (P, E).

    The search for each group's mode starts from ``modes`` (G, q) and ``factors`` (G, q, q).
    """
    n_points, q = etas.shape[0], program[N_LOCAL]
    width = longest(first, np.arange(first.size - 1))
    block, kept = np.zeros((program[N_COLUMNS], width)), room_of(program, VALUE, width)
    mode, factor, terms = np.empty(q), np.empty((q, q)), np.empty(log_weights.size)
    out = np.zeros(n_points)
    for p in range(n_points):
        shared = of_parameters(program, VALUE, etas[p])
        for g in range(first.size - 1):
            size = first[g + 1] - first[g]
            gather(rows, first[g], size, block)
            copy_vector(mode, modes[g])
            copy_matrix(factor, factors[g])
            out[p] += value_and_terms(
                program, etas[p], shared, kept, block, size, groups[g], mode, factor, nodes,
                log_weights, terms,
            )  # fmt: skip
            if not math.isfinite(out[p]):
                break
    return out


@_compiled
def total_gradients(etas, rows, first, groups, modes, factors, nodes, log_weights, program):
    """Return the sums (P,) and their gradients (P, E) by Fisher's identity."""
    n_points, q = etas.shape[0], program[N_LOCAL]
    width = longest(first, np.arange(first.size - 1))
    block, kept = np.zeros((program[N_COLUMNS], width)), room_of(program, VALUE, width)
    mode, factor, terms = np.empty(q), np.empty((q, q)), np.empty(log_weights.size)
    room = _room(program, width)
    out, gradients = np.zeros(n_points), np.zeros(etas.shape)
    for p in range(n_points):
        shared = of_parameters(program, VALUE, etas[p])
        slope = of_parameters(program, SLOPE, etas[p])
        for g in range(first.size - 1):
            size = first[g + 1] - first[g]
            gather(rows, first[g], size, block)
            copy_vector(mode, modes[g])
            copy_matrix(factor, factors[g])
            out[p] += value_and_terms(
                program, etas[p], shared, kept, block, size, groups[g], mode, factor, nodes,
                log_weights, terms,
            )  # fmt: skip
            if not math.isfinite(out[p]):
                break
            node_weights(terms)
            _add_slopes(
                program, etas[p], slope, block, size, groups[g], mode, factor, nodes, terms, room,
                gradients[p],
            )  # fmt: skip
    return out, gradients


@_compiled
def _room(program, width):
    """Allocate arrays for the derivatives of a group's rows and local effects."""
    n_rows, n_prior = program[N_ENTRIES] + program[N_DOTS], program[N_PRIOR_LEAVES]
    return (
        room_of(program, SLOPE, width),
        np.empty((max(1, n_rows), width)),
        np.empty((max(1, program[N_SLOPES]), width)),
        np.empty((max(1, program[N_ENTRIES]), width), np.int64),
        np.empty(max(1, n_prior + n_prior * (n_prior + 1) // 2)),
        np.empty(max(1, n_prior), np.int64),
        np.empty(program[N_LOCAL]),
    )


@_compiled
def _add_slopes(
    program, eta, slope, block, size, group, mode, factor, nodes, weights, room, gradient
):
    """Add the gradient of a group's marginal log-likelihood, a weighted mean over nodes."""
    kept, part, found, places, prior_found, prior_at, u = room
    width = block.shape[1]
    n_leaves, n_prior = program[N_ENTRIES] + program[N_DOTS], program[N_PRIOR_LEAVES]
    keep_rows(program, SLOPE, eta, slope, block, size, kept)
    call(program[ROWS_PLACES], eta, slope, block, width, size, places, width)
    call(program[PRIOR_PLACES], eta, slope, group, prior_at)
    for a in range(n_leaves):
        clear(part[a, :size])
    for k in range(weights.size):
        if weights[k] == 0.0:  # derivatives may be infinite there
            continue
        node_place(program, mode, factor, nodes[k], u)
        call(program[PRIOR_SLOPES], eta, slope, group, u, prior_found)
        for a in range(n_prior):
            gradient[prior_at[a]] += weights[k] * prior_found[a]
        call(program[ROWS_SLOPES], eta, slope, kept, width, size, u, found, width)
        for a in range(n_leaves):
            for j in range(size):
                part[a, j] += weights[k] * found[a, j]
    add_gradient(program, part, places, block, size, gradient)
