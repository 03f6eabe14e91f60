"""A combination of estimators as an xarray.DataTree."""

from __future__ import annotations

import math

from typing import Any

import numpy as np
import xarray as xr

from scipy.stats import t as student

from amc_pymc.bandits import Policy
from amc_pymc.combination import Combination
from amc_pymc.combination.statistics import WEIGHTS, History, arm_statistics, running_means, scaled
from amc_pymc.diagnostics.pareto import pareto_k
from amc_pymc.flags import Flag, flag
from amc_pymc.results import LARGEST_K, declared_dataset
from amc_pymc.results.tables import ARMS, ESTIMATE, PULLS, ROUNDS

__all__ = ["combination_flags", "combination_tree", "missed"]

#: p-value below which the arms' means are flagged as different.
_DISAGREE = 1e-4
#: Standard errors between the estimate and an arm of equal values from which the arm is flagged.
_FAR = 2.0
#: Ratio of standard error to target above which a flag is raised.
_OVER = 1.2
#: Relative variance below which a few values cannot dominate the sum, whatever their Pareto k.
_UNEVEN = 0.02


def combination_tree(history: History, *, weights: str, policy: Policy, cost: Any) -> xr.DataTree:
    """Return the results of a run."""
    run = history.run
    pulls = history.pulls()
    names = [a.name for a in run.arms]
    estimates = scaled([run.estimate(w) for w in WEIGHTS], run.scale)
    arms = arm_statistics(run)
    if run.scale == "log":
        arms["pareto_k"] = _tails(pulls, len(names))
    tree = xr.DataTree.from_dict(
        {
            "/estimate": declared_dataset(ESTIMATE, estimates, {"weights": list(WEIGHTS)}),
            "/arms": declared_dataset(ARMS, arms, {"arm": names}),
            "/rounds": _rounds(history, names),
            "/pulls": _pulls(pulls, names, run.scale),
        }
    )
    tree.attrs = {
        "inference_library": "amc_pymc",
        "sampling_method": "combine_estimators",
        "policy": policy.name,
        "weights": weights,
        "scale": run.scale,
        "cost": cost if isinstance(cost, str) else "callable",
        "unbiased": _unbiased(history),
        "stopped": _sentence(history.stopped),
        "rewards_clipped": int(getattr(policy.rewards, "clipped", 0)),
    }
    tree["estimate"].attrs["headline"] = weights
    return tree


def _sentence(stopped: Flag | None) -> str:
    """Return the reason why a run ended early, empty if it did not."""
    if stopped is None:
        return ""
    return f"{stopped.happened[0].upper()}{stopped.happened[1:]}."


def _unbiased(history: History) -> str:
    if history.stopped:
        return "Not exactly: the run was cut short. The predictable estimate is of complete rounds only."
    if history.certified > 1:
        return "Nearly: the predictable estimate is the last round's; earlier ones had missed the target error."
    if history.certified:
        return (
            "The predictable estimate exactly: it is the last round's, whose size was fixed before it "
            "began. The inverse-variance and uniform estimates are not."
        )
    uniform = "exactly" if len({a.cost for a in history.run.arms}) == 1 else "not exactly"
    fixed = history.run.plan.unit == "draws"
    return (
        "The predictable estimate exactly: the numbers of draws in a round depend on earlier rounds only, and "
        "the weights of each half of a round on these and on the other half. "
        f"The plain average {uniform if fixed else 'not exactly'}, the inverse-variance "
        "estimate not."
    )


def _rounds(history: History, names: list[str]) -> xr.Dataset:
    rounds = history.run.rounds
    running = [scaled(found, history.run.scale) for found in history.running()]
    values = {
        "draws": np.stack([r.counts for r in rounds]),
        "arm_weight": np.stack([r.arm_weights for r in rounds]),
        "round_weight": np.array([r.weight for r in rounds]),
        "cost": np.array([r.cost for r in rounds]),
        **{f"running_{key}": np.stack([f[key] for f in running]) for key in running[0]},
    }
    coords = {"round": np.arange(len(rounds)), "arm": names, "weights": list(WEIGHTS)}
    return declared_dataset(ROUNDS, values, coords)


def _pulls(pulls: dict[str, np.ndarray], names: list[str], scale: str) -> xr.Dataset:
    running = running_means(pulls["value"], pulls["failed"], scale)
    coords = {"pull": np.arange(pulls["value"].size)}
    out = declared_dataset(PULLS, {**pulls, "running_mean": running}, coords)
    out["arm"].attrs["names"] = names
    out["value"].attrs["scale"] = scale
    return out


def combination_flags(history: History, tree: xr.DataTree, budget: Any) -> list[Flag]:
    """Return flags for an early end, arms that disagree, heavy tails and a missed target."""
    run, arms = history.run, tree["arms"].to_dataset()
    found = [history.stopped, _disagreement(run, arms)]
    silent = run.silent
    if not silent.all():
        found += [
            flag("arm_silent", arm=r.arm.name, draws=r.failed)
            for r, none in zip(run.records, silent, strict=True)
            if none
        ]
    if run.scale == "log":
        found.append(_heavy_tail(arms))
    else:
        found += _constant_arms(run, tree["estimate"].to_dataset())
        if float(tree["estimate"]["mcse"].sel(weights="predictable")) == 0.0:
            found.append(flag("no_spread", draws=sum(r.n for r in run.records)))
    if budget.target is not None and math.isfinite(budget.total) and history.stopped is None:
        found.append(_missed_target(run, tree["estimate"].to_dataset(), budget))
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


def _constant_arms(run: Combination, estimate: xr.Dataset) -> list[Flag]:
    """Return flags for arms whose values are all equal and far from the estimate."""
    chosen = estimate.sel(weights="predictable")
    mean, mcse = float(chosen["mean"]), float(chosen["mcse"])
    found = []
    for record in run.records:
        errors = abs(record.centre() - mean) / mcse if mcse > 0.0 else 0.0
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
    arm = str(arms["arm"].values[worst])
    return flag("few_values", arm=arm, k=float(k[worst]), limit=LARGEST_K)


def missed(run: Combination, target: float) -> bool:
    """Whether the predictable estimate has a standard error well beyond the target."""
    found = run.estimate("predictable")
    error = found.mcse / found.mean if run.scale == "log" else found.mcse
    return not error <= _OVER * target


def _missed_target(run: Combination, estimate: xr.Dataset, budget: Any) -> Flag | None:
    if not missed(run, budget.target):
        return None
    key = "log_mean_mcse" if run.scale == "log" else "mcse"
    reached = float(estimate[key].sel(weights="predictable"))
    argument = "max_cost" if budget.unit == "cost" else "draws"
    given = f"{argument}={budget.total:g}"
    return flag(
        "budget_too_small", error=reached, target=budget.target, budget=given, argument=argument
    )


def _tails(pulls: dict[str, np.ndarray], n_arms: int) -> np.ndarray:
    """Return the Pareto shape k of the largest weights of each arm, (K,); nan for fewer than 25."""
    out = np.full(n_arms, np.nan)
    for k in range(n_arms):
        out[k] = pareto_k(pulls["value"][pulls["arm"] == k])
    return out
