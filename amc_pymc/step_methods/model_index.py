"""Several models of the same rows, and the index that says which one a chain is in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from numba import njit

import amc_pymc.product_space as ps

from amc_pymc.extract.native import entry_point, native_models
from amc_pymc.product_space import IndexLog, IndexStep, Models
from amc_pymc.product_space.index_kernel import known_totals
from amc_pymc.proxies import gaussian_factor
from amc_pymc.racing import REWARDS, make_population
from amc_pymc.step_methods.adaptation import Moments
from amc_pymc.step_methods.auditing import Auditor
from amc_pymc.step_methods.chain import MetropolisChain, tune_metropolis
from amc_pymc.step_methods.preparation import state_values
from amc_pymc.step_methods.racing_metropolis import RacingMetropolis
from amc_pymc.step_methods.settings import Audits, Race

__all__ = ["IndexDecisions", "ModelSpace"]

_SAMPLE = 200
_PILOT_DRAWS, _PILOT_TRANSITIONS = 600, 5


class ModelSpace:
    """What all chains over a product space share.

    Parameters
    ----------
    names : sequence of str
    steps : sequence of RacingMetropolis
        One per model, over all its variables, with a Gaussian approximation.
    race : Race
        Of the index.
    audits : Audits
    pilot_rngs : sequence of numpy.random.Generator, optional
        One per model: the pseudo-priors then have the moments of a pilot chain of each model,
        instead of the Laplace approximation's.
    """

    def __init__(
        self,
        names: Sequence[str],
        steps: Sequence[RacingMetropolis],
        race: Race,
        audits: Audits,
        pilot_rngs: Sequence[np.random.Generator] = (),
    ):
        self.names, self.steps, self.race, self.audits = list(names), list(steps), race, audits
        self.sizes = np.array([s.prepared.start.size for s in steps])
        self.width = int(self.sizes.max())
        self.n_rows = steps[0].prepared.densities.n_rows
        self.rows_spent = sum(s.prepared.rows_spent for s in steps)
        self.models, self.laplace_log_evidence = _describe(steps, self.sizes, self.width)
        for k, rng in enumerate(pilot_rngs):
            mean, covariance = _pilot(steps[k], rng)
            _set_pseudo_prior(self.models, k, mean, np.linalg.cholesky(covariance))
        exact = [s.prepared.exact_rows for s in steps]
        self.exact_rows = np.unique(np.concatenate(exact))
        self._native: tuple | None = None
        self._run: Any = None
        self._natives()

    def __getstate__(self):
        return {**self.__dict__, "_native": None, "_run": None}

    def _natives(self):
        if self._native is None:
            prepared, sizes = [s.prepared for s in self.steps], self.sizes.tolist()
            rewards = native_models(
                [p.raced.state_rewards for p in prepared], REWARDS, sizes, self.models.centres
            )
            rest = native_models([p.densities.rest for p in prepared], ps.VALUES, sizes)
            control = native_models([p.control_native for p in prepared], ps.VALUES, sizes)
            population = make_population(self.n_rows, self.exact_rows)
            zero = all(p.rounding_only for p in prepared)
            rule = self.race.rule(population.n_raced, len(sizes), zero_sd_decides=zero)
            self._native = rest, control, rewards, population, rule
        return self._native

    def begin(self, k: int, tune: int, draws: int, rng) -> MetropolisChain:
        """A chain of model k's parameters."""
        step = self.steps[k]
        step.rng = rng
        return step._begin(tune, draws)

    def auditor(self, draws: int) -> Auditor:
        """Auditor of one chain's index draws."""
        return Auditor(
            self.audits, self.rows_spent, draws, lambda capacity: IndexDecisions(capacity, self)
        )

    def first_points(self, rng) -> np.ndarray:
        """Points (M, 1 + D) drawn from the pseudo-priors."""
        points = np.zeros((len(self.names), 1 + self.width))
        for k, d in enumerate(self.sizes):
            z = rng.standard_normal(d)
            points[k, 0] = k
            points[k, 1 : 1 + d] = self.models.mean[k, :d] + self.models.chol[k, :d, :d] @ z
        return points

    def draw(self, current, points, log_weights, rng, auditor, audit_rng, tuning) -> IndexStep:
        """Draw the index given the current model's parameters; overwrites the others' in points."""
        rest, control, rewards, population, rule = self._natives()
        log = auditor.log
        if tuning:
            log = log._replace(x=log.x[:0])
        shared = self.models, rest, control, rewards, population, rule
        args = (current, points, log_weights, *shared, rng, log, audit_rng)
        if self._run is None:
            self._run = entry_point(ps.draw_index, args)
        return self._run(*args)

    def totals(self, points: np.ndarray, models: np.ndarray) -> np.ndarray:
        """Log-likelihoods of all rows under some models at their points."""
        return np.array(
            [
                self.steps[k].prepared.densities.all_values(points[k, 1 : 1 + self.sizes[k]]).sum()
                for k in models
            ]
        )

    def estimates(self, points: np.ndarray, models: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The same from some rows."""
        _, control, rewards, _, _ = self._natives()
        sampled = state_values(rewards, points[models], self.models.centres, rows)
        known = _known_totals(points[models], self.models, control)
        return self.n_rows * sampled.mean(axis=1) + known


@njit(cache=True)
def _known_totals(points, models, control):
    return known_totals(points, models, control)


def _describe(steps, sizes, width) -> tuple[Models, np.ndarray]:
    """Pseudo-priors and surrogates of the models, padded, and the Laplace log evidences (M,)."""
    m = len(steps)
    mean, centre, gradient = np.zeros((m, width)), np.zeros((m, width)), np.zeros((m, width))
    chol, inverse, hessian = (np.zeros((m, width, width)) for _ in range(3))
    log_norm, base, evidence = np.zeros(m), np.zeros(m), np.zeros(m)
    factors: list[np.ndarray] = []
    for k, (step, d) in enumerate(zip(steps, sizes)):
        prepared = step.prepared
        fit, surrogate = prepared.fit, prepared.surrogate
        if surrogate is not None:
            base[k] = prepared.densities.value_and_gradient(surrogate.centre)[0]
            centre[k, :d], gradient[k, :d] = surrogate.centre, surrogate.gradient
            hessian[k, :d, :d] = surrogate.hessian
        rows = prepared.densities.value_and_gradient(fit.mean)[0]
        rest = prepared.densities.rest_value_and_gradient(fit.mean)[0]
        factors.append(gaussian_factor(fit.precision)[0])
        log_det = float(np.log(np.diag(factors[k])).sum())
        evidence[k] = rows + rest + 0.5 * d * np.log(2.0 * np.pi) + log_det
    centres = np.concatenate([c[:d] for c, d in zip(centre, sizes)])
    models = Models(
        np.asarray(sizes, np.int64),
        mean,
        chol,
        inverse,
        log_norm,
        base,
        centre,
        gradient,
        hessian,
        centres,
    )
    for k, (step, factor) in enumerate(zip(steps, factors)):
        _set_pseudo_prior(models, k, step.prepared.fit.mean, factor)
    return models, evidence


def _set_pseudo_prior(models: Models, k: int, mean: np.ndarray, factor: np.ndarray) -> None:
    """Make the pseudo-prior of model k a Gaussian with this lower factor of its covariance."""
    d = mean.size
    models.mean[k, :d], models.chol[k, :d, :d] = mean, factor
    models.chol_inverse[k, :d, :d] = np.linalg.inv(factor)
    models.log_norm[k] = -0.5 * d * np.log(2.0 * np.pi) - np.log(np.diag(factor)).sum()


def _pilot(step: RacingMetropolis, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Mean (D,) and covariance (D, D) of a chain of one model, its first third left out."""
    fit = step.prepared.fit
    assert fit is not None
    step.rng, step.tune = rng, True
    chain = step._begin(_PILOT_DRAWS, 0)
    x, seen = fit.mean.copy(), Moments(step.prepared.start.size)
    for t in range(_PILOT_DRAWS):
        stats, x = step._transitions(chain, x, _PILOT_TRANSITIONS)
        chain.draw += 1
        tune_metropolis(chain, step.prepared, step.proposals, stats, x)
        if 3 * t > _PILOT_DRAWS:
            seen.add(x)
    factor, _ = gaussian_factor(fit.precision)
    weight = 10.0 + seen.mean.size  # draws that the Laplace approximation is worth
    mixed = seen.count * seen.covariance() + weight * factor @ factor.T
    return seen.mean, mixed / (seen.count + weight)


class IndexDecisions:
    """Models drawn for the index."""

    def __init__(self, capacity: int, space: ModelSpace):
        self.space = space
        m = len(space.names)
        self.log = IndexLog(
            np.zeros((capacity, m, 1 + space.width)),
            np.zeros((capacity, m)),
            np.zeros((capacity, 2)),
            np.zeros(1, np.int64),
        )

    def __deepcopy__(self, memo):
        return self

    def cost(self, k, prepared) -> int:
        """Rows of one pass for each model, unless the race has read every row."""
        raced = self.space.n_rows - self.space.exact_rows.size
        possible = int(np.isfinite(self.log.scores[k]).sum())
        return self.space.n_rows * possible if self.log.decision[k, 1] < raced else 0

    def confirmed(self, k, prepared) -> bool:
        """Whether the model drawn has the highest score on all rows."""
        models = np.flatnonzero(np.isfinite(self.log.scores[k]))
        scores = self.log.scores[k][models] + self.space.totals(self.log.x[k], models)
        scores[np.isnan(scores)] = -np.inf
        return bool(models[np.argmax(scores)] == int(self.log.decision[k, 0]))

    def distance(self, k, prepared, surrogate, rng) -> float:
        """Lead of the best model over the second."""
        n_rows = self.space.n_rows
        models = np.flatnonzero(np.isfinite(self.log.scores[k]))
        rows = rng.integers(0, n_rows, size=min(_SAMPLE, n_rows))
        scores = self.log.scores[k][models] + self.space.estimates(self.log.x[k], models, rows)
        scores = np.sort(np.where(np.isfinite(scores), scores, -np.inf))
        distance = scores[-1] - scores[-2] if scores.size > 1 else np.inf
        return float(distance) if np.isfinite(distance) else np.inf
