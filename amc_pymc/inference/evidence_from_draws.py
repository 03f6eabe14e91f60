"""Model evidence from posterior draws that users have, by a bridge."""

from __future__ import annotations

import math
import time

from collections.abc import Callable

import numpy as np
import xarray as xr

from amc_pymc.evidence import GRADIENT_COST
from amc_pymc.evidence.draws_bridge import STEPS, Stage, bridge_draws
from amc_pymc.extract.particles import counted
from amc_pymc.inference.evidence_model import compiled_particles, one_blas_thread, seed_words
from amc_pymc.inference.evidence_results import (
    Evidence,
    add_data_groups,
    evidence_group,
    uncertain,
    warn,
)
from amc_pymc.inference.stored_draws import (
    Health,
    check_idata,
    foreign_density,
    health_of,
    stored_draws,
)
from amc_pymc.kernels import Kernel
from amc_pymc.kernels.slice import Slice
from amc_pymc.progress import progress
from amc_pymc.rng import spawn_generators

__all__ = ["bridge_flags", "budget_of", "evidence_from_draws", "stage_arms"]

#: R-hat, effective draws of a chain, the most of them in all, and mean copies of a draw that are flagged.
_R_HAT, _FEW, _ENOUGH, _COPIES = 1.02, 100.0, 400.0, 1.5
#: Share of draws lost to divergences from which a number is in doubt.
_DIVERGENT = 0.001
#: Standard errors, and nats beside them, by which the ends of a bridge may disagree.
_ERRORS, _NATS = 5.0, 0.1


def evidence_from_draws(
    idata: xr.DataTree,
    *,
    model,
    target: float | None,
    max_cost: float | None,
    cost: str,
    kernel: Kernel,
    random_seed,
    progressbar: bool,
) -> xr.DataTree:
    """Do what :func:`amc_pymc.estimate_evidence` does when it is given draws."""
    if isinstance(kernel, Slice):
        raise ValueError(
            "kernel='slice' is not reversible, and draws are annealed both ways: use 'hmc', 'langevin' or "
            "'random_walk' with idata."
        )
    words = seed_words(random_seed)
    posterior = check_idata(idata, model)
    densities, compiling = compiled_particles(model)
    begin = time.process_time()
    (rng,) = spawn_generators(words, 1)
    with one_blas_thread(), counted() as counts:
        x, log_density = stored_draws(idata, posterior, model, densities)
        if wrong := foreign_density(idata, log_density):
            raise ValueError(f"{wrong}.")
        health = health_of(idata, x)
        allowed = budget_of(max_cost, cost, counts, begin)
        with progress("Bridging", None, enabled=progressbar) as bar:
            stages = bridge_draws(
                densities, x, kernel, rng, target=target, budget=allowed,
                report=lambda steps: bar.update(description=f"Bridging in {steps} steps"),
            )  # fmt: skip
    numbers = _numbers(stages, health)
    n_values, n_gradients, n_nan = counts.tolist()
    numbers |= {
        "n_likelihood": n_values + n_gradients,
        "n_gradient": n_gradients,
        "n_nan": n_nan,
        "compile_seconds": compiling,
        "cpu_seconds": time.process_time() - begin,
    }
    flags = _draws_flags(health, x) + bridge_flags(stages, target, max_cost)
    flags += uncertain(numbers)
    return _tree(idata, posterior, model, numbers, flags, stages, kernel)


def budget_of(
    max_cost: float | None, cost: str, counts: np.ndarray, begin: float
) -> Callable[[float], bool]:
    """Whether a stage of some evaluations still fits in the budget."""

    def allowed(wanted: float) -> bool:
        if max_cost is None:
            return True
        spent = float(counts[0]) + GRADIENT_COST * float(counts[1])
        if cost == "count":
            return spent + wanted <= max_cost
        seconds = time.process_time() - begin
        return seconds * (1.0 + wanted / max(spent, 1.0)) <= max_cost

    return allowed


def _numbers(stages: list[Stage], health: Health) -> Evidence:
    last = stages[-1]
    error = last.mcse if math.isfinite(last.log_z) else math.inf
    return Evidence(
        log_evidence=last.log_z,
        log_evidence_mcse=error,
        ess=1.0 / error**2 if error > 0.0 else math.inf,
        pareto_k=math.nan,
        n_steps=last.steps,
        overlap=last.overlap,
        bridge_ess=last.effective,
        r_hat=health.r_hat,
        ess_bulk=health.ess_bulk,
        n_divergent=health.divergences,
    )


