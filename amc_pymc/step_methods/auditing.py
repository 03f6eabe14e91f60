"""Audits: some decisions are re-made on all rows, to measure how often subsampling errs.

Which decisions are audited must not depend on how their races went, or the measured error would
be biased. Half of the audited decisions are a uniform sample. The other half are those that an
independent batch of rows shows nearest to the threshold among a larger uniform sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from amc_pymc.step_methods.compiled import Surrogate, surrogate_change, surrogate_total
from amc_pymc.step_methods.gibbs_kernel import Elements, StateLog
from amc_pymc.step_methods.metropolis_kernel import AuditLog
from amc_pymc.step_methods.preparation import row_changes, state_values
from amc_pymc.step_methods.settings import Audits

__all__ = ["AuditTally", "Auditor", "Decisions", "PairDecisions", "StateDecisions"]

_BLOCKS = 20
_CANDIDATES = 4
_SAMPLE = 200
#: Costs in evaluations of one row, measured: a draw's overhead in ``pm.sample`` and its step, a
#: row gathered at random against one read in order, and a chain's part of starting up.
_DRAW_COST = 3_000
_GATHER_COST = 4
_START_COST = 20_000_000


class AuditTally(NamedTuple):
    """Decisions audited, those found wrong, and rows read for it."""

    audited: int
    wrong: int
    rows: int


class Decisions(Protocol):
    """A uniform sample of the decisions made since the last audit; k is a place in the sample.

    ``log`` is what compiled loops write to: ``log.x`` (C, ...) has room for C decisions,
    ``log.count`` (1,) counts all.
    """

    log: Any

    def cost(self, k: int, prepared: Any) -> int:
        """Rows that making decision k on all rows takes; 0 if its race has read them all."""

    def confirmed(self, k: int, prepared: Any) -> bool:
        """Whether all rows decide as the race did."""

    def distance(self, k: int, prepared: Any, surrogate: Any, rng) -> float:
        """Estimated distance from the threshold, from rows drawn independently of the race."""


class PairDecisions:
    """Accepted and rejected moves from x to x_new."""

    def __init__(self, capacity: int, size: int):
        self.log = AuditLog(
            np.zeros((capacity, size)),
            np.zeros((capacity, size)),
            np.zeros((capacity, 3)),
            np.zeros(1, np.int64),
        )

    def cost(self, k, prepared) -> int:
        """Rows of one pass, unless the race has read every row."""
        raced = prepared.densities.n_rows - prepared.exact_rows.size
        return prepared.densities.n_rows if self.log.decision[k, 2] < raced else 0

    def confirmed(self, k, prepared) -> bool:
        """Whether the log ratio on all rows has the sign of the verdict."""
        change = prepared.densities.change(self.log.x[k], self.log.x_new[k])
        return bool(self.log.decision[k, 0] + change > 0.0) == bool(self.log.decision[k, 1])

    def distance(self, k, prepared, surrogate, rng) -> float:
        """|log ratio - threshold|."""
        n_rows = prepared.densities.n_rows
        points = prepared.eta(np.stack([self.log.x[k], self.log.x_new[k]]))
        rows = rng.integers(0, n_rows, size=min(_SAMPLE, n_rows))
        sampled = row_changes(prepared.raced.rewards, points, surrogate.centre, rows)
        change = n_rows * sampled.mean() + surrogate_change(points, surrogate)
        if prepared.control is not None:
            change += prepared.control_total(points[1]) - prepared.control_total(points[0])
        distance = abs(self.log.decision[k, 0] + change)
        return distance if np.isfinite(distance) else np.inf


class StateDecisions:
    """States drawn for discrete elements."""

    def __init__(self, capacity: int, size: int, elements: Elements):
        self.elements = elements
        most = int(np.diff(elements.first).max(initial=0))
        self.log = StateLog(
            np.zeros((capacity, size)),
            np.zeros((capacity, most)),
            np.zeros((capacity, 3)),
            np.zeros(1, np.int64),
        )

    def _states(self, k) -> np.ndarray:
        element = int(self.log.decision[k, 0])
        return self.elements.states[slice(*self.elements.first[element : element + 2])]

    def _points(self, k) -> np.ndarray:
        """The point with each state, (K, D)."""
        states = self._states(k)
        points = np.repeat(self.log.x[k][None, :], states.size, axis=0)
        points[:, self.elements.coordinate[int(self.log.decision[k, 0])]] = states
        return points

    def _scores(self, k, points, prepared) -> np.ndarray:
        rest = [prepared.densities.rest_value_and_gradient(x)[0] for x in points]
        return np.array(rest) + self.log.noise[k, : len(points)]

    def cost(self, k, prepared) -> int:
        """Rows of one pass for each state, unless the race has read every row."""
        n_rows = prepared.densities.n_rows
        raced = n_rows - prepared.exact_rows.size
        return n_rows * self._states(k).size if self.log.decision[k, 2] < raced else 0

    def confirmed(self, k, prepared) -> bool:
        """Whether the state drawn has the highest score on all rows."""
        points = self._points(k)
        scores = self._scores(k, points, prepared)
        drawn = int(self.log.decision[k, 1])
        for a in range(len(points)):
            if a != drawn and scores[a] > -np.inf:
                scores[a] += prepared.densities.change(points[drawn], points[a])
        return not np.any(scores > scores[drawn])

    def distance(self, k, prepared, surrogate, rng) -> float:
        """Lead of the best state over the second."""
        n_rows = prepared.densities.n_rows
        points = self._points(k)
        scores = self._scores(k, points, prepared)
        possible = np.flatnonzero(np.isfinite(scores))
        points = np.ascontiguousarray(prepared.eta(points[possible]))
        rows = rng.integers(0, n_rows, size=min(_SAMPLE, n_rows))
        sampled = state_values(prepared.raced.state_rewards, points, surrogate.centre, rows)
        scores = scores[possible] + n_rows * sampled.mean(axis=1)
        scores += [surrogate_total(eta, surrogate) for eta in points]
        if prepared.control is not None:
            scores += [prepared.control_total(eta) for eta in points]
        scores = np.sort(np.where(np.isfinite(scores), scores, -np.inf))
        distance = scores[-1] - scores[-2] if scores.size > 1 else np.inf
        return distance if np.isfinite(distance) else np.inf


class Auditor:
    """Collects decisions of one chain and audits them block by block.

    The budget is counted in row evaluations, not timed, so a seed reproduces a run.

    Parameters
    ----------
    settings : Audits
    rows_spent : int
        Row evaluations that setting up took.
    draws : int
        Of the chain; 0 collects nothing.
    decisions : callable
        ``capacity -> Decisions``.
    """

    def __init__(
        self,
        settings: Audits,
        rows_spent: int,
        draws: int,
        decisions: Callable[[int], Decisions],
    ):
        self.settings = settings
        self.blocks = max(1, min(_BLOCKS, draws))
        self.quota = -(-settings.number // self.blocks)
        self.decisions = decisions(_CANDIDATES * self.quota if draws and settings.number else 0)
        self.block_length = max(1, draws // self.blocks)
        self.draws = draws
        self.draw = 0
        self.tally = AuditTally(0, 0, 0)
        self.spent = float(_START_COST + rows_spent / 4)

    @property
    def log(self):
        """Where compiled loops write decisions."""
        return self.decisions.log

    def spend(self, rows: float) -> None:
        """Count what the chain has done since, which allows more audits."""
        self.spent += _DRAW_COST + _GATHER_COST * rows

    def due(self) -> bool:
        """Whether a block has ended with this draw."""
        self.draw += 1
        at_end = self.draw % self.block_length == 0 or self.draw == self.draws
        return at_end and self.log.count[0] > 0 and self.tally.audited < self.settings.number

    def run(self, prepared: Any, surrogate: Surrogate | None, rng) -> AuditTally:
        """Audit what the budget allows of the logged decisions; return what was added."""
        kept = int(min(self.log.count[0], self.log.x.shape[0]))
        due = self.settings.number * self.draw // max(1, self.draws) - self.tally.audited
        chosen = self._choose(kept, due, prepared, surrogate, rng)
        audited = wrong = rows = 0
        for k in chosen:
            cost = self.decisions.cost(k, prepared)
            if cost and not self._affordable(rows + cost):
                break
            rows += cost
            audited += 1
            wrong += bool(cost) and not self.decisions.confirmed(k, prepared)
        if audited or not chosen.size:
            self.log.count[0] = 0
        added = AuditTally(audited, wrong, rows)
        self.tally = AuditTally(*(a + b for a, b in zip(self.tally, added)))
        return added

    def _affordable(self, rows: int) -> bool:
        share = self.settings.max_share
        return share is None or 2.0 * (self.tally.rows + rows) <= share * self.spent

    def _choose(self, kept, due, prepared, surrogate, rng) -> np.ndarray:
        """Indices to audit: uniform ones and the nearest to the threshold, alternating."""
        due = min(due, kept)
        if due <= 0:
            return np.empty(0, np.int64)
        order = rng.permutation(kept)
        uniform, rest = order[: (due + 1) // 2], order[(due + 1) // 2 :]
        distance = np.array([self.decisions.distance(k, prepared, surrogate, rng) for k in rest])
        nearest = rest[np.argsort(distance, kind="stable")[: due // 2]]
        out = np.empty(uniform.size + nearest.size, np.int64)
        out[0 : 2 * nearest.size : 2] = uniform[: nearest.size]
        out[1 : 2 * nearest.size : 2] = nearest
        out[2 * nearest.size :] = uniform[nearest.size :]
        return out
