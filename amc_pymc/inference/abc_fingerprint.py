"""Fingerprints of likelihood-free problems and settings, to recognise checkpoints of other runs."""

from __future__ import annotations

import dataclasses

from typing import Any

import numpy as np

from amc_pymc.abc_tree.run import Settings
from amc_pymc.flags import Flag, flag
from amc_pymc.rng import as_generator
from amc_pymc.running import name_of
from amc_pymc.simulators.problem import Problem

__all__ = ["problem_fingerprint", "settings_fingerprint"]

#: Number of points at which priors are compared, and of simulations compared.
_PROBES, _TRIALS = 100, 3
#: Name of the simulations in messages about differences.
_TRIAL = "a trial of simulator, summaries, distance and epsilon"


def problem_fingerprint(
    problem: Problem, *, batched: bool, timeout: float | None, summaries: bool = False
) -> tuple[dict[str, Any], list[Flag]]:
    """Return the prior, the data, and the results of a few simulations with a fixed seed.

    Parameters
    ----------
    problem : Problem
    batched, timeout, summaries
        Options of the simulations.

    Returns
    -------
    dict of str to array and the like
        Keys are the names by which differences are reported.
    list of Flag
        Flag that the simulations are not reproducible, if so. They are then left out.
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
    return found, [flag("not_reproducible")]


def _trial(
    problem: Problem, *, batched: bool, timeout: float | None, summaries: bool
) -> np.ndarray:
    """Return distances and summary statistics, rounded to six digits to be the same on all machines."""
    rng = as_generator(1)
    u = rng.random((_TRIALS, problem.n_dim))
    found = problem.simulate(u, rng, batched=batched, timeout=timeout, summaries=summaries)
    numbers = [found.distance, *([] if found.summaries is None else found.summaries)]
    return np.array([float(f"{x:.6g}") for x in np.concatenate(numbers)])


def settings_fingerprint(
    settings: Settings, *, adjust: str | None, exchangeable: bool, distance_scale: str | None
) -> dict[str, Any]:
    """Return the settings of a run as numbers and names."""
    told = {} if settings.learner is None else dataclasses.asdict(settings.learner)
    if settings.learner is not None:
        told["partitioner"] = name_of(settings.learner.partitioner)
    return {
        "learner": told,
        "accepts": settings.accepts,
        "tolerance": settings.tolerance,
        "factor": settings.factor,
        "adjust": adjust,
        "exchangeable": exchangeable,
        "distance_scale": distance_scale,
    }
