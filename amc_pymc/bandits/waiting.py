"""Choice among indices where some arms still wait for rewards that were asked for."""

from __future__ import annotations

import numpy as np

from amc_pymc.jit import njit

__all__ = ["first_choice"]


@njit(cache=True)
def first_choice(indices, pulls):
    """The arm with the largest index; among infinite ones that with the fewest pulls.

    Parameters
    ----------
    indices : array (K,)
        inf for arms that must be pulled before they can be compared, -inf for arms that have been
        asked for often enough but were told too little to be compared.
    pulls : array (K,)
        Pulls told and pending.

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
