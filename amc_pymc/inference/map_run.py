"""A search for a mode with all that can happen meanwhile: workers, a checkpoint, limits."""

from __future__ import annotations

import dataclasses
import math
import time

from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from amc_pymc.abc_tree.failures import failure_arrays, failures_from_arrays
from amc_pymc.abc_tree.map_tree import MapHistory, MapSettings, map_rounds
from amc_pymc.abc_tree.partition import whole_cube
from amc_pymc.abc_tree.problem import Failure, Problem, Simulated
from amc_pymc.abc_tree.workers import simulation_workers
from amc_pymc.inference.abc_run import Budget
from amc_pymc.inference.evidence_model import seed_words
from amc_pymc.inference.round_log import RoundLog
from amc_pymc.progress import progress
from amc_pymc.rng import RandomSeed, as_generator, spawn_generators

__all__ = ["MapRun", "search"]

_DESCRIPTION = "MAP-Tree"
#: Seed of what tells problems apart: a few draws from the prior, and distances that simulations come to.
_TRIAL = 0
#: Share of failed simulations above which there is a warning.
_MANY_FAILED = 0.05


@dataclass
class MapRun:
    """A search that is over.

    Attributes
    ----------
    history : MapHistory
    failures : list of Failure
        With rows of their own batches.
    flags : list of str
        What a user should know.
    """

    history: MapHistory
    failures: list[Failure] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)


def search(
    problem: Problem,
    budget: Budget,
    settings: MapSettings,
    *,
    random_seed: RandomSeed,
    cores: int | None,
    executor: Executor | None,
    batched: bool,
    timeout: float | None,
    progressbar: bool,
    checkpoint: str | FilePath | None,
) -> MapRun:
    """Simulate batch after batch, and keep what there is when time is over or after an interrupt.

    A batch that a checkpoint has is learned from as if it had just been simulated, so that a run that was
    killed goes on to the same numbers.

    Raises
    ------
    TypeError, ValueError
        Before anything is simulated in earnest: for simulators that always fail, checkpoints of other runs.
    """
    given = None if random_seed is None else seed_words(random_seed)
    trial = problem.check(as_generator(_TRIAL), batched=batched, timeout=timeout)
    fingerprint = _fingerprint(problem, budget, settings) | {"batched": batched, "trial": trial}
    log = RoundLog(checkpoint, fingerprint, given)
    words = log.begin(given or seed_words(None))
    kept = log.batches()
    generators = spawn_generators(words, len(budget.sizes))
    run, began = MapRun(MapHistory(whole_cube(problem.n_dim))), time.monotonic()
    with (
        progress(_DESCRIPTION, sum(budget.sizes), enabled=progressbar) as bar,
        simulation_workers(
            problem, cores=cores, executor=executor, batched=batched, timeout=timeout, bar=bar
        ) as workers,
    ):

        def simulate(u: np.ndarray, b: int) -> np.ndarray:
            stored = next(kept, None)
            if stored is not None:
                bar.advance(len(u))
                found = Simulated(stored["distance"], failures_from_arrays(stored))
            else:
                found = workers(u, [*words, b])
                log.append({"distance": found.distance, **failure_arrays(found.failures)})
            run.failures.extend(found.failures)
            return found.distance

        try:
            for run.history in map_rounds(
                simulate, problem.log_prior, problem.n_dim, budget.sizes, settings, generators
            ):
                bar.update(description=_described(run.history))
                if _spent(run, budget, time.monotonic() - began):
                    break
        except KeyboardInterrupt:
            if not run.history.rounds:
                raise
            run.flags.append(f"the run was interrupted after {_so_far(run, budget)}")
    _look_at_failures(run)
    return run


def _fingerprint(problem: Problem, budget: Budget, settings: MapSettings) -> dict[str, Any]:
    probe = as_generator(_TRIAL).random((5, problem.n_dim))
    return {
        "sampler": _DESCRIPTION,
        "shapes": {k: list(v) for k, v in problem.shapes.items()},
        "prior": {k: np.asarray(v) for k, v in problem.parameters(probe).items()},
        "log_prior": problem.log_prior(probe),
        "observed": problem.observed_summaries,
        "sizes": list(budget.sizes),
        **dataclasses.asdict(settings),
    }


def _described(history: MapHistory) -> str:
    last = history.rounds[-1]
    if not math.isfinite(last.tolerance):
        return _DESCRIPTION
    return f"{_DESCRIPTION}: tolerance {last.tolerance:.3g}, {last.boxes:,} boxes"


def _spent(run: MapRun, budget: Budget, seconds: float) -> bool:
    """Whether time is over, though simulations are left."""
    if len(run.history.rounds) == len(budget.sizes):
        return False
    if budget.max_time is None or seconds <= budget.max_time:
        return False
    run.flags.append(f"max_time={budget.max_time:g} s was over after {_so_far(run, budget)}")
    return True


def _so_far(run: MapRun, budget: Budget) -> str:
    return f"{len(run.history.distance):,} of {sum(budget.sizes):,} simulations"


def _look_at_failures(run: MapRun) -> None:
    distance, failures = run.history.distance, run.failures
    lost, n = int(np.isinf(distance).sum()), len(distance)
    if lost <= _MANY_FAILED * n:
        return
    first = f", the first one: {failures[0].message}" if failures else ""
    run.flags.append(
        f"{lost:,} of {n:,} simulations failed or were infinitely far from the data{first}"
    )
