"""A run of :func:`amc_pymc.estimate_evidence`: pilot run, chains or arms, checks, posterior draws."""

from __future__ import annotations

import math
import time

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from amc_pymc.bandits.arms import Cost, as_arms
from amc_pymc.bandits.combine_estimators import Budget, Choices, Combined, Weights, combined
from amc_pymc.evidence.arms import Portfolio, make_portfolio
from amc_pymc.evidence.chains import BridgedChains, bridge_chains, missing_evidence
from amc_pymc.evidence.check import effective_beside, error_of, prior_error
from amc_pymc.evidence.doubts import (
    copies_missed,
    covering_error,
    disagreements,
    missed_mode,
    uncertain,
    unlike_chains,
)
from amc_pymc.evidence.from_draws import (
    TimeLimit,
    bridge_flags,
    bridge_numbers,
    budget_of,
    stage_arms,
)
from amc_pymc.evidence.mcmc import Kernel
from amc_pymc.evidence.model import Elsewhere, Tally, cost_of, explored, running_off
from amc_pymc.evidence.paths import RecordingPath
from amc_pymc.evidence.pilot import Pilot, PilotInterrupted, overlooked
from amc_pymc.evidence.results import (
    Answer,
    Evidence,
    PosteriorDraws,
    add_posterior,
    effective_size,
    nan_flags,
    posterior_draws,
)
from amc_pymc.flags import Flag, flag
from amc_pymc.progress import progress
from amc_pymc.reading.particles.densities import counted
from amc_pymc.reading.particles.marginal import Densities
from amc_pymc.results import described
from amc_pymc.results.tables import ARMS
from amc_pymc.signals import held_back
from amc_pymc.steps.marginal_effects import enough_nodes, quadrature

if TYPE_CHECKING:
    from pymc import Model

__all__ = ["Run", "run_evidence"]

#: Share of the posterior that the fitted reference may miss without a flag.
_UNCOVERED = 0.1
#: Weight above which an arm matters to the estimate, and effective number of prior draws in the region missed by
#: the reference above which the error of importance sampling accounts for that region.
_MATTERS, _REACHED = 0.1, 100.0
#: Standard errors by which the two combined estimates may differ, and nats that rounding explains.
_APART, _ROUNDING = 5.0, 1e-9
#: Evaluations that chains take at least.
_LEAST = 50_000.0
#: Difference in nats between the ends of the bridge that short chains explain.
_NATS = 0.1
#: Attributes of estimates from chains.
_BY_CHAINS = {
    "weights": "last stage",
    "unbiased": "no, but consistent as the chains become longer",
    "method": "bridge between own Hamiltonian chains and a Gaussian",
}
#: Policy of the bandit, and weights of the estimate that is reported.
_POLICY = "lcb"
_WEIGHTS: Weights = "predictable"


@dataclass
class Run:
    """A model, its densities and their moves, what was asked for, how to run it, and costs so far.

    Attributes
    ----------
    model : pm.Model
    densities : Densities
    moves : Kernel
    streams : list of Generator
        Generators of pilot run, arms, posterior draws, search, checks and chains.
    names : list of str or None
        Arms of the portfolio; None for the default ones.
    own : dict of str to arm
        Arms given by the user.
    target, max_cost : float or None
    cost : "count" or "cpu"
    draws, chains : int
        Posterior draws per chain, and chains, in the result.
    limit : TimeLimit
    cores : int or None
    executor : Executor or None
    progressbar : bool
    tally : Tally
    seconds_elsewhere : float
        CPU time of other processes.
    """

    model: Model
    densities: Densities
    moves: Kernel
    streams: list[np.random.Generator]
    names: list[str] | None
    own: dict[str, Any]
    target: float | None
    max_cost: float | None
    cost: Cost
    draws: int
    chains: int
    limit: TimeLimit
    cores: int | None = 1
    executor: Executor | None = None
    progressbar: bool = True
    tally: Tally = field(default_factory=Tally)
    seconds_elsewhere: float = 0.0


def run_evidence(run: Run) -> Answer:
    """Make a pilot run; use chains and a bridge if no mixture fits and they succeed, else combine arms.

    Chains also give the estimate if there is no time left for arms. If Ctrl-C leaves nothing else, the estimate is that
    of the pilot run.
    """
    known = list[Pilot]()
    try:
        return _found(run, known)
    except PilotInterrupted as error:
        known.append(error.pilot)
    except KeyboardInterrupt:
        if not known:
            raise
    return _of_pilot(run, known[0])


