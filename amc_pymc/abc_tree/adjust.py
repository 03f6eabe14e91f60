"""Regression adjustment: parameters as if the simulator had met the data."""

from __future__ import annotations

import numpy as np

from scipy.special import ndtr, ndtri

__all__ = ["adjust_linear"]

_EDGE = 2.0**-53
#: Singular values below this part of the largest count as zero.
_RANK = 1e-8


def adjust_linear(
    u: np.ndarray,
    summaries: np.ndarray,
    observed: np.ndarray,
    weights: np.ndarray,
    distance: np.ndarray,
    tolerance: float,
) -> np.ndarray:
    r"""Move accepted parameters along a weighted linear regression on summary statistics.

    .. math:: x_i^* = x_i - B^\top (s_i - s_{\mathrm{obs}}), \qquad x = \Phi^{-1}(u)

    by least squares with weights :math:`w_i (1 - d_i^2 / \epsilon^2)` (Beaumont, Zhang & Balding 2002,
    doi:10.1093/genetics/162.4.2025). The scale x is unbounded, so that adjusted parameters stay in the
    support of the prior; it is linear in a normal parameter.

    Parameters
    ----------
    u : array (n, D)
        Accepted points of the unit cube.
    summaries : array (n, S)
    observed : array (S,)
    weights : array (n,)
        Not negative.
    distance : array (n,)
    tolerance : float

    Returns
    -------
    array (n, D)
        Of the open unit cube.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.special import ndtr
    >>> from amc_pymc.abc_tree.adjust import adjust_linear
    >>> s = np.linspace(-1.0, 1.0, 9)[:, None]
    >>> adjusted = adjust_linear(ndtr(0.5 * s), s, np.array([0.2]), np.ones(9), abs(s[:, 0] - 0.2), 2.0)
    >>> bool(np.allclose(adjusted, ndtr(0.1)))
    True
    """
    x = ndtri(np.clip(u, _EDGE, 1.0 - _EDGE))
    gaps = summaries - observed
    scale = gaps.std(axis=0)
    gaps = gaps[:, scale > 0.0] / scale[scale > 0.0]
    w = weights.copy()
    if 0.0 < tolerance < np.inf:
        w = w * np.maximum(1.0 - (distance / tolerance) ** 2, 0.0)
    if not (w > 0.0).sum() > gaps.shape[1] + 1:
        w = weights
    root = np.sqrt(w / w.sum())[:, None]
    design = np.concatenate([np.ones((len(x), 1)), gaps], axis=1)
    found, *_ = np.linalg.lstsq(root * design, root * x, rcond=_RANK)
    return np.clip(ndtr(x - gaps @ found[1:]), _EDGE, 1.0 - _EDGE)
