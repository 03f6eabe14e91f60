"""A run of :func:`amc_pymc.estimate_evidence`: pilot run, chains or arms, checks, posterior draws."""

from __future__ import annotations

import math
import time

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from amc_pymc.bandits.arms import Cost, as_arms
from amc_pymc.bandits.combination_run import Budget, Choices, Combined, combined
from amc_pymc.bandits.recorded import Recorded
from amc_pymc.evidence import (
    BridgedChains,
    Pilot,
    Portfolio,
    RecordingPath,
    bridge_chains,
    effective_beside,
    make_portfolio,
    overlooked,
    posterior_draws,
)
from amc_pymc.evidence.agreement import error_of, prior_error
from amc_pymc.evidence.doubts import (
    covering_error,
    disagreements,
    missed_mode,
    uncertain,
    unlike_chains,
)
from amc_pymc.evidence.pilot import PilotInterrupted
from amc_pymc.flags import Flag, flag
from amc_pymc.inference.evidence_from_chains import chains_answer
from amc_pymc.inference.evidence_from_draws import TimeLimit, budget_of
from amc_pymc.inference.evidence_model import Elsewhere, Tally, cost_of, explored, running_off
from amc_pymc.inference.evidence_results import (
    Evidence,
    add_posterior,
    effective_size,
    nan_flags,
)
from amc_pymc.kernels import Kernel
from amc_pymc.kernels.slice import Slice
from amc_pymc.progress import progress
from amc_pymc.reading.particles.densities import counted
from amc_pymc.reading.particles.marginal import Densities
from amc_pymc.results import described
from amc_pymc.results.tables import ARMS
from amc_pymc.signals import held_back
from amc_pymc.steps.marginal_effects import enough_nodes, quadrature

if TYPE_CHECKING:
    from pymc import Model

__all__ = ["Asked", "Found", "Generators", "How", "run_evidence"]

#: Share of the posterior that the fitted reference may miss without a flag.
_UNCOVERED = 0.1
#: Weight above which an arm matters to the estimate, and effective number of prior draws in the region missed by
#: the reference above which the error of importance sampling accounts for that region.
_MATTERS, _REACHED = 0.1, 100.0
#: Standard errors by which the two combined estimates may differ, and nats that rounding explains.
_APART, _ROUNDING = 5.0, 1e-9
#: Evaluations that chains take at least.
_LEAST = 50_000.0


class Asked(NamedTuple):
    """Arguments of the user, checked.

    Attributes
    ----------
    names : list of str or None
        Arms of the portfolio; None for the default ones.
    own : dict of str to arm
        Arms given by the user.
    target, max_cost : float or None
    choices : Choices
    draws, chains : int
    """

    names: list[str] | None
    own: dict[str, Any]
    target: float | None
    max_cost: float | None
    choices: Choices
    draws: int
    chains: int


class How(NamedTuple):
    """Arguments of the user about the run: where its jobs run and are stored, how long, and whether it is shown."""

    cores: int | None
    executor: Executor | None
    record: Recorded
    limit: TimeLimit
    progressbar: bool


class Generators(NamedTuple):
    """Streams of random numbers, one for each part of a run."""

    pilot: np.random.Generator
    arms: np.random.Generator
    posterior: np.random.Generator
    search: np.random.Generator
    checks: np.random.Generator
    chains: np.random.Generator


class Found(NamedTuple):
    """Results of a run.

    Attributes
    ----------
    tree : DataTree
        Groups of arms and posterior draws.
    numbers : Evidence
    flags : list of Flag
    attrs : dict
        Attributes of the group ``evidence``.
    densities : Densities
        Densities that were evaluated.
    tally : Tally
    seconds_elsewhere : float
        CPU time of other processes.
    """

    tree: xr.DataTree
    numbers: Evidence
    flags: list[Flag]
    attrs: dict[str, Any]
    densities: Densities
    tally: Tally
    seconds_elsewhere: float = 0.0


class Run(NamedTuple):
    """A model, its densities and their moves, what was asked for, and costs so far."""

    model: Model
    densities: Densities
    moves: Kernel
    asked: Asked
    rngs: Generators
    how: How
    tally: Tally


def run_evidence(
    model: Model,
    densities: Densities,
    moves: Kernel,
    asked: Asked,
    rngs: Generators,
    how: How,
) -> Found:
    """Make a pilot run; use chains and a bridge if no mixture fits and they succeed, else combine arms.

    Chains also give the estimate if there is no time left for arms. If Ctrl-C leaves nothing else, the estimate is that
    of the pilot run.
    """
    run, known = Run(model, densities, moves, asked, rngs, how, Tally()), list[Pilot]()
    try:
        return _found(run, known)
    except PilotInterrupted as error:
        known.append(error.pilot)
    except KeyboardInterrupt:
        if not known:
            raise
    return _of_pilot(run, known[0])


