"""Draws of the model index of a Carlin-Chib product space by races between models.

The parameters of the current model come from its posterior, those of the other models from their
pseudo-priors. Given all parameters, model k is drawn with probability proportional to

    pi_k p_k(theta_k) prod_n p_k(y_n | theta_k) / g_k(theta_k),

where g_k is its pseudo-prior (Carlin & Chib 1995). The arms are the models (Chen & Ghahramani 2016,
eq. 25).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from amc_pymc.engine.first_class import bound_function, caller
from amc_pymc.engine.jit import njit
from amc_pymc.tall.racing import (
    DECIDED,
    NOT_FINITE,
    REWARDS,
    Population,
    Race,
    RaceRule,
    make_population,
    race,
)
from amc_pymc.tall.samplers import metropolis
from amc_pymc.tall.samplers.chain import Auditor, audited, lead, sample_units
from amc_pymc.tall.samplers.compiled import (
    call_total,
    entry_point,
    reservoir_slot,
    state_values,
    without_room,
)
from amc_pymc.tall.samplers.metropolis import Metropolis
from amc_pymc.tall.samplers.preparation import Preparation
from amc_pymc.tall.samplers.raced import gaussian_factor
from amc_pymc.tall.samplers.tuning import Audits, Moments

_PILOT_DRAWS, _PILOT_TRANSITIONS = 600, 5
_rewards = caller(REWARDS)


# --- models ----------------------------------------------------------------------------------------


def rewards_of_models(
    functions: Sequence[Any], sizes: Sequence[int], centres: np.ndarray
) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """Return a first-class function from points (K, 1 + E), any centre, rows (m,) to rewards (K, m).

    The first entry of a point is the number of its model; what the model's rows read follows.

    Parameters
    ----------
    functions : sequence of first-class functions
        One per model, ``(points, centre, rows) -> (K, m)``.
    sizes : sequence of int
        What each model's rows read, E_k numbers.
    centres : array (sum E_k,)
        Concatenated expansion points of the models.
    """
    places = np.array([f.address for f in functions], np.int64)
    ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    arrays = [places, ends, np.ascontiguousarray(centres, float)]
    return bound_function(ask_rewards, REWARDS, arrays, functions)


@njit(cache=True)
def ask_rewards(
    points: np.ndarray,
    unused: np.ndarray,
    rows: np.ndarray,
    places: np.ndarray,
    ends: np.ndarray,
    centres: np.ndarray,
) -> np.ndarray:
    """Return rewards (K, m) of rows at points (K, 1 + E)."""
    out = np.empty((points.shape[0], rows.size))
    for a in range(points.shape[0]):
        k = np.int64(points[a, 0])
        eta = points[a : a + 1, 1 : 1 + ends[k + 1] - ends[k]].copy()
        centre = centres[ends[k] : ends[k + 1]].copy()
        out[a] = _rewards(places[k], (eta, centre, rows))[0]
    return out


class PseudoPrior(NamedTuple):
    """Gaussian with a mean (D,), a lower factor (D, D) of the covariance, its inverse, and log density at the mean."""

    mean: np.ndarray
    factor: np.ndarray
    inverse: np.ndarray
    highest: float

    @classmethod
    def of(cls, mean: np.ndarray, factor: np.ndarray) -> PseudoPrior:
        """Return the Gaussian with this mean and factor."""
        highest = -0.5 * mean.size * np.log(2.0 * np.pi) - np.log(np.diag(factor)).sum()
        return cls(mean, factor, np.linalg.inv(factor), float(highest))


class Model(NamedTuple):
    """A model with parameters theta (D,), of which rows read functions eta (E,).

    ``rest`` is the log density without the rows at theta, ``known`` the sum over all rows of their control variates
    at eta.
    """

    pseudo_prior: PseudoPrior
    rest: Callable[[np.ndarray], float]
    eta: Callable[[np.ndarray], np.ndarray]
    known: Callable[[np.ndarray], float]

    def theta(self, point: np.ndarray) -> np.ndarray:
        """Return a view of the parameters in a point (1 + D,), which has room for those of larger models."""
        return point[1 : 1 + self.pseudo_prior.mean.size]


# --- draws of the index ----------------------------------------------------------------------------


class IndexLog(NamedTuple):
    """Models drawn for the index of a product space, a uniform sample of C draws.

    ``x`` (C, M, 1 + D) holds the points, ``scores`` (C, M) the models' scores without the units,
    ``model`` (C,) the model drawn, ``read`` (C,) the number of raced units read. ``seen`` (1,) counts all draws.
    """

    x: np.ndarray
    scores: np.ndarray
    model: np.ndarray
    read: np.ndarray
    seen: np.ndarray

    @classmethod
    def empty(cls, capacity: int, n_models: int, size: int) -> IndexLog:
        """Return a log for ``capacity`` draws of models with at most D = ``size`` parameters."""
        points, scores = np.zeros((capacity, n_models, 1 + size)), np.zeros((capacity, n_models))
        model, read = np.zeros((2, capacity), np.int64)
        return cls(points, scores, model, read, np.zeros(1, np.int64))


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


@dataclass(eq=False)
class IndexRaces:
    """Races between M models, whose rewards take points (K, 1 + E): the number of a model, and eta."""

    models: Sequence[Model]
    rewards: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    population: Population
    rule: RaceRule
    _entry: Any = None

    def race(self, points: np.ndarray, bias: np.ndarray, rng: np.random.Generator) -> Any:
        """Race the models of some points, whose known means are ``bias`` (K,)."""
        args = self.rewards, points, np.zeros(1), bias, self.population, self.rule, rng, 0
        if self._entry is None:
            self._entry = entry_point(race, args)
        return self._entry(*args)

    def points_and_totals(self, thetas: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return points (K, 1 + E) for parameters (K, 1 + D), and the sums of all rows' control variates (K,)."""
        models = [self.models[int(x[0])] for x in thetas]
        etas = [model.eta(model.theta(x)) for model, x in zip(models, thetas)]
        out = np.zeros((len(etas), 1 + max(map(len, etas), default=0)))
        for row, x, eta in zip(out, thetas, etas):
            row[0], row[1 : 1 + eta.size] = x[0], eta
        return out, np.array([model.known(eta) for model, eta in zip(models, etas)])


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
    population, scores = races.population, log_prior.copy()
    for k, (model, point) in enumerate(zip(races.models, points)):
        theta, (mean, factor, inverse, highest) = model.theta(point), model.pseudo_prior
        if k == current:
            z = inverse @ (theta - mean)
        else:
            z = rng.standard_normal(mean.size)
            theta[:] = mean + factor @ z
        scores[k] += model.rest(theta) - highest + 0.5 * (z @ z)
    scores -= np.log(-np.log(1.0 - rng.random(scores.size)))
    scores[np.isnan(scores)] = -np.inf
    arms = np.flatnonzero(scores > -np.inf)
    n_raced, n_exact, seen = population.n_raced, population.exact.size, 0
    etas, bias = races.points_and_totals(points[arms])
    bias += scores[arms]
    if n_exact and arms.size:
        bias += state_values(races.rewards, etas, np.zeros(1), population.exact).sum(axis=1)
        seen = n_exact * arms.size
    # A surrogate or row that is not finite at a pseudo-prior draw excludes the model for now.
    kept = np.isfinite(bias)
    arms, etas, bias = arms[kept], etas[kept], bias[kept]
    if arms.size <= 1:
        winner = int(arms[0]) if arms.size else current
        return IndexStep(winner, 0, n_exact, seen, 0, 1, DECIDED, -1)
    result = races.race(etas, (bias - bias.max()) / max(1, n_raced), rng)
    read, rounds = result.rows, result.rounds
    if result.status == NOT_FINITE or result.winner < 0:
        return IndexStep(current, read, n_exact, seen, rounds, 0, NOT_FINITE, result.row)
    winner, size = int(arms[result.winner]), len(log.x)
    slot = reservoir_slot(log.seen, size, log_rng) if size else 0
    if slot < size:
        log.x[slot], log.scores[slot], log.model[slot], log.read[slot] = (
            points,
            scores,
            winner,
            read,
        )
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
    pseudo_priors: list[PseudoPrior] = field(init=False)
    laplace_log_evidence: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = np.array([s.prepared.start.size for s in self.samplers])
        self.width = int(self.sizes.max())
        self.n_units = self.samplers[0].prepared.densities.n_units
        self.exact = np.unique(np.concatenate([s.prepared.exact_rows for s in self.samplers]))
        found = [laplace(s.prepared) for s in self.samplers]
        self.pseudo_priors = [prior for prior, _ in found]
        self.laplace_log_evidence = np.array([evidence for _, evidence in found])
        for k, rng in enumerate(self.pilot_rngs):
            self.pseudo_priors[k] = pilot(self.samplers[k], rng)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "races"}

    @cached_property
    def races(self) -> IndexRaces:
        """Arguments of draws of the index."""
        prepared = [s.prepared for s in self.samplers]
        centres = [p.first_surrogate.centre for p in prepared]
        population = make_population(self.n_units, self.exact)
        zero = all(p.rounding_only for p in prepared)
        rewards = [p.residuals.state_rewards for p in prepared]
        return IndexRaces(
            [_model(p, prior) for p, prior in zip(prepared, self.pseudo_priors)],
            rewards_of_models(rewards, [c.size for c in centres], np.concatenate(centres)),
            population,
            self.race.rule(population.n_raced, len(prepared), zero_sd_decides=zero),
        )

    def totals(self, points: np.ndarray, models: np.ndarray) -> np.ndarray:
        """Return the log-likelihoods of all rows under some models at their points."""
        densities = [s.prepared.densities for s in self.samplers]
        thetas = [points[k, 1 : 1 + self.sizes[k]] for k in models]
        return np.array([densities[k].all_values(t).sum() for k, t in zip(models, thetas)])


