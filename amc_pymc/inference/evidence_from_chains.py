"""The result of a run whose answer comes from chains and a bridge."""

from __future__ import annotations

import math
import time

import numpy as np
import xarray as xr

from amc_pymc.evidence import BridgedChains, Pilot, missing_evidence
from amc_pymc.extract.particles import ParticleDensities
from amc_pymc.inference.evidence_from_draws import bridge_flags, stage_arms
from amc_pymc.inference.evidence_model import running_off
from amc_pymc.inference.evidence_results import (
    Evidence,
    add_data_groups,
    draws_group,
    evidence_group,
    uncertain,
    warn,
)

__all__ = ["covering_error", "evidence_from_chains", "unlike_chains"]

#: What attributes say of the answer.
_METHOD = "bridge between own Hamiltonian chains and a Gaussian"
_UNBIASED = "no, but consistent as the chains become longer"
#: Standard errors, and nats beside them, by which two estimates may differ.
_ERRORS, _NATS = 5.0, 0.1


def evidence_from_chains(
    found: BridgedChains,
    pilot: Pilot,
    model,
    densities: ParticleDensities,
    counts: np.ndarray,
    kernel: str,
    *,
    target: float | None,
    max_cost: float | None,
    draws: int,
    chains: int,
    compiling: float,
    begin: float,
) -> xr.DataTree:
    """Make the result of :func:`amc_pymc.estimate_evidence` from chains and their bridge."""
    numbers = _numbers(found)
    tree = xr.DataTree()
    arms = stage_arms(found.stages)
    arms.attrs["left_out"] = "all others: no fitted mixture is close to the posterior"
    tree["arms"] = xr.DataTree(arms)
    n_values, n_gradients, n_nan = counts.tolist()
    numbers |= {
        "n_likelihood": n_values + n_gradients, "n_gradient": n_gradients, "n_nan": n_nan,
    }  # fmt: skip
    values = _add_posterior(tree, model, densities, found, draws, chains)
    flags = _flags(found, pilot, target, max_cost) + uncertain(numbers)
    flags += running_off(model, densities, values)
    numbers["log_evidence_mcse"] = covering_error(numbers, pilot, None)
    numbers["compile_seconds"] = compiling
    numbers["cpu_seconds"] = time.process_time() - begin
    tree["evidence"] = xr.DataTree(
        evidence_group(
            numbers, flags, weights="last stage", kernel=kernel, unbiased=_UNBIASED, method=_METHOD
        )
    )
    add_data_groups(tree, model)
    tree.attrs["sampling_method"] = "estimate_evidence"
    tree.attrs["inference_library"] = "amc_pymc"
    warn(flags, stacklevel=4)
    return tree


def covering_error(numbers: Evidence, pilot: Pilot, bridged: BridgedChains | None) -> float:
    """Standard error whose 95 % interval reaches what a pilot run or chains have found, if that is clearly other."""
    z, error = numbers["log_evidence"], numbers["log_evidence_mcse"]
    gap = missing_evidence(z, error, pilot) if math.isfinite(error) else 0.0
    return max(error, max(gap, _apart(numbers, bridged)) / 1.959964)


def unlike_chains(numbers: Evidence, bridged: BridgedChains | None) -> list[str]:
    """A flag if chains and their bridge tell an evidence that is clearly other."""
    if bridged is None or not _apart(numbers, bridged):
        return []
    return [
        f"own chains and a bridge find another evidence ({bridged.log_z:.2f} +- {bridged.mcse:.2f}), and no fitted mixture "
        "is close to the posterior: one of the two misses a part of it, so sample long with pm.sample and compare "
        "with estimate_evidence(idata=...)"
    ]


def _apart(numbers: Evidence, bridged: BridgedChains | None) -> float:
    """Nats between an estimate and that of chains; 0 where errors explain it or chains are not believed."""
    z, error = numbers["log_evidence"], numbers["log_evidence_mcse"]
    if bridged is None or not (bridged.mixed and bridged.stages[-1].believed):
        return 0.0
    if not math.isfinite(z) or not math.isfinite(error):
        return 0.0
    gap = abs(bridged.log_z - z)
    return gap if gap > _ERRORS * math.hypot(error, bridged.mcse) + _NATS else 0.0


def _numbers(found: BridgedChains) -> Evidence:
    """Numbers of the group ``evidence``. There is one estimator, which is its own second opinion."""
    last = found.stages[-1]
    error = found.mcse if math.isfinite(last.log_z) else math.inf
    return Evidence(
        log_evidence=last.log_z,
        log_evidence_mcse=error,
        log_evidence_iv=last.log_z,
        log_evidence_iv_mcse=error,
        ess=1.0 / error**2 if error > 0.0 else math.inf,
        pareto_k=math.nan,
        n_steps=last.steps,
        overlap=last.overlap,
        bridge_ess=last.effective,
        r_hat=found.chains.r_hat,
    )


def _flags(
    found: BridgedChains, pilot: Pilot, target: float | None, max_cost: float | None
) -> list[str]:
    """What chains, bridge and pilot run say against the answer."""
    flags = []
    if not found.mixed:
        flags.append(
            f"the chains do not agree (R-hat {found.chains.r_hat:.2f}): parts of the posterior have wrong weights, and "
            "the estimate may be off by more than its error, so reparametrise the model, or sample longer with "
            "pm.sample and pass idata"
        )
    flags += bridge_flags(found.stages, target, max_cost)
    if gap := missing_evidence(found.log_z, found.mcse, pilot):
        flags.append(
            f"the pilot run from the prior found more evidence ({found.log_z + gap:.2f}): part of the posterior "
            "is missing"
        )
    return flags


def _add_posterior(
    tree: xr.DataTree,
    model,
    densities: ParticleDensities,
    found: BridgedChains,
    draws: int,
    chains: int,
) -> dict[str, np.ndarray]:
    """Add so many of the chains' draws, evenly spaced in time and in random order of the chains; return them."""
    every = found.chains.draws
    flat = every.transpose(1, 0, 2).reshape(-1, every.shape[2])
    n = draws * chains
    chosen = np.linspace(0, len(flat) - 1, n).round().astype(int)
    x = flat[chosen].reshape(draws, chains, -1).transpose(1, 0, 2).reshape(n, -1)
    values = densities.constrain(x)
    posterior = draws_group(model, values, n_chains=chains)
    posterior.attrs["source"] = "own chains of Hamiltonian Monte Carlo"
    terms = densities.values(x)
    stats = {"log_prior": terms[0], "log_likelihood": terms[1], "lp": terms.sum(axis=0)}
    tree["posterior"] = xr.DataTree(posterior)
    tree["sample_stats"] = xr.DataTree(draws_group(model, stats, n_chains=chains))
    return values
