"""A combination of estimators as an xarray.DataTree, with statistics of its arms and rounds, and flags."""

from __future__ import annotations

import math

from typing import Any

import numpy as np
import xarray as xr

from scipy.stats import t as student

from amc_pymc.bandits.combination import WEIGHTS, Combination, Estimate, combine_arms
from amc_pymc.flags import Flag, flag
from amc_pymc.results import LARGEST_K, declared_dataset, pareto_k
from amc_pymc.results.tables import ARMS, ESTIMATE, PULLS, ROUNDS

#: p-value below which the arms' means are flagged as different.
_DISAGREE = 1e-4
#: Standard errors between the estimate and an arm of equal values from which the arm is flagged.
_FAR = 2.0
#: Ratio of standard error to target above which a flag is raised.
_OVER = 1.2
#: Relative variance below which a few values cannot dominate the sum, whatever their Pareto k.
_UNEVEN = 0.02


def drawn_pulls(run: Combination) -> dict[str, np.ndarray]:
    """Return all draws in the order in which they were started."""
    sizes = [s.values.size for _, _, s in run.samples]
    return {
        "arm": np.repeat([k for k, _, _ in run.samples], sizes),
        "round": np.repeat([r for _, r, _ in run.samples], sizes),
        "value": np.concatenate([s.values for _, _, s in run.samples]),
        "cost": np.concatenate([s.costs for _, _, s in run.samples]),
    }


def scaled(found: list[Estimate], scale: str) -> dict[str, np.ndarray]:
    """Return columns mean and mcse, and on the log scale those of the logarithm."""
    mean, mcse, offset = np.array([(e.mean, e.mcse, e.offset) for e in found]).T.copy()
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
    each = [combine_arms([r], "uniform") for r in run.records]
    total = sum(r.weight for r in run.rounds) or 1.0
    return {
        "draws": np.array([r.n for r in run.records]),
        **scaled(each, run.scale),
        "relative_variance": np.array(
            [r.relative_variance() if r.n > 1 else np.nan for r in run.records]
        ),
        "sd": np.sqrt(
            [r.log_variance() if run.scale == "log" else r.variance() for r in run.records]
        ),
        "cost_per_draw": np.array([r.cost for r in run.records]),
        "weight": sum((r.weight / total * r.arm_weights for r in run.rounds), np.zeros(len(each))),
        "z_score": _z_scores(run, each),
    }


def _z_scores(run: Combination, means: list[Estimate]) -> np.ndarray:
    """Return each arm's mean minus the others' inverse-variance estimate, in standard errors."""
    known = np.array([r.n > 1 for r in run.records])
    out = np.full(known.size, np.nan)
    if known.sum() < 2:
        return out
    each = [e for e, r in zip(means, run.records, strict=True) if r.n > 1]
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


def combination_tree(run: Combination, *, cost: Any) -> xr.DataTree:
    """Return the results of a run."""
    pulls = drawn_pulls(run)
    stopped = "" if run.stopped is None else run.stopped.happened
    names = [a.name for a in run.arms]
    estimates = scaled([run.estimate(w) for w in WEIGHTS], run.scale)
    arms = arm_statistics(run)
    if run.scale == "log":
        of_arm = [pulls["value"][pulls["arm"] == k] for k in range(len(names))]
        arms["pareto_k"] = np.array([pareto_k(values) for values in of_arm])
    tree = xr.DataTree.from_dict(
        {
            "/estimate": declared_dataset(ESTIMATE, estimates, {"weights": list(WEIGHTS)}),
            "/arms": declared_dataset(ARMS, arms, {"arm": names}),
            "/rounds": _rounds(run, names),
            "/pulls": declared_dataset(PULLS, pulls, {"pull": np.arange(pulls["value"].size)}),
        }
    )
    tree.attrs = {
        "inference_library": "amc_pymc",
        "sampling_method": "combine_estimators",
        "policy": run.policy.name,
        "weights": "predictable",
        "scale": run.scale,
        "cost": cost,
        "unbiased": _unbiased(run),
        "stopped": stopped and f"{stopped[0].upper()}{stopped[1:]}.",
        "rewards_clipped": int(getattr(run.policy.rewards, "clipped", 0)),
    }
    tree["pulls"]["arm"].attrs["names"] = names
    tree["pulls"]["value"].attrs["scale"] = run.scale
    return tree


