"""Directions that boxes are cut along."""

from __future__ import annotations

import numpy as np

from scipy.special import ndtr, ndtri

__all__ = ["EDGE", "from_normal", "principal_axes", "to_axes", "to_cube", "to_normal"]

#: Points of the cube nearer to its sides than this are moved there.
EDGE = 2.0**-53


def principal_axes(u: np.ndarray, weights: np.ndarray) -> np.ndarray:
    r"""Principal axes of weighted points, after :math:`x = \Phi^{-1}(u)`.

    Where u is uniform, x is standard normal, and so is :math:`R x` for any rotation R: boxes in
    :math:`\Phi(R x)` can follow a diagonal posterior, and their volumes still are prior masses.

    Parameters
    ----------
    u : array (n, D)
        Points of the unit cube.
    weights : array (n,)
        Not negative, not all zero.

    Returns
    -------
    array (D, D)
        R, orthogonal; rows are axes.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.abc_tree.axes import principal_axes
    >>> t = np.linspace(0.1, 0.9, 9)
    >>> abs(principal_axes(np.column_stack([t, t]), np.ones(9))).round(3)
    array([[0.707, 0.707],
           [0.707, 0.707]])
    """
    x = to_normal(u)
    x = x - np.average(x, axis=0, weights=weights)
    _, axes = np.linalg.eigh((x * weights[:, None]).T @ x)
    return axes.T


def to_axes(u: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """Coordinates (n, D) of points (n, D) along other axes, in the unit cube."""
    return ndtr(to_normal(u) @ axes.T)


def to_cube(v: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """The points that have these coordinates; reverses :func:`to_axes`."""
    return from_normal(to_normal(v) @ axes)


def to_normal(u: np.ndarray) -> np.ndarray:
    """Points (n, D) of the cube on the normal scale, finite ones."""
    return ndtri(np.clip(u, EDGE, 1.0 - EDGE))


def from_normal(x: np.ndarray) -> np.ndarray:
    """Points (n, D) of the open unit cube from the normal scale."""
    return np.clip(ndtr(x), EDGE, 1.0 - EDGE)
