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
        ends, steps = [], []
        for j in self.places:
            step = _step(values, centre, here, j, abs(hessian[j, j]))
            steps.append(step)
            ends.append([values(_moved(centre, (j, sign * step))) for sign in (-1.0, 1.0)])
        place = 0
        for a, (j, step) in enumerate(zip(self.places, steps, strict=True)):
            below, above = ends[a]
            self.gradients[:, a] = (above - below) / (2.0 * step)
            for b in range(a):
                both = values(_moved(centre, (j, step), (self.places[b], steps[b])))
                change = both - above - ends[b][1] + here
                self.hessians[:, place] = change / (step * steps[b])
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


def _step(
    values: Values, centre: np.ndarray, here: np.ndarray, place: int, curvature: float
) -> float:
    """Return a step over which the log-likelihood loses as much as a Gaussian in ``_REACH`` sds."""
    step = _REACH / np.sqrt(curvature) if 0.0 < curvature < np.inf else 1.0
    for _ in range(_MOST_ROUNDS):
        ends = [values(_moved(centre, (place, sign * step))) for sign in (-1.0, 1.0)]
        loss = float(np.sum(2.0 * here - ends[0] - ends[1]))
        if not np.isfinite(loss):
            step /= _MOST_CHANGE
            continue
        wanted = _REACH / np.sqrt(loss) if loss > 0.0 else np.inf
        if 1.0 / _NEAR <= wanted <= _NEAR:
            break
        step *= float(np.clip(wanted, 1.0 / _MOST_CHANGE, _MOST_CHANGE))
    return step


def _moved(x: np.ndarray, *moves: tuple[int, float]) -> np.ndarray:
    """Return x with some coordinates increased."""
    out = x.copy()
    for place, by in moves:
        out[place] += by
    return out