def _draws_flags(health: Health, x: np.ndarray) -> list[str]:
    """What is wrong with the draws, before they are bridged."""
    flags, n = [], x.shape[0] * x.shape[1]
    if not health.r_hat <= _R_HAT:
        flags.append(
            f"the chains of idata do not agree (R-hat {health.r_hat:.2f}): they have not found the posterior yet, "
            "and the estimate may be off by more than its error, so sample longer, or use "
            "estimate_evidence(model=model), which searches for modes"
        )
    if health.ess_bulk < min(_FEW * x.shape[0], _ENOUGH):
        flags.append(
            f"idata has only {health.ess_bulk:.0f} effective draws of a coordinate: so slow a chain may not have "
            "been everywhere, and what it has missed is missing from the evidence, so sample longer or reparametrise "
            "the model"
        )
    if health.particles:
        flags.append(
            "the draws of idata are particles of sequential Monte Carlo, which share ancestors: no error can count "
            "that, and the one stated may be several times too small, so use draws of a Markov chain"
        )
    if health.copies > _COPIES:
        flags.append(
            f"each draw of idata is there {health.copies:.1f} times: the error counts different draws only, but the "
            "halves of the draws may share some, so use draws without copies"
        )
    if health.divergences > _DIVERGENT * n:
        flags.append(
            f"{health.divergences:,} of {n:,} transitions in idata diverged: draws avoid a part of the posterior, whose "
            "evidence may be missing, so reparametrise the model or raise target_accept"
        )
    return flags


def bridge_flags(stages: list[Stage], target: float | None, max_cost: float | None) -> list[str]:
    """What the bridge shows."""
    last, flags = stages[-1], []
    if last.log_z == -math.inf:
        return ["no draw of the fitted Gaussian is possible under the model: there is no estimate"]
    if not last.carried:
        flags.append(
            f"the fitted Gaussian and the posterior hardly overlap ({last.overlap:.1%}, {last.effective:.0f} effective "
            f"draws after {_steps(last)}): the error may be larger than stated, so "
            f"{'sample more' if max_cost is None else 'raise max_cost'} or reparametrise the model"
        )
    if not last.agree:
        flags.append(
            f"the halves of the draws tell evidences that differ by {last.apart:.2f} nats: the chains have not "
            "converged, so sample longer"
        )
    gap, error = _tension(stages)
    if abs(gap) > _ERRORS * error + _NATS:
        flags.append(
            f"the draws are not distributed as the model's density says (estimates that lean on either end differ by "
            f"{gap:.2f} nats): the draws are of another model or other data, or have not converged, and the "
            "estimate is off by a number of this size"
        )
    if target is not None and not last.mcse <= target:
        most = "there are" if last.steps == STEPS[-1] else f"max_cost={max_cost:g} allows"
        flags.append(
            f"the standard error is {last.mcse:.3g} where target_mcse={target:g} was wanted, after {_steps(last)}, the most "
            f"that {most}"
        )
    return flags


def _steps(stage: Stage) -> str:
    return f"{stage.steps} annealing steps" if stage.steps > 1 else "a bridge without annealing"


def _tension(stages: list[Stage]) -> tuple[float, float]:
    """Disagreement of the ends in the stage where it is clearest, and its error."""
    known = [s.tension for s in stages if 0.0 < s.tension[1] < math.inf]
    return max(known, key=lambda t: abs(t[0]) / t[1], default=(0.0, math.inf))


def _tree(idata, posterior, model, numbers, flags, stages, kernel) -> xr.DataTree:
    tree = xr.DataTree()
    tree["posterior"] = xr.DataTree(posterior.assign_attrs(source="idata"))
    if "sample_stats" in idata.children:
        stats = idata["sample_stats"].to_dataset()
        ragged = [name for name, v in stats.data_vars.items() if v.dtype == object]
        tree["sample_stats"] = xr.DataTree(stats.drop_vars(ragged))  # no file can hold them
    tree["arms"] = xr.DataTree(stage_arms(stages))
    tree["evidence"] = xr.DataTree(
        evidence_group(
            numbers,
            flags,
            weights="last stage",
            kernel=kernel.name,
            unbiased="no, but consistent as the draws become more; modes that the draws miss stay missed",
        )
    )
    add_data_groups(tree, model)
    tree.attrs["sampling_method"] = "estimate_evidence"
    tree.attrs["inference_library"] = "amc_pymc"
    warn(flags, stacklevel=4)
    return tree


def stage_arms(stages: list[Stage]) -> xr.Dataset:
    """The stages as arms, of which the last one makes up the estimate."""
    names = ["bridge" if s.steps == 1 else f"annealed_{s.steps}" for s in stages]
    columns = {
        "log_evidence": [s.log_z for s in stages],
        "log_evidence_mcse": [s.mcse for s in stages],
        "draws": [s.draws for s in stages],
        "cost": [float(s.cost) for s in stages],
        "weight": [float(s is stages[-1]) for s in stages],
        "pareto_k": [math.nan for s in stages],
        "overlap": [s.overlap for s in stages],
    }
    out = xr.Dataset({k: ("arm", v) for k, v in columns.items()}, {"arm": names})
    out["log_evidence_half"] = (("arm", "half"), [[h.log_z for h in s.halves] for s in stages])
    return out
