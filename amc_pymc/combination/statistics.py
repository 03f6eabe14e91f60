"""Draws of a combination of estimators, and statistics of its arms and rounds."""

from __future__ import annotations

import math

from typing import Literal, get_args

import numpy as np

from amc_pymc.combination.arms import Sample
from amc_pymc.combination.engine import Combination, Estimate, Round, combine_arms
from amc_pymc.flags import Flag

__all__ = ["WEIGHTS", "History", "Weights", "arm_statistics", "running_means", "scaled"]

Weights = Literal["predictable", "inverse_variance", "uniform"]
#: Combined estimates.
WEIGHTS: tuple[Weights, ...] = get_args(Weights)


class History:
    """All draws, and the estimates after each round."""

    def __init__(self, run: Combination):
        self.run = run
        self.stopped: Flag | None = None
        self.certified = 0  # rounds made to reach a target error
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


def scaled(found: list[Estimate], scale: str) -> dict[str, np.ndarray]:
    """Return columns mean and mcse, and on the log scale those of the logarithm."""
    mean = np.array([e.mean for e in found])
    mcse = np.array([e.mcse for e in found])
    offset = np.array([e.offset for e in found])
    if scale == "natural":
        return {"mean": mean, "mcse": mcse}
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        return {
            "mean": mean * np.exp(offset),
            "mcse": mcse * np.exp(offset),
            "log_mean": np.log(mean) + offset,
            "log_mean_mcse": mcse / mean,
        }


def arm_statistics(run: Combination) -> dict[str, np.ndarray]:
    """Return arrays (K,) by name, with one number for each arm."""
    each = [
        combine_arms([r], "uniform") if r.n else Estimate(math.nan, math.nan, 0.0)
        for r in run.records
    ]
    share = np.zeros(len(run.arms))
    total = sum(r.weight for r in run.rounds)
    for r in run.rounds:
        if total > 0.0:
            share += r.weight / total * r.arm_weights
    return {
        "draws": np.array([r.n + r.failed for r in run.records]),
        "failed": np.array([r.failed for r in run.records]),
        **scaled(each, run.scale),
        "relative_variance": np.array(
            [r.relative_variance() if r.n > 1 else np.nan for r in run.records]
        ),
        "sd": _sds(run),
        "cost_per_draw": np.array([r.cost for r in run.records]),
        "weight": share,
        "z_score": _z_scores(run),
    }


def running_means(values: np.ndarray, failed: np.ndarray, scale: str) -> np.ndarray:
    """Return plain averages (n,) of the values up to each one, without failed ones, on the scale of values."""
    counted = np.maximum(np.cumsum(~failed), 1)
    if scale == "natural":
        means: np.ndarray = np.cumsum(np.where(failed, 0.0, values)) / counted
        return means
    with np.errstate(divide="ignore"):
        sums = np.logaddexp.accumulate(np.where(failed, -np.inf, values))
        return sums - np.log(counted)


def _sds(run: Combination) -> np.ndarray:
    """Return the standard deviation of a value of each arm, (K,), on the log scale of its logarithm."""
    found = [r.log_variance() if run.scale == "log" else r.variance() for r in run.records]
    return np.sqrt(found)


def _z_scores(run: Combination) -> np.ndarray:
    """Return each arm's mean minus the others' inverse-variance estimate, in standard errors."""
    known = np.array([r.n > 1 for r in run.records])
    out = np.full(known.size, np.nan)
    if known.sum() < 2:
        return out
    each = [combine_arms([r], "uniform") for r in run.records if r.n > 1]
    top = max(e.offset for e in each)
    mean = np.array([e.mean * math.exp(e.offset - top) for e in each])
    variance = np.array([(e.mcse * math.exp(e.offset - top)) ** 2 for e in each])
    precision = np.divide(1.0, variance, out=np.zeros(mean.size), where=variance > 0.0)
    rest = precision.sum() - precision
    with np.errstate(divide="ignore", invalid="ignore"):
        others = ((precision * mean).sum() - precision * mean) / rest
        z = (mean - others) / np.sqrt(variance + 1.0 / rest)
    out[known] = np.where(np.isfinite(z), z, np.nan)
    return out
