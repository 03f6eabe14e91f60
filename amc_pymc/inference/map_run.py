"""Run of a search for a mode, with worker processes, a checkpoint and limits."""

from __future__ import annotations

import dataclasses
import math
import time

from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path as FilePath

import numpy as np

from amc_pymc.abc_tree.partition import whole_cube
from amc_pymc.inference.abc_run import Budget, begun_log, failure_flags
from amc_pymc.map_tree.search import MapHistory, MapSettings, map_rounds
from amc_pymc.progress import progress
from amc_pymc.rng import RandomSeed, spawn_generators
from amc_pymc.simulators.failures import failure_arrays, failures_from_arrays
from amc_pymc.simulators.problem import Failure, Problem, Simulated
from amc_pymc.simulators.workers import simulation_workers

__all__ = ["MapRun", "search"]

_DESCRIPTION = "MAP-Tree"


@dataclass
class MapRun:
    """A finished search.

    Attributes
    ----------
    history : MapHistory
    failures : list of Failure
        Failures, indexed among all simulations.
    flags : list of str
        Warnings for the user.
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
    """Simulate batch after batch, and keep the results so far at a time limit or an interrupt.

    Batches in a checkpoint are treated as if they had just been simulated, so a resumed run gives the same numbers.

    Raises
    ------
    TypeError, ValueError
        Before the first batch, for simulators that always fail and checkpoints of other runs.
    """
    fingerprint = {"sampler": _DESCRIPTION, "sizes": list(budget.sizes), "batched": batched}
    fingerprint |= dataclasses.asdict(settings)
    log, words, flags = begun_log(
        problem, checkpoint, fingerprint, random_seed, batched=batched, timeout=timeout
    )
    kept = log.batches()
    trial, *generators = spawn_generators(words, 1 + len(budget.sizes))
    problem.check(trial, batched=batched, timeout=timeout)
    run = MapRun(MapHistory(whole_cube(problem.n_dim)), flags=flags)
    began = time.monotonic()
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
            before = sum(budget.sizes[:b])
            run.failures.extend(f._replace(index=before + f.index) for f in found.failures)
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
    u = run.history.u
    run.flags += failure_flags(problem, [f for f in run.failures if f.index < len(u)], u)
    return run


def _described(history: MapHistory) -> str:
    last = history.rounds[-1]
    if not math.isfinite(last.tolerance):
        return _DESCRIPTION
    return f"{_DESCRIPTION}: tolerance {last.tolerance:.3g}, {last.boxes:,} boxes"


def _spent(run: MapRun, budget: Budget, seconds: float) -> bool:
    """Whether the time limit ends the run before all simulations are made."""
    if len(run.history.rounds) == len(budget.sizes):
        return False
    if budget.max_time is None or seconds <= budget.max_time:
        return False
    run.flags.append(f"max_time={budget.max_time:g} s was over after {_so_far(run, budget)}")
    return True


def _so_far(run: MapRun, budget: Budget) -> str:
    return f"{len(run.history.distance):,} of {sum(budget.sizes):,} simulations"
