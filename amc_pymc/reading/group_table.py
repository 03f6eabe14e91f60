"""Control variates of groups by differences of log-likelihoods, for log-likelihoods with kinks.

Expectations of second derivatives given a group's effects miss the curvature that is in kinks, and their sum over
groups may have the wrong sign. The marginal log-likelihood itself is smooth at the scale of the posterior.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["GroupTable", "affordable"]

#: Half the distance between points of differences, in standard deviations of a coordinate given the others.
_REACH = 3.0
#: Ratio of a step to the wanted one that is near enough, largest change of a step, and number of changes.
_NEAR, _MOST_CHANGE, _MOST_ROUNDS = 2.0, 4.0, 8
#: Limits of the table: log-likelihoods of a row to be evaluated, and bytes.
_MOST_WORK, _MOST_BYTES = 1e10, 2**28

type Values = Callable[[np.ndarray], np.ndarray]


def affordable(n_groups: int, n_places: int, work: float) -> bool:
    """Whether a table is worthwhile if a pass over all groups evaluates ``work`` log-likelihoods of a row."""
    passes = 1 + 2 * n_places + n_places * (n_places - 1) // 2
    return passes * work <= _MOST_WORK and 8 * n_groups * n_places**2 <= _MOST_BYTES


class GroupTable:
    """Second-order expansion of every group around a centre.

    Parameters
    ----------
    n_groups : int
        Number G of groups.
    places : (P,) int array
        Coordinates of x in which groups are expanded.

    Attributes
    ----------
    gradients : (G, P) array
    hessians : (G, P (P + 1) / 2) array
        Lower triangles, row by row.
    """

    def __init__(self, n_groups: int, places: np.ndarray):
        self.places = places
        size = places.size
        self.gradients = np.zeros((n_groups, size))
        self.hessians = np.zeros((n_groups, size * (size + 1) // 2))

    def fill(self, values: Values, centre: np.ndarray, hessian: np.ndarray) -> None:
        """Expand all groups around a centre.

        Parameters
        ----------
        values : callable
            Log-likelihoods (G,) at a point (D,).
        centre : (D,) array
        hessian : (D, D) array
            Approximate Hessian of their sum, where the search for steps starts.
        """
        here = values(centre)
        moves, ends = [], []
        for j in self.places:
            move, found = _move(values, centre, here, j, abs(hessian[j, j]))
            moves.append(move)
            ends.append(found)
        place = 0
        for a, (below, above) in enumerate(ends):
            step = moves[a].sum()
            self.gradients[:, a] = (above - below) / (2.0 * step)
            for b in range(a):
                both = values(centre + moves[a] + moves[b])
                change = both - above - ends[b][1] + here
                self.hessians[:, place] = change / (step * moves[b].sum())
                place += 1
            self.hessians[:, place] = (above + below - 2.0 * here) / step**2
            place += 1
        for array in (self.gradients, self.hessians):
            np.nan_to_num(array, copy=False, nan=0.0, posinf=0.0, neginf=0.0)

    def sums(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return gradient (D,) and Hessian (D, D) of the sum of all expansions, for D = ``size``."""
        gradient, hessian = np.zeros(size), np.zeros((size, size))
        gradient[self.places] = self.gradients.sum(axis=0)
        rows, columns = np.tril_indices(self.places.size)
        total = self.hessians.sum(axis=0)
        for at in ((rows, columns), (columns, rows)):
            hessian[self.places[at[0]], self.places[at[1]]] = total
        return gradient, hessian


def _move(
    values: Values, centre: np.ndarray, here: np.ndarray, place: int, curvature: float
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return a displacement (D,) of one coordinate, and values (G,) before and behind the centre by it.

    Over its length the log-likelihood loses as much as a Gaussian in ``_REACH`` standard deviations.
    """
    move = np.zeros(centre.size)
    move[place] = _REACH / np.sqrt(curvature) if 0.0 < curvature < np.inf else 1.0
    for _ in range(_MOST_ROUNDS):
        ends = [values(centre - move), values(centre + move)]
        loss = float(np.sum(2.0 * here - ends[0] - ends[1]))
        if not np.isfinite(loss):
            move /= _MOST_CHANGE
            continue
        wanted = _REACH / np.sqrt(loss) if loss > 0.0 else np.inf
        if 1.0 / _NEAR <= wanted <= _NEAR:
            return move, ends
        move *= float(np.clip(wanted, 1.0 / _MOST_CHANGE, _MOST_CHANGE))
    return move, [values(centre - move), values(centre + move)]
