"""Partitions by repeated halving of boxes with high posterior mass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from amc_pymc.abc_tree.partition import NARROWEST, Partition, cut_boxes, whole_cube
from amc_pymc.abc_tree.rates import shrunk_rates

__all__ = ["Dyadic", "halve"]


@dataclass(frozen=True)
class Dyadic:
    """Partitioner that halves the boxes with most posterior mass in each round.

    Attributes
    ----------
    cuts : int
        Number of boxes halved per round, r.
    separate : bool
        Cut along the coordinate whose halves differ most; otherwise along the widest side.
    """

    cuts: int = 20
    separate: bool = True

    def __call__(
        self,
        u: np.ndarray,
        kernel_values: np.ndarray,
        before: Partition | None,
        rng: np.random.Generator,
    ) -> Partition:
        """Refine the partition of the last batch."""
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
    """Halve the boxes of highest worth.

    Parameters
    ----------
    partition : Partition
    worth : array (K,)
        Worth of each box, for example its posterior mass; boxes of worth zero are not cut.
    n_cuts : int
        Number of boxes to halve.
    kernel_values, u : arrays (n,) and (n, D), optional
        Kernel values and points of simulations. If given, each box is cut along the coordinate whose halves
        differ most in mean kernel value; otherwise along its (first) widest side.

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


def _best_separation(
    partition: Partition,
    chosen: np.ndarray,
    widest: np.ndarray,
    u: np.ndarray,
    kernel_values: np.ndarray,
) -> np.ndarray:
    """Return the coordinate of each chosen box whose halves differ most, or the widest if none differ."""
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
