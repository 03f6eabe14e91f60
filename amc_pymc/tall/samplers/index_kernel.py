"""Draws of the model index of a Carlin-Chib product space by races between models.

The parameters of the current model come from its posterior, those of the other models from their
pseudo-priors. Given all parameters, model k is drawn with probability proportional to

    pi_k p_k(theta_k) prod_n p_k(y_n | theta_k) / g_k(theta_k),

where g_k is its pseudo-prior (Carlin & Chib 1995). The arms are the models (Chen & Ghahramani 2016,
eq. 25).
"""

from __future__ import annotations

import math

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numba import types

from amc_pymc.engine.jit import njit
from amc_pymc.engine.records import record
from amc_pymc.engine.streams import Stream, generator_of
from amc_pymc.tall.racing import BY_ROUNDS, DECIDED, NOT_FINITE, Population, RaceRule
from amc_pymc.tall.samplers.logs import IndexLog, reservoir_slot

__all__ = ["VALUES", "IndexRaces", "IndexStep", "Models", "draw_index", "known_totals", "surrogate"]

#: Signature of functions with one value per point: points (K, 1 + D) -> (K,).
VALUES = types.float64[::1](types.float64[:, ::1])


@record
class Models(NamedTuple):
    """M models with D_k parameters each, padded to D.

    ``sizes`` (M,) holds the D_k; ``mean`` (M, D), ``chol`` (M, D, D), ``chol_inverse`` and
    ``log_norm`` (M,) the Gaussian pseudo-priors; ``base`` (M,), ``centre``, ``gradient`` (M, D) and
    ``hessian`` (M, D, D) the second-order surrogates of summed log-likelihoods; ``centres``
    (sum D_k,) the concatenated centres.
    """

    sizes: np.ndarray
    mean: np.ndarray
    chol: np.ndarray
    chol_inverse: np.ndarray
    log_norm: np.ndarray
    base: np.ndarray
    centre: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray
    centres: np.ndarray


@record
class IndexRaces(NamedTuple):
    """Arguments of draws of the index.

    ``rest`` and ``control`` are first-class functions of signature ``VALUES``: the log density without
    the rows, and the population sum of the control variate in data space. ``rewards`` has signature
    :data:`amc_pymc.tall.racing.REWARDS`.
    """

    models: Models
    rest: Callable[[np.ndarray], np.ndarray]
    control: Callable[[np.ndarray], np.ndarray]
    rewards: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    population: Population
    rule: RaceRule
    race: Any = BY_ROUNDS


class IndexStep(NamedTuple):
    """Outcome of one draw of the index.

    ``rows`` counts raced rows, ``exact`` rows always read, ``evaluations`` evaluations of one row
    under one model. ``row`` is the offending row if ``status`` is ``NOT_FINITE``.
    """

    model: int
    rows: int
    exact: int
    evaluations: int
    rounds: int
    arms_left: int
    status: int
    row: int


@njit(cache=True)
def _fill(
    points: np.ndarray,
    current: int,
    models: Models,
    log_pseudo: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Draw the other models' parameters; write the log pseudo-prior of each model (M,)."""
    for k in range(models.sizes.size):
        d = models.sizes[k]
        theta = points[k, 1 : 1 + d]
        if k == current:
            shift = theta - models.mean[k, :d]
            z = np.zeros(d)
            for i in range(d):
                for j in range(i + 1):
                    z[i] += models.chol_inverse[k, i, j] * shift[j]
        else:
            z = np.empty(d)
            for i in range(d):
                z[i] = rng.standard_normal()
            for i in range(d):
                theta[i] = models.mean[k, i]
                for j in range(i + 1):
                    theta[i] += models.chol[k, i, j] * z[j]
        log_pseudo[k] = models.log_norm[k] - 0.5 * np.dot(z, z)


@njit(cache=True)
def surrogate(theta: np.ndarray, k: int | np.int64, models: Models) -> float:
    """Return the second-order surrogate of model k's summed log-likelihood."""
    d = theta.size
    u = theta - models.centre[k, :d]
    total = models.base[k] + np.dot(models.gradient[k, :d], u)
    for i in range(d):
        for j in range(d):
            total += 0.5 * models.hessian[k, i, j] * u[i] * u[j]
    return total


@njit(cache=True)
def known_totals(
    points: np.ndarray, models: Models, control: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return the control variates' sums over all rows at points (K, 1 + D)."""
    out = control(points)
    for a in range(points.shape[0]):
        k = np.int64(points[a, 0])
        out[a] += surrogate(points[a, 1 : 1 + models.sizes[k]], k, models)
    return out


@njit(cache=True)
def draw_index(
    current: int,
    points: np.ndarray,
    log_prior: np.ndarray,
    races: IndexRaces,
    stream: Stream,
    log: IndexLog,
    log_stream: Stream,
) -> IndexStep:
    """Draw the model index given the current model's parameters in points[current, 1:].

    Parameters
    ----------
    current : int
    points : (M, 1 + D) array
        Row k starts with k; the parameters of the other models are overwritten.
    log_prior : (M,) array
        Log weights of the models.
    races : IndexRaces
    stream : Stream
    log : IndexLog
    log_stream : Stream

    Returns
    -------
    IndexStep
    """
    rng, log_rng = generator_of(stream), generator_of(log_stream)
    models, population = races.models, races.population
    n_models = models.sizes.size
    scores = np.empty(n_models)
    _fill(points, current, models, scores, rng)
    other = races.rest(points)
    for k in range(n_models):
        noise = -math.log(-math.log(1.0 - rng.random()))
        scores[k] = log_prior[k] + other[k] - scores[k] + noise
        if np.isnan(scores[k]):
            scores[k] = -np.inf
    arms = np.flatnonzero(scores > -np.inf)
    n_raced, n_exact = population.n_raced, population.exact.size
    bias = scores[arms] + known_totals(points[arms], models, races.control)
    if n_exact:
        exact = races.rewards(points[arms], models.centres, population.exact)
        for a in range(arms.size):
            bias[a] += exact[a].sum()
    seen = n_exact * arms.size
    # A surrogate or row that is not finite at a pseudo-prior draw excludes the model for now.
    kept = np.flatnonzero(np.isfinite(bias))
    arms = arms[kept]
    bias = bias[kept]
    if arms.size <= 1:
        winner = arms[0] if arms.size else current
        return IndexStep(winner, 0, n_exact, seen, 0, 1, DECIDED, -1)
    bias = (bias - bias.max()) / max(1, n_raced)
    result = races.race(
        races.rewards, points[arms], models.centres, bias, population, races.rule, rng, 0
    )
    read, rounds = result.rows, result.rounds
    if result.status == NOT_FINITE or result.winner < 0:
        return IndexStep(current, read, n_exact, seen, rounds, 0, NOT_FINITE, result.row)
    winner = arms[result.winner]
    size = log.x.shape[0]
    slot = reservoir_slot(log.seen, size, log_rng) if size else 0
    if slot < size:
        log.x[slot] = points
        log.scores[slot] = scores
        log.model[slot] = winner
        log.read[slot] = read
    seen += result.rewards
    return IndexStep(winner, read, n_exact, seen, rounds, result.arms_left, DECIDED, -1)
