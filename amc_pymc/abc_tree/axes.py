"""Rotated axes along which boxes are cut."""

from __future__ import annotations

import numpy as np

from scipy.special import ndtr, ndtri

__all__ = ["EDGE", "FARTHEST", "from_normal", "principal_axes", "to_axes", "to_cube", "to_normal"]

#: Minimum distance of points from the sides of the cube.
EDGE = 2.0**-53
#: Largest absolute value of these points on the normal scale.
FARTHEST = float(-ndtri(EDGE))


def principal_axes(u: np.ndarray, weights: np.ndarray) -> np.ndarray:
    r"""Return the principal axes of weighted points on the normal scale, :math:`x = \Phi^{-1}(u)`.

    If u is uniform, x is standard normal, and so is :math:`R x` for any rotation R. Boxes in
    :math:`\Phi(R x)` can follow an oblique posterior, and their volumes are still prior masses.

    Parameters
    ----------
    u : array (n, D)
        Points of the unit cube.
    weights : array (n,)
        Nonnegative weights, not all zero.

    Returns
    -------
    array (D, D)
        Orthogonal matrix R, whose rows are the axes.

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


def to_axes(u: np.ndarray, axes: np.ndarray, x: np.ndarray | None = None) -> np.ndarray:
    """Return coordinates (n, D) of points (n, D) along rotated axes, in the unit cube.

    If the points on the normal scale, x (n, D), are known already, they are not computed again.
    """
    return ndtr((to_normal(u) if x is None else x) @ axes.T)


def to_cube(v: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """Return the points with given rotated coordinates; the inverse of :func:`to_axes`."""
    return from_normal(to_normal(v) @ axes)


def to_normal(u: np.ndarray) -> np.ndarray:
    """Map points (n, D) of the cube to finite values on the normal scale."""
    return ndtri(np.clip(u, EDGE, 1.0 - EDGE))


def from_normal(x: np.ndarray) -> np.ndarray:
    """Map points (n, D) from the normal scale to the open unit cube."""
    return np.clip(ndtr(x), EDGE, 1.0 - EDGE)
