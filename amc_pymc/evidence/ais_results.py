"""Results of annealed importance sampling as an xarray.DataTree."""

from __future__ import annotations

import math

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from amc_pymc.evidence import Pilot
from amc_pymc.evidence.annealing import Annealed, Ladder, by_temperature, resample
from amc_pymc.evidence.doubts import disagreements, uncertain
from amc_pymc.evidence.mcmc import Kernel
from amc_pymc.evidence.model import Tally, running_off
from amc_pymc.evidence.prior_check import prior_flags
from amc_pymc.evidence.results import (
    Evidence,
    evidence_group,
    from_log_weights,
    nan_flags,
)
from amc_pymc.flags import Flag, flag, warn_of
from amc_pymc.reading.particles.marginal import Densities
from amc_pymc.results import LARGEST_K, declared_dataset, described
from amc_pymc.results.tables import ANNEALING, DRAW_STATS, WEIGHTED
from amc_pymc.steps.model_groups import add_data_groups, draws_group

if TYPE_CHECKING:
    from pymc import Model

__all__ = ["N_PATHS", "AisRun", "Plan", "ais_results"]

#: Particles whose cumulative weights are stored for plots.
N_PATHS = 100
#: Relative variance of weights below which a few of them cannot dominate the sum.
_UNEVEN = 0.02


class Plan(NamedTuple):
    """Everything that is fixed before particles are annealed."""

    path: Any
    base: Any
    betas: np.ndarray
    kernel: Kernel
    ladder: Ladder
    n_moves: int
    reference: str


class AisRun(NamedTuple):
    """A finished run, before its results are assembled."""

    model: Any
    densities: Densities
    pilot: Pilot
    plan: Plan
    blocks: list[tuple[int, int]]
    done: dict[int, Annealed]
    reverse: Annealed | None
    why: str


def ais_results(
    run: AisRun, tally: Tally, rng: np.random.Generator, seconds: dict[str, float]
) -> xr.DataTree:
    """Return the results of a run, and warn of its flags."""
    log_weights = np.concatenate([part.log_weights for part in run.done.values()])
    numbers = from_log_weights(log_weights)
    flags = _flags(numbers, len(log_weights))
    with tally.stage("checks"):
        flags += nan_flags(numbers, tally.numbers(), run.densities, run.pilot, rng)
    flags += uncertain(*numbers.estimate) + disagreements(*numbers.estimate, run.pilot)
    flags += prior_flags(run.model)
    if run.why != "done":
        why = "interrupted" if run.why == "interrupted" else "max_time was over"
        flags.insert(0, flag("blocks_missing", why=why, done=len(run.done), blocks=len(run.blocks)))
    if run.reverse is not None:
        numbers |= _reversed(run.reverse)
    tree = xr.DataTree()
    chains = _whole_chains(run.blocks, run.done)
    if chains:
        with tally.stage("posterior"):
            draws = _add_draws(tree, run.model, run.densities, chains, rng)
        flags += running_off(run.model, run.densities, draws)
    tree["evidence"] = xr.DataTree(
        evidence_group(
            Evidence(numbers | tally.numbers() | seconds),
            flags,
            reference=run.plan.reference,
            kernel=run.plan.kernel.name,
            unbiased="of the evidence, not of its logarithm",
        )
    )
    tree["evaluations"] = xr.DataTree(tally.dataset())
    tree["annealing"] = xr.DataTree(_annealing(run.plan, run.done))
    add_data_groups(tree, run.model)
    tree.attrs = {"inference_library": "amc_pymc", "sampling_method": "sample_ais"}
    warn_of(flags, "Model evidence")
    return tree


def _flags(numbers: Evidence, n: int) -> list[Flag]:
    flags = []
    if numbers["log_evidence"] == -math.inf:
        flags.append(flag("all_zero"))
    uneven = numbers["ess"] * (1.0 + _UNEVEN) < n
    if numbers["pareto_k"] > LARGEST_K and uneven:
        flags.append(flag("few_weights", k=numbers["pareto_k"], limit=LARGEST_K))
    elif numbers["ess"] < min(50.0, 0.5 * n):
        flags.append(flag("few_effective_particles", ess=numbers["ess"], particles=n))
    return flags


def _reversed(run: Annealed) -> dict[str, float]:
    back = from_log_weights(run.log_weights)
    return {
        "reverse_log_evidence": -back["log_evidence"],
        "reverse_log_evidence_mcse": back["log_evidence_mcse"],
    }


def _whole_chains(
    blocks: Sequence[tuple[int, int]], done: dict[int, Annealed]
) -> list[tuple[np.ndarray, ...]]:
    """Return the particles of non-empty chains, truncated to the same number."""
    found: dict[int, list[Annealed]] = {}
    for i, run in done.items():
        found.setdefault(blocks[i][0], []).append(run)
    joined = [_join(runs) for runs in found.values()]
    shortest = min((len(x) for x, _, _ in joined), default=0)
    return [tuple(a[:shortest] for a in parts) for parts in joined]


def _join(runs: Sequence[Annealed]) -> tuple[np.ndarray, ...]:
    return (
        np.concatenate([r.x for r in runs]),
        np.concatenate([r.log_weights for r in runs]),
        np.concatenate([r.log_likelihood for r in runs]),
    )


def _add_draws(
    tree: xr.DataTree,
    model: Model,
    densities: Densities,
    chains: Sequence[tuple[np.ndarray, ...]],
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Add the weighted particles and draws of equal weight to the tree; return the draws.

    Copies of a particle are adjacent, so diagnostics do not treat them as independent.
    """
    x = np.concatenate([c[0] for c in chains])
    log_w = np.stack([c[1] for c in chains])
    n_chains, n_draws = log_w.shape
    index = np.stack(
        [resample(w, n_draws, rng) if w.max() > -np.inf else np.arange(n_draws) for w in log_w]
    )
    chosen = (index + n_draws * np.arange(n_chains)[:, None]).ravel()
    values = densities.constrain(x)
    terms = densities.values(x)
    draws = {k: v[chosen] for k, v in values.items()}
    weighted = draws_group(model, values, n_chains=n_chains)
    weighted["log_weight"] = ("chain", "draw"), log_w
    weighted = described(weighted, WEIGHTED)
    stats = {
        "log_prior": terms[0][chosen],
        "log_likelihood_sum": terms[1][chosen],
        "particle": index.ravel(),
    }
    stats["lp"] = stats["log_prior"] + stats["log_likelihood_sum"]
    posterior = draws_group(model, draws, n_chains=n_chains)
    posterior.attrs["n_distinct"] = sum(len(np.unique(row)) for row in index)
    tree["posterior"] = xr.DataTree(posterior)
    told = described(draws_group(model, stats, n_chains=n_chains), DRAW_STATS)
    tree["sample_stats"] = xr.DataTree(told)
    tree["weighted_posterior"] = xr.DataTree(weighted)
    return draws


def _annealing(plan: Plan, done: dict[int, Annealed]) -> xr.Dataset:
    runs = list(done.values())
    paths = np.concatenate([r.paths for r in runs])[:N_PATHS]
    columns = {"beta": plan.betas[1:], "log_weight_path": paths, **by_temperature(runs)}
    return declared_dataset(ANNEALING, columns)
