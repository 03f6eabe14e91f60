"""Adaptive simulation in batches, each drawn from a proposal learned from earlier batches."""

from __future__ import annotations

import math

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from amc_pymc.abc_tree.history import History, Round
from amc_pymc.abc_tree.learning import Learner, next_proposal
from amc_pymc.abc_tree.proposal import prior_proposal
from amc_pymc.abc_tree.schedule import next_tolerance
from amc_pymc.simulators.problem import Problem, Simulated

__all__ = ["Settings", "rounds"]

#: Log density below which a density counts as zero.
_ZERO = -1e100


@dataclass(frozen=True)
class Settings:
    """Settings of a run.

    Attributes
    ----------
    learner : Learner or None
        None draws all batches from the prior (rejection sampling).
    accepts : int
        Number of simulations, of all so far, that the tolerance is lowered to accept.
    tolerance : float or None
        Tolerance at which lowering ends.
    factor : float or None
        Factor by which to lower the tolerance in each round instead.
    """

    learner: Learner | None
    accepts: int = 1000
    tolerance: float | None = None
    factor: float | None = None


def rounds(
    problem: Problem,
    simulate: Callable[[np.ndarray, int], Simulated],
    sizes: Sequence[int],
    settings: Settings,
    generators: Sequence[np.random.Generator],
    learn_distance: Callable[[History, np.random.Generator], np.ndarray] | None = None,
) -> Iterator[History]:
    """Simulate batch by batch.

    Parameters
    ----------
    problem : Problem
    simulate : callable
        Maps points (n, D) of the unit cube and the batch number to n simulations.
    sizes : sequence of int
        Sizes of the batches.
    settings : Settings
    generators : sequence of numpy.random.Generator
        One for each batch.
    learn_distance : callable, optional
        Maps the history before a batch to new distances (N,), which replace the old ones. The distance is
        fixed before the batch is drawn, like the proposal.

    Yields
    ------
    History
        The same object each time, extended by one batch.

    Raises
    ------
    ValueError
        After the last batch, if the prior density is zero at all simulations.
    """
    history, tolerance = History(), math.inf
    for b, (size, rng) in enumerate(zip(sizes, generators, strict=True)):
        proposal = prior_proposal(problem.n_dim)
        if b > 0:
            if learn_distance is not None:
                history.score_again(learn_distance(history, rng.spawn(1)[0]))
                tolerance = math.inf  # the new distance has other units
            tolerance = next_tolerance(
                history.distance, tolerance,
                accepts=settings.accepts, lowest=settings.tolerance, factor=settings.factor,
                log_density=history.log_density,
            )  # fmt: skip
            if settings.learner is not None:
                proposal = next_proposal(history, tolerance, settings.learner, rng)
        u, log_ratio, box, x = proposal.draw(size, rng)
        log_density = problem.log_density(u)
        if log_density is not None:
            log_density = np.where(log_density < _ZERO, -math.inf, log_density)
            log_ratio = log_ratio + log_density
        found = simulate(u, b)
        history.add(Round(proposal, tolerance, u, box, log_ratio, log_density, found, x))
        yield history
    if len(history) and not (history.log_density > -math.inf).any():
        factors = getattr(problem, "fallback", {})
        told = "".join(f" {name!r} ({reason})" for name, reason in factors.items())
        raise ValueError(
            f"the prior density is zero at all {len(history):,} simulations; look at what it is made of"
            f"{':' if told else ''}{told}."
        )
