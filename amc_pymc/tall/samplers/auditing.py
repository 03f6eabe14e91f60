"""Audits: some decisions are repeated on all units, to measure the error rate of subsampling.

The choice of decisions must not depend on the outcome of their races, or the measured error rate
would be biased. Half of them are a uniform sample. The other half are those of a larger uniform
sample that are closest to the threshold, judged by an independent batch of units.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from amc_pymc.tall.samplers.compiled import state_values, unit_changes
from amc_pymc.tall.samplers.preparation import Preparation
from amc_pymc.tall.samplers.records import MoveLog, StateLog
from amc_pymc.tall.samplers.settings import Audits
from amc_pymc.tall.samplers.surrogate import Surrogate, surrogate_change, surrogate_total

__all__ = [
    "AuditTally",
    "Auditor",
    "Decisions",
    "MoveDecisions",
    "StateDecisions",
    "lead",
    "sample_units",
]

_BLOCKS = 20
_CANDIDATES = 4
_SAMPLE = 200
#: Measured overhead of a draw in ``pm.sample`` and the step, and start-up cost of a chain, in
#: evaluations of one row.
_DRAW_COST = 3_000
_START_COST = 20_000_000


class AuditTally(NamedTuple):
    """Numbers of audited decisions, of wrong ones, and of units read by the audits."""

    audited: int
    wrong: int
    units: int


class Decisions(Protocol):
    """A uniform sample of the decisions made since the last audit; k is an index into the sample.

    Compiled loops write to ``log``: ``log.x`` (C, ...) has room for C decisions, ``log.seen`` (1,)
    counts all of them. ``prepared`` is the preparation that the decisions were made with.
    """

    log: Any

    def cost(self, k: int, prepared: Any) -> int:
        """Return the units read to repeat decision k on all; 0 if its race read every unit."""

    def confirmed(self, k: int, prepared: Any, surrogate: Any) -> bool:
        """Whether the decision on all units agrees with the race."""

    def distance(self, k: int, prepared: Any, surrogate: Any, rng: np.random.Generator) -> float:
        """Estimate the distance from the threshold with units drawn independently of the race."""


def sample_units(n_units: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the units used to estimate a distance from the threshold."""
    return rng.integers(0, n_units, size=min(_SAMPLE, n_units))


def lead(scores: np.ndarray) -> float:
    """Return the lead of the best score over the second best, infinite if there is none."""
    scores = np.sort(np.where(np.isfinite(scores), scores, -np.inf))
    distance = scores[-1] - scores[-2] if scores.size > 1 else np.inf
    return float(distance) if np.isfinite(distance) else np.inf


def _cost(n_units: int, exact: np.ndarray, arms: int, read: float) -> int:
    """Return the units of one pass per arm; 0 if the race has read every unit."""
    return n_units * arms if read < n_units - exact.size else 0


class MoveDecisions:
    """Accepted and rejected moves from x (D,) to x_new (D,), D = ``size``."""

    def __init__(self, capacity: int, size: int):
        self.log = MoveLog.empty(capacity, size)

    def cost(self, k: int, prepared: Preparation) -> int:
        """Return the units of one pass; 0 if the race has read every unit."""
        return _cost(prepared.densities.n_units, prepared.exact_rows, 1, self.log.read[k])

    def confirmed(self, k: int, prepared: Preparation, surrogate: Surrogate) -> bool:
        """Whether the sign of the log ratio on all units agrees with the verdict."""
        points = self.log.x[k], self.log.x_new[k]
        change = prepared.densities.change(*points, surrogate)
        return bool(self.log.known[k] + change > 0.0) == bool(self.log.accepted[k])

    def distance(
        self, k: int, prepared: Preparation, surrogate: Surrogate, rng: np.random.Generator
    ) -> float:
        """Estimate |log ratio - threshold|."""
        n_units = prepared.densities.n_units
        points = prepared.eta(np.stack([self.log.x[k], self.log.x_new[k]]))
        units = sample_units(n_units, rng)
        sampled = unit_changes(prepared.residuals.rewards, points, surrogate.centre, units)
        change = n_units * sampled.mean() + surrogate_change(points, surrogate)
        if prepared.control is not None:
            change += prepared.control_total(points[1]) - prepared.control_total(points[0])
        distance = abs(self.log.known[k] + change)
        return distance if np.isfinite(distance) else np.inf