def _found(run: Run, known: list[Pilot]) -> Answer:
    """Return the estimate of a run; append its pilot run to `known` as soon as it is complete."""
    begin, rng = time.process_time(), run.streams[0]
    # Chains and a bridge may give the estimate if the user chose no arms.
    by_chains = run.names is None and not run.own and not run.densities.discrete.any()

    def pilot_run() -> Pilot:
        with _shown("Pilot run", run) as report:
            return explored(
                run.model, run.densities, run.moves, rng, chains=by_chains, report=report
            )

    pilot, spent, seconds = _measured("pilot", pilot_run, run)
    known.append(pilot)
    with run.tally.stage("pilot"):
        run.densities = enough_nodes(run.densities, _typical(pilot), run.target)
    # Cost of a model evaluation in the user's units.
    price = 1.0 if run.cost == "count" else seconds / spent

    def allowed(wanted: float, so_far: float = 0.0) -> bool:
        """Whether a cost is affordable after what a part has cost so far."""
        done = run.tally.cost + so_far
        return budget_of(run.max_cost, run.cost, run.limit, lambda: done, begin)(wanted)

    bridged = None
    if by_chains and pilot.unfit and allowed(_LEAST):
        bridged = _chains(run, pilot, allowed)
        answers = bridged.answers(run.target, pilot)
        if answers or pilot.adapted is None or run.limit.over():
            return _of_chains(run, pilot, bridged)
    return _combine(run, pilot, bridged, price)


def _of_chains(run: Run, pilot: Pilot, bridged: BridgedChains) -> Answer:
    """Return the estimate of the run's own chains and a bridge, with draws of the chains."""
    tree = xr.DataTree()
    with held_back():
        numbers = bridge_numbers(bridged.stages[-1], bridged.mcse, bridged.chains.r_hat)
        z, error = numbers.estimate  # the only estimator is also the second opinion
        numbers |= {"log_evidence_iv": z, "log_evidence_iv_mcse": error}
        arms = stage_arms(bridged.stages)
        arms.attrs["left_out"] = "all others: no fitted mixture is close to the posterior"
        tree["arms"] = xr.DataTree(arms)
        flags = _flags_of_chains(run, pilot, bridged) + uncertain(z, error)
        every = bridged.chains.draws.reshape(-1, run.densities.n_dim)
        places = np.linspace(0, len(every) - 1, run.draws * run.chains).round().astype(int)
        x = every[places]
        source = "own chains of Hamiltonian Monte Carlo"
        drawn = PosteriorDraws(x, len(np.unique(x, axis=0)), source)
        flags += _add_posterior(run, tree, drawn)
        flags += copies_missed(pilot, every)
        numbers["log_evidence_mcse"] = covering_error(z, error, pilot, None)
    with held_back(), run.tally.stage("checks"):
        flags += quadrature(numbers, run.densities, x, run.target)
    return Answer(tree, numbers, flags, dict(_BY_CHAINS))


def _flags_of_chains(run: Run, pilot: Pilot, bridged: BridgedChains) -> list[Flag]:
    """Return flags from chains, bridge and pilot run."""
    flags, target, r_hat = [], run.target, bridged.chains.r_hat
    if not bridged.mixed:
        flags.append(flag("own_chains_disagree", r_hat=r_hat))
    flags += bridge_flags(bridged.stages, target, run.max_cost, run.limit, _NATS)
    if target is not None and bridged.stages[-1].mcse <= target < bridged.mcse:
        flags.append(flag("own_chains_too_short", error=bridged.mcse, target=target, r_hat=r_hat))
    if gap := missing_evidence(bridged.log_z, bridged.mcse, pilot):
        flags.append(flag("pilot_found_more", other=bridged.log_z + gap))
    return flags


def _add_posterior(run: Run, tree: xr.DataTree, drawn: PosteriorDraws) -> list[Flag]:
    """Add posterior draws to the results; return flags of what is wrong with them."""
    with run.tally.stage("posterior"):
        values, flags = add_posterior(tree, run.model, run.densities, drawn, run.chains)
    return running_off(run.model, run.densities, values) + flags


def _drawn(run: Run, pilot: Pilot) -> PosteriorDraws:
    """Draw from the posterior with the results of a pilot run."""
    discrete = run.densities.discrete
    n, rng = run.draws * run.chains, run.streams[2]
    with run.tally.stage("posterior"):
        return posterior_draws(run.densities, pilot, run.moves, n, rng, discrete=discrete)


