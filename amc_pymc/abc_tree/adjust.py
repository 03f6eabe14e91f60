"""Regression adjustment: parameters as if the simulator had met the data."""

from __future__ import annotations

import math

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from scipy.special import ndtr, ndtri

from amc_pymc.abc_tree.accepted import Accepted, accept, effective

__all__ = [
    "Adjusted",
    "AdjustedDraws",
    "LogDensity",
    "adjust_linear",
    "adjusted_accepted",
    "to_cube",
]

#: Natural logarithm (n,) of the prior's density at points (n, D) of the cube; None where it is uniform.
LogDensity = Callable[[np.ndarray], np.ndarray | None]

_EDGE = 2.0**-53
#: Singular values below this part of the largest count as zero.
_RANK = 1e-8
#: Leverage of a simulation that is made up for, at most.
_MOST_LEVERAGE = 0.9
#: Growth of the number of effective draws from one tolerance that is tried to the next.
_STEP = 1.6
#: Probability that estimates at two tolerances differ by chance more than is allowed, for any of them.
_LEVEL = 0.05


class Adjusted(NamedTuple):
    """Adjusted parameters.

    Attributes
    ----------
    u : array (n, D)
        In the open unit cube.
    mean, mean_error : arrays (D,)
        Of x, the normal scale, at the data, and its standard error.
    log_sd, log_sd_error : arrays (D,)
        Logarithm of the standard deviation of residuals.
    residuals : array (n, D)
        Of x.
    gaps : array (n, S)
        Summary statistics minus those of the data, in units of their standard deviations; without those that
        do not vary.
    projection : array (S, n)
        Makes slopes on `gaps` of x.
    """

    u: np.ndarray
    mean: np.ndarray
    mean_error: np.ndarray
    log_sd: np.ndarray
    log_sd_error: np.ndarray
    residuals: np.ndarray
    gaps: np.ndarray
    projection: np.ndarray


class AdjustedDraws(NamedTuple):
    """What is accepted, adjusted, and the regression behind it.

    Attributes
    ----------
    accepted : Accepted
        A simulations, with the kernel and the prior's density at the adjusted points in their weights.
    u : array (A, D)
        Adjusted points of the cube.
    regression : Adjusted
        Of n >= A simulations: all within the tolerance, also those that are left out of `accepted` because
        their weight is zero.
    log_weight : array (n,)
        Natural logarithms of their weights without the prior's density.
    """

    accepted: Accepted
    u: np.ndarray
    regression: Adjusted
    log_weight: np.ndarray


def adjust_linear(
    u: np.ndarray,
    summaries: np.ndarray,
    observed: np.ndarray,
    weights: np.ndarray,
    distance: np.ndarray,
    tolerance: float,
) -> Adjusted:
    r"""Move accepted parameters along a weighted linear regression on summary statistics.

    .. math:: x_i^* = x_i - B^\top (s_i - s_{\mathrm{obs}}), \qquad x = \Phi^{-1}(u)

    by least squares with weights :math:`w_i (1 - d_i^2 / \epsilon^2)` (Beaumont, Zhang & Balding 2002,
    doi:10.1093/genetics/162.4.2025). Residuals are divided by :math:`\sqrt{1 - h_i}`, with the leverage h of
    their own simulation, for what the regression has fitted of them. The scale x is unbounded, so that adjusted
    points stay in the cube; it is linear in a normal parameter.

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
    Adjusted

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.special import ndtr
    >>> from amc_pymc.abc_tree.adjust import adjust_linear
    >>> s = np.linspace(-1.0, 1.0, 9)[:, None]
    >>> found = adjust_linear(
    ...     ndtr(0.5 * s), s, np.array([0.2]), np.ones(9), abs(s[:, 0] - 0.2), 2.0
    ... )
    >>> bool(np.allclose(found.u, ndtr(0.1)))
    True
    """
    x = ndtri(np.clip(u, _EDGE, 1.0 - _EDGE))
    gaps = summaries - observed
    scale = gaps.std(axis=0)
    gaps = gaps[:, scale > 0.0] / scale[scale > 0.0]
    w = weights * _kernel(distance, tolerance)
    if not (w > 0.0).sum() > gaps.shape[1] + 1:
        w = weights
    w = w / w.sum()
    design = np.concatenate([np.ones((len(x), 1)), gaps], axis=1)
    root = np.sqrt(w)[:, None]
    inverse = np.linalg.pinv(root * design, rcond=_RANK) * root.T
    found = inverse @ x
    leverage = np.einsum("ij,ji->i", design, inverse)
    residuals = (x - design @ found) / np.sqrt(1.0 - np.clip(leverage, 0.0, _MOST_LEVERAGE))[
        :, None
    ]
    variance = w @ residuals**2
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = np.sqrt((w**2) @ (residuals**2 / variance - 1.0) ** 2) / 2.0
        log_sd = 0.5 * np.log(variance)
    return Adjusted(
        to_cube(found[0] + residuals),
        found[0],
        np.sqrt((inverse[0] ** 2) @ residuals**2),
        log_sd,
        np.nan_to_num(spread),
        residuals,
        gaps,
        inverse[1:],
    )


