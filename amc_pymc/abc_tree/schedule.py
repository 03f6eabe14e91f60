"""Batch sizes and tolerances of a run."""

from __future__ import annotations

import math

from collections.abc import Sequence

import numpy as np

from amc_pymc.logweights import relative

__all__ = ["batch_sizes", "next_tolerance"]

#: First batch, from the prior: fraction of the budget, and minimum size. Later batches: fraction of all simulations
#: before them.
_FIRST, _LEAST, _GROWTH = 0.02, 100, 0.4
#: Maximum share of all simulations that a tolerance accepts.
_LARGEST_SHARE = 0.03
#: Number of simulations that may be accepted whatever their share.
_FEWEST = 30


def batch_sizes(
    max_simulations: int, batch_size: int | None = None, done: Sequence[int] = ()
) -> list[int]:
    """Return the sizes of the batches that spend a budget, fixed before any simulation.

    Parameters
    ----------
    max_simulations : int
    batch_size : int, optional
        By default, batches grow with the number of earlier simulations.
    done : sequence of int
        Sizes of batches that exist already, perhaps as part of a smaller budget.

    Examples
    --------
    >>> from amc_pymc.abc_tree.schedule import batch_sizes
    >>> batch_sizes(1000), batch_sizes(1000, 300)
    ([100, 100, 100, 120, 168, 235, 177], [300, 300, 300, 100])
    """
    sizes, left = list(done), max_simulations - sum(done)
    first = min(max_simulations, max(_LEAST, math.ceil(_FIRST * max_simulations)))
    while left > 0:
        size = batch_size or max(first, int(_GROWTH * (max_simulations - left)))
        # A last batch that is not of the size asked for must not be smaller than half of its planned size.
        size = left if left < (1.0 if batch_size else 1.5) * size else size
        sizes.append(size)
        left -= size
    return sizes


def next_tolerance(
    distance: np.ndarray,
    last: float,
    *,
    accepts: int,
    lowest: float | None = None,
    factor: float | None = None,
    log_density: np.ndarray | None = None,
) -> float:
    """Return the next tolerance, at most the last one and at least `lowest`.

    Parameters
    ----------
    distance : array (n,)
        Distances of all simulations so far.
    last : float
        Last tolerance; inf at first.
    accepts : int
        Number of simulations to accept, but at most 3 % of all, unless these are fewer than 30. The tolerance
        is the largest distance among this number of closest simulations. If that many are equally close, it
        stays at their distance.
    lowest : float, optional
    factor : float, optional
        Factor by which to lower the tolerance instead, as long as a simulation is accepted.
    log_density : array (n,), optional
        Natural log prior density, up to a constant, if it is not uniform. Simulations then count in proportion
        to the density, and their total is the effective sample size, so close simulations of negligible prior
        density have no effect.

    Examples
    --------
    >>> import math
    >>> import numpy as np
    >>> from amc_pymc.abc_tree.schedule import next_tolerance
    >>> d = np.arange(1000.0)
    >>> next_tolerance(d, math.inf, accepts=100), next_tolerance(d, 20.0, accepts=100, factor=0.9)
    (29.0, 18.0)
    """
    weight = np.ones(len(distance)) if log_density is None else relative(log_density)
    if not weight.any():
        return last
    counts = weight * weight.sum() / (weight @ weight)
    n = min(accepts, max(_FEWEST, math.ceil(_LARGEST_SHARE * counts.sum())), len(distance))
    order = np.argsort(distance, kind="stable")
    reached = np.flatnonzero(np.cumsum(counts[order]) >= n - 1e-6)
    wanted = float(distance[order[reached[0]]]) if len(reached) else math.inf
    if factor is not None and math.isfinite(last):
        wanted = factor * last
        if not weight[distance <= wanted].any():
            wanted = last
    return max(min(wanted, last), 0.0 if lowest is None else lowest)
