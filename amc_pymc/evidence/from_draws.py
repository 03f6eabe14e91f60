"""Model evidence from the user's posterior draws, by a bridge."""

from __future__ import annotations

import math
import time

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from amc_pymc.evidence.adapt import clearly_more, unvisited
from amc_pymc.evidence.bridge import STEPS, Stage, bridge_draws, tension_of
from amc_pymc.evidence.mcmc import HMC, Path
from amc_pymc.evidence.model import (
    Tally,
    TimeLimit,
    compiled_particles,
    cost_of,
    exchangeable,
    one_blas_thread,
    pilot_settings,
)
from amc_pymc.evidence.modes import Joint
from amc_pymc.evidence.paths import OneCopy
from amc_pymc.evidence.results import Answer, Evidence, effective_size, finished, uncertain
from amc_pymc.evidence.symmetry import find_symmetries
from amc_pymc.flags import Flag, flag
from amc_pymc.progress import progress
from amc_pymc.reading.particles.densities import counted
from amc_pymc.results import declared_dataset
from amc_pymc.results.tables import ARMS
from amc_pymc.rng import RandomSeed, seed_words, spawn_generators
from amc_pymc.runs import run_loop
from amc_pymc.signals import held_back
from amc_pymc.steps.marginal_effects import (
    Marginalize,
    chosen_effects,
    enough_nodes,
    quadrature,
)
from amc_pymc.steps.stored_draws import (
    Health,
    check_idata,
    health_of,
    stored_draws,
)

if TYPE_CHECKING:
    from pymc import Model


#: Limits for flags: effective draws per chain and at most in total, and mean copies of a draw.
_FEW, _ENOUGH, _COPIES = 100.0, 400.0, 1.5
#: Difference in nats between the two ends of a bridge, and standard errors of modes not visited, without a flag.
_NATS, _ERRORS = 0.01, 5.0
_UNBIASED = "no, but consistent as the draws become more; modes that the draws miss stay missed"
#: Number of draws at which exchanges of labels and signs are tried.
_TRIED = 4
#: Share of divergent transitions above which a flag is raised.
_DIVERGENT = 0.001


