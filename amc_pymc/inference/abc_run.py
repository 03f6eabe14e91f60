"""Common part of likelihood-free samplers: problem, workers, checkpoint and batches."""

from __future__ import annotations

import math
import time

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import numpy as np

from amc_pymc.abc_tree.accepted import effective
from amc_pymc.abc_tree.features import Features
from amc_pymc.abc_tree.history import History
from amc_pymc.abc_tree.learned import learned_distance
from amc_pymc.abc_tree.run import Settings, rounds
from amc_pymc.arguments import positive_int
from amc_pymc.extract.simulator import ModelProblem
from amc_pymc.inference.abc_fingerprint import problem_fingerprint
from amc_pymc.inference.evidence_model import context_model, seed_words
from amc_pymc.inference.round_log import RoundLog
from amc_pymc.progress import progress
from amc_pymc.rng import RandomSeed, spawn_generators
from amc_pymc.simulators.failures import describe, failure_arrays, failures_from_arrays
from amc_pymc.simulators.kernels import accepted
from amc_pymc.simulators.problem import Failure, Problem, Simulated
from amc_pymc.simulators.scale import FEWEST_PILOTS, ScaleName, SummaryScale, pilot_scale
from amc_pymc.simulators.simulator_problem import SimulatorProblem
from amc_pymc.simulators.workers import simulation_workers

if TYPE_CHECKING:
    from pymc import Model

__all__ = ["AbcRun", "Budget", "as_problem", "begun_log", "failure_flags", "run_batches"]

#: Share of failed simulations above which a warning is given.
_MANY_FAILED = 0.05


@dataclass(frozen=True)
class Budget:
    """Limits of a run.

    Attributes
    ----------
    sizes : sequence of int
        Sizes of the batches.
    max_time : float or None
        Time limit in seconds, checked between batches.
    min_acceptance : float or None
        Accepted share of a batch, at its tolerance, below which the run stops.
    """

    sizes: Sequence[int]
    max_time: float | None = None
    min_acceptance: float | None = None


@dataclass
class AbcRun:
    """A finished run.

    Attributes
    ----------
    problem : Problem
    model : pm.Model or None
    history : History
    seconds : list of float
        Simulation time of each batch; nan for batches from a checkpoint.
    flags : list of str
        Warnings for the user.
    rng : numpy.random.Generator
        Generator for draws after the run.
    scale : SummaryScale or None
        Scale of the distance if it comes from a pilot batch; None for the problem's own distance.
    learned : bool
        Whether the distance is between learned summaries.
    """

    problem: Problem
    model: Any
    history: History
    rng: np.random.Generator
    seconds: list[float] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    scale: SummaryScale | None = None
    learned: bool = False


def as_problem(model: Model | SimulatorProblem | None) -> tuple[Problem, Any]:
    """Return problem and model of ``model=``: a SimulatorProblem, or a ``pm.Model``, given or from the context."""
    if isinstance(model, SimulatorProblem):
        return model, None
    model = context_model(model)
    return ModelProblem.from_model(model), model


def run_batches(
    description: str,
    problem: Problem,
    model: Model | None,
    budget: Budget,
    settings: Settings,
    *,
    random_seed: RandomSeed,
    cores: int | None,
    executor: Executor | None,
    batched: bool,
    timeout: float | None,
    progressbar: bool,
    checkpoint: str | FilePath | None,
    fingerprint: dict[str, Any],
    summaries: bool = False,
    distance_scale: ScaleName | None = None,
    learn: Features | None = None,
) -> AbcRun:
    """Simulate batch after batch, with checkpoints, limits and interrupts.

    Batches in a checkpoint are treated as if they had just been simulated, so a resumed run gives the same numbers.
    The first batch is the pilot of `distance_scale`.
    """
    _check_pilot(distance_scale, budget.sizes[0])
    summaries = summaries or learn is not None
    summarised = summaries or distance_scale is not None
    log, words, flags = begun_log(
        problem, checkpoint, {"sizes": list(budget.sizes), **fingerprint}, random_seed,
        batched=batched, timeout=timeout, summaries=summarised,
    )  # fmt: skip
    kept = log.batches()
    first, last, *generators = spawn_generators(words, 2 + len(budget.sizes))
    problem.check(first, batched=batched, timeout=timeout)
    run = AbcRun(problem, model, History(), last, flags=flags, learned=learn is not None)
    began = time.monotonic()
    with (
        progress(description, sum(budget.sizes), enabled=progressbar) as bar,
        simulation_workers(
            problem, cores=cores, executor=executor, batched=batched, timeout=timeout,
            summaries=summarised, bar=bar,
        ) as workers,
    ):  # fmt: skip

        def simulate(u: np.ndarray, b: int) -> Simulated:
            stored = next(kept, None)
            if stored is not None:
                bar.advance(len(u))
                run.seconds.append(math.nan)
                return rescaled(_restored(stored))
            start = time.perf_counter()
            found = workers(u, [*words, b])
            run.seconds.append(time.perf_counter() - start)
            log.append(_stored(found))
            return rescaled(found)

        def rescaled(found: Simulated) -> Simulated:
            if distance_scale is None:
                return found
            assert found.summaries is not None
            if run.scale is None:
                run.scale = pilot_scale(found.summaries, problem.observed_summaries, distance_scale)
            distance = run.scale.distance(found.summaries)
            return Simulated(distance, found.failures, found.summaries if summaries else None)

        def learnt(
            history: History, rng: np.random.Generator, thorough: bool = False
        ) -> np.ndarray:
            assert history.summaries is not None and learn is not None
            return learned_distance(
                history.u,
                history.summaries,
                problem.observed_summaries,
                learn,
                rng,
                thorough=thorough,
            )

        try:
            for history in rounds(
                problem, simulate, budget.sizes, settings, generators,
                None if learn is None else learnt,
            ):  # fmt: skip
                run.history = history
                bar.update(description=_described(description, history))
                if _spent(run, budget, time.monotonic() - began):
                    break
        except KeyboardInterrupt:
            if not len(run.history):
                raise
            run.flags.append(
                f"the run was interrupted after {len(run.history):,} of {sum(budget.sizes):,} simulations"
            )
    if learn is not None:
        run.history.score_again(learnt(run.history, run.rng.spawn(1)[0], thorough=True))
    run.flags += failure_flags(problem, run.history.failures, run.history.u)
    _look_at_scale(run)
    return run


