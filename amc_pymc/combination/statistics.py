"""Statistics of the arms and draws of a combination of estimators."""

from __future__ import annotations

import math

import numpy as np

from amc_pymc.combination.engine import Combination, Estimate, combine_arms

__all__ = ["arm_statistics", "running_means", "scaled"]


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
