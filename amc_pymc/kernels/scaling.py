"""Scales of targets: standard deviations (D,), or the Cholesky factor L (D, D) of a covariance.

A step is size L z with z standard normal. Rows are particles, so L z is ``z @ L.T``.
"""

from __future__ import annotations

import math

from typing import Any

import numpy as np

from amc_pymc.kernels.target import Particles, Tuning

__all__ = [
    "checked_coordinates",
    "checked_scale",
    "columns",
    "push",
    "standard_deviations",
]

Columns = slice | np.ndarray


def checked_coordinates(coordinates: object) -> tuple[int, ...] | None:
    """Return coordinates as a tuple of distinct ints; None means all."""
    if coordinates is None:
        return None
    try:
        found: tuple[Any, ...] = tuple(coordinates)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"coordinates must be a tuple of ints or None, got {coordinates!r}"
        ) from None
    for d in found:
        if isinstance(d, bool | np.bool_) or not isinstance(d, int | np.integer):
            raise TypeError(f"coordinates must be ints, got {d!r} among {coordinates!r}")
        if d < 0:
            raise ValueError(f"coordinates must not be negative, got {d} among {coordinates!r}")
    if not found:
        raise ValueError("coordinates are empty; leave them out to move all")
    if len(set(found)) < len(found):
        raise ValueError(f"coordinates must differ from each other, got {coordinates!r}")
    return tuple(int(d) for d in found)


def columns(coordinates: tuple[int, ...] | None, n_dim: int) -> tuple[Columns, int]:
    """Return an index of the coordinates in points (P, D), and their number."""
    if coordinates is None:
        return slice(None), n_dim
    if max(coordinates) >= n_dim:
        raise ValueError(
            f"coordinates {coordinates} are of a kernel on at least {max(coordinates) + 1} "
            f"dimensions, the particles have {n_dim}"
        )
    return np.array(coordinates), len(coordinates)


def checked_scale(tuning: Tuning, n: int) -> np.ndarray:
    """Return the scale of a tuning for n coordinates, or raise ValueError if it is invalid."""
    size, scale = tuning
    if not (math.isfinite(size) and size > 0.0):
        raise ValueError(f"tuning.size must be positive and finite, got {size!r}")
    scale = np.asarray(scale, float)
    if scale.shape not in ((n,), (n, n)):
        raise ValueError(
            f"tuning.scale must be of shape ({n},) or ({n}, {n}) to move {n} coordinates, "
            f"got {scale.shape}"
        )
    if not np.isfinite(scale).all():
        raise ValueError("tuning.scale must be finite")
    if not (scale if scale.ndim == 1 else scale.diagonal()).min() > 0.0:
        raise ValueError("tuning.scale must be positive, a Cholesky factor on its diagonal")
    return scale


def checked_particles(
    particles: Particles, coordinates: tuple[int, ...] | None
) -> tuple[Columns, int]:
    """Check the shapes of particles; return the index of the columns to move and their number."""
    x, terms, _ = particles
    if x.ndim != 2 or x.shape[0] == 0 or terms.shape != (2, x.shape[0]):
        raise ValueError(
            "particles must have x of shape (P, D) and terms of shape (2, P) with P at least 1, "
            f"got {x.shape} and {terms.shape}"
        )
    return columns(coordinates, x.shape[1])


def push(scale: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return L z for every row of z (P, D).

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.kernels.scaling import push
    >>> push(np.array([[1.0, 0.0], [2.0, 3.0]]), np.array([[1.0, 1.0]]))
    array([[1., 5.]])
    """
    return z * scale if scale.ndim == 1 else z @ scale.T


def standard_deviations(scale: np.ndarray) -> np.ndarray:
    """Return the standard deviations (D,) of a scale."""
    return scale if scale.ndim == 1 else np.sqrt(np.einsum("ij,ij->i", scale, scale))