def _model(prepared: Preparation, prior: PseudoPrior) -> Model:
    """Return a model as draws of the index see it."""
    rest = prepared.densities.rest
    centre, gradient, hessian = prepared.first_surrogate
    known: Callable[[np.ndarray], float] = prepared.control_total
    if prepared.surrogate is not None:
        base = prepared.raced.value_and_gradient(centre)[0]

        def known(eta: np.ndarray) -> float:
            u = eta - centre
            return float(base + gradient @ u + 0.5 * (u @ hessian @ u))

    total = entry_point(call_total, (rest, prior.mean))
    return Model(prior, lambda theta: total(rest, theta), prepared.eta, known)


def laplace(prepared: Preparation) -> tuple[PseudoPrior, float]:
    """Return the Laplace approximation of a model, and that of its log evidence."""
    fit, densities = prepared.fit, prepared.densities
    assert fit is not None
    prior = PseudoPrior.of(fit.mean, gaussian_factor(fit.precision)[0])
    rows = densities.value_and_gradient(fit.mean)[0]
    rest = densities.rest_value_and_gradient(fit.mean)[0]
    return prior, rows + rest - prior.highest


def pilot(sampler: Metropolis, rng: np.random.Generator) -> PseudoPrior:
    """Run a chain of one model; return a Gaussian with its moments, without its first third."""
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
    mixed = (seen.count * seen.covariance() + weight * factor @ factor.T) / (seen.count + weight)
    return PseudoPrior.of(seen.mean, np.linalg.cholesky(mixed))


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
    for k, (mean, factor, *_) in enumerate(space.pseudo_priors):
        points[k, 0] = k
        points[k, 1 : 1 + mean.size] = mean + factor @ rng.standard_normal(mean.size)
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
    found = draw_index(chain.current, chain.points, *args)
    if found.status == NOT_FINITE:
        raise ValueError(
            f"The log-likelihood of a model is not finite in row {found.row} at a draw of its "
            "pseudo-prior; look at its parameters' bounds"
        )
    chain.current = found.model
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
        etas, totals = space.races.points_and_totals(self.log.x[k][models])
        units = sample_units(space.n_units, rng)
        sampled = state_values(space.races.rewards, etas, np.zeros(1), units)
        return lead(self.log.scores[k][models] + totals + space.n_units * sampled.mean(axis=1))