def to_cube(x: np.ndarray) -> np.ndarray:
    """Points of the open unit cube from the normal scale."""
    return np.clip(ndtr(x), _EDGE, 1.0 - _EDGE)


def adjusted_accepted(
    u: np.ndarray,
    summaries: np.ndarray,
    observed: np.ndarray,
    distance: np.ndarray,
    log_weight: np.ndarray,
    smallest: float,
    log_density: LogDensity | None = None,
) -> AdjustedDraws | None:
    r"""Accept as much as regression can bring together, and adjust it.

    Tolerances are tried from `smallest` upwards, until adjusted means or standard deviations differ from
    those at a smaller one by more than chance explains (Lepski's rule, at 5 % over all comparisons); the
    largest before that is taken.

    Weights are those for a uniform prior in the cube; where it has another density :math:`\rho`, as with a
    ``pm.Potential``, that of the adjusted points is put in afterwards,

    .. math:: w_i^* = w_i (1 - d_i^2 / \epsilon^2)\, \rho(u_i^*),

    for it is a factor of the posterior. In the regression it would bend what is linear without it, and
    :math:`\rho(u_i)` says nothing of where a point is moved to.

    Parameters
    ----------
    u : array (N, D)
        All simulations.
    summaries : array (N, S)
    observed : array (S,)
    distance : array (N,)
    log_weight : array (N,)
        Natural logarithms, without the prior's density in the cube.
    smallest : float
    log_density : callable, optional

    Returns
    -------
    AdjustedDraws or None
        None if the prior's density is zero at all adjusted points.
    """
    chosen: tuple[Accepted, Adjusted] | None = None
    before: list[Adjusted] = []
    for tolerance in _tolerances(distance, log_weight, smallest):
        kept = accept(distance, log_weight, tolerance)
        at = kept.index
        found = adjust_linear(u[at], summaries[at], observed, kept.weight, distance[at], tolerance)
        comparisons = 2 * u.shape[1] * max(1, len(before))
        most = float(ndtri(1.0 - 0.5 * _LEVEL / comparisons))
        if not all(_agree(found, other, most) for other in before):
            break
        chosen = kept, found
        before.append(found)
    assert chosen is not None
    kept, found = chosen
    with np.errstate(divide="ignore"):
        log_kernel = np.log(_kernel(distance[kept.index], kept.tolerance))
    before_density = kept.log_weight + log_kernel
    after = before_density
    log = None if log_density is None else log_density(found.u)
    if log is not None:
        after = after + log
    some = after > -math.inf
    if not some.any():
        return None
    accepted = Accepted(kept.tolerance, kept.index[some], after[some])
    return AdjustedDraws(accepted, found.u[some], found, before_density)


def _kernel(distance: np.ndarray, tolerance: float) -> np.ndarray:
    """Epanechnikov's kernel; where it would leave nothing, all count the same."""
    if not 0.0 < tolerance < np.inf:
        return np.ones(len(distance))
    found = np.maximum(1.0 - (distance / tolerance) ** 2, 0.0)
    return found if found.any() else np.ones(len(distance))


def _tolerances(distance, log_weight, smallest: float) -> Sequence[float]:
    out = [smallest]
    finite = distance[np.isfinite(distance)]
    largest = float(finite.max())
    order = np.argsort(distance, kind="stable")[: len(finite)]
    w = np.exp(log_weight[order] - log_weight[order].max())
    reached = np.cumsum(w) ** 2 / np.maximum(np.cumsum(w**2), 1e-300)
    wanted = _STEP * effective(log_weight[distance <= smallest])
    while out[-1] < largest:
        beyond = np.flatnonzero((reached >= wanted) & (distance[order] > out[-1]))
        if not len(beyond):
            break
        out.append(float(distance[order[beyond[0]]]))
        wanted *= _STEP
    return out


def _agree(found: Adjusted, other: Adjusted, most: float) -> bool:
    means = np.abs(found.mean - other.mean) <= most * other.mean_error
    spreads = np.abs(found.log_sd - other.log_sd) <= most * other.log_sd_error
    same = found.log_sd == other.log_sd
    return bool((means & (spreads | same)).all()) or not math.isfinite(float(other.log_sd.sum()))