class StateDecisions:
    """States drawn for discrete elements at points x (D,), D = ``size``."""

    def __init__(self, capacity: int, size: int, elements: Any):
        self.elements = elements
        most = int(np.diff(elements.first).max(initial=0))
        self.log = StateLog.empty(capacity, size, most)

    def _points(self, k: int) -> np.ndarray:
        """Return copies of the point, one with each state, (K, D)."""
        element = self.log.element[k]
        states = self.elements.states_of(element)
        points = np.repeat(self.log.x[k][None, :], states.size, axis=0)
        points[:, self.elements.coordinate[element]] = states
        return points

    def _scores(self, k: int, points: np.ndarray, prepared: Preparation) -> np.ndarray:
        rest = [prepared.densities.rest_value_and_gradient(x)[0] for x in points]
        return np.array(rest) + self.log.noise[k, : len(points)]

    def cost(self, k: int, prepared: Preparation) -> int:
        """Return the units of one pass per state; 0 if the race has read every unit."""
        arms = self.elements.states_of(self.log.element[k]).size
        return _cost(prepared.densities.n_units, prepared.exact_rows, arms, self.log.read[k])

    def confirmed(self, k: int, prepared: Preparation, surrogate: Surrogate) -> bool:
        """Whether the state drawn has the highest score on all units."""
        points = self._points(k)
        scores = self._scores(k, points, prepared)
        drawn = self.log.winner[k]
        for a in range(len(points)):
            if a != drawn and scores[a] > -np.inf:
                scores[a] += prepared.densities.change(points[drawn], points[a])
        return not np.any(scores > scores[drawn])

    def distance(
        self, k: int, prepared: Preparation, surrogate: Surrogate, rng: np.random.Generator
    ) -> float:
        """Estimate the lead of the best state over the second best."""
        n_units = prepared.densities.n_units
        points = self._points(k)
        scores = self._scores(k, points, prepared)
        possible = np.flatnonzero(np.isfinite(scores))
        points = np.ascontiguousarray(prepared.eta(points[possible]))
        units = sample_units(n_units, rng)
        sampled = state_values(prepared.residuals.state_rewards, points, surrogate.centre, units)
        scores = scores[possible] + n_units * sampled.mean(axis=1)
        scores += [surrogate_total(eta, surrogate) for eta in points]
        if prepared.control is not None:
            scores += [prepared.control_total(eta) for eta in points]
        return lead(scores)


class Auditor:
    """Collector of one chain's decisions, which audits them block by block.

    The budget is counted in row evaluations, not in seconds, so a seed reproduces a run.

    Parameters
    ----------
    settings : Audits
    rows_spent : float
        Row evaluations made during setup, shared by ``settings.chains`` chains.
    n_units : int
    costs : (float, float)
        Row evaluations per unit of a race and of an audit.
    draws : int
        Draws of the chain; if 0, no decisions are collected.
    decisions : callable
        ``capacity -> Decisions``.
    """

    def __init__(
        self,
        settings: Audits,
        rows_spent: float,
        n_units: int,
        costs: tuple[float, float],
        draws: int,
        decisions: Callable[[int], Decisions],
    ):
        self.settings, self.n_units, self.costs = settings, n_units, costs
        self.blocks = max(1, min(_BLOCKS, draws))
        self.quota = -(-settings.number // self.blocks)
        self.decisions = decisions(_CANDIDATES * self.quota if draws and settings.number else 0)
        self.block_length = max(1, draws // self.blocks)
        self.draws = draws
        self.draw = 0
        self.tally = AuditTally(0, 0, 0)
        self.spent = float(_START_COST + rows_spent / settings.chains)

    @property
    def log(self) -> Any:
        """Log that compiled loops write decisions to."""
        return self.decisions.log

    def spend(self, units: float) -> None:
        """Add the cost of one draw that read ``units`` units; the audit budget grows with it."""
        self.spent += _DRAW_COST + units * self.costs[0]

    def until_due(self) -> int:
        """Return the draws until audits may be due, beyond which none must be made ahead."""
        if not self.draws:
            return 1
        block = self.block_length - self.draw % self.block_length
        return max(1, min(block, self.draws - self.draw))

    def due(self) -> bool:
        """Count a draw; return whether it ends a block with decisions to audit."""
        if not self.draws:
            return False
        self.draw += 1
        at_end = self.draw % self.block_length == 0 or self.draw == self.draws
        return at_end and self.log.seen[0] > 0 and self.tally.audited < self.settings.number

    def run(
        self, prepared: Any, surrogate: Surrogate | None, rng: np.random.Generator
    ) -> AuditTally:
        """Audit as many logged decisions as the budget allows; return the tally of this call."""
        if not self._affordable(self.n_units):
            return AuditTally(0, 0, 0)
        kept = int(min(self.log.seen[0], self.log.x.shape[0]))
        due = self.settings.number * self.draw // max(1, self.draws) - self.tally.audited
        chosen = self._choose(kept, due, prepared, surrogate, rng)
        audited = wrong = units = 0
        for k in chosen:
            cost = self.decisions.cost(k, prepared)
            if cost and not self._affordable(units + cost):
                break
            units += cost
            audited += 1
            wrong += bool(cost) and not self.decisions.confirmed(k, prepared, surrogate)
        if audited or not chosen.size:
            self.log.seen[0] = 0
        added = AuditTally(audited, wrong, units)
        self.tally = AuditTally(*(a + b for a, b in zip(self.tally, added)))
        return added

    def _affordable(self, units: int) -> bool:
        share = self.settings.max_share
        cost = (self.tally.units + units) * self.costs[1]
        return share is None or cost <= share * self.spent

    def _choose(
        self,
        kept: int,
        due: int,
        prepared: Any,
        surrogate: Surrogate | None,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """Return indices to audit: uniform ones and those nearest to the threshold, alternating."""
        due = min(due, kept)
        if due <= 0:
            return np.empty(0, np.int64)
        order = rng.permutation(kept)
        uniform, rest = order[: (due + 1) // 2], order[(due + 1) // 2 :]
        distance = np.array([self.decisions.distance(k, prepared, surrogate, rng) for k in rest])
        nearest = rest[np.argsort(distance, kind="stable")[: due // 2]]
        out = np.empty(due, np.int64)
        out[0::2], out[1::2] = uniform, nearest
        return out
