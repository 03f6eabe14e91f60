"""Audits: some decisions are re-made on all rows, to measure how often subsampling errs.

Which decisions are audited must not depend on how their races went, or the measured error would
be biased. Half of the audited decisions are a uniform sample. The other half are those that an
independent batch of rows shows nearest to the threshold among a larger uniform sample.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from amc_pymc.step_methods.metropolis_kernel import AuditLog, Surrogate, surrogate_change
from amc_pymc.step_methods.preparation import Preparation, row_changes
from amc_pymc.step_methods.settings import Audits

__all__ = ["AuditTally", "Auditor"]

_BLOCKS = 20
_CANDIDATES = 4
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


class Auditor:
    """Collects decisions of one chain and audits them block by block.

    The budget is counted in row evaluations, not timed, so a seed reproduces a run.
    """

    def __init__(self, settings: Audits, prepared: Preparation, draws: int, size: int):
        self.settings = settings
        self.blocks = max(1, min(_BLOCKS, draws))
        self.quota = -(-settings.number // self.blocks)
        capacity = _CANDIDATES * self.quota if draws and settings.number else 0
        self.log = AuditLog(
            np.zeros((capacity, size)),
            np.zeros((capacity, size)),
            np.zeros((capacity, 3)),
            np.zeros(1, np.int64),
        )
        self.block_length = max(1, draws // self.blocks)
        self.draws = draws
        self.draw = 0
        self.tally = AuditTally(0, 0, 0)
        self.spent = float(_START_COST + prepared.rows_spent / 4)

    def spend(self, rows: float) -> None:
        """Count what the chain has done since, which allows more audits."""
        self.spent += _DRAW_COST + _GATHER_COST * rows

    def due(self) -> bool:
        """Whether a block has ended with this draw."""
        self.draw += 1
        at_end = self.draw % self.block_length == 0 or self.draw == self.draws
        return at_end and self.log.count[0] > 0 and self.tally.audited < self.settings.number

    def run(self, prepared: Preparation, surrogate: Surrogate, rng) -> AuditTally:
        """Audit what the budget allows of the logged decisions; return what was added."""
        kept = int(min(self.log.count[0], self.log.x.shape[0]))
        due = self.settings.number * self.draw // max(1, self.draws) - self.tally.audited
        chosen = self._choose(kept, due, prepared, surrogate, rng)
        audited = wrong = rows = 0
        for k in chosen:
            cost = prepared.densities.n_rows if self._needs_rows(k, prepared) else 0
            if cost and not self._affordable(rows + cost):
                break
            rows += cost
            audited += 1
            wrong += bool(cost) and not self._confirmed(k, prepared)
        if audited or not chosen.size:
            self.log.count[0] = 0
        added = AuditTally(audited, wrong, rows)
        self.tally = AuditTally(*(a + b for a, b in zip(self.tally, added)))
        return added

    def _affordable(self, rows: int) -> bool:
        share = self.settings.max_share
        return share is None or 2.0 * (self.tally.rows + rows) <= share * self.spent

    def _needs_rows(self, k: int, prepared: Preparation) -> bool:
        """A decision that read every row has been made on all rows already."""
        raced = prepared.densities.n_rows - prepared.exact_rows.size
        return self.log.decision[k, 2] < raced

    def _confirmed(self, k: int, prepared: Preparation) -> bool:
        change = prepared.densities.change(self.log.x[k], self.log.x_new[k])
        return bool(self.log.decision[k, 0] + change > 0.0) == bool(self.log.decision[k, 1])

    def _choose(self, kept, due, prepared, surrogate, rng) -> np.ndarray:
        """Indices to audit: uniform ones and the nearest to the threshold, alternating."""
        due = min(due, kept)
        if due <= 0:
            return np.empty(0, np.int64)
        order = rng.permutation(kept)
        uniform, rest = order[: (due + 1) // 2], order[(due + 1) // 2 :]
        distance = np.array([self._distance(k, prepared, surrogate, rng) for k in rest])
        nearest = rest[np.argsort(distance, kind="stable")[: due // 2]]
        out = np.empty(uniform.size + nearest.size, np.int64)
        out[0 : 2 * nearest.size : 2] = uniform[: nearest.size]
        out[1 : 2 * nearest.size : 2] = nearest
        out[2 * nearest.size :] = uniform[nearest.size :]
        return out

    def _distance(self, k, prepared, surrogate, rng) -> float:
        """|log ratio - threshold| of a decision, from rows drawn independently of its race."""
        densities = prepared.densities
        points = np.stack([self.log.x[k], self.log.x_new[k]])
        rows = rng.integers(0, densities.n_rows, size=min(200, densities.n_rows))
        sampled = row_changes(densities.rewards, points, surrogate.centre, rows)
        change = densities.n_rows * sampled.mean() + surrogate_change(points, surrogate)
        distance = abs(self.log.decision[k, 0] + change)
        return distance if np.isfinite(distance) else np.inf
