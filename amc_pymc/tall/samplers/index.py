"""Draws of the model index of a Carlin-Chib product space by races between models.

The parameters of the current model come from its posterior, those of the other models from their
pseudo-priors. Given all parameters, model k is drawn with probability proportional to

    pi_k p_k(theta_k) prod_n p_k(y_n | theta_k) / g_k(theta_k),

where g_k is its pseudo-prior (Carlin & Chib 1995). The arms are the models (Chen & Ghahramani 2016,
eq. 25).
"""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from numba import types

from amc_pymc.engine.first_class import bound_function, caller
from amc_pymc.engine.jit import njit
from amc_pymc.engine.records import record
from amc_pymc.tall.racing import (
    DECIDED,
    NOT_FINITE,
    RACE,
    REWARDS,
    Population,
    Race,
    RaceRule,
    make_population,
)
from amc_pymc.tall.samplers import metropolis
from amc_pymc.tall.samplers.chain import Auditor, audited, lead, sample_units
from amc_pymc.tall.samplers.compiled import (
    GRADIENT,
    LOGP,
    IndexLog,
    as_they_are,
    entry_point,
    reservoir_slot,
    without_room,
)
from amc_pymc.tall.samplers.metropolis import Metropolis
from amc_pymc.tall.samplers.raced import gaussian_factor
from amc_pymc.tall.samplers.tuning import Audits, Moments

# --- functions over a product space ----------------------------------------------------------------
# The first entry of a point is the number of its model, followed by the parameters.


#: Signatures of functions of points (K, 1 + D): one value per point (K,), and what rows read (K, 1 + E).
VALUES = types.float64[::1](types.float64[:, ::1])
PARAMETERS = types.float64[:, ::1](types.float64[:, ::1])

_value, _vector, _rewards = caller(LOGP), caller(GRADIENT), caller(REWARDS)


def values_of_models(
    functions: Sequence[Any], sizes: Sequence[int]
) -> Callable[[np.ndarray], np.ndarray]:
    """Return a first-class function from points (K, 1 + D) to the models' values (K,).

    Parameters
    ----------
    functions : sequence of first-class functions
        One per model, ``theta (D_k,) -> float``.
    sizes : sequence of int
        Number of parameters D_k of each model.
    """
    return bound_function(ask_values, VALUES, _places(functions, sizes), functions)


def parameters_of_models(
    functions: Sequence[Any], sizes: Sequence[int], lengths: Sequence[int]
) -> Callable[[np.ndarray], np.ndarray]:
    """Return a first-class function from points (K, 1 + D) to what rows read (K, 1 + E).

    ``functions`` map the D_k = ``sizes[k]`` parameters of each model to E_k = ``lengths[k]`` numbers.
    """
    arrays = [*_places(functions, sizes), np.array(lengths, np.int64)]
    return bound_function(ask_parameters, PARAMETERS, arrays, functions)


def rewards_of_models(
    functions: Sequence[Any], sizes: Sequence[int], centres: np.ndarray
) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """Return a first-class function from points (K, 1 + D), any centre, rows (m,) to rewards (K, m).

    Parameters
    ----------
    functions : sequence of first-class functions
        One per model, ``(points, centre, rows) -> (K, m)``.
    sizes : sequence of int
        Number of parameters D_k of each model.
    centres : array (sum D_k,)
        Concatenated expansion points of the models.
    """
    arrays = [*_places(functions, sizes), np.ascontiguousarray(centres, float)]
    return bound_function(ask_rewards, REWARDS, arrays, functions)


def _places(functions: Sequence[Any], sizes: Sequence[int]) -> list[np.ndarray]:
    """Return addresses of the functions (M,) and offsets of the models' parameters (M + 1,)."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    return [np.array([f.address for f in functions], np.int64), ends.astype(np.int64)]


@njit(cache=True)
def ask_values(points: np.ndarray, places: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return values (K,) at points (K, 1 + D)."""
    out = np.empty(points.shape[0])
    for a in range(points.shape[0]):
        k = np.int64(points[a, 0])
        out[a] = _value(places[k], (points[a, 1 : 1 + ends[k + 1] - ends[k]].copy(),))
    return out


