"""Accepted simulations, plain or adjusted, from which posterior draws are made."""

from __future__ import annotations

import math

from typing import Any, NamedTuple

import numpy as np

from scipy.special import ndtri

from amc_pymc.abc_tree.accepted import Accepted
from amc_pymc.abc_tree.adjusting import AdjustName, adjust_run
from amc_pymc.abc_tree.errors import adjusted_effective, adjusted_mean, weighted_mean
from amc_pymc.abc_tree.features import Features, exchangeable_features, joined_features
from amc_pymc.abc_tree.history import History
from amc_pymc.inference.abc_run import AbcRun
from amc_pymc.simulators.problem import Problem

__all__ = ["Drawn", "adjusted_drawn", "features_of", "flat", "plain_drawn", "values_at"]


class Drawn(NamedTuple):
    """Weighted points from which posterior draws are made.

    Attributes
    ----------
    accepted : Accepted
    u : array (A, D)
        Points of the unit cube, after adjustment.
    effective : float
        Effective number of independent draws.
    mean, mcse : arrays (K,)
        Means and standard errors of all elements of all variables.
    distance : array (N,)
        Distances by which simulations were accepted.
    told : dict
        Attributes that describe the adjustment.
    """

    accepted: Accepted
    u: np.ndarray
    effective: float
    mean: np.ndarray
    mcse: np.ndarray
    distance: np.ndarray
    told: dict[str, Any]


def plain_drawn(run: AbcRun, found: Accepted) -> Drawn:
    """Return accepted simulations without adjustment."""
    u = run.history.u[found.index]
    moments = weighted_mean(found.weight, flat(values_at(run.problem, u)))
    told = {"adjust": "none"}
    return Drawn(found, u, found.effective, *moments, run.history.distance, told)


def adjusted_drawn(
    run: AbcRun, found: Accepted, adjust: AdjustName, features: Features | None
) -> Drawn | None:
    """Return adjusted draws; None if the prior density is zero at all of them."""
    history, problem = run.history, run.problem
    assert history.summaries is not None
    result = adjust_run(
        history.u, history.summaries, problem.observed_summaries, history.distance,
        _log_weight_in_cube(history), found, adjust, run.rng.spawn(1)[0], features=features,
        root=None if run.scale is None else run.scale.matrix, distance_is_learned=run.learned,
        log_density=problem.log_density,
    )  # fmt: skip
    draws = result.draws
    if draws is None:
        return None
    chosen = result.choice.candidate
    told: dict[str, Any] = {"adjust": chosen.kind}
    if chosen.space == "learned":
        told |= {"summaries": "learned", "regression": result.regression}
    if chosen.space == "forest":
        told |= {"kernel": "forest"}
    if adjust == "auto":
        told |= {"gain": result.choice.gain, "gain_error": result.choice.error}
    if chosen.kind == "none" and chosen.space != "learned":
        return plain_drawn(run, found)._replace(told=told)

    def values(u: np.ndarray) -> np.ndarray:
        return np.concatenate([ndtri(u), flat(values_at(problem, u))], axis=1)

    mean, mcse = adjusted_mean(draws, values, problem.log_density)
    d = problem.n_dim
    effective_draws = adjusted_effective(draws, mcse[:d])
    return Drawn(
        draws.accepted, draws.u, effective_draws, mean[d:], mcse[d:], result.distance, told
    )


def features_of(problem: Problem, exchangeable: bool) -> Features | None:
    """Return the feature function to learn from; None for the summaries themselves.

    Raises
    ------
    ValueError
        If observations are exchangeable but fewer than two, or were reduced to summary statistics.
    """
    if not exchangeable:
        return None
    observed = problem.observed  # type: ignore[attr-defined]
    each = list(observed.values()) if isinstance(observed, dict) else [observed]
    shapes = [np.shape(o) for o in each]
    wrong = [shape for shape in shapes if not shape or shape[0] < 2]
    if wrong:
        raise ValueError(
            f"exchangeable=True needs data of two observations at least, along the first axis; shapes are "
            f"{', '.join(map(str, shapes))}."
        )
    sizes = [math.prod(shape) for shape in shapes]
    n = len(problem.observed_summaries)
    if sum(sizes) != n:
        raise ValueError(
            f"exchangeable=True needs the data themselves, {sum(sizes)} numbers, and there are {n} summary "
            "statistics; leave sum_stat out."
        )
    return joined_features([exchangeable_features(shape) for shape in shapes], sizes)


def _log_weight_in_cube(history: History) -> np.ndarray:
    """Return natural logarithms (N,) of weights for a prior that is uniform in the cube."""
    if all(r.log_density is None for r in history.rounds):
        return history.log_weight
    return np.concatenate(
        [math.log(r.proposal.gain) - np.log(r.proposal.density(r.u)) for r in history.rounds]
    )


def values_at(problem: Problem, u: np.ndarray) -> dict[str, np.ndarray]:
    """Return parameters and deterministics (n, *shape) at points (n, D) of the cube."""
    values = problem.parameters(u)
    if hasattr(problem, "deterministics"):
        values = {**values, **problem.deterministics(values)}
    return values


def flat(values: dict[str, np.ndarray]) -> np.ndarray:
    """Return all elements (n, K) of values (n, *shape)."""
    return np.concatenate([v.reshape(len(v), -1).astype(float) for v in values.values()], axis=1)
