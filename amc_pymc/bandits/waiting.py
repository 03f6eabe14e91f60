"""Choice among indices if some arms have too few observed rewards."""

from __future__ import annotations

import numpy as np

from amc_pymc.engine.jit import njit

__all__ = ["first_choice"]


@njit(cache=True)
def first_choice(indices: np.ndarray, pulls: np.ndarray) -> int:
    """Return the arm with the largest index; ties of infinite indices go to the arm with the fewest pulls.

    Parameters
    ----------
    indices : array (K,)
        Indices: inf for arms that need more pulls, -inf for arms with enough pulls but too few observed
        rewards.
    pulls : array (K,)
        Numbers of pulls, including pending ones.

    Returns
    -------
    int
    """
    best = 0
    for k in range(1, indices.size):
        larger = indices[k] > indices[best]
        tie = indices[k] == indices[best] and np.isinf(indices[k])
        if larger or (tie and pulls[k] < pulls[best]):
            best = k
    return best
