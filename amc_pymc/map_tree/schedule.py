"""Sizes of batches and their tolerances, in a search for a mode."""

from __future__ import annotations

import math

import numpy as np

from amc_pymc.simulators.kernels import gaussian_kernel

__all__ = ["lowered", "map_batches"]

#: Batches that a budget is cut into.
_BATCHES = 20
#: Halvings of the interval in which a tolerance is sought.
_HALVINGS = 60
#: Smallest tolerance in units of the smallest distance that is not 0: labels of what is not hit are e^-450.
_FINEST = 1.0 / 30.0


def map_batches(max_simulations: int, batch_size: int | None = None) -> list[int]:
    """Sizes of batches, fixed before anything is simulated.

    Examples
    --------
    >>> from amc_pymc.map_tree.schedule import map_batches
    >>> map_batches(10, 4), len(map_batches(1000))
    ([4, 4, 2], 20)
    """
    if batch_size is None:
        batch_size = math.ceil(max_simulations / _BATCHES)
    full, rest = divmod(max_simulations, batch_size)
    return [batch_size] * full + ([rest] if rest else [])


def lowered(
    distance: np.ndarray, last: float, *, kernel_values: float, lowest: float | None = None
) -> float:
    """The tolerance at which labels of a batch have some mean, but not above the last tolerance.

    It stays above 0 unless all distances are 0, also where more simulations than wanted hit the data.

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