def _of_pilot(run: Run, pilot: Pilot) -> Answer:
    """Return the estimate of a pilot run, from its mixture if that is close to the posterior, else from annealing."""
    adapted, ladder, tree = pilot.adapted, pilot.ladder, xr.DataTree()
    z, error = ladder.log_z, prior_error(ladder)
    if adapted is not None and not pilot.unfit:
        z, error = adapted.log_mean, error_of(adapted)
    flags = [flag("interrupted"), *uncertain(z, error)]
    numbers = Evidence(log_evidence=z, log_evidence_iv=z, log_evidence_iv_mcse=error)
    numbers |= {"log_evidence_mcse": covering_error(z, error, pilot, None), "pareto_k": math.nan}
    numbers["ess"] = effective_size(error)
    flags += _add_posterior(run, tree, _drawn(run, pilot))
    attrs = {"weights": "pilot run", "unbiased": "no", "method": "pilot run alone"}
    return Answer(tree, numbers, flags, attrs)


def _measured[T](stage: str, make: Callable[[], T], run: Run) -> tuple[T, float, float]:
    """Make a part of the run; return also its cost and CPU seconds."""
    begin = time.process_time()
    with run.tally.stage(stage), counted() as counts:
        made = make()
    return made, cost_of(counts), time.process_time() - begin


@contextmanager
def _shown(what: str, run: Run) -> Iterator[Callable[[str], None]]:
    """Show the progress of a part of unknown length; the block receives the function that reports its stages."""
    with progress(what, None, enabled=run.progressbar) as bar:

        def report(stage: str) -> None:
            bar.advance()
            bar.update(description=f"{what}: {stage}")

        yield report


