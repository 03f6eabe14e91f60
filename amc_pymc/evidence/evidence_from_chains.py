"""Evidence from the run's own chains and a bridge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from amc_pymc.evidence import BridgedChains, Pilot, PosteriorDraws, missing_evidence
from amc_pymc.evidence.doubts import copies_missed, covering_error, uncertain
from amc_pymc.evidence.from_draws import (
    TimeLimit,
    bridge_flags,
    bridge_numbers,
    stage_arms,
)
from amc_pymc.evidence.model import Tally, running_off
from amc_pymc.evidence.results import Evidence, add_posterior
from amc_pymc.flags import Flag, flag
from amc_pymc.reading.particles.marginal import Densities

if TYPE_CHECKING:
    from pymc import Model

__all__ = ["ChainsAnswer", "chains_answer"]

#: Difference in nats between the ends of the bridge that short chains explain.
_NATS = 0.1
#: Attributes that describe the estimate.
_METHOD = "bridge between own Hamiltonian chains and a Gaussian"
_UNBIASED = "no, but consistent as the chains become longer"


class ChainsAnswer(NamedTuple):
    """Estimate from chains and a bridge: groups of arms and draws, numbers, flags, attributes, draws (n, D)."""

    tree: xr.DataTree
    numbers: Evidence
    flags: list[Flag]
    attrs: dict[str, Any]
    draws: np.ndarray


def chains_answer(
    found: BridgedChains,
    pilot: Pilot,
    model: Model,
    densities: Densities,
    tally: Tally,
    *,
    target: float | None,
    max_cost: float | None,
    limit: TimeLimit,
    draws: int,
    chains: int,
) -> ChainsAnswer:
    """Return the estimate from chains and their bridge, with draws of the chains."""
    numbers, tree = _numbers(found), xr.DataTree()
    arms = stage_arms(found.stages)
    arms.attrs["left_out"] = "all others: no fitted mixture is close to the posterior"
    tree["arms"] = xr.DataTree(arms)
    flags = _flags(found, pilot, target, max_cost, limit) + uncertain(*numbers.estimate)
    with tally.stage("posterior"):
        drawn = _posterior(found, draws * chains)
        values, more = add_posterior(tree, model, densities, drawn, chains)
    flags += running_off(model, densities, values) + more
    flags += copies_missed(pilot, found.chains.draws.reshape(-1, densities.n_dim))
    numbers["log_evidence_mcse"] = covering_error(*numbers.estimate, pilot, None)
    attrs = {"weights": "last stage", "unbiased": _UNBIASED, "method": _METHOD}
    return ChainsAnswer(tree, numbers, flags, attrs, drawn.x)


def _numbers(found: BridgedChains) -> Evidence:
    """Return the numbers of the group ``evidence``. The only estimator is also the second opinion."""
    numbers = bridge_numbers(found.stages[-1], found.mcse, found.chains.r_hat)
    z, error = numbers.estimate
    numbers |= {"log_evidence_iv": z, "log_evidence_iv_mcse": error}
    return numbers


def _flags(
    found: BridgedChains,
    pilot: Pilot,
    target: float | None,
    max_cost: float | None,
    limit: TimeLimit,
) -> list[Flag]:
    """Return flags from chains, bridge and pilot run."""
    flags = []
    if not found.mixed:
        flags.append(flag("own_chains_disagree", r_hat=found.chains.r_hat))
    flags += bridge_flags(found.stages, target, max_cost, limit, _NATS)
    if target is not None and found.stages[-1].mcse <= target < found.mcse:
        error, r_hat = found.mcse, found.chains.r_hat
        flags.append(flag("own_chains_too_short", error=error, target=target, r_hat=r_hat))
    if gap := missing_evidence(found.log_z, found.mcse, pilot):
        flags.append(flag("pilot_found_more", other=found.log_z + gap))
    return flags


def _posterior(found: BridgedChains, n: int) -> PosteriorDraws:
    """Return n evenly spaced draws, one chain after the other."""
    every = found.chains.draws
    flat = every.reshape(-1, every.shape[2])
    x = flat[np.linspace(0, len(flat) - 1, n).round().astype(int)]
    return PosteriorDraws(x, len(np.unique(x, axis=0)), "own chains of Hamiltonian Monte Carlo")