def _check_pilot(distance_scale: ScaleName | None, size: int) -> None:
    if distance_scale is not None and size < FEWEST_PILOTS:
        raise ValueError(
            f"distance_scale={distance_scale!r} needs a first batch of {FEWEST_PILOTS} simulations at least, it "
            f"has {size}; raise max_simulations or batch_size."
        )


def _stored(found: Simulated) -> dict[str, np.ndarray]:
    out = {"distance": found.distance, **failure_arrays(found.failures)}
    return out if found.summaries is None else {**out, "summaries": found.summaries}


def _restored(stored: dict[str, np.ndarray]) -> Simulated:
    return Simulated(stored["distance"], failures_from_arrays(stored), stored.get("summaries"))


def _described(description: str, history: History) -> str:
    last = history.rounds[-1]
    if not math.isfinite(last.tolerance):
        return description
    hit = accepted(history.distance, last.tolerance)
    draws = effective(history.log_weight[hit])
    return f"{description}: tolerance {last.tolerance:.3g}, {draws:,.0f} effective draws"


def _spent(run: AbcRun, budget: Budget, seconds: float) -> bool:
    """Whether the limit of time or acceptance ends the run before all simulations are made."""
    history = run.history
    if len(history.rounds) == len(budget.sizes):
        return False
    last = history.rounds[-1]
    if budget.max_time is not None and seconds > budget.max_time:
        run.flags.append(
            f"max_time={budget.max_time:g} s was over after {len(history):,} of {sum(budget.sizes):,} "
            "simulations"
        )
        return True
    if budget.min_acceptance is not None and math.isfinite(last.tolerance):
        share = float(accepted(last.simulated.distance, last.tolerance).mean())
        if share < budget.min_acceptance:
            run.flags.append(
                f"{share:.2g} of the last batch was accepted, less than min_acceptance="
                f"{budget.min_acceptance:g}, after {len(history):,} simulations"
            )
            return True
    return False


def begun_log(
    problem: Problem,
    checkpoint: str | FilePath | None,
    fingerprint: dict[str, Any],
    random_seed: RandomSeed,
    *,
    batched: bool,
    timeout: float | None,
    summaries: bool = False,
) -> tuple[RoundLog, list[int], list[str]]:
    """Return the log of batches, the seed to continue with, and warnings for the user."""
    told: dict[str, Any] = {}
    flags: list[str] = []
    if checkpoint is not None:
        told, flags = problem_fingerprint(
            problem, batched=batched, timeout=timeout, summaries=summaries
        )
        told |= fingerprint
    given = None if random_seed is None else seed_words(random_seed)
    log = RoundLog(checkpoint, told, given)
    return log, log.begin(given or seed_words(None)), flags


def failure_flags(problem: Problem, failures: list[Failure], u: np.ndarray) -> list[str]:
    """Return a warning of failed simulations at points (N, D), unless few failed and none raised an error."""
    few = len(failures) <= _MANY_FAILED * len(u)
    if few and not any(f.kind == "error" for f in failures):
        return []
    return [describe(failures, problem.parameters(u))]


def _look_at_scale(run: AbcRun) -> None:
    if run.scale is None:
        return
    left_out = np.flatnonzero(np.isinf(run.scale.spread))
    if len(left_out):
        run.flags.append(
            f"summary statistics {', '.join(map(str, left_out))} of {len(run.scale.spread)} did not vary in the "
            "first batch and are left out of the distance"
        )


def sizes_of(max_simulations: object, batch_size: object) -> tuple[int, int | None]:
    """Return budget and batch size after checking them."""
    budget = positive_int("max_simulations", max_simulations)
    size = None if batch_size is None else positive_int("batch_size", batch_size)
    if size is not None and size > budget:
        raise ValueError(
            f"max_simulations={budget} is less than a batch, batch_size={size}; raise it or leave batch_size "
            "out."
        )
    return budget, size
