"""All draws of a combination of estimators, and its estimates after each round."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from amc_pymc.combination.arms import Sample
from amc_pymc.combination.engine import Combination, Estimate, Round
from amc_pymc.flags import Flag

__all__ = ["WEIGHTS", "History", "Weights"]

Weights = Literal["predictable", "inverse_variance", "uniform"]
#: Combined estimates.
WEIGHTS: tuple[Weights, ...] = get_args(Weights)


class History:
    """All draws, and the estimates after each round."""

    def __init__(self, run: Combination):
        self.run = run
        self.stopped: Flag | None = None
        self.certified = False
        self._samples: list[tuple[int, int, Sample]] = []
        self._running: list[list[Estimate]] = []

    @property
    def complete(self) -> bool:
        """Whether at least one round is complete."""
        return bool(self.run.rounds)

    def add(self, decided: Round, samples: list[Sample | None]) -> None:
        """Add a complete round, after the run has recorded it."""
        self._keep(samples, decided.number)
        self._running.append([self.run.estimate(w) for w in WEIGHTS])

    def add_incomplete(self, samples: list[Sample | None], number: int) -> None:
        """Add draws of an unfinished round, which enter all estimates but the predictable one."""
        self._keep(samples, number)
        for record, sample in zip(self.run.records, samples, strict=True):
            if sample is not None:
                record.add(sample)

    def _keep(self, samples: list[Sample | None], number: int) -> None:
        self._samples += [(k, number, s) for k, s in enumerate(samples) if s is not None]

    def drawn_of(self, name: str) -> int:
        """Return the number of draws of an arm."""
        names = [a.name for a in self.run.arms]
        return sum(s.values.size for k, _, s in self._samples if names[k] == name)

    def pulls(self) -> dict[str, np.ndarray]:
        """Return all draws in the order in which they were started."""
        sizes = [s.values.size for _, _, s in self._samples]
        return {
            "arm": np.repeat([k for k, _, _ in self._samples], sizes),
            "round": np.repeat([r for _, r, _ in self._samples], sizes),
            "value": np.concatenate([s.values for _, _, s in self._samples]),
            "cost": np.concatenate([s.costs for _, _, s in self._samples]),
            "failed": np.concatenate([s.failed for _, _, s in self._samples]),
        }

    def running(self) -> list[list[Estimate]]:
        """Return the estimates after each round, in the order of ``WEIGHTS``."""
        return self._running
