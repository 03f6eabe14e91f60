"""ABC kernels: weights of simulations by their distance to the data."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["accepted", "gaussian_kernel", "student_kernel"]

#: Scale of the Student kernel in units of the tolerance, and its degrees of freedom.
_SCALE, _TAILS = 0.7, 4.0


def accepted(distance: np.ndarray, tolerance: float) -> np.ndarray:
    """Return whether distances (n,) are at most the tolerance (uniform kernel); inf accepts all finite ones.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.simulators.kernels import accepted
    >>> accepted(np.array([0.1, 0.2, np.inf]), 0.1)
    array([ True, False, False])
    """
    if tolerance == math.inf:
        return np.isfinite(distance)
    return distance <= tolerance


def gaussian_kernel(distance: np.ndarray, tolerance: float) -> np.ndarray:
    r"""Return the kernel of ``pm.Simulator``, :math:`\exp(-d^2 / 2 \epsilon^2)`, of distances (n,).

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.simulators.kernels import gaussian_kernel
    >>> gaussian_kernel(np.array([0.0, 1.0, np.inf]), 1.0).round(3)
    array([1.   , 0.607, 0.   ])
    """
    if tolerance in (0.0, math.inf):
        return accepted(distance, tolerance).astype(float)
    z = np.minimum(distance, 1e100 * float(tolerance)) / tolerance
    weight: np.ndarray = np.exp(-0.5 * z**2)
    return weight


def student_kernel(distance: np.ndarray, tolerance: float) -> np.ndarray:
    r"""Return weights (n,) between 0 and 1 for learning trees.

    .. math:: \left(1 + \frac{z^2}{\nu}\right)^{-\nu / 2 - 1}, \qquad z = \frac{d}{h \epsilon}

    with :math:`\nu = 4` and h = 0.7. A simulation that was just rejected is nearly as informative about where
    to simulate as one that was just accepted.

    Parameters
    ----------
    distance : array (n,)
        Distances; inf for failed simulations.
    tolerance : float
        Tolerance; inf accepts all finite distances.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.simulators.kernels import student_kernel
    >>> student_kernel(np.array([0.0, 0.99, 1.01, np.inf]), 1.0).round(2)
    array([1.  , 0.3 , 0.28, 0.  ])
    """
    if tolerance in (0.0, math.inf):
        return accepted(distance, tolerance).astype(float)
    z = np.minimum(distance / (_SCALE * tolerance), 1e100)
    return np.where(np.isfinite(distance), (1.0 + z**2 / _TAILS) ** (-0.5 * _TAILS - 1.0), 0.0)
