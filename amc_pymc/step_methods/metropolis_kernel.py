"""Metropolis-Hastings transitions whose accept step is a two-arm race, compiled as one loop.

Arm 0 is the current point x, arm 1 the proposal x'. With a second-order Taylor control variate h
of every row around a centre c, u = x' - x and v = x' + x - 2c,

    sum_n [l_n(x') - l_n(x)] = G.u + u'Hv/2 + sum_n r_n,     r_n = residual of row n,

where G and H are population sums of gradients and Hessians at c, stored once. The race estimates
the mean of r_n only (Chen & Ghahramani 2016, eq. 11-12, with the control variate in the parameters
as in Bardenet, Doucet & Holmes 2017, JMLR 18(47)).
"""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from numba import cfunc, njit, types

from amc_pymc.proposals import (
    conditional_mean,
    gaussian_log_ratio,
    langevin_log_ratio,
    propose_gaussian,
    propose_langevin,
    propose_random_walk,
)
from amc_pymc.racing import DECIDED, NOT_FINITE, race
from amc_pymc.racing.population import draw_rows, forget_rows

__all__ = [
    "GRADIENT",
    "KINDS",
    "LOGP",
    "ROW_GRADIENT",
    "AuditLog",
    "Densities",
    "Moves",
    "Surrogate",
    "no_gradient",
    "no_row_gradient",
    "run_transitions",
    "surrogate_change",
]

#: log density of everything but the raced rows: x (D,) -> float.
LOGP = types.float64(types.float64[::1])
#: its gradient: x (D,) -> (D,).
GRADIENT = types.float64[::1](types.float64[::1])
#: sum over rows of the gradient of their residuals: points (K, D), centre (D,), rows -> (K, D).
ROW_GRADIENT = types.float64[:, ::1](types.float64[:, ::1], types.float64[::1], types.int64[::1])

KINDS = ("random_walk", "gaussian", "langevin")
_RANDOM_WALK, _GAUSSIAN, _LANGEVIN = 0, 1, 2


@cfunc(GRADIENT, cache=True)
def no_gradient(x):
    """Stand-in where no proposal needs a gradient."""
    return np.zeros_like(x)


@cfunc(ROW_GRADIENT, cache=True)
def no_row_gradient(points, centre, rows):
    """Stand-in where no proposal needs row gradients."""
    return np.zeros_like(points)


class Densities(NamedTuple):
    """Compiled pieces of the log posterior."""

    rewards: object
    rest: object
    rest_gradient: object
    row_gradient: object


class Surrogate(NamedTuple):
    """Second-order surrogate of the log-likelihood: centre (D,), sums G (D,) and H (D, D)."""

    centre: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray


class Moves(NamedTuple):
    """What to propose.

    ``weights`` (3,) are the probabilities of the kinds in ``KINDS``, ``scales`` (3,) their
    scales, ``active`` (A,) the coordinates moved, ``mean`` (D,), ``gain`` (A, D), ``chol`` (A, A)
    and ``chol_inverse`` the Gaussian approximation, ``walk_chol`` (A, A) the random walk's factor,
    ``gradient_rows`` the rows of a Langevin gradient.
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
def _gradients(points, densities, surrogate, population, moves, rows):
    """Estimates (2, D) of the log posterior's gradient at both points from the same rows."""
    out = densities.row_gradient(points, surrogate.centre, rows)
    out *= population.n_raced / max(1, rows.size)
    if population.exact.size:
        out += densities.row_gradient(points, surrogate.centre, population.exact)
    for k in range(points.shape[0]):
        out[k] += densities.rest_gradient(points[k])
        out[k] += surrogate.gradient + surrogate.hessian @ (points[k] - surrogate.centre)
    return out


@njit(cache=True)
def _propose(kind, points, densities, surrogate, population, moves, rng):
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
    here = _gradients(points[:1], densities, surrogate, population, moves, rows)[0]
    g = moves.chol.T @ here[active]
    w_new = propose_langevin(w, g, scale, rng)
    points[1][active] = mean + moves.chol @ w_new
    there = _gradients(points[1:], densities, surrogate, population, moves, rows)[0]
    g_new = moves.chol.T @ there[active]
    return langevin_log_ratio(w, g, w_new, g_new, scale), 2 * rows.size


@njit(cache=True)
def surrogate_change(points, surrogate):
    """G.u + u'Hv/2 for u = x' - x, v = x' + x - 2c."""
    u = points[1] - points[0]
    v = points[1] + points[0] - 2.0 * surrogate.centre
    return np.dot(surrogate.gradient, u) + 0.5 * np.dot(u, surrogate.hessian @ v)


@njit(cache=True)
def _log_decision(log, points, log_ratio, accepted, rows, rng):
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
    n_raced = population.n_raced
    bias = np.zeros(2)
    rest = densities.rest(points[0])
    for done in range(n):
        kind = _pick(moves.weights, rng)
        log_q, gradient_rows = _propose(kind, points, densities, surrogate, population, moves, rng)
        rest_new = densities.rest(points[1])
        stats[kind, 0] += 1
        stats[3, 2] += gradient_rows
        log_u = math.log(1.0 - rng.random())
        known = rest_new - rest + log_q - log_u
        if not known > -np.inf:
            continue
        change = surrogate_change(points, surrogate)
        if population.exact.size:
            exact = densities.rewards(points, surrogate.centre, population.exact)[1]
            for j in range(exact.size):
                if np.isnan(exact[j]) or exact[j] == np.inf:
                    return done, NOT_FINITE, population.exact[j]
            change += exact.sum()
            stats[3, 2] += exact.size
        if not np.isfinite(change):
            continue
        bias[1] = (known + change) / max(1, n_raced)
        result = race(densities.rewards, points, surrogate.centre, bias, population, rule, rng)
        stats[3, 0] += result.rows
        stats[3, 1] += result.rounds
        if result.status != DECIDED:
            return done, result.status, result.row
        accepted = result.winner == 1
        stats[kind, 1] += accepted
        stats[kind, 2] += math.exp(min(0.0, result.margin * max(1, n_raced) + log_u))
        if log.x.shape[0]:
            _log_decision(log, points, known, accepted, result.rows, log_rng)
        if accepted:
            active = moves.active
            jump = moves.chol_inverse @ (points[1][active] - points[0][active])
            stats[kind, 3] += np.dot(jump, jump)
            points[0] = points[1]
            rest = rest_new
    return n, DECIDED, -1
