"""Regression adjustment of accepted parameters for the difference between simulated and observed data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import numpy as np

from amc_pymc.abc_tree.accepted import Accepted, accept
from amc_pymc.abc_tree.axes import FARTHEST, from_normal, to_normal
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
#: Natural log density (n,) of the prior at points (n, D) of the cube; None if it is uniform.
LogDensity = Callable[[np.ndarray], np.ndarray | None]

#: Fraction of the largest eigenvalue of the normal equations below which eigenvalues count as zero.
_RANK = 1e-13
#: Maximum leverage that residuals are corrected for.
_MOST_LEVERAGE = 0.9
#: Maximum number of statistics for which a quadratic regression includes cross products.
_PRODUCTS = 12
#: Minimum effective points in a mode per regression coefficient.
_PER_MODE = 2.0
#: Maximum factor by which a residual is stretched or shrunk.
_MOST_STRETCH = 5.0
#: Fraction of the residual variance that is added to squared residuals before taking logarithms.
_FLOOR = 1e-3


class Adjusted(NamedTuple):
    """Adjusted parameters.

    Attributes
    ----------
    x : array (n, D)
        Adjusted parameters on the normal scale.
    original : array (n, D)
        Parameters on the normal scale before the adjustment.
    mean : array (D,)
        Fitted mean at the data.
    residuals : array (n, D)
        Residuals, before they are stretched.
    gaps : array (n, P)
        Regressors, which are zero at the data; constant ones are left out.
    projection : array (P, n)
        Matrix that maps parameters to their slopes on `gaps`.
    weights : array (n,)
        Regression weights, which sum to one.
    kind : {"none", "linear", "heteroscedastic", "quadratic", "modes"}
    """

    x: np.ndarray
    original: np.ndarray
    mean: np.ndarray
    residuals: np.ndarray
    gaps: np.ndarray
    projection: np.ndarray
    weights: np.ndarray
    kind: Adjustment

    @property
    def u(self) -> np.ndarray:
        """Adjusted points (n, D) in the open unit cube."""
        return from_normal(self.x)


class AdjustedDraws(NamedTuple):
    """Accepted and adjusted simulations with their regression.

    Attributes
    ----------
    accepted : Accepted
        A simulations; their weights include the kernel and the prior density at the adjusted points.
    u : array (A, D)
        Adjusted points of the cube.
    regression : Adjusted
        Regression on n >= A simulations: all within the tolerance, including those left out of `accepted`
        because their weight is zero.
    log_weight : array (n,)
        Natural log weights of these n simulations, without the prior density.
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
    r"""Adjust accepted parameters by a weighted linear regression on summary statistics.

    .. math:: x_i^* = x_i - B^\top (s_i - s_{\mathrm{obs}}), \qquad x = \Phi^{-1}(u)

    The slopes B are fitted by least squares with weights :math:`w_i (1 - d_i^2 / \epsilon^2)` (Beaumont, Zhang &
    Balding 2002, doi:10.1093/genetics/162.4.2025). Residuals are divided by :math:`\sqrt{1 - h_i}`, where
    :math:`h_i` is the leverage of simulation i, to correct for overfitting. The scale x is unbounded, which keeps
    adjusted points in the cube; it is linear in a parameter with a normal prior.

    Parameters
    ----------
    u : array (n, D)
        Accepted points of the unit cube.
    summaries : array (n, S)
    observed : array (S,)
    weights : array (n,)
        Nonnegative.
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
    w = weights * epanechnikov(distance, tolerance)
    return regress(to_normal(u), summaries - observed, w, "linear")


def regress(x: np.ndarray, gaps: np.ndarray, weights: np.ndarray, kind: Adjustment) -> Adjusted:
    r"""Adjust parameters by a regression on the gaps between simulated and observed summary statistics.

    "linear" is :func:`adjust_linear`. "quadratic" adds squares and products of the gaps (only squares for more
    than twelve statistics). "heteroscedastic" also stretches residuals,

    .. math:: x_i^* = \hat m(s_{\mathrm{obs}}) + \frac{\hat\sigma(s_{\mathrm{obs}})}{\hat\sigma(s_i)}
        (x_i - \hat m(s_i)),

    with log squared residuals linear in the statistics (Blum & Francois 2010, doi:10.1007/s11222-009-9116-0).
    "modes" does this within each mode if the parameters have several modes. "none" moves no points.

    Parameters
    ----------
    x : array (n, D)
        Parameters on the normal scale.
    gaps : array (n, S)
        Summary statistics minus those of the data.
    weights : array (n,)
        Nonnegative weights; equal weights are used if all are zero.
    kind : {"none", "linear", "heteroscedastic", "quadratic", "modes"}

    Returns
    -------
    Adjusted

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.abc_tree.adjust import regress
    >>> rng = np.random.default_rng(1)
    >>> gaps = rng.uniform(-1.0, 1.0, (5000, 1))
    >>> x = np.exp(gaps) * rng.normal(size=(5000, 1))
    >>> found = regress(x, gaps, np.ones(5000), "heteroscedastic")
    >>> bool(abs(found.x.std() - 1.0) < 0.05)
    True
    """
    if kind not in get_args(Adjustment):
        known = ", ".join(map(repr, get_args(Adjustment)))
        raise ValueError(f"kind must be one of {known}, got {kind!r}.")
    if not weights.any():
        weights = np.ones(len(x))
    w = weights / weights.sum()
    if kind == "none":
        mean = w @ x
        return Adjusted(x, x, mean, x - mean, gaps[:, :0], np.zeros((0, len(x))), w, kind)
    scale = gaps.std(axis=0)
    gaps = gaps[:, scale > 0.0] / scale[scale > 0.0]
    if kind == "modes":
        return _by_mode(x, gaps, w)
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
    moved = np.clip(found[0] + stretched, -FARTHEST, FARTHEST)
    return Adjusted(moved, x, found[0], residuals, gaps, inverse[1:], w, kind)


def _by_mode(x: np.ndarray, gaps: np.ndarray, w: np.ndarray) -> Adjusted:
    """Fit a heteroscedastic regression within each mode."""
    least = _PER_MODE * (gaps.shape[1] + 1)
    design = np.concatenate([np.ones((len(x), 1)), gaps], axis=1)
    mode = classify(x, design, w, split_by_sign(x, w), least)
    whole = regress(x, gaps, w, "heteroscedastic")
    if not mode.any():
        return whole._replace(kind="modes")
    points, residuals, mean = whole.x.copy(), whole.residuals.copy(), np.zeros(x.shape[1])
    for k in range(int(mode.max()) + 1):
        own = np.flatnonzero(mode == k)
        if not w[own].any():
            continue
        # Gaps are rescaled within each mode, but remain zero at the data.
        found = regress(x[own], gaps[own], w[own], "heteroscedastic")
        points[own], residuals[own] = found.x, found.residuals
        mean += w[own].sum() * found.mean
    return Adjusted(points, x, mean, residuals, gaps, whole.projection, w, "modes")


def coefficients(n_summaries: int, kind: Adjustment) -> int:
    """Return the number of regression coefficients for each parameter.

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
    """Return the matrix (P, n) that maps responses to least-squares coefficients."""
    weighted = design * w[:, None]
    scale = np.sqrt(np.einsum("ij,ij->j", design, weighted))
    scale[scale == 0.0] = 1.0
    gram = (weighted / scale).T @ (design / scale)
    inverse = np.linalg.pinv(gram, rcond=_RANK, hermitian=True)
    return (inverse / scale[:, None]) @ (weighted / scale).T


