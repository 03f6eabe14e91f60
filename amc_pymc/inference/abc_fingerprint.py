"""What tells a problem without a likelihood from others, so that no checkpoint is taken for that of another one."""

from __future__ import annotations

import dataclasses

from typing import Any

import numpy as np

from amc_pymc.abc_tree.run import Settings
from amc_pymc.rng import as_generator
from amc_pymc.simulators.problem import Problem

__all__ = ["problem_fingerprint", "settings_fingerprint"]

#: Points of the cube at which priors are compared, and simulations that are.
_PROBES, _TRIALS = 100, 3
#: How the simulations are called where they differ.
_TRIAL = "a trial of simulator, summaries, distance and epsilon"


def problem_fingerprint(
    problem: Problem, *, batched: bool, timeout: float | None, summaries: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """Prior, data, and what a few simulations with a seed of their own come to.

    Parameters
    ----------
    problem : Problem
    batched, timeout, summaries
        How it is simulated from.

    Returns
    -------
    dict of str to array and the like
        By the name that a difference is told by.
    list of str
        What a user should know: that simulations are not the same twice. They are left out, then.
    """
    u = as_generator(0).random((_PROBES, problem.n_dim))
    trial, again = (
        _trial(problem, batched=batched, timeout=timeout, summaries=summaries) for _ in range(2)
    )
    same = np.array_equal(trial, again, equal_nan=True)
    found = {
        "shapes": {k: list(v) for k, v in problem.shapes.items()},
        "prior": {k: np.asarray(v) for k, v in problem.parameters(u).items()},
        "prior density": problem.log_prior(u),
        "observed": problem.observed_summaries,
        _TRIAL: trial if same else None,
    }
    if same:
        return found, []
    return found, [
        "the simulator does not take all its random numbers from the generator that it is given: it gives "
        "other results with the same one, and a checkpoint leads to other numbers"
    ]


def _trial(problem, *, batched, timeout, summaries) -> np.ndarray:
    """Distances and summary statistics in six digits, which do not depend on the machine."""
    rng = as_generator(1)
    u = rng.random((_TRIALS, problem.n_dim))
    found = problem.simulate(u, rng, batched=batched, timeout=timeout, summaries=summaries)
    numbers = [found.distance, *([] if found.summaries is None else found.summaries)]
    return np.array([float(f"{x:.6g}") for x in np.concatenate(numbers)])


def settings_fingerprint(
    settings: Settings,
    *,
    batched: bool,
    adjust: str | None,
    exchangeable: bool,
    distance_scale: str | None,
) -> dict[str, Any]:
    """What a run was asked for, in numbers and names."""
    learner = settings.learner
    told = (
        {}
        if learner is None
        else {**dataclasses.asdict(learner), "partitioner": _told(learner.partitioner)}
    )
    return {
        "learner": told,
        "accepts": settings.accepts,
        "tolerance": settings.tolerance,
        "factor": settings.factor,
        "batched": batched,
        "adjust": adjust,
        "exchangeable": exchangeable,
        "distance_scale": distance_scale,
    }


def _told(partitioner) -> str:
    """A partitioner by its settings, or by name: not by where it is in memory."""
    if isinstance(partitioner, tuple):
        return ", ".join(map(_told, partitioner))
    if " at 0x" not in repr(partitioner):
        return repr(partitioner)
    named = partitioner if hasattr(partitioner, "__qualname__") else type(partitioner)
    return f"{named.__module__}.{named.__qualname__}"
