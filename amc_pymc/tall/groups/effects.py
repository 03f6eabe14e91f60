"""Local effects of groups: joint density with the rows, and draws given parameters."""

from __future__ import annotations

import math

import numpy as np

from amc_pymc.engine.jit import njit
from amc_pymc.engine.leaves import N_COLUMNS
from amc_pymc.engine.machine import call
from amc_pymc.engine.printer import ROWS, of_parameters, room_of
from amc_pymc.tall.groups.climb import climb
from amc_pymc.tall.groups.layout import DISCRETE, N_LOCAL, ROWS_VALUE, VALUE
from amc_pymc.tall.groups.parts import (
    copy_matrix,
    copy_vector,
    draw_student,
    gather,
    keep_rows,
    log_density,
    log_student,
    node_weights,
    rooms,
)

__all__ = ["complete", "draw_effects", "row_values"]

_compiled = njit(cache=True, error_model="numpy")


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
def row_values(eta, effects, levels, rows, program):
    """Return log-likelihoods (m,) of rows given the local effects (G, q) of their ``levels`` (m,)."""
    shared = of_parameters(program, VALUE, eta)
    block, kept = np.zeros((program[N_COLUMNS], 1)), room_of(program, VALUE, 1)
    ends, out = np.arange(levels.size + 1), np.zeros(levels.size)
    for i in range(levels.size):
        gather(rows, ends, i, block)
        call(program[VALUE + ROWS], eta, shared, block, 1, 1, kept, 1)
        call(program[ROWS_VALUE], eta, shared, kept, 1, 1, 1, effects[levels[i]], out[i:])
    return out


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
            copy_vector(effects[g], nodes[_drawn(terms, rng)])
            accepted += tries
            continue
        copy_vector(mode, modes[g])
        copy_matrix(factor, factors[g])
        climb(program, eta, shared, kept, size, group, mode, factor)
        here = log_density(program, eta, shared, kept, size, group, effects[g], room)
        here -= log_student(mode, factor, effects[g])
        for _ in range(tries):
            draw_student(mode, factor, rng, u)
            there = log_density(program, eta, shared, kept, size, group, u, room)
            there -= log_student(mode, factor, u)
            if there > here + math.log(1.0 - rng.random()) or math.isnan(here):
                copy_vector(effects[g], u)
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
