"""How close simulations came to the data, as labels that trees learn from."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["accepted", "closeness"]

#: Scale of the smooth labels in units of the tolerance, and how heavy their tails are.
_SCALE, _TAILS = 0.7, 4.0


def accepted(distance: np.ndarray, tolerance: float) -> np.ndarray:
    """Whether distances (n,) are at most the tolerance; all finite ones if it is inf.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.abc_tree.closeness import accepted
    >>> accepted(np.array([0.1, 0.2, np.inf]), 0.1)
    array([ True, False, False])
    """
    if tolerance == math.inf:
        return np.isfinite(distance)
    return distance <= tolerance


def closeness(distance: np.ndarray, tolerance: float, *, smooth: bool = True) -> np.ndarray:
    r"""Labels (n,) between 0 and 1.

    .. math:: \left(1 + \frac{z^2}{\nu}\right)^{-\nu / 2 - 1}, \qquad z = \frac{d}{h \epsilon}

    with :math:`\nu = 4`, h = 0.7: a simulation that just failed tells nearly as much of where to simulate
    as one that was just accepted. Not smooth, labels are 1 where accepted, else 0.

    Parameters
    ----------
    distance : array (n,)
        inf where there is none.
    tolerance : float
        inf accepts whatever is finite.
    smooth : bool

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.abc_tree.closeness import closeness
    >>> d = np.array([0.0, 0.99, 1.01, np.inf])
    >>> closeness(d, 1.0).round(2), closeness(d, 1.0, smooth=False)
    (array([1.  , 0.3 , 0.28, 0.  ]), array([1., 1., 0., 0.]))
    """
    if not smooth or tolerance == math.inf:
        return accepted(distance, tolerance).astype(float)
    if tolerance == 0.0:
        return (distance == 0.0).astype(float)
    z = np.minimum(distance / (_SCALE * tolerance), 1e100)
    return np.where(np.isfinite(distance), (1.0 + z**2 / _TAILS) ** (-0.5 * _TAILS - 1.0), 0.0)