@njit(cache=True)
def ask_parameters(
    points: np.ndarray, places: np.ndarray, ends: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    """Return what rows read (K, 1 + E) at points (K, 1 + D)."""
    out = np.zeros((points.shape[0], 1 + lengths.max()))
    for a in range(points.shape[0]):
        k = np.int64(points[a, 0])
        out[a, 0] = k
        theta = points[a, 1 : 1 + ends[k + 1] - ends[k]].copy()
        out[a, 1 : 1 + lengths[k]] = _vector(places[k], (theta,))
    return out


@njit(cache=True)
def ask_rewards(
    points: np.ndarray,
    unused: np.ndarray,
    rows: np.ndarray,
    places: np.ndarray,
    ends: np.ndarray,
    centres: np.ndarray,
) -> np.ndarray:
    """Return rewards (K, m) of rows at points (K, 1 + D)."""
    out = np.empty((points.shape[0], rows.size))
    for a in range(points.shape[0]):
        k = np.int64(points[a, 0])
        theta = points[a : a + 1, 1 : 1 + ends[k + 1] - ends[k]].copy()
        centre = centres[ends[k] : ends[k + 1]].copy()
        out[a] = _rewards(places[k], (theta, centre, rows))[0]
    return out


# --- draws of the index ----------------------------------------------------------------------------


_PILOT_DRAWS, _PILOT_TRANSITIONS = 600, 5


# --- the compiled draw ----------------------------------------------------------------------------


@record
class Models(NamedTuple):
    """M models with D_k parameters, of which rows read E_k functions eta; arrays are padded to D and E.

    ``sizes`` (M,) holds the D_k, ``lengths`` (M,) the E_k; ``mean`` (M, D), ``chol`` (M, D, D),
    ``chol_inverse`` and ``log_norm`` (M,) the Gaussian pseudo-priors; ``base`` (M,), ``centre``,
    ``gradient`` (M, E) and ``hessian`` (M, E, E) the second-order surrogates of summed
    log-likelihoods; ``centres`` (sum E_k,) the concatenated centres.
    """

    sizes: np.ndarray
    lengths: np.ndarray
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

    ``parameters`` maps points (K, 1 + D) to what rows read, (K, 1 + E). ``rest`` and ``control`` have
    one value per point: the log density without the rows, and the population sum of the control variate
    in data space. ``control`` and ``rewards``, of signature :data:`amc_pymc.tall.racing.REWARDS`, take
    points (K, 1 + E). All are first-class functions.
    """

    models: Models
    parameters: Callable[[np.ndarray], np.ndarray]
    rest: Callable[[np.ndarray], np.ndarray]
    control: Callable[[np.ndarray], np.ndarray]
    rewards: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    population: Population
    rule: RaceRule
    race: Any = RACE


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
def surrogate(eta: np.ndarray, k: int | np.int64, models: Models) -> float:
    """Return the second-order surrogate of model k's summed log-likelihood."""
    d = eta.size
    u = eta - models.centre[k, :d]
    total = models.base[k] + np.dot(models.gradient[k, :d], u)
    for i in range(d):
        for j in range(d):
            total += 0.5 * models.hessian[k, i, j] * u[i] * u[j]
    return total


@njit(cache=True)
def known_totals(etas: np.ndarray, races: IndexRaces) -> np.ndarray:
    """Return the control variates' sums over all rows at points (K, 1 + E)."""
    out = races.control(etas)
    for a in range(etas.shape[0]):
        k = np.int64(etas[a, 0])
        out[a] += surrogate(etas[a, 1 : 1 + races.models.lengths[k]], k, races.models)
    return out


@njit(cache=True)
def estimated_totals(points: np.ndarray, races: IndexRaces, rows: np.ndarray) -> np.ndarray:
    """Estimate the log-likelihoods of all rows at points (K, 1 + D) from some rows."""
    etas, population = races.parameters(points), races.population
    out = known_totals(etas, races)
    sampled = races.rewards(etas, races.models.centres, rows)
    for a in range(out.size):
        out[a] += population.n_rows * sampled[a].mean()
    return out


@njit(cache=True)
def draw_index(
    current: int,
    points: np.ndarray,
    log_prior: np.ndarray,
    races: IndexRaces,
    rng: np.random.Generator,
    log: IndexLog,
    log_rng: np.random.Generator,
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
    rng : numpy.random.Generator
    log : IndexLog
    log_rng : numpy.random.Generator

    Returns
    -------
    IndexStep
    """
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
    etas = races.parameters(points[arms])
    bias = scores[arms] + known_totals(etas, races)
    if n_exact:
        exact = races.rewards(etas, models.centres, population.exact)
        for a in range(arms.size):
            bias[a] += exact[a].sum()
    seen = n_exact * arms.size
    # A surrogate or row that is not finite at a pseudo-prior draw excludes the model for now.
    kept = np.flatnonzero(np.isfinite(bias))
    arms, etas, bias = arms[kept], etas[kept], bias[kept]
    if arms.size <= 1:
        winner = arms[0] if arms.size else current
        return IndexStep(winner, 0, n_exact, seen, 0, 1, DECIDED, -1)
    bias = (bias - bias.max()) / max(1, n_raced)
    args = etas, models.centres, bias, population, races.rule
    result = races.race(races.rewards, *args, rng, 0)
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


# --- models and chains ----------------------------------------------------------------------------


@dataclass(eq=False)
class ModelSpace:
    """Settings shared by all chains over a product space of M models.

    Parameters
    ----------
    samplers : sequence of Metropolis
        One per model, over all its coordinates, with a Gaussian approximation.
    race : Race
        Race for draws of the index.
    audits : Audits
    pilot_rngs : sequence of numpy.random.Generator, optional
        One per model. If given, the pseudo-priors have the moments of a pilot chain of each model
        instead of those of the Laplace approximation.
    """

    samplers: Sequence[Metropolis]
    race: Race
    audits: Audits
    pilot_rngs: Sequence[np.random.Generator] = ()
    sizes: np.ndarray = field(init=False)
    models: Models = field(init=False)
    laplace_log_evidence: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = np.array([s.prepared.start.size for s in self.samplers])
        self.width = int(self.sizes.max())
        self.n_units = self.samplers[0].prepared.densities.n_units
        self.exact = np.unique(np.concatenate([s.prepared.exact_rows for s in self.samplers]))
        self.models, self.laplace_log_evidence = _describe(self.samplers, self.sizes)
        for k, rng in enumerate(self.pilot_rngs):
            mean, covariance = pilot(self.samplers[k], rng)
            _set_pseudo_prior(self.models, k, mean, np.linalg.cholesky(covariance))

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("races", "_entry")}

    @cached_property
    def races(self) -> IndexRaces:
        """Arguments of draws of the index."""
        prepared, sizes = [s.prepared for s in self.samplers], self.sizes.tolist()
        population = make_population(self.n_units, self.exact)
        zero = all(p.rounding_only for p in prepared)
        rewards = [p.residuals.state_rewards for p in prepared]
        lengths = self.models.lengths.tolist()
        maps = [as_they_are if p.cut is None else p.cut.native for p in prepared]
        rule = self.race.rule(population.n_raced, len(sizes), zero_sd_decides=zero)
        return IndexRaces(
            self.models,
            parameters=parameters_of_models(maps, sizes, lengths),
            rest=values_of_models([p.densities.rest for p in prepared], sizes),
            control=values_of_models([p.control_native for p in prepared], lengths),
            rewards=rewards_of_models(rewards, lengths, self.models.centres),
            population=population,
            rule=rule,
        )

    def run(self, *args: Any) -> IndexStep:
        """Run the compiled draw of the index."""
        entry = self.__dict__.get("_entry")
        if entry is None:
            entry = self.__dict__["_entry"] = entry_point(draw_index, args)
        return entry(*args)

    def totals(self, points: np.ndarray, models: np.ndarray) -> np.ndarray:
        """Return the log-likelihoods of all rows under some models at their points."""
        densities = [s.prepared.densities for s in self.samplers]
        thetas = [points[k, 1 : 1 + self.sizes[k]] for k in models]
        return np.array([densities[k].all_values(t).sum() for k, t in zip(models, thetas)])


@dataclass
class IndexChain:
    """State of one running chain over the product space.

    ``current`` is the current model, ``points`` (M, 1 + D) holds each model's number and parameters,
    ``log_weights`` (M,) are the log weights of the models.
    """

    current: int
    points: np.ndarray
    log_weights: np.ndarray
    auditor: Auditor
    audit_rng: np.random.Generator

    def theta(self, space: ModelSpace) -> np.ndarray:
        """Return a view of the current model's parameters."""
        return self.points[self.current, 1 : 1 + space.sizes[self.current]]


def init(
    space: ModelSpace, log_weights: np.ndarray, rng: np.random.Generator, *, draws: int = 0
) -> IndexChain:
    """Start a chain in a random model, with points drawn from the pseudo-priors."""
    m, width = len(space.sizes), space.width
    spent = sum(s.prepared.rows_spent for s in space.samplers)
    raced = space.samplers[0].prepared.raced
    costs = raced.race_cost, raced.audit_cost
    auditor = Auditor(
        space.audits, spent, space.n_units, costs, draws, lambda c: IndexDecisions(c, m, width)
    )
    audit_rng = rng.spawn(1)[0]
    points = np.zeros((m, 1 + width))
    for k, d in enumerate(space.sizes):
        z = rng.standard_normal(d)
        points[k, 0] = k
        points[k, 1 : 1 + d] = space.models.mean[k, :d] + space.models.chol[k, :d, :d] @ z
    return IndexChain(int(rng.integers(m)), points, log_weights.copy(), auditor, audit_rng)


def step(
    space: ModelSpace, chain: IndexChain, rng: np.random.Generator, *, tuning: bool = False
) -> IndexStep:
    """Draw the index given the current model's parameters; the chain is changed in place.

    Raises
    ------
    ValueError
        If a row is not finite under a model whose parameters were drawn from its pseudo-prior.
    """
    log = without_room(chain.auditor.log) if tuning else chain.auditor.log
    args = chain.log_weights, space.races, rng, log, chain.audit_rng
    found = space.run(chain.current, chain.points, *args)
    if found.status == NOT_FINITE:
        raise ValueError(
            f"The log-likelihood of a model is not finite in row {found.row} at a draw of its "
            "pseudo-prior; look at its parameters' bounds"
        )
    chain.current = int(found.model)
    return found


def report(space: ModelSpace, chain: IndexChain, found: IndexStep) -> dict[str, float]:
    """Run audits due after a draw of the index; return its statistics, named as in ``results``."""
    stats = {
        "race_rows": float(found.rows + found.exact),
        "race_rounds": float(found.rounds),
        "race_delta": float(space.race.delta),
        "race_recentred": 0.0,
        "race_arms_left": float(found.arms_left),
    }
    return stats | audited(chain.auditor, found.evaluations, space, None, chain.audit_rng)


def _describe(samplers: Sequence[Metropolis], sizes: np.ndarray) -> tuple[Models, np.ndarray]:
    """Return the models' padded pseudo-priors and surrogates, and Laplace log evidences (M,)."""
    m, width = len(sizes), int(sizes.max())
    surrogates = [s.prepared.first_surrogate for s in samplers]
    lengths = np.array([s.centre.size for s in surrogates])
    wide = int(lengths.max())
    mean, (centre, gradient) = np.zeros((m, width)), np.zeros((2, m, wide))
    (chol, inverse), hessian = np.zeros((2, m, width, width)), np.zeros((m, wide, wide))
    log_norm, base, evidence = np.zeros((3, m))
    for k, (sampler, found, e) in enumerate(zip(samplers, surrogates, lengths)):
        if sampler.prepared.surrogate is not None:
            base[k] = sampler.prepared.raced.value_and_gradient(found.centre)[0]
            centre[k, :e], gradient[k, :e], hessian[k, :e, :e] = found
    centres = np.concatenate([c[:e] for c, e in zip(centre, lengths)])
    pseudo_priors = mean, chol, inverse, log_norm
    models = Models(sizes, lengths, *pseudo_priors, base, centre, gradient, hessian, centres)
    for k, (sampler, d) in enumerate(zip(samplers, sizes)):
        fit, densities = sampler.prepared.fit, sampler.prepared.densities
        assert fit is not None
        factor = gaussian_factor(fit.precision)[0]
        log_det = float(np.log(np.diag(factor)).sum())
        rows = densities.value_and_gradient(fit.mean)[0]
        rest = densities.rest_value_and_gradient(fit.mean)[0]
        evidence[k] = rows + rest + 0.5 * d * np.log(2.0 * np.pi) + log_det
        _set_pseudo_prior(models, k, fit.mean, factor)
    return models, evidence


def _set_pseudo_prior(models: Models, k: int, mean: np.ndarray, factor: np.ndarray) -> None:
    """Set the pseudo-prior of model k to a Gaussian with this lower factor of the covariance."""
    d = mean.size
    models.mean[k, :d], models.chol[k, :d, :d] = mean, factor
    models.chol_inverse[k, :d, :d] = np.linalg.inv(factor)
    models.log_norm[k] = -0.5 * d * np.log(2.0 * np.pi) - np.log(np.diag(factor)).sum()


def pilot(sampler: Metropolis, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Run a chain of one model; return mean (D,) and covariance (D, D) without its first third."""
    fit = sampler.prepared.fit
    assert fit is not None
    sampler = replace(sampler, transitions=_PILOT_TRANSITIONS)
    chain = metropolis.init(sampler, rng, tune=_PILOT_DRAWS)
    x, seen = fit.mean.copy(), Moments(fit.mean.size)
    for t in range(_PILOT_DRAWS):
        x, _ = metropolis.step(sampler, chain, x, rng, tuning=True)
        if 3 * t > _PILOT_DRAWS:
            seen.add(x)
    factor, _ = gaussian_factor(fit.precision)
    weight = 10.0 + seen.mean.size  # of the Laplace approximation, in draws
    mixed = seen.count * seen.covariance() + weight * factor @ factor.T
    return seen.mean, mixed / (seen.count + weight)


class IndexDecisions:
    """Draws of the index of M models with at most D = ``size`` parameters."""

    def __init__(self, capacity: int, n_models: int, size: int):
        self.log = IndexLog.empty(capacity, n_models, size)

    def cost(self, k: int, space: ModelSpace) -> int:
        """Return the rows of one pass per model; 0 if the race has read every row."""
        possible = int(np.isfinite(self.log.scores[k]).sum())
        everything = space.n_units - space.exact.size
        return space.n_units * possible if self.log.read[k] < everything else 0

    def confirmed(self, k: int, space: ModelSpace, surrogate: None = None) -> bool:
        """Whether the model drawn has the highest score on all rows."""
        models = np.flatnonzero(np.isfinite(self.log.scores[k]))
        scores = self.log.scores[k][models] + space.totals(self.log.x[k], models)
        scores[np.isnan(scores)] = -np.inf
        return bool(models[np.argmax(scores)] == self.log.model[k])

    def distance(
        self, k: int, space: ModelSpace, surrogate: None, rng: np.random.Generator
    ) -> float:
        """Estimate the lead of the best model over the second best."""
        models = np.flatnonzero(np.isfinite(self.log.scores[k]))
        units = sample_units(space.n_units, rng)
        return lead(
            self.log.scores[k][models] + estimated_totals(self.log.x[k][models], space.races, units)
        )
