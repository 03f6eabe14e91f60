"""Sizes of batches and their tolerances."""

from __future__ import annotations

import math

import numpy as np

from amc_pymc.logweights import relative

__all__ = ["batch_sizes", "next_tolerance"]

#: The first batch, from the prior, takes this part of a budget, but so many simulations at least; the
#: others this part of all before them.
_FIRST, _LEAST, _GROWTH = 0.02, 100, 0.4
#: Share of all simulations that a tolerance accepts where that is less than what is asked for.
_LARGEST_SHARE = 0.03
#: Least number that it accepts.
_FEWEST = 30


def batch_sizes(max_simulations: int, batch_size: int | None = None) -> list[int]:
    """Sizes of the batches that a budget is spent in, fixed before anything is simulated.

    Parameters
    ----------
    max_simulations : int
    batch_size : int, optional
        By default batches grow with what there is to learn from.

    Examples
    --------
    >>> from amc_pymc.abc_tree.schedule import batch_sizes
    >>> batch_sizes(1000), batch_sizes(1000, 300)
    ([100, 100, 100, 120, 168, 235, 177], [300, 300, 300, 100])
    """
    if batch_size is not None:
        full, rest = divmod(max_simulations, batch_size)
        return [batch_size] * full + ([rest] if rest else [])
    if max_simulations < 1.5 * _LEAST:
        return [max_simulations]
    first = min(max_simulations, max(_LEAST, math.ceil(_FIRST * max_simulations)))
    sizes, left = [first], max_simulations - first
    while left:
        size = max(first, int(_GROWTH * (max_simulations - left)))
        # No batch is left with less than half of what it should have.
        size = left if left < 1.5 * size else size
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
    """The next tolerance: never above the last one, nor below where lowering is to end.

    Parameters
    ----------
    distance : array (n,)
        Of all simulations so far.
    last : float
        inf at first.
    accepts : int
        Simulations to accept, but not more than 3 % of all, unless these are fewer than 30: the tolerance
        is the largest distance among as many of the closest. If that many are equally close, it stays
        where they are.
    lowest : float, optional
    factor : float, optional
        Lower the tolerance by this factor instead, as long as something is accepted.
    log_density : array (n,), optional
        Natural logarithms of the prior's density where it is not uniform, up to a constant. A simulation
        then counts in proportion to it, and all count as much as they are effective draws: where the prior
        is next to nothing, being close to the data does not count.

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
