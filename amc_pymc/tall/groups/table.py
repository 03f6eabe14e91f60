"""Residuals of groups from control variates that are kept in a table."""

from __future__ import annotations

import math

import numpy as np

from amc_pymc.engine.jit import njit
from amc_pymc.tall.groups.loops import values

__all__ = ["tabulated_rewards"]


@njit(cache=True, error_model="numpy")
def tabulated_rewards(
    points, centre, units, rows, first, groups, modes, factors, nodes, log_weights, places,
    gradients, hessians, counter, program,
):  # fmt: skip
    """Return residual changes of groups from points[0] to points[1], in row 1 of (2, m).

    With u = points[1] - points[0] and v = points[1] + points[0] - 2 centre at ``places`` (P,), the control variate of
    group g changes by gradients[g].u + u'Hv/2, where the lower triangle of H is in hessians[g] (P (P + 1) / 2,).
    """
    arrays = (rows, first, groups, modes, factors, nodes, log_weights)
    before = values(points[0], units, *arrays, False, counter, program)
    after = values(points[1], units, *arrays, False, np.zeros(1, np.int64), program)
    size = places.size
    u, v = np.empty(size), np.empty(size)
    for j in range(size):
        u[j] = points[1, places[j]] - points[0, places[j]]
        v[j] = points[1, places[j]] + points[0, places[j]] - 2.0 * centre[places[j]]
    out = np.zeros((2, units.size))
    for n in range(units.size):
        g, place, known = units[n], 0, 0.0
        for j in range(size):
            known += gradients[g, j] * u[j]
            for k in range(j):
                known += 0.5 * hessians[g, place] * (u[j] * v[k] + u[k] * v[j])
                place += 1
            known += 0.5 * hessians[g, place] * u[j] * v[j]
            place += 1
        out[1, n] = -math.inf if after[n] == -math.inf else after[n] - before[n] - known
    return out
