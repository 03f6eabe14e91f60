"""Batch sizes and tolerances of a search for a mode."""

from __future__ import annotations

import math

from collections.abc import Sequence

import numpy as np

from amc_pymc.simulators.kernels import gaussian_kernel

__all__ = ["lowered", "map_batches"]

#: Default number of batches that a budget is split into.
_BATCHES = 20
#: Number of bisection steps in the search for a tolerance.
_HALVINGS = 60
#: Smallest tolerance in units of the smallest nonzero distance, whose label is then e^-450.
_FINEST = 1.0 / 30.0


def map_batches(
    max_simulations: int, batch_size: int | None = None, done: Sequence[int] = ()
) -> list[int]:
    """Return batch sizes, fixed before any simulation; those that are `done` come first.

    Examples
    --------
    >>> from amc_pymc.map_tree.schedule import map_batches
    >>> map_batches(10, 4), len(map_batches(1000))
    ([4, 4, 2], 20)
    """
    batch_size = batch_size or math.ceil(max_simulations / _BATCHES)
    full, rest = divmod(max(0, max_simulations - sum(done)), batch_size)
    return [*done, *[batch_size] * full, *([rest] if rest else [])]


def lowered(
    distance: np.ndarray, last: float, *, kernel_values: float, lowest: float | None = None
) -> float:
    """Return the tolerance at which the mean label of a batch is `kernel_values`, but at most `last`.

    It is positive unless all distances are 0, even if more simulations than wanted match the data exactly.

    Examples
    --------
    >>> import math
    >>> import numpy as np
    >>> from amc_pymc.map_tree.schedule import lowered
    >>> round(lowered(np.array([1.0, 2.0, np.inf]), math.inf, kernel_values=0.1), 3)
    0.638
    """
    finite, floor = distance[np.isfinite(distance)], 0.0 if lowest is None else lowest
    if len(finite) == 0:
        return last
    wanted = kernel_values * len(distance)
    low, high = 0.0, min(last, 1e3 * float(finite.max()))
    if gaussian_kernel(finite, high).sum() <= wanted:
        return max(min(last, high) if math.isfinite(last) else high, floor)
    finest = _FINEST * float(finite[finite > 0.0].min(initial=math.inf))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if gaussian_kernel(finite, middle).sum() > wanted:
            high = middle
        else:
            low = middle
    return max(high, floor, min(finest, last) if math.isfinite(finest) else 0.0)
