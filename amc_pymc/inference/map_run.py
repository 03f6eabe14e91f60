"""Run of a search for a mode, with worker processes, a journal and limits."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from amc_pymc.flags import Flag
from amc_pymc.inference.simulation_run import How, failure_flags, simulation_run
from amc_pymc.map_tree.schedule import map_batches
from amc_pymc.map_tree.search import MapHistory, MapSettings, map_rounds
from amc_pymc.simulators.problem import Failure, Problem

__all__ = ["search"]


def search(problem: Problem, settings: MapSettings, how: How) -> tuple[MapHistory, list[Flag]]:
    """Simulate batch after batch, until the last, a time limit or an interrupt; return the history and flags.

    Raises
    ------
    TypeError, ValueError
        Before the first batch, for simulators that always fail and checkpoints of other runs.
    """
    failures: list[Failure] = []
    told = dataclasses.asdict(settings)
    if settings.policy == "hoo":  # its boxes depend on the budget
        told["max_simulations"] = how.budget
    with simulation_run("MAP-Tree", problem, how, map_batches, told) as run:

        def simulate(u: np.ndarray, b: int) -> np.ndarray:
            found, before = run.simulate(u, b), sum(run.sizes[:b])
            failures.extend(f._replace(index=before + f.index) for f in found.failures)
            return found.distance

        history = run.follow(
            map_rounds(
                simulate,
                problem.log_prior,
                problem.n_dim,
                run.sizes,
                settings,
                run.rngs[: len(run.sizes)],
            ),
            told=_told,
        )
    u = history.u
    run.flags += failure_flags(problem, [f for f in failures if f.index < len(u)], u)
    return history, run.flags


def _told(history: MapHistory) -> str:
    last = history.rounds[-1]
    if not math.isfinite(last.tolerance):
        return ""
    return f": tolerance {last.tolerance:.3g}, {last.boxes:,} boxes"
