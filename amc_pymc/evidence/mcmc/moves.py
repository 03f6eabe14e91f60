"""What the kernels share: scales of targets, checks of particles, accepted and rejected proposals.

A scale is standard deviations (D,), or the Cholesky factor L (D, D) of a covariance. A step is size L z with z standard
normal. Rows are particles, so L z is ``z @ L.T``.
"""

from __future__ import annotations

import math

import numpy as np

from amc_pymc.evidence.mcmc.target import Particles, Tuning

__all__ = [
    "acceptance",
    "checked_coordinates",
    "checked_particles",
    "checked_scale",
    "settle",
]

Columns = slice | np.ndarray


def checked_coordinates(coordinates: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Return coordinates as a tuple of distinct ints; None means all."""
    if coordinates is None:
        return None
    found = tuple(int(d) for d in coordinates)
    if not found or min(found) < 0 or len(set(found)) < len(found):
        raise ValueError(
            f"coordinates must be distinct numbers from 0, or None for all, got {coordinates!r}"
        )
    return found


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
    if coordinates is None:
        return slice(None), x.shape[1]
    if max(coordinates) >= x.shape[1]:
        raise ValueError(
            f"coordinates {coordinates} are of a kernel on at least {max(coordinates) + 1} "
            f"dimensions, the particles have {x.shape[1]}"
        )
    return np.array(coordinates), len(coordinates)


def acceptance(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Return the acceptance probability min(1, exp(new - old)), zero unless `new` is finite.

    Parameters
    ----------
    new, old : array (P,)
        Log densities (or negative energies) of proposals and of current points. If `old` is -inf,
        any finite `new` is accepted.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.evidence.mcmc.moves import acceptance
    >>> acceptance(
    ...     np.array([0.0, 2.0, -np.inf, np.nan]), np.array([np.log(2), -np.inf, -np.inf, 0])
    ... )
    array([0.5, 1. , 0. , 0. ])
    """
    with np.errstate(invalid="ignore"):
        ratio = new - old
    ratio[~np.isfinite(new)] = -np.inf
    return np.exp(np.minimum(ratio, 0.0, out=ratio), out=ratio)


def settle(proposed: Particles, old: Particles, accepted: np.ndarray) -> Particles:
    """Restore the old state of rejected particles in ``proposed``, in place, and return it."""
    back = np.flatnonzero(~accepted)
    proposed.x[back] = old.x[back]
    proposed.terms[:, back] = old.terms[:, back]
    if proposed.gradients is not None and old.gradients is not None:
        proposed.gradients[:, back] = old.gradients[:, back]
    return proposed
