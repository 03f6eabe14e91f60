"""Regression adjustment: parameters as if the simulator had met the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import numpy as np

from amc_pymc.abc_tree.accepted import Accepted, accept
from amc_pymc.abc_tree.axes import from_normal, to_normal
from amc_pymc.abc_tree.modes import classify, split_by_sign

__all__ = [
    "Adjusted",
    "AdjustedDraws",
    "Adjustment",
    "LogDensity",
    "adjust_linear",
    "adjusted_accepted",
    "coefficients",
    "epanechnikov",
    "regress",
]

Adjustment = Literal["none", "linear", "heteroscedastic", "quadratic", "modes"]
#: Natural logarithm (n,) of the prior's density at points (n, D) of the cube; None where it is uniform.
LogDensity = Callable[[np.ndarray], np.ndarray | None]

#: Eigenvalues of the normal equations below this part of the largest count as zero.
_RANK = 1e-13
#: Leverage of a simulation that is made up for, at most.
_MOST_LEVERAGE = 0.9
#: Statistics up to which a quadratic regression has all products of two, and not squares alone.
_PRODUCTS = 12
#: Effective points of a mode for each coefficient of its regression, at least.
_PER_MODE = 2.0
#: Factor by which a residual is stretched or shrunk at most.
_MOST_STRETCH = 5.0
#: Part of the variance of residuals that is added to their squares before logarithms are taken.
_FLOOR = 1e-3


class Adjusted(NamedTuple):
    """Adjusted parameters.

    Attributes
    ----------
    u : array (n, D)
        In the open unit cube.
    original : array (n, D)
        Points before they were adjusted.
    mean : array (D,)
        Of x, the normal scale, at the data.
    residuals : array (n, D)
        Of x, before they are stretched.
    gaps : array (n, P)
        Regressors, which are zero at the data; without those that do not vary.
    projection : array (P, n)
        Makes slopes on `gaps` of x.
    weights : array (n,)
        Of the regression; they sum to one.
    kind : {"none", "linear", "heteroscedastic", "quadratic", "modes"}
    """

    u: np.ndarray
    original: np.ndarray
    mean: np.ndarray
    residuals: np.ndarray
    gaps: np.ndarray
    projection: np.ndarray
    weights: np.ndarray
    kind: Adjustment


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
    return regress(u, summaries - observed, weights * epanechnikov(distance, tolerance), "linear")


def regress(u: np.ndarray, gaps: np.ndarray, weights: np.ndarray, kind: Adjustment) -> Adjusted:
    r"""Move parameters to where they would have been had the simulator met the data.

    "linear" is :func:`adjust_linear`. "quadratic" has squares and products of the gaps beside them (of more than
    twelve statistics, squares alone). "heteroscedastic" stretches residuals as well,

    .. math:: x_i^* = \hat m(s_{\mathrm{obs}}) + \frac{\hat\sigma(s_{\mathrm{obs}})}{\hat\sigma(s_i)}
        (x_i - \hat m(s_i)),

    with logarithms of squared residuals linear in the statistics (Blum & Francois 2010,
    doi:10.1007/s11222-009-9116-0). "modes" does this within each mode of the parameters, where there are several.
    "none" moves nothing.

    Parameters
    ----------
    u : array (n, D)
        Points of the unit cube.
    gaps : array (n, S)
        Summary statistics minus those of the data.
    weights : array (n,)
        Not negative; equal ones are taken if none is positive.
    kind : {"none", "linear", "heteroscedastic", "quadratic", "modes"}

    Returns
    -------
    Adjusted

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.special import ndtr, ndtri
    >>> from amc_pymc.abc_tree.adjust import regress
    >>> rng = np.random.default_rng(1)
    >>> gaps = rng.uniform(-1.0, 1.0, (5000, 1))
    >>> x = np.exp(gaps) * rng.normal(size=(5000, 1))
    >>> found = regress(ndtr(x), gaps, np.ones(5000), "heteroscedastic")
    >>> bool(abs(ndtri(found.u).std() - 1.0) < 0.05)
    True
    """
    if kind not in get_args(Adjustment):
        known = ", ".join(map(repr, get_args(Adjustment)))
        raise ValueError(f"kind must be one of {known}, got {kind!r}.")
    x = to_normal(u)
    if not weights.any():
        weights = np.ones(len(x))
    w = weights / weights.sum()
    if kind == "none":
        mean = w @ x
        return Adjusted(u, u, mean, x - mean, gaps[:, :0], np.zeros((0, len(x))), w, kind)
    scale = gaps.std(axis=0)
    gaps = gaps[:, scale > 0.0] / scale[scale > 0.0]
    if kind == "modes":
        return _by_mode(u, x, gaps, w)
    if kind == "quadratic":
        gaps = _with_products(gaps)
    design = np.concatenate([np.ones((len(x), 1)), gaps], axis=1)
    inverse = _inverse(design, w)
    found = inverse @ x
    leverage = np.einsum("ij,ji->i", design, inverse)
    slack = np.sqrt(1.0 - np.clip(leverage, 0.0, _MOST_LEVERAGE))
    residuals = (x - design @ found) / slack[:, None]
    stretched = residuals
    if kind == "heteroscedastic":
        stretched = residuals * _stretch(residuals, gaps, inverse, w)
    return Adjusted(
        from_normal(found[0] + stretched), u, found[0], residuals, gaps, inverse[1:], w, kind
    )


def _by_mode(u: np.ndarray, x: np.ndarray, gaps: np.ndarray, w: np.ndarray) -> Adjusted:
    """A heteroscedastic regression within each mode."""
    least = _PER_MODE * (gaps.shape[1] + 1)
    design = np.concatenate([np.ones((len(x), 1)), gaps], axis=1)
    mode = classify(x, design, w, split_by_sign(x, w), least)
    whole = regress(u, gaps, w, "heteroscedastic")
    if not mode.any():
        return whole._replace(kind="modes")
    points, residuals, mean = whole.u.copy(), whole.residuals.copy(), np.zeros(x.shape[1])
    for k in range(int(mode.max()) + 1):
        own = np.flatnonzero(mode == k)
        if not w[own].any():
            continue
        # Standard deviations of gaps differ between modes, zero at the data does not.
        found = regress(u[own], gaps[own], w[own], "heteroscedastic")
        points[own], residuals[own] = found.u, found.residuals
        mean += w[own].sum() * found.mean
    return Adjusted(points, u, mean, residuals, gaps, whole.projection, w, "modes")


def coefficients(n_summaries: int, kind: Adjustment) -> int:
    """Numbers that a regression has for each parameter.

    Examples
    --------
    >>> from amc_pymc.abc_tree.adjust import coefficients
    >>> coefficients(4, "linear"), coefficients(4, "heteroscedastic"), coefficients(4, "quadratic")
    (5, 10, 15)
    """
    s = n_summaries
    if kind == "quadratic":
        return 1 + s + (s * (s + 1) // 2 if s <= _PRODUCTS else s)
    return {"none": 1, "linear": 1 + s, "heteroscedastic": 2 * (1 + s), "modes": 4 * (1 + s)}[kind]


def _with_products(gaps: np.ndarray) -> np.ndarray:
    s = gaps.shape[1]
    i, j = np.triu_indices(s) if s <= _PRODUCTS else (np.arange(s), np.arange(s))
    return np.concatenate([gaps, gaps[:, i] * gaps[:, j]], axis=1)


def _inverse(design: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Matrix (P, n) that makes least-squares coefficients of what is to be fitted."""
    weighted = design * w[:, None]
    scale = np.sqrt(np.einsum("ij,ij->j", design, weighted))
    scale[scale == 0.0] = 1.0
    gram = (weighted / scale).T @ (design / scale)
    inverse = np.linalg.pinv(gram, rcond=_RANK, hermitian=True)
    return (inverse / scale[:, None]) @ (weighted / scale).T