def _found(run: Run, known: list[Pilot]) -> Found:
    """Return the results of a run; append its pilot run to `known` as soon as it is complete."""
    model, densities, moves, asked, rngs, how, tally = run
    begin, cost = time.process_time(), asked.choices.cost
    by_chains = _may_run_chains(run)

    def pilot_run() -> Pilot:
        with _told("Pilot run", how) as report:
            return explored(model, densities, moves, rngs.pilot, chains=by_chains, report=report)

    pilot, spent, seconds = _once("pilot", pilot_run, rngs.pilot, run)
    known.append(pilot)
    with tally.stage("pilot"):
        run = run._replace(densities=enough_nodes(densities, _typical(pilot), asked.target))
    price = _price(cost, spent, seconds)
    bridged, allowed = None, _allowance(run, begin, price)
    if by_chains and pilot.unfit and allowed(_LEAST):
        bridged = _chains(run, pilot, allowed)
        answers = bridged.answers(asked.target, pilot)
        if answers or pilot.adapted is None or how.limit.over():
            return _of_chains(run, pilot, bridged)
    return _combine(run, pilot, bridged, price)


def _allowance(run: Run, begin: float, price: float | None) -> Callable[..., bool]:
    """Return a function of a cost, and of what a part has cost so far, that returns whether the cost is affordable."""
    asked = run.asked

    def allowed(wanted: float, so_far: float = 0.0) -> bool:
        limit = None if price is None else asked.max_cost
        cost, spent = str(asked.choices.cost), run.tally.cost + so_far
        return budget_of(limit, cost, run.how.limit, lambda: spent, begin)(wanted)

    return allowed


def _of_chains(run: Run, pilot: Pilot, bridged: BridgedChains) -> Found:
    """Return the estimate of the run's own chains and a bridge."""
    model, densities, _, asked, _, how, tally = run
    with held_back():
        answer = chains_answer(
            bridged, pilot, model, densities, tally, target=asked.target,
            max_cost=asked.max_cost, limit=how.limit, draws=asked.draws, chains=asked.chains,
        )  # fmt: skip
    with held_back(), tally.stage("checks"):
        flags = quadrature(answer.numbers, densities, answer.draws, asked.target)
    return Found(answer.tree, answer.numbers, answer.flags + flags, answer.attrs, densities, tally)


def _of_pilot(run: Run, pilot: Pilot) -> Found:
    """Return the estimate of a pilot run, from its mixture if that is close to the posterior, else from annealing."""
    model, densities, moves, asked, rngs, _, tally = run
    adapted, ladder, tree = pilot.adapted, pilot.ladder, xr.DataTree()
    z, error = ladder.log_z, prior_error(ladder)
    if adapted is not None and not pilot.unfit:
        z, error = adapted.log_mean, error_of(adapted)
    flags = [flag("interrupted"), *uncertain(z, error)]
    numbers = Evidence(log_evidence=z, log_evidence_iv=z, log_evidence_iv_mcse=error)
    numbers |= {"log_evidence_mcse": covering_error(z, error, pilot, None), "pareto_k": math.nan}
    numbers["ess"] = effective_size(error)
    n = asked.draws * asked.chains
    with tally.stage("posterior"):
        drawn = posterior_draws(
            densities, pilot, moves, n, rngs.posterior, discrete=densities.discrete
        )
        _, more = add_posterior(tree, model, densities, drawn, asked.chains)
    attrs = {"weights": "pilot run", "unbiased": "no", "method": "pilot run alone"}
    return Found(tree, numbers, flags + more, attrs, densities, tally)


def _once[T](
    stage: str, make: Callable[[], T], rng: np.random.Generator, run: Run
) -> tuple[T, float, float]:
    """Make a part of the run, or recall it from the checkpoint; return also its cost and CPU seconds."""
    recalled = True

    def measured() -> tuple[T, np.ndarray, float]:
        nonlocal recalled
        recalled, begin = False, time.process_time()
        with run.tally.stage(stage), counted() as counts:
            made = make()
        return made, counts, time.process_time() - begin

    made, counts, seconds = run.how.record.once(stage, measured, rng)
    if recalled:
        run.tally.add(stage, counts)
    return made, cost_of(counts), seconds


@contextmanager
def _told(what: str, how: How) -> Iterator[Callable[[str], None]]:
    """Show the progress of a part of unknown length; the block receives the function that reports its stages."""
    with progress(what, None, enabled=how.progressbar) as bar:

        def report(stage: str) -> None:
            bar.advance()
            bar.update(description=f"{what}: {stage}")

        yield report


