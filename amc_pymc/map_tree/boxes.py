"""Refinement of boxes whose parts differ significantly."""

from __future__ import annotations

import numpy as np

from amc_pymc.abc_tree.partition import NARROWEST, Partition, cut_boxes

__all__ = ["refine", "separation"]

#: Maximum rounds of cuts after a batch.
_ROUNDS = 8
#: Effective number of labels that is enough to cut a box, however low the labels are.
_ENOUGH = 100.0
#: Variances below this value count as zero.
_SMALLEST = 1e-100


def refine(
    partition: Partition,
    u: np.ndarray,
    labels: np.ndarray,
    *,
    least: float = 20.0,
    significance: float = 3.0,
) -> Partition:
    r"""Halve boxes repeatedly where their parts differ.

    A box whose parts do not differ significantly is not cut, however many simulations it contains, because the
    differences would be noise.

    Parameters
    ----------
    partition : Partition
    u : array (n, D)
        Simulated points of the unit cube.
    labels : array (n,)
        Kernel values of the simulations, from 0 to 1.
    least : float
        Minimum sum of labels s for a box to be cut, unless their effective number
        :math:`(\sum s)^2 / \sum s^2` is at least 100: low but similar labels are informative, too.
    significance : float
        Number of standard errors that differences must exceed.

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
    """Return the effective number of labels (K,) in each box: the number of 1s if all others are 0."""
    total, squares = (np.bincount(found, x, minlength=k) for x in (labels, labels**2))
    return total**2 / np.where(squares > 0.0, squares, 1.0)


def separation(
    partition: Partition, found: np.ndarray, u: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return by how many standard errors parts of each box differ, and along which coordinate, both (K,).

    Parts are halves, or the middle half and the rest, to detect a peak in the middle. Coordinates along
    which a box is too narrow to be halved count as -1.
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