def evidence_from_draws(
    idata: xr.DataTree,
    *,
    model: Model,
    marginalize: Marginalize,
    target: float | None,
    max_cost: float,
    limit: TimeLimit,
    random_seed: RandomSeed,
    progressbar: bool,
) -> xr.DataTree:
    """Run :func:`amc_pymc.estimate_evidence` with given draws."""
    words, kernel = seed_words(random_seed), HMC()
    effects = chosen_effects(model, marginalize)
    posterior = check_idata(idata, model, () if effects is None else effects.factor.variables)
    densities, compiling = compiled_particles(model, effects)
    begin = time.process_time()
    rng, search_rng = spawn_generators(words, 2)
    tally = Tally()
    with one_blas_thread(), counted() as counts:
        x = stored_draws(posterior, model, densities)
        flat = x.reshape(-1, x.shape[2])
        densities = enough_nodes(densities, flat[::2], target)
        with tally.stage("exchanges"):
            some, variables = flat[:: max(len(flat) // _TRIED, 1)], exchangeable(model, densities)
            found = find_symmetries(densities.values, variables, some)
            images = None if found is None else found.apart(flat)
        path: Path = densities
        if images is not None:
            flat, centre = images.folded_draws(flat)
            path, x = OneCopy(densities, images, centre), flat.reshape(x.shape)
        health = health_of(idata, x)

        def allowed(wanted: float) -> bool:
            """Whether a further cost is affordable."""
            return affordable(wanted, cost_of(counts), max_cost, limit, begin)

        with progress("Bridging", None, enabled=progressbar) as bar:
            ended = run_loop(
                bridge_draws(
                    path, x, kernel, rng, target=target, budget=allowed,
                    report=lambda steps: bar.advance(0, f"Bridging in {steps} steps"),
                )
            )  # fmt: skip
        stages, interrupted = ended.last, ended.why == "interrupted"
        numbers = bridge_numbers(stages[-1], stages[-1].mcse, health.r_hat)
        numbers |= {"ess_bulk": health.ess_bulk, "n_divergent": health.divergences}
        doubts = quadrature(numbers, densities, flat[1::2], target)
        settings = pilot_settings(densities)
        price = 2.0 * settings.starts * settings.search_cost * math.sqrt(densities.n_dim)
        if not interrupted and allowed(price + settings.weighed_least):
            if images is not None:
                flat = images.moved(
                    flat, search_rng.integers(len(images.exchanges), size=len(flat))
                )
            with held_back(), tally.stage("search"):
                log_mass = unvisited(Joint(densities, settings), flat, stages[-1].log_z, search_rng)
            total = float(np.logaddexp(stages[-1].log_z, log_mass))
            if clearly_more(total, 0.0, *numbers.estimate, _ERRORS):
                doubts.append(flag("unvisited_mode", total=total))
    tally.add("bridge", counts - tally.total())
    flags = [flag("interrupted")] if interrupted else []
    flags += _draws_flags(health, x)
    flags += bridge_flags(stages, None if interrupted else target)
    flags += doubts + uncertain(*numbers.estimate)
    tree = xr.DataTree()
    tree["posterior"] = xr.DataTree(posterior.assign_attrs(source="idata"))
    if "sample_stats" in idata.children:
        stats = idata["sample_stats"].to_dataset()
        ragged = [name for name, v in stats.data_vars.items() if v.dtype == object]
        tree["sample_stats"] = xr.DataTree(stats.drop_vars(ragged))  # cannot be saved to a file
    tree["arms"] = xr.DataTree(stage_arms(stages))
    attrs = {"weights": "last stage", "kernel": kernel.name, "unbiased": _UNBIASED}
    return finished(
        Answer(tree, numbers, flags, attrs), model, "estimate_evidence", tally, begin,
        compiling=compiling, densities=densities,
    )  # fmt: skip


def affordable(
    wanted: float, spent: float, max_cost: float, limit: TimeLimit, begin: float
) -> bool:
    """Whether a stage of some evaluations fits in the budget and the time left, by the rate since CPU time `begin`."""
    needed = (time.process_time() - begin) * wanted / max(spent, 1.0)
    return not limit.over(needed) and spent + wanted <= max_cost


def bridge_numbers(last: Stage, mcse: float, r_hat: float) -> Evidence:
    """Return the numbers of the last stage of a bridge, whose draws have this R-hat."""
    error = mcse if math.isfinite(last.log_z) else math.inf
    return Evidence(
        log_evidence=last.log_z, log_evidence_mcse=error, ess=effective_size(error), pareto_k=math.nan,
        n_steps=last.steps, overlap=last.overlap, bridge_ess=last.effective, r_hat=r_hat,
    )  # fmt: skip


def _draws_flags(health: Health, x: np.ndarray) -> list[Flag]:
    """Return flags about the draws."""
    flags, n = [], x.shape[0] * x.shape[1]
    if not health.r_hat <= health.largest:
        flags.append(flag("chains_disagree", r_hat=health.r_hat))
    if health.ess_bulk < min(_FEW * x.shape[0], _ENOUGH):
        flags.append(flag("few_effective_draws", ess=health.ess_bulk))
    if health.particles:
        flags.append(flag("smc_particles"))
    if health.copies > _COPIES:
        flags.append(flag("copies", copies=health.copies))
    if health.divergences > _DIVERGENT * n:
        flags.append(flag("divergences", divergent=health.divergences, draws=n))
    return flags


def bridge_flags(stages: list[Stage], target: float | None, nats: float = _NATS) -> list[Flag]:
    """Return flags about the bridge; `nats` is a difference between its ends that does not matter."""
    last, flags = stages[-1], []
    if last.log_z == -math.inf:
        return [flag("no_overlap")]
    if not last.carried:
        numbers = {"overlap": last.overlap, "effective": last.effective, "steps": last.steps}
        flags.append(flag("little_overlap", **numbers))
    if not last.agree:
        flags.append(flag("halves_disagree", apart=last.apart))
    if gap := tension_of(stages, nats):
        flags.append(flag("foreign_draws", gap=gap))
    if target is not None and not last.mcse <= target:
        most = "there are" if last.steps == STEPS[-1] else "max_cost and max_time allow"
        flags.append(
            flag("bridge_too_short", error=last.mcse, target=target, steps=last.steps, most=most)
        )
    return flags


def stage_arms(stages: list[Stage]) -> xr.Dataset:
    """Return the stages as arms; the last one is the estimate."""
    names = ["bridge" if s.steps == 1 else f"annealed_{s.steps}" for s in stages]
    columns = {
        "log_evidence": [s.log_z for s in stages],
        "log_evidence_mcse": [s.mcse for s in stages],
        "n_steps": [s.steps for s in stages],
        "draws": [s.draws for s in stages],
        "cost": [float(s.cost) for s in stages],
        "weight": [float(s is stages[-1]) for s in stages],
        "pareto_k": [math.nan for s in stages],
        "overlap": [s.overlap for s in stages],
        "log_evidence_half": [[h.log_z for h in s.halves] for s in stages],
    }
    return declared_dataset(ARMS, columns, {"arm": names})