def _typical(pilot: Pilot) -> np.ndarray:
    """Return the denser half of the particles of a pilot run (P, D); the others may not have converged."""
    particles = pilot.ladder.particles
    order = np.argsort(particles.terms.sum(axis=0), kind="stable")
    return particles.x[order[len(order) // 2 :]]


def _chains(run: Run, pilot: Pilot, allowed: Callable[[float, float], bool]) -> BridgedChains:
    rng = run.streams[5]

    def bridged() -> BridgedChains:
        with _shown("Chains", run) as report, counted() as counts:
            return bridge_chains(
                run.densities, pilot, run.moves, rng, target=run.target,
                budget=lambda cost: allowed(cost, cost_of(counts)), report=report,
            )  # fmt: skip

    return _measured("chains", bridged, run)[0]


def _combine(run: Run, pilot: Pilot, bridged: BridgedChains | None, price: float) -> Answer:
    """Combine arms from the pilot run by a bandit; only those that start at the prior if chains have failed."""
    densities, tally = run.densities, run.tally
    pilot_rng, arms_rng, _, search_rng, checks_rng, _ = run.streams
    seen = RecordingPath(densities)
    with tally.stage("pilot"):
        portfolio = make_portfolio(
            densities if pilot.adapted is None else seen,
            pilot if bridged is None else replace(pilot, adapted=None), run.moves, pilot_rng,
            names=run.names, target=run.target,
            budget=math.inf if run.max_cost is None else run.max_cost / price,
        )  # fmt: skip
    left, flags = _left(run.max_cost, tally.cost * price, portfolio, run.cost)
    here = run.executor is None and run.cores == 1
    elsewhere = None if here else Elsewhere(seen.memory)
    with tally.stage("arms"):
        found = combined(
            as_arms(_priced(portfolio.arms, price) | run.own),
            Budget(math.inf if left is None else left, "cost", run.target),
            Choices(_POLICY, run.cost, _WEIGHTS),
            cores=run.cores,
            executor=run.executor,
            **run.limit._asdict(),
            progressbar=run.progressbar,
            random_seed=arms_rng,
            meter=elsewhere,
        )
    if elsewhere is not None:
        tally.add("arms", elsewhere.counts)
        run.seconds_elsewhere = elsewhere.seconds
    with held_back():  # the estimate is complete
        tree, numbers = found.tree, _numbers(found.tree)
        with tally.stage("checks"):
            missed = -math.inf  # arms that start from the prior do not rely on the mixture
            if bridged is None:
                missed = max(pilot.missed, overlooked(seen, pilot, search_rng))
            flags += found.flags + _flags(numbers, found)
            flags += _uncovered(pilot, found, densities, checks_rng)
            flags += nan_flags(numbers, tally.numbers(), densities, pilot, checks_rng)
            flags += uncertain(*numbers.estimate) + disagreements(*numbers.estimate, pilot)
            flags += missed_mode(*numbers.estimate, pilot, missed)
            flags += unlike_chains(*numbers.estimate, bridged)
        numbers["log_evidence_mcse"] = covering_error(*numbers.estimate, pilot, bridged)
        drawn = _drawn(run, pilot)
        flagged = _add_posterior(run, tree, drawn)
        with tally.stage("checks"):
            flags += quadrature(numbers, densities, drawn.x, run.target) + flagged
    _finish_arms(tree, portfolio)
    attrs = {"weights": _WEIGHTS, "unbiased": tree.attrs["unbiased"]}
    return Answer(tree, numbers, flags, attrs)


def _priced(arms: dict[str, Any], price: float) -> dict[str, Any]:
    """Return arms with their costs, as far as known in advance, in the user's units."""
    if price == 1.0 or not arms:
        return arms
    return {
        a.name: replace(a, cost=None if a.cost is None else a.cost * price) for a in as_arms(arms)
    }


def _left(
    max_cost: float | None, spent: float, portfolio: Portfolio, cost: Cost
) -> tuple[float | None, list[Flag]]:
    """Return the budget left after the pilot run, which is never zero, and flags."""
    if max_cost is None:
        return None, []
    least = sum(getattr(a, "cost", None) or 1.0 for a in portfolio.arms.values())
    least = 3.0 * least if cost == "count" else 0.1 * spent
    if max_cost - spent >= least:
        return max_cost - spent, []
    return least, [flag("pilot_over_budget", max_cost=max_cost, spent=spent, least=least)]


def _numbers(tree: xr.DataTree) -> Evidence:
    estimate, arms = tree["estimate"].to_dataset(), tree["arms"].to_dataset()
    headline = estimate.sel(weights=_WEIGHTS)
    z = float(headline["log_mean"])
    error = float(headline["log_mean_mcse"])
    other = estimate.sel(weights="inverse_variance")
    used = arms["weight"].values > 0.1
    k = arms["pareto_k"].values[used]
    return Evidence(
        log_evidence=z,
        log_evidence_mcse=error,
        log_evidence_iv=float(other["log_mean"]),
        log_evidence_iv_mcse=float(other["log_mean_mcse"]),
        ess=0.0 if z == -math.inf else effective_size(error),
        pareto_k=float(np.nanmax(k)) if np.isfinite(k).any() else math.nan,
    )


def _flags(numbers: Evidence, found: Combined) -> list[Flag]:
    flags = []
    z, error = numbers.estimate
    if z == -math.inf and all(f.name != "all_zero" for f in found.flags):
        flags.append(flag("all_zero"))
    other = numbers["log_evidence_iv"]
    if abs(z - other) > _APART * error + _ROUNDING:
        errors = abs(z - other) / error if error > 0.0 else math.inf
        flags.append(flag("second_opinion", other=other, errors=errors))
    return flags


def _uncovered(
    pilot: Pilot, found: Combined, densities: Densities, rng: np.random.Generator
) -> list[Flag]:
    """Return a flag if the fitted reference misses much of the posterior and the estimate relies on it.

    The estimate does not rely on it if its weight is on arms from the prior, or on importance sampling whose prior
    draws reach what the mixture misses.
    """
    if pilot.uncovered <= _UNCOVERED:
        return []
    arms = found.tree["arms"].to_dataset()
    weights = dict(zip(arms["arm"].values.tolist(), arms["weight"].values.tolist(), strict=True))
    annealed = weights.get("smc_reference", 0.0)
    weighted = sum(weights.get(name, 0.0) for name in ("importance", "importance_rqmc"))
    if annealed + weighted < _MATTERS:
        return []
    if annealed < _MATTERS and effective_beside(densities, pilot.adapted, rng) >= _REACHED:
        return []
    return [flag("uncovered", share=pilot.uncovered)]


def _finish_arms(tree: xr.DataTree, portfolio: Portfolio) -> None:
    """Rename variables as in the group ``evidence``, and add the arms that were left out."""
    arms = tree["arms"].to_dataset()
    arms = arms.rename(log_mean="log_evidence", log_mean_mcse="log_evidence_mcse")
    arms["cost"] = arms["draws"] * arms["cost_per_draw"]
    arms = described(arms, ARMS)
    arms.attrs["left_out"] = "; ".join(f"{k}: {v}" for k, v in portfolio.left_out.items())
    tree["arms"] = xr.DataTree(arms)