def _stretch(
    residuals: np.ndarray, gaps: np.ndarray, inverse: np.ndarray, w: np.ndarray
) -> np.ndarray:
    """Standard deviations (n, D) of residuals at the data, over those at the simulations."""
    variance = w @ residuals**2
    with np.errstate(divide="ignore", invalid="ignore"):
        log_squares = np.log(residuals**2 / variance + _FLOOR)
    slopes = inverse[1:] @ np.nan_to_num(log_squares)
    most = np.log(_MOST_STRETCH)
    return np.exp(np.clip(-0.5 * gaps @ slopes, -most, most))


def adjusted_accepted(
    u: np.ndarray,
    gaps: np.ndarray,
    distance: np.ndarray,
    log_weight: np.ndarray,
    tolerance: float,
    kind: Adjustment = "linear",
    log_density: LogDensity | None = None,
) -> AdjustedDraws | None:
    r"""Accept within a tolerance, and adjust what is accepted.

    Weights are those for a uniform prior in the cube; where it has another density :math:`\rho`, as with a
    ``pm.Potential``, that of the adjusted points is put in afterwards,

    .. math:: w_i^* = w_i (1 - d_i^2 / \epsilon^2)\, \rho(u_i^*),

    for it is a factor of the posterior. In the regression it would bend what is linear without it, and
    :math:`\rho(u_i)` says nothing of where a point is moved to.

    Parameters
    ----------
    u : array (N, D)
        All simulations.
    gaps : array (N, S)
        Their summary statistics minus those of the data.
    distance : array (N,)
    log_weight : array (N,)
        Natural logarithms, without the prior's density in the cube.
    tolerance : float
    kind : {"none", "linear", "heteroscedastic", "quadratic", "modes"}
        Of regression; without one the kernel is uniform.
    log_density : callable, optional

    Returns
    -------
    AdjustedDraws or None
        None if the prior's density is zero at all adjusted points.
    """
    kept = accept(distance, log_weight, tolerance)
    at = kept.index
    kernel = epanechnikov(distance[at], tolerance) if kind != "none" else np.ones(len(at))
    found = regress(u[at], gaps[at], kept.weight * kernel, kind)
    with np.errstate(divide="ignore"):
        before_density = kept.log_weight + np.log(kernel)
    after = before_density
    log = None if log_density is None else log_density(found.u)
    if log is not None:
        after = after + log
    some = after > -np.inf
    if not some.any():
        return None
    accepted = Accepted(tolerance, at[some], after[some])
    return AdjustedDraws(accepted, found.u[some], found, before_density)


def epanechnikov(distance: np.ndarray, tolerance: float) -> np.ndarray:
    """Epanechnikov's kernel (n,); where it would leave nothing, all count the same."""
    if not 0.0 < tolerance < np.inf:
        return np.ones(len(distance))
    found = np.maximum(1.0 - (distance / tolerance) ** 2, 0.0)
    return found if found.any() else np.ones(len(distance))