def _typical(pilot: Pilot) -> np.ndarray:
    """Return the denser half of the particles of a pilot run (P, D); the others may not have converged."""
    particles = pilot.ladder.particles
    order = np.argsort(particles.terms.sum(axis=0), kind="stable")
    return particles.x[order[len(order) // 2 :]]


def _may_run_chains(run: Run) -> bool:
    """Whether chains and a bridge may give the estimate, which requires that the user chose no arms."""
    if run.asked.names is not None or run.asked.own:
        return False
    return not run.densities.discrete.any() and not isinstance(run.moves, Slice)  # not reversible


def _chains(run: Run, pilot: Pilot, allowed: Callable[[float, float], bool]) -> BridgedChains:
    rng = run.rngs.chains

    def bridged() -> BridgedChains:
        with _told("Chains", run.how) as report, counted() as counts:
            return bridge_chains(
                run.densities, pilot, run.moves, rng, target=run.asked.target,
                budget=lambda cost: allowed(cost, cost_of(counts)), report=report,
            )  # fmt: skip

    return _once("chains", bridged, rng, run)[0]


def _combine(run: Run, pilot: Pilot, bridged: BridgedChains | None, price: float | None) -> Found:
    """Combine arms from the pilot run by a bandit; only those that start at the prior if chains have failed."""
    model, densities, moves, asked, rngs, how, tally = run
    cost, seen = asked.choices.cost, RecordingPath(densities)
    with tally.stage("pilot"):
        portfolio = make_portfolio(
            densities if pilot.adapted is None else seen,
            pilot if bridged is None else replace(pilot, adapted=None), moves, rngs.pilot,
            names=asked.names, target=asked.target,
            budget=math.inf if asked.max_cost is None or price is None else asked.max_cost / price,
        )  # fmt: skip
    arms = as_arms(_priced(portfolio.arms, price) | asked.own)
    left, flags = _left(asked.max_cost, tally.cost * (price or 0.0), portfolio, cost)
    here = how.executor is None and how.cores == 1 and not how.record.keeps
    elsewhere = None if here else Elsewhere(seen.memory)
    with tally.stage("arms"):
        found = combined(
            arms,
            Budget(math.inf if left is None else left, "cost", asked.target),
            asked.choices,
            cores=how.cores,
            executor=how.executor,
            **how.limit._asdict(),
            progressbar=how.progressbar,
            random_seed=rngs.arms,
            meter=elsewhere,
            record=how.record,
        )
    if elsewhere is not None:
        tally.add("arms", elsewhere.counts)
    with held_back():  # the estimate is complete
        tree, numbers = found.tree, _numbers(found.tree, asked.choices.weights)
        with tally.stage("checks"):
            missed = -math.inf  # arms that start from the prior do not rely on the mixture
            if bridged is None:
                missed = max(pilot.missed, overlooked(seen, pilot, rngs.search))
            flags += found.flags + _flags(numbers, found)
            flags += _uncovered(pilot, found, densities, rngs.checks)
            flags += nan_flags(numbers, tally.numbers(), densities, pilot, rngs.checks)
            flags += uncertain(*numbers.estimate) + disagreements(*numbers.estimate, pilot)
            flags += missed_mode(*numbers.estimate, pilot, missed) + unlike_chains(
                *numbers.estimate, bridged
            )
        numbers["log_evidence_mcse"] = covering_error(*numbers.estimate, pilot, bridged)
        n = asked.draws * asked.chains
        with tally.stage("posterior"):
            drawn = posterior_draws(
                densities, pilot, moves, n, rngs.posterior, discrete=densities.discrete
            )
            values, more = add_posterior(tree, model, densities, drawn, asked.chains)
        with tally.stage("checks"):
            flags += quadrature(numbers, densities, drawn.x, asked.target)
        flags += running_off(model, densities, values) + more
    _finish_arms(tree, portfolio)
    attrs = {"weights": asked.choices.weights, "unbiased": tree.attrs["unbiased"]}
    seconds = 0.0 if elsewhere is None else elsewhere.seconds
    return Found(tree, numbers, flags, attrs, densities, tally, seconds)


def _price(cost: Cost, spent: float, seconds: float) -> float | None:
    """Return the cost of a model evaluation in the user's units; None if it is unknown."""
    if cost == "count":
        return 1.0
    return seconds / spent if cost == "cpu" else None


def _priced(arms: dict[str, Any], price: float | None) -> dict[str, Any]:
    """Return arms with their costs, as far as known in advance, in the user's units."""
    if price == 1.0 or not arms:
        return arms
    return {
        a.name: replace(a, cost=None if a.cost is None or price is None else a.cost * price)
        for a in as_arms(arms)
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


def _numbers(tree: xr.DataTree, weights: str) -> Evidence:
    estimate, arms = tree["estimate"].to_dataset(), tree["arms"].to_dataset()
    headline = estimate.sel(weights=weights)
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
    annealed = sum(weights.get(name, 0.0) for name in ("ais_reference", "smc_reference"))
    weighted = sum(weights.get(name, 0.0) for name in ("importance", "importance_rqmc"))
    if annealed + weighted < _MATTERS:
        return []
    if annealed < _MATTERS and effective_beside(densities, pilot, rng) >= _REACHED:
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
