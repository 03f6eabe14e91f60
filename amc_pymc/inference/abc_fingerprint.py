"""Fingerprints of likelihood-free problems and settings, to recognise checkpoints of other runs."""

from __future__ import annotations

import dataclasses

from typing import Any

import numpy as np

from amc_pymc.abc_tree.run import Settings
from amc_pymc.rng import as_generator
from amc_pymc.runs import name_of
from amc_pymc.simulators.problem import Problem
from amc_pymc.simulators.trial import Trial

__all__ = ["problem_fingerprint", "settings_fingerprint"]

#: Number of points at which priors are compared.
_PROBES = 100


def problem_fingerprint(problem: Problem, trial: Trial) -> dict[str, Any]:
    """Return the prior, the data, and the results of a trial if it is reproducible.

    Keys are the names by which differences are reported.
    """
    u = as_generator(0).random((_PROBES, problem.n_dim))
    return {
        "shapes": {k: list(v) for k, v in problem.shapes.items()},
        "prior": {k: np.asarray(v) for k, v in problem.parameters(u).items()},
        "prior density": problem.log_prior(u),
        "observed": problem.observed_summaries,
        "a trial of simulator, summaries, distance and epsilon": (
            trial.numbers if trial.reproducible else None
        ),
    }


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
