"""Common part of likelihood-free samplers: batches, the scale of the distance, learned summaries."""

from __future__ import annotations

import math

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from amc_pymc.abc_tree.accepted import effective
from amc_pymc.abc_tree.features import Features
from amc_pymc.abc_tree.history import History
from amc_pymc.abc_tree.learned import learned_distance
from amc_pymc.abc_tree.run import Settings, rounds
from amc_pymc.abc_tree.schedule import batch_sizes
from amc_pymc.flags import Flag, flag
from amc_pymc.inference.simulation_run import How, SimulationRun, failure_flags, simulation_run
from amc_pymc.simulators.kernels import accepted
from amc_pymc.simulators.problem import Problem, Simulated
from amc_pymc.simulators.scale import FEWEST_PILOTS, ScaleName, SummaryScale, pilot_scale

if TYPE_CHECKING:
    from pymc import Model

__all__ = ["AbcRun", "run_batches"]


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
    flags : list of Flag
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
    flags: list[Flag] = field(default_factory=list)
    scale: SummaryScale | None = None
    learned: bool = False


def run_batches(
    description: str,
    problem: Problem,
    model: Model | None,
    settings: Settings,
    how: How,
    told: dict[str, Any],
    *,
    min_acceptance: float | None = None,
    summaries: bool = False,
    distance_scale: ScaleName | None = None,
    learn: Features | None = None,
) -> AbcRun:
    """Simulate batch after batch, with a journal, limits and interrupts.

    The first batch is the pilot of `distance_scale`. The run ends early if a smaller share than `min_acceptance` of
    a batch is accepted at its own tolerance. The journal recognises a run by `told`.
    """
    summaries = summaries or learn is not None
    summarised = summaries or distance_scale is not None
    with simulation_run(
        description, problem, how, batch_sizes, told, summaries=summarised
    ) as simulated:
        _check_pilot(distance_scale, simulated.sizes[0])
        last, *generators = simulated.rngs
        run = AbcRun(problem, model, History(), last, simulated.seconds, simulated.flags)
        run.learned = learn is not None

        def simulate(u: np.ndarray, b: int) -> Simulated:
            found = simulated.simulate(u, b)
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
                history.u, history.summaries, problem.observed_summaries, learn, rng, thorough=thorough
            )  # fmt: skip

        run.history = simulated.follow(
            rounds(
                problem,
                simulate,
                simulated.sizes,
                settings,
                generators,
                None if learn is None else learnt,
            ),
            told=_told,
            enough=lambda history: _few_accepted(history, min_acceptance, simulated),
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


def _told(history: History) -> str:
    last = history.rounds[-1]
    if not math.isfinite(last.tolerance):
        return ""
    hit = accepted(history.distance, last.tolerance)
    draws = effective(history.log_weight[hit])
    return f": tolerance {last.tolerance:.3g}, {draws:,.0f} effective draws"


def _few_accepted(history: History, least: float | None, run: SimulationRun) -> bool:
    """Whether the limit of acceptance ends the run before all simulations are made."""
    last = history.rounds[-1]
    if least is None or not math.isfinite(last.tolerance):
        return False
    share = float(accepted(last.simulated.distance, last.tolerance).mean())
    if share >= least:
        return False
    run.flags.append(flag("few_accepted", share=share, least=least, simulations=len(history)))
    return True


def _look_at_scale(run: AbcRun) -> None:
    if run.scale is None:
        return
    left_out = np.flatnonzero(np.isinf(run.scale.spread))
    if len(left_out):
        names, n = ", ".join(map(str, left_out)), len(run.scale.spread)
        run.flags.append(flag("constant_summaries", left_out=names, summaries=n))
