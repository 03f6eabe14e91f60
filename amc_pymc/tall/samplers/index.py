"""Draws of the model index of a product space, and the settings its models share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from amc_pymc.engine.jit import njit
from amc_pymc.engine.streams import stream_of
from amc_pymc.tall.proxies import gaussian_factor
from amc_pymc.tall.racing import NOT_FINITE, Race, make_population, race_of
from amc_pymc.tall.samplers import metropolis
from amc_pymc.tall.samplers.adaptation import Moments
from amc_pymc.tall.samplers.auditing import Auditor, lead, sample_units
from amc_pymc.tall.samplers.chain import audited
from amc_pymc.tall.samplers.compiled import entry_point, state_values
from amc_pymc.tall.samplers.index_kernel import (
    IndexRaces,
    IndexStep,
    Models,
    draw_index,
    known_totals,
)
from amc_pymc.tall.samplers.logs import IndexLog, without_room
from amc_pymc.tall.samplers.metropolis import Metropolis
from amc_pymc.tall.samplers.model_functions import rewards_of_models, values_of_models
from amc_pymc.tall.samplers.settings import Audits

__all__ = ["IndexChain", "IndexDecisions", "ModelSpace", "init", "pilot", "report", "step"]

_PILOT_DRAWS, _PILOT_TRANSITIONS = 600, 5


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
        self.models, self.laplace_log_evidence = _describe(self.samplers, self.sizes, self.width)
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
        rule = self.race.rule(population.n_raced, len(sizes), zero_sd_decides=zero)
        return IndexRaces(
            self.models,
            rest=values_of_models([p.densities.rest for p in prepared], sizes),
            control=values_of_models([p.control_native for p in prepared], sizes),
            rewards=rewards_of_models(rewards, sizes, self.models.centres),
            population=population,
            rule=rule,
            race=race_of(rule),
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

    def estimates(self, points: np.ndarray, models: np.ndarray, units: np.ndarray) -> np.ndarray:
        """Estimate the totals from some rows."""
        races = self.races
        sampled = state_values(races.rewards, points[models], self.models.centres, units)
        known = _known_totals(points[models], self.models, races.control)
        return self.n_units * sampled.mean(axis=1) + known


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
    streams = stream_of(rng), stream_of(chain.audit_rng)
    args = chain.log_weights, space.races, streams[0], log, streams[1]
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


@njit(cache=True)
def _known_totals(
    points: np.ndarray, models: Models, control: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    return known_totals(points, models, control)


def _describe(
    samplers: Sequence[Metropolis], sizes: np.ndarray, width: int
) -> tuple[Models, np.ndarray]:
    """Return the models' padded pseudo-priors and surrogates, and Laplace log evidences (M,)."""
    m = len(sizes)
    mean, centre, gradient = np.zeros((3, m, width))
    chol, inverse, hessian = np.zeros((3, m, width, width))
    log_norm, base, evidence = np.zeros((3, m))
    for k, (sampler, d) in enumerate(zip(samplers, sizes)):
        prepared, surrogate = sampler.prepared, sampler.prepared.surrogate
        if surrogate is not None:
            base[k] = prepared.densities.value_and_gradient(surrogate.centre)[0]
            centre[k, :d], gradient[k, :d] = surrogate.centre, surrogate.gradient
            hessian[k, :d, :d] = surrogate.hessian
    centres = np.concatenate([c[:d] for c, d in zip(centre, sizes)])
    pseudo_priors = np.asarray(sizes, np.int64), mean, chol, inverse, log_norm
    models = Models(*pseudo_priors, base, centre, gradient, hessian, centres)
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
        return lead(self.log.scores[k][models] + space.estimates(self.log.x[k], models, units))
