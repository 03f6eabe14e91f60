"""Final tolerance, accepted simulations with their weights, and their distribution over chains."""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from amc_pymc.likelihood_free.problem import accepted
from amc_pymc.logweights import effective_of_first, relative, summarise_log_weights, systematic

#: Effective draws to accept: share of all simulations, and minimum number.
_SHARE, _FEWEST = 0.015, 30
#: Multiples of the smallest sufficient number k: simulations to average over, and maximum to accept.
_WIDER, _LONGEST = 5, 3


class Accepted(NamedTuple):
    """Accepted simulations.

    Attributes
    ----------
    tolerance : float
    index : array of int (A,)
        Indices among all simulations.
    log_weight : array (A,)
        Natural logarithms of the weights.
    """

    tolerance: float
    index: np.ndarray  # type: ignore[assignment]
    log_weight: np.ndarray

    @property
    def weight(self) -> np.ndarray:
        """Weights (A,), which sum to one."""
        w = relative(self.log_weight)
        return w / w.sum()

    @property
    def effective(self) -> float:
        """Effective sample size."""
        return effective(self.log_weight)


def effective(log_weight: np.ndarray) -> float:
    """Return Kish's effective sample size, (sum w)^2 / sum w^2; zero if there are no weights."""
    return summarise_log_weights(log_weight).ess if len(log_weight) else 0.0


def final_tolerance(
    distance: np.ndarray,
    log_weight: np.ndarray,
    *,
    accepts: int = 1000,
    lowest: float | None = None,
) -> float:
    r"""Return a tolerance that accepts about a target number of effective draws.

    The target is half of `accepts` or 1.5 % of all simulations, whichever is less, but at least 30. If no
    tolerance accepts as many, it is the one that accepts most.

    Accepting simulations until the target is reached would tend to stop just before one of large weight, because
    it lowers the effective sample size. Such simulations lie in the tails, so variances would be too small.
    Therefore, the first k simulations that reach the target are only a guide. If the closest 5 k have E effective
    draws, each counts as E / 5 k. As many are accepted as reach the target by this count, but at most 3 k. The
    weight of the next simulation hardly affects this number.

    Parameters
    ----------
    distance, log_weight : arrays (N,)
    accepts : int
    lowest : float, optional
        Smallest tolerance of interest.

    Raises
    ------
    ValueError
        If all simulations with a finite distance have zero weight.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.accepted import final_tolerance
    >>> final_tolerance(np.arange(10_000.0), np.zeros(10_000))
    149.0
    """
    enough = max(_FEWEST, min(0.5 * accepts, _SHARE * len(distance)))
    finite = np.isfinite(distance)
    if not finite.any():
        return math.inf
    order, w = closest_first(distance, log_weight)
    if not len(order):
        raise ValueError(
            f"the prior density is zero at all {finite.sum():,} simulations that have a distance from the data; "
            "widen the Potentials that make it zero, or simulate more."
        )
    found = effective_of_first(w)
    reached = np.flatnonzero(found >= enough - 1e-9)
    last = int(found.argmax())
    if len(reached):
        first = int(reached[0]) + 1
        wider = min(_WIDER * first, len(order))
        count = math.ceil(enough * wider / found[wider - 1] - 1e-9)
        last = min(len(order) - 1, count - 1, _LONGEST * first - 1)
    return max(float(distance[order[last]]), 0.0 if lowest is None else lowest)


def closest_first(distance: np.ndarray, log_weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return indices (n,) of simulations with finite distance and positive weight by distance, and their weights (n,)."""
    order = np.flatnonzero(np.isfinite(distance) & (log_weight > -math.inf))
    order = order[np.argsort(distance[order], kind="stable")]
    return order, relative(log_weight[order])


def accept(distance: np.ndarray, log_weight: np.ndarray, tolerance: float) -> Accepted:
    """Return the simulations within the tolerance that have a positive weight."""
    index = np.flatnonzero(accepted(distance, tolerance) & (log_weight > -math.inf))
    return Accepted(tolerance, index, log_weight[index])


def deal(found: Accepted, chains: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Resample accepted simulations into chains of equally weighted draws.

    Parameters
    ----------
    found : Accepted
        At least one accepted simulation.
    chains, draws : int
    rng : numpy.random.Generator

    Returns
    -------
    array of int (chains, draws)
        Positions among the accepted simulations. Each chain is resampled from its own subset by systematic
        sampling, in random order. Chains share simulations only if there are fewer simulations than chains.
    """
    n, weight = len(found.index), found.weight
    chain = rng.permutation(np.arange(n) % chains)
    out = np.empty((chains, draws), np.int64)
    for c in range(chains):
        own = np.flatnonzero(chain == c)
        if not len(own) or not weight[own].sum() > 0.0:
            own = np.arange(n)
        out[c] = rng.permutation(own[systematic(weight[own], draws, rng)])
    return out