def _unbiased(run: Combination) -> str:
    if run.stopped:
        return "Not exactly: the run was cut short. The predictable estimate is of complete rounds only."
    if sum(r.alone for r in run.rounds) > 1:
        return "Nearly: the predictable estimate is the last round's; earlier ones had missed the target error."
    return (
        "The predictable estimate exactly: the numbers of draws in a round depend on earlier rounds only, and "
        "the weights of each half of a round on these and on the other half. In general the others are not."
    )


def _rounds(run: Combination, names: list[str]) -> xr.Dataset:
    rounds = run.rounds
    running = [scaled(found, run.scale) for found in run.running]
    values = {
        "draws": np.stack([r.counts for r in rounds]),
        "arm_weight": np.stack([r.arm_weights for r in rounds]),
        "round_weight": np.array([r.weight for r in rounds]),
        "cost": np.array([r.cost for r in rounds]),
        **{f"running_{key}": np.stack([f[key] for f in running]) for key in running[0]},
    }
    coords = {"round": np.arange(len(rounds)), "arm": names, "weights": list(WEIGHTS)}
    return declared_dataset(ROUNDS, values, coords)


def combination_flags(run: Combination, tree: xr.DataTree, budget: Any) -> list[Flag]:
    """Return flags for an early end, arms that disagree, heavy tails and a missed target."""
    arms = tree["arms"].to_dataset()
    found = [run.stopped, _disagreement(run, arms)]
    if run.scale == "log":
        found.append(_heavy_tail(arms))
    else:
        found += _constant_arms(run)
    if budget.target is not None and math.isfinite(budget.total) and run.stopped is None:
        found.append(_missed_target(run, budget))
    return [f for f in found if f is not None]


def _disagreement(run: Combination, arms: xr.Dataset) -> Flag | None:
    z = arms["z_score"].values
    if not np.isfinite(z).any():
        return None
    worst = int(np.nanargmax(np.abs(z)))
    fewest = min(r.n for r in run.records if r.n > 1)
    p = 2.0 * float(student.sf(abs(z[worst]), fewest - 1)) * np.isfinite(z).sum()
    if p >= _DISAGREE:
        return None
    return flag("estimators_disagree", arm=str(arms["arm"].values[worst]), errors=abs(z[worst]))


def _constant_arms(run: Combination) -> list[Flag]:
    """Return flags for arms whose values are all equal and far from the estimate, or for equal values of all arms."""
    chosen, found = run.estimate("predictable"), []
    if chosen.mcse == 0.0:
        return [flag("no_spread", draws=sum(r.n for r in run.records))]
    for record in run.records:
        errors = abs(record.centre() - chosen.mean) / chosen.mcse
        if record.constant and errors > _FAR:
            found.append(flag("arm_constant", arm=record.arm.name, draws=record.n, errors=errors))
    return found


def _heavy_tail(arms: xr.Dataset) -> Flag | None:
    k = arms["pareto_k"].values
    uneven = arms["relative_variance"].values > _UNEVEN
    heavy = (k > LARGEST_K) & (arms["weight"].values > 0.1) & uneven
    if not heavy.any():
        return None
    worst = int(np.argmax(np.where(heavy, k, 0.0)))
    values = f"values of {str(arms['arm'].values[worst])!r}"
    return flag("few_values", values=values, k=float(k[worst]), limit=LARGEST_K)


def missed(run: Combination, target: float) -> bool:
    """Whether the predictable estimate has a standard error well beyond the target."""
    return not _error(run) <= _OVER * target


def _error(run: Combination) -> float:
    """Return the standard error of the predictable estimate, on the log scale of its logarithm; inf for that of zero."""
    found = run.estimate("predictable")
    unit = found.mean if run.scale == "log" else 1.0
    return found.mcse / unit if unit else math.inf


def _missed_target(run: Combination, budget: Any) -> Flag | None:
    if not missed(run, budget.target):
        return None
    if all(r.offset == -math.inf for r in run.records):
        return flag("all_zero")
    argument = "max_cost" if budget.unit == "cost" else "draws"
    given = f"{argument}={budget.total:g}"
    return flag(
        "budget_too_small", error=_error(run), target=budget.target, budget=given, argument=argument
    )
