"""Accept steps shared by the Metropolis kernels."""

from __future__ import annotations

import numpy as np

from amc_pymc.kernels.target import Particles

__all__ = ["acceptance", "settle"]


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
    >>> from amc_pymc.kernels.metropolis import acceptance
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
