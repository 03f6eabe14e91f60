"""Boxes halved again and again, where the posterior is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from amc_pymc.abc_tree.partition import NARROWEST, Partition, cut_boxes, whole_cube
from amc_pymc.abc_tree.rates import shrunk_rates

__all__ = ["Dyadic", "halve"]


@dataclass(frozen=True)
class Dyadic:
    """Halves the boxes with most of the posterior, some each round.

    Attributes
    ----------
    cuts : int
        r, boxes halved a round.
    separate : bool
        Cut along the side that tells most; else along the widest.
    """

    cuts: int = 20
    separate: bool = True

    def __call__(self, u, kernel_values, before, rng) -> Partition:
        """The partition of the last batch, cut further."""
        found = whole_cube(u.shape[1]) if before is None else before
        for _ in range(self.cuts):
            worth = found.volumes * shrunk_rates(found, u, kernel_values)
            told = {"kernel_values": kernel_values, "u": u} if self.separate else {}
            found = halve(found, worth, n_cuts=1, **told)
        return found


def halve(
    partition: Partition,
    worth: np.ndarray,
    *,
    n_cuts: int,
    kernel_values: np.ndarray | None = None,
    u: np.ndarray | None = None,
) -> Partition:
    """Halve the boxes that are worth most.

    Parameters
    ----------
    partition : Partition
    worth : array (K,)
        What there is to gain in each box, for example its posterior mass; boxes of worth zero stay.
    n_cuts : int
        Boxes to halve.
    kernel_values, u : arrays (n,) and (n, D), optional
        Outcomes and where they were simulated. With them each box is cut along the coordinate whose
        halves differ most in mean kernel_values; without, along its widest side, the first of those.

    Returns
    -------
    Partition

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.abc_tree import halve, whole_cube
    >>> once = halve(whole_cube(2), np.ones(1), n_cuts=1)
    >>> halve(once, np.array([0.1, 0.9]), n_cuts=1).volumes
    array([0.5 , 0.25, 0.25])
    """
    lower, upper = partition.lower, partition.upper
    widths = upper - lower
    open_to = (worth > 0.0) & (widths.max(axis=1) > 2.0 * NARROWEST)
    order = np.argsort(-np.where(open_to, worth, -np.inf), kind="stable")
    chosen = order[: min(n_cuts, int(open_to.sum()))]
    along = widths[chosen].argmax(axis=1)
    if kernel_values is not None and u is not None:
        along = _best_separation(partition, chosen, along, u, kernel_values)
    return cut_boxes(partition, chosen, along)


def _best_separation(partition, chosen, widest, u, kernel_values) -> np.ndarray:
    """The coordinate of each chosen box whose halves differ most; the widest where none can be told."""
    place = np.full(partition.boxes, -1)
    place[chosen] = np.arange(len(chosen))
    at = place[partition.find(u)]
    inside = at >= 0
    at, u, kernel_values = at[inside], u[inside], kernel_values[inside]
    middle = 0.5 * (partition.lower + partition.upper)[chosen]
    widths = (partition.upper - partition.lower)[chosen]
    gaps = np.full(middle.shape, -np.inf)
    for d in range(partition.n_dim):
        above = u[:, d] >= middle[at, d]
        halves = [np.bincount(at[side], minlength=len(chosen)) for side in (~above, above)]
        sums = [
            np.bincount(at[s], kernel_values[s], minlength=len(chosen)) for s in (~above, above)
        ]
        both = (halves[0] > 0) & (halves[1] > 0) & (widths[:, d] > 2.0 * NARROWEST)
        low, high = (
            np.divide(s, n, where=both, out=np.zeros(len(n)))
            for s, n in zip(sums, halves, strict=True)
        )
        gaps[:, d] = np.where(both, np.abs(high - low), -np.inf)
    return np.where(gaps.max(axis=1) > 0.0, gaps.argmax(axis=1), widest)
