"""What is made of all simulations in the end: the accepted ones, with weights, dealt to chains."""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from amc_pymc.logweights import relative, summarise_log_weights, systematic
from amc_pymc.simulators.kernels import accepted

__all__ = ["Accepted", "accept", "deal", "effective", "final_tolerance"]

#: Effective draws to accept: this share of all simulations, but so many at least.
_SHARE, _FEWEST = 0.015, 30
#: How much a simulation is worth is told by so many times those that are enough; and so many times are accepted at most.
_WIDER, _LONGEST = 5, 3


class Accepted(NamedTuple):
    """Accepted simulations.

    Attributes
    ----------
    tolerance : float
    index : array of int (A,)
        Among all simulations.
    log_weight : array (A,)
        Natural logarithms.
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
        """Effective draws."""
        return effective(self.log_weight)


def effective(log_weight: np.ndarray) -> float:
    """Effective draws of Kish, (sum w)^2 / sum w^2; zero without any."""
    return summarise_log_weights(log_weight).ess if len(log_weight) else 0.0


def final_tolerance(
    distance: np.ndarray,
    log_weight: np.ndarray,
    *,
    accepts: int = 1000,
    enough: float | None = None,
    lowest: float | None = None,
) -> float:
    r"""A tolerance that leaves about enough effective draws.

    Enough is half of `accepts`, or 1.5 % of all simulations if that is less, or 30 if that is more; all
    that has a distance is accepted where even that is not enough.

    Accepting one simulation after the other until their effective draws are enough would end just before one of
    much weight: this lowers the effective draws, so that many more have to follow. Such draws are those of tails, and variances
    would come out too small. So the first k that are enough only tell where to look. Of the closest 5 k, whose effective draws are
    E, each is worth E / 5 k; as many are accepted as are worth enough, but not more than 3 k. Whether the next simulation is a heavy one has
    hardly an effect on that.

    Parameters
    ----------
    distance, log_weight : arrays (N,)
    accepts : int
    enough : float, optional
        Effective draws that are enough, whatever the number of simulations.
    lowest : float, optional
        Below which nobody wants to go.

    Raises
    ------
    ValueError
        If no simulation that has a distance has a weight.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.abc_tree.accepted import final_tolerance
    >>> final_tolerance(np.arange(10_000.0), np.zeros(10_000))
    149.0
    """
    if enough is None:
        enough = max(_FEWEST, min(0.5 * accepts, _SHARE * len(distance)))
    finite = np.isfinite(distance)
    if not finite.any():
        return math.inf
    some = finite & (log_weight > -math.inf)
    if not some.any():
        raise ValueError(
            f"the prior density is zero at all {finite.sum():,} simulations that have a distance from the data; "
            "widen the Potentials that make it zero, or simulate more."
        )
    order = np.flatnonzero(some)
    order = order[np.argsort(distance[order], kind="stable")]
    w = relative(log_weight[order])
    found = effective_of_first(w)
    reached = np.flatnonzero(found >= enough - 1e-9)
    last = len(order) - 1
    if len(reached):
        first = int(reached[0]) + 1
        wider = min(_WIDER * first, len(order))
        count = math.ceil(enough * wider / found[wider - 1] - 1e-9)
        last = min(last, count - 1, _LONGEST * first - 1)
    return max(float(distance[order[last]]), 0.0 if lowest is None else lowest)


def effective_of_first(weight: np.ndarray) -> np.ndarray:
    """Effective draws (n,) of the first 1, 2, ..., n of some weights (n,).

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.abc_tree.accepted import effective_of_first
    >>> effective_of_first(np.array([1.0, 1.0, 2.0])).round(2)
    array([1.  , 2.  , 2.67])
    """
    total, squares = np.cumsum(weight), np.cumsum(weight**2)
    return np.divide(total**2, squares, out=np.zeros(len(weight)), where=squares > 0.0)


def accept(distance: np.ndarray, log_weight: np.ndarray, tolerance: float) -> Accepted:
    """Simulations within the tolerance that have a weight."""
    index = np.flatnonzero(accepted(distance, tolerance) & (log_weight > -math.inf))
    return Accepted(tolerance, index, log_weight[index])


def deal(found: Accepted, chains: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Draws of equal weight: chains share no simulation.

    Parameters
    ----------
    found : Accepted
        At least one simulation.
    chains, draws : int
    rng : numpy.random.Generator

    Returns
    -------
    array of int (chains, draws)
        Positions among the accepted. Each chain is resampled from its own part of them, by systematic
        sampling, in random order. With fewer accepted simulations than chains some are shared.
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
