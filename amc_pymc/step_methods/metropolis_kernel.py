"""Metropolis-Hastings transitions whose accept step is a two-arm race, compiled as one loop.

Arm 0 is the current point x, arm 1 the proposal x' (Chen & Ghahramani 2016, eq. 12).
"""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from numba import njit

from amc_pymc.proposals import (
    conditional_mean,
    gaussian_log_ratio,
    langevin_log_ratio,
    propose_gaussian,
    propose_langevin,
    propose_random_walk,
)
from amc_pymc.racing import DECIDED
from amc_pymc.racing.population import draw_rows, forget_rows
from amc_pymc.step_methods.compiled import Surrogate, decide

__all__ = ["KINDS", "AuditLog", "Moves", "log_decision", "run_transitions"]

KINDS = ("random_walk", "gaussian", "langevin")
_RANDOM_WALK, _GAUSSIAN, _LANGEVIN = 0, 1, 2


class Moves(NamedTuple):
    """What to propose.

    ``weights`` (3,) are the probabilities of the kinds in ``KINDS``, ``scales`` (3,) their
    scales, ``active`` (A,) the coordinates moved, ``mean`` (D,), ``gain`` (A, D), ``chol`` (A, A)
    and ``chol_inverse`` the Gaussian approximation, ``walk_chol`` (A, A) the random walk's factor,
    ``gradient_rows`` the rows of a Langevin gradient, ``slope`` the surrogate its control variate
    is made of.
    """

    weights: np.ndarray
    scales: np.ndarray
    active: np.ndarray
    mean: np.ndarray
    gain: np.ndarray
    chol: np.ndarray
    chol_inverse: np.ndarray
    walk_chol: np.ndarray
    gradient_rows: int
    slope: Surrogate


class AuditLog(NamedTuple):
    """A uniform sample of C of the decisions made since the last audit.

    ``x`` and ``x_new`` are (C, D); ``decision`` (C, 3) holds the log ratio without the rows, the
    verdict and the raced rows read; ``count`` (1,) counts all decisions.
    """

    x: np.ndarray
    x_new: np.ndarray
    decision: np.ndarray
    count: np.ndarray  # type: ignore[assignment]


@njit(cache=True)
def _pick(weights, rng):
    """A kind with the given probabilities; no draw where there is only one."""
    last = 0
    several = 0
    for k in range(weights.size):
        if weights[k] > 0.0:
            last = k
            several += 1
    if several == 1:
        return last
    u = rng.random()
    for k in range(weights.size):
        u -= weights[k]
        if u < 0.0:
            return k
    return last


@njit(cache=True)
def _gradients(points, densities, population, moves, rows):
    """Estimates (2, D) of the log posterior's gradient at both points from the same rows."""
    slope = moves.slope
    out = densities.row_gradient(points, slope.centre, rows)
    out *= population.n_raced / max(1, rows.size)
    if population.exact.size:
        out += densities.row_gradient(points, slope.centre, population.exact)
    for k in range(points.shape[0]):
        out[k] += densities.rest_gradient(points[k])
        out[k] += slope.gradient + slope.hessian @ (points[k] - slope.centre)
    return out


@njit(cache=True)
def _propose(kind, points, densities, population, moves, rng):
    """Write x' into points[1]; return log q(x | x') - log q(x' | x) and the rows it read."""
    x = points[0]
    active = moves.active
    scale = moves.scales[kind]
    points[1] = x
    if kind == _RANDOM_WALK:
        points[1][active] = propose_random_walk(x[active], moves.walk_chol, scale, rng)
        return 0.0, 0
    mean = conditional_mean(x, moves.mean, active, moves.gain)
    w = moves.chol_inverse @ (x[active] - mean)
    if kind == _GAUSSIAN:
        w_new = propose_gaussian(w, scale, rng)
        points[1][active] = mean + moves.chol @ w_new
        return gaussian_log_ratio(w, w_new), 0
    rows = np.empty(min(moves.gradient_rows, population.n_raced), dtype=np.int64)
    draw_rows(population, rows, rng)
    forget_rows(population, rows)
    here = _gradients(points[:1], densities, population, moves, rows)[0]
    g = moves.chol.T @ here[active]
    w_new = propose_langevin(w, g, scale, rng)
    points[1][active] = mean + moves.chol @ w_new
    there = _gradients(points[1:], densities, population, moves, rows)[0]
    g_new = moves.chol.T @ there[active]
    return langevin_log_ratio(w, g, w_new, g_new, scale), 2 * rows.size


@njit(cache=True)
def log_decision(log, points, log_ratio, accepted, rows, rng):
    """Reservoir sampling of decisions to be audited."""
    size = log.x.shape[0]
    k = log.count[0]
    log.count[0] += 1
    slot = k if k < size else np.int64(rng.random() * (k + 1))
    if slot < size:
        log.x[slot] = points[0]
        log.x_new[slot] = points[1]
        log.decision[slot, 0] = log_ratio
        log.decision[slot, 1] = accepted
        log.decision[slot, 2] = rows


@njit(cache=True)
def run_transitions(
    n, points, densities, surrogate, population, rule, moves, rng, log, log_rng, stats
):
    """Make ``n`` transitions from points[0] (points is (2, D), overwritten).

    Adds to ``stats`` (4, 4): row k for proposals of kind k: tries, accepted, sum of estimated
    acceptance probabilities, sum of squared jumps in standard deviations; the last row: raced rows
    read, rounds, other rows read. Decisions are logged if ``log`` has room.

    Returns the number of transitions made, the status and the offending row; with ``NOT_FINITE``
    the last transition was not made and points[1] holds its proposal.
    """
    rest = densities.rest(points[0])
    here = densities.parameters(points[0])
    arms = np.empty((2, here.size))
    for done in range(n):
        kind = _pick(moves.weights, rng)
        log_q, gradient_rows = _propose(kind, points, densities, population, moves, rng)
        rest_new = densities.rest(points[1])
        stats[kind, 0] += 1
        stats[3, 2] += gradient_rows
        log_u = math.log(1.0 - rng.random())
        known = rest_new - rest + log_q - log_u
        if not known > -np.inf:
            continue
        arms[0] = here
        arms[1] = densities.parameters(points[1])
        verdict = decide(known, arms, densities, surrogate, population, rule, rng)
        stats[3, 0] += verdict.raced
        stats[3, 1] += verdict.rounds
        stats[3, 2] += verdict.exact
        if verdict.status != DECIDED:
            return done, verdict.status, verdict.row
        accepted = verdict.accepted
        stats[kind, 1] += accepted
        stats[kind, 2] += math.exp(min(0.0, verdict.gap + log_u))
        if log.x.shape[0]:
            log_decision(log, points, known, accepted, verdict.raced, log_rng)
        if accepted:
            active = moves.active
            jump = moves.chol_inverse @ (points[1][active] - points[0][active])
            stats[kind, 3] += np.dot(jump, jump)
            points[0] = points[1]
            here = arms[1].copy()
            rest = rest_new
    return n, DECIDED, -1
