"""Masses of a step density on boxes, projected on some of its coordinates."""

from __future__ import annotations

import numpy as np

__all__ = ["cell_masses"]


def cell_masses(mass: np.ndarray, *axes: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    r"""Return the masses of the cells of one or two coordinates, with the others integrated out.

    .. math:: M_{ij} = \sum_k m_k \frac{|I_k \cap C_i|}{|I_k|} \frac{|J_k \cap D_j|}{|J_k|}

    with the intervals I and J of the boxes and the cells C and D, all in the unit cube, where the density is constant
    within a box.

    Parameters
    ----------
    mass : array (K,)
        Masses of the boxes.
    *axes : (array (K,), array (K,), array (C + 1,))
        For each coordinate the lower and upper bounds of the boxes, and the edges of the cells.

    Returns
    -------
    array (C_x,) or (C_x, C_y)

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.diagnostics.boxes import cell_masses
    >>> lower, upper, edges = np.array([0.0, 0.0]), np.array([0.5, 1.0]), np.array([0.0, 0.5, 1.0])
    >>> cell_masses(np.array([0.4, 0.6]), (lower, upper, edges))
    array([0.7, 0.3])
    """
    first, *rest = (_overlaps(*axis) for axis in axes)
    masses: np.ndarray = mass @ first
    if rest:
        masses = first.T @ (mass[:, None] * rest[0])
    return masses


def _overlaps(lower: np.ndarray, upper: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the fractions (K, C) of boxes in cells."""
    lower, upper = lower[:, None], upper[:, None]
    fractions: np.ndarray = np.diff(np.clip(edges, lower, upper), axis=1) / (upper - lower)
    return fractions
