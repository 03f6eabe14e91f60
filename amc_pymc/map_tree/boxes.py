"""Boxes that are cut where it tells."""

from __future__ import annotations

import numpy as np

from amc_pymc.abc_tree.partition import NARROWEST, Partition, cut_boxes

__all__ = ["refine", "separation"]

#: Rounds of cuts after a batch, at most.
_ROUNDS = 8
#: Simulations that labels are worth above which a box may be cut, however low they are.
_ENOUGH = 100.0
#: Variances below are none.
_SMALLEST = 1e-100


def refine(
    partition: Partition,
    u: np.ndarray,
    labels: np.ndarray,
    *,
    least: float = 20.0,
    significance: float = 3.0,
) -> Partition:
    r"""Halve boxes whose parts differ, again and again.

    A box whose parts are alike is left whole however much was simulated in it: its parts
    would only be told apart by luck.

    Parameters
    ----------
    partition : Partition
    u : array (n, D)
        Where simulations were made.
    labels : array (n,)
        How close they came, from 0 to 1.
    least : float
        Sum of labels s that a box must hold to be cut, unless they are worth 100 simulations, by
        :math:`(\sum s)^2 / \sum s^2`: where all are low, but alike, parts of it are told apart as well.
    significance : float
        Differences are at least so many standard errors.

    Returns
    -------
    Partition

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.abc_tree import whole_cube
    >>> from amc_pymc.map_tree.boxes import refine
    >>> u = (np.arange(1000.0)[:, None] + 0.5) / 1000.0
    >>> refine(whole_cube(1), u, (u[:, 0] < 0.25).astype(float)).volumes
    array([0.5 , 0.25, 0.25])
    """
    for _ in range(_ROUNDS):
        found = partition.find(u)
        mass = np.bincount(found, labels, minlength=partition.boxes)
        enough = (mass >= least) | (_worth(found, labels, partition.boxes) >= _ENOUGH)
        score, along = separation(partition, found, u, labels)
        chosen = np.flatnonzero(enough & (score > significance))
        finer = cut_boxes(partition, chosen, along[chosen])
        if finer.boxes == partition.boxes:
            break
        partition = finer
    return partition


def _worth(found: np.ndarray, labels: np.ndarray, k: int) -> np.ndarray:
    """Simulations (K,) that the labels in each box are worth: as many as are 1, if all others are 0."""
    total, squares = (np.bincount(found, x, minlength=k) for x in (labels, labels**2))
    return total**2 / np.where(squares > 0.0, squares, 1.0)


def separation(
    partition: Partition, found: np.ndarray, u: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """By how many standard errors parts of each box differ, and along which coordinate, both (K,).

    Parts are halves, or the middle half and the rest, so that a peak in the middle is seen. Boxes
    too narrow to be halved along a coordinate count -1 there.
    """
    k = partition.boxes
    n, total = np.bincount(found, minlength=k), np.bincount(found, labels, minlength=k)
    mean = total / np.maximum(n, 1)
    variance = np.bincount(found, (labels - mean[found]) ** 2, minlength=k) / np.maximum(n, 1)
    widths = partition.upper - partition.lower
    at = (u - partition.lower[found]) / widths[found]
    best, along = np.full(k, -1.0), np.zeros(k, int)
    for d in range(partition.n_dim):
        for part in (at[:, d] < 0.5, np.abs(at[:, d] - 0.5) < 0.25):
            inside = np.bincount(found[part], minlength=k)
            sums = np.bincount(found[part], labels[part], minlength=k)
            outside = n - inside
            known = (inside > 1) & (outside > 1) & (variance > _SMALLEST)
            known &= widths[:, d] > 2.0 * NARROWEST
            i, o = np.maximum(inside, 1), np.maximum(outside, 1)
            error = np.sqrt(np.where(known, variance, 1.0) * (1.0 / i + 1.0 / o))
            score = np.where(known, np.abs(sums / i - (total - sums) / o) / error, -1.0)
            along[score > best] = d
            best = np.maximum(best, score)
    return best, along