def _stretch(
    residuals: np.ndarray, gaps: np.ndarray, inverse: np.ndarray, w: np.ndarray
) -> np.ndarray:
    """Return ratios (n, D) of residual standard deviations at the data to those at the simulations."""
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
    r"""Accept simulations within a tolerance and adjust them.

    Weights are those for a uniform prior in the cube. If the prior has another density :math:`\rho`, as with a
    ``pm.Potential``, weights are multiplied by its values at the adjusted points afterwards,

    .. math:: w_i^* = w_i (1 - d_i^2 / \epsilon^2)\, \rho(u_i^*),

    because it is a factor of the posterior. In the regression it could make linear relations nonlinear, and
    :math:`\rho(u_i)` is not the density at the adjusted point.

    Parameters
    ----------
    u : array (N, D)
        All simulations.
    gaps : array (N, S)
        Their summary statistics minus those of the data.
    distance : array (N,)
    log_weight : array (N,)
        Natural log weights without the prior density.
    tolerance : float
    kind : {"none", "linear", "heteroscedastic", "quadratic", "modes"}
        Kind of regression; for "none" the kernel is uniform.
    log_density : callable, optional

    Returns
    -------
    AdjustedDraws or None
        None if the prior's density is zero at all adjusted points.
    """
    kept = accept(distance, log_weight, tolerance)
    at = kept.index
    kernel = epanechnikov(distance[at], tolerance) if kind != "none" else np.ones(len(at))
    found = regress(to_normal(u[at]), gaps[at], kept.weight * kernel, kind)
    moved = u[at] if kind == "none" else found.u
    with np.errstate(divide="ignore"):
        before_density = kept.log_weight + np.log(kernel)
    after = before_density
    log = None if log_density is None else log_density(moved)
    if log is not None:
        after = after + log
    some = after > -np.inf
    if not some.any():
        return None
    accepted = Accepted(tolerance, at[some], after[some])
    return AdjustedDraws(accepted, moved[some], found, before_density)


def epanechnikov(distance: np.ndarray, tolerance: float) -> np.ndarray:
    """Return Epanechnikov kernel values (n,), or ones if all values would be zero."""
    if not 0.0 < tolerance < np.inf:
        return np.ones(len(distance))
    found = np.maximum(1.0 - (distance / tolerance) ** 2, 0.0)
    return found if found.any() else np.ones(len(distance))
