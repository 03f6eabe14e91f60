"""Peak of prior times kernel values: local fits of log mean kernel values in a window that moves to the peak."""

from __future__ import annotations

import math
import warnings

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scipy.optimize import minimize
from scipy.special import ndtr

from amc_pymc.likelihood_free.problem import lengths

#: Maximum steps of Newton's method, and slope per unit of weight at which it stops.
_STEPS, _SLOPE = 50, 1e-7
#: Maximum logarithm of a mean, to prevent overflow.
_LARGEST = 50.0
#: Weight of the penalty on curvatures that differ from one in the units of the window.
_RIDGE = 1e-3
#: Radius of the window in one dimension, in standard deviations of the peak.
_RADIUS = 2.0
#: Number of fits that adapt the window, and maximum factor by which each may change its width.
_FITS, _CHANGE = 6, 3.0
#: Maximum absolute value of the normal quantiles that are searched.
_REACH = 8.0
#: Minimum effective number of labels per coefficient of a fit.
_PER_TERM = 4.0
#: Maximum attempts at a fit, with the window doubled in between.
_WIDER = 4
#: Minimum excess of log density over the maximum found for a simulated point to start another search.
_HIGHER = 1e-6
#: Slope per width of the peak above which a maximum counts as one at an edge.
_STEEP = 0.1
#: Distance to the end of a coordinate, in widths of the peak, below which a maximum counts as one at an edge.
_CLOSE = 0.05


# --- fits ---


class LocalQuadratic(NamedTuple):
    r"""Local fit :math:`\log E[s(x)] = a + g^\top y + \tfrac12 y^\top C y` with :math:`y = R^{-1} (x - x_0)`.

    Attributes
    ----------
    centre : array (D,)
        Centre x_0.
    root : array (D, D)
        Matrix R.
    radius : float
        Maximum length of y; other draws are not used.
    diagonal : bool
        Whether C is diagonal.
    coefficients : array (p,)
    covariance : array (p, p)
        Sandwich covariance of the coefficients, valid even if the mean is not log-quadratic.
    rows : array of int (m,)
        Draws in the window.
    influence : array (m, p)
        Influence of each of these draws on the coefficients; the covariance is that of the sum.
    effective : float
        Effective number of labels, :math:`(\sum w s)^2 / \sum (w s)^2`: the number of 1s if all others are 0.
    """

    centre: np.ndarray
    root: np.ndarray
    radius: float
    diagonal: bool
    coefficients: np.ndarray
    covariance: np.ndarray
    rows: np.ndarray
    influence: np.ndarray
    effective: float

    def to_units(self, x: np.ndarray) -> np.ndarray:
        """Return points (n, D) in units of the window, y (n, D)."""
        return np.linalg.solve(self.root, (x - self.centre).T).T

    def values(self, y: np.ndarray) -> np.ndarray:
        """Return logarithms (n,) of the mean at y (n, D)."""
        return _terms(y, self.diagonal) @ self.coefficients

    def gradient_terms(self, y: np.ndarray) -> np.ndarray:
        """Return derivatives (D, p) of all terms at one point (D,)."""
        h = 1e-6 * np.eye(len(y))
        above, below = (_terms(y + sign * h, self.diagonal) for sign in (1.0, -1.0))
        return (above - below) / 2e-6

    def curvature(self) -> np.ndarray:
        """Return -C (D, D)."""
        d = len(self.centre)
        out, second = np.zeros((d, d)), self.coefficients[1 + d :]
        out[np.diag_indices(d)] = -2.0 * second[:d]
        if not self.diagonal:
            i, j = np.triu_indices(d, 1)
            out[i, j] = out[j, i] = -second[d : d + len(i)]
        return out


def fit_log_quadratic(
    x: np.ndarray,
    labels: np.ndarray,
    centre: np.ndarray,
    root: np.ndarray,
    radius: float,
    *,
    diagonal: bool = False,
) -> LocalQuadratic | None:
    r"""Fit the mean of labels in a window by a Poisson likelihood.

    Points have the weights :math:`1 - |y|^2 / r^2`, and nothing is assumed about where they were drawn. The fit
    estimates the mean of labels with any distribution; that labels are not Poisson affects only the covariance.

    Parameters
    ----------
    x : array (n, D)
    labels : array (n,)
        Nonnegative.
    centre : array (D,)
    root : array (D, D)
        Guess of the width of the peak: a root of the inverse of its negative second derivatives.
    radius : float
        Radius of the window, in units of `root`.
    diagonal : bool
        Leave out products of different coordinates.

    Returns
    -------
    LocalQuadratic or None
        None if no label in the window is positive.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.likelihood_free.map_peak import fit_log_quadratic
    >>> x = np.linspace(-2.0, 2.0, 50)[:, None]
    >>> found = fit_log_quadratic(
    ...     x, np.exp(-0.5 * (x[:, 0] - 0.3) ** 2), np.zeros(1), np.eye(1), 2.0
    ... )
    >>> found.coefficients.round(3)
    array([-0.045,  0.3  , -0.5  ])
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import PoissonRegressor

    d = len(centre)
    y = np.linalg.solve(root, (x - centre).T).T
    squares = np.einsum("ij,ij->i", y, y) / radius**2
    inside = squares < 1.0
    w, f, s = 1.0 - squares[inside], _terms(y[inside], diagonal), labels[inside]
    total = float(w @ s)
    if not total > 0.0:
        return None
    shares = w * s / total
    effective = 1.0 / float(shares @ shares)
    # Coefficients are shrunk towards curvatures of one in the units of the window.
    guess, ridge = np.zeros(f.shape[1]), np.full(f.shape[1], _RIDGE)
    guess[1 + d : 1 + 2 * d], ridge[0] = -0.5, 0.0
    guessed = np.exp(f @ guess)
    regression = PoissonRegressor(
        alpha=_RIDGE / float(w @ guessed), solver="newton-cholesky", max_iter=_STEPS, tol=_SLOPE
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        regression.fit(f[:, 1:], s / guessed, sample_weight=w * guessed)
    beta = guess + np.r_[regression.intercept_, regression.coef_]
    mean = np.exp(np.minimum(f @ beta, _LARGEST))
    hessian = (f * (w * mean)[:, None]).T @ f + np.diag(ridge)
    hessian[np.diag_indices(len(hessian))] += 1e-9 * np.trace(hessian) / len(hessian)
    influence = f * (w * (s - mean))[:, None] @ np.linalg.inv(hessian)
    return LocalQuadratic(
        centre, root, radius, diagonal, beta, influence.T @ influence,
        np.flatnonzero(inside), influence, effective,
    )  # fmt: skip


def _terms(y: np.ndarray, diagonal: bool) -> np.ndarray:
    """Return 1, y_i, y_i^2, y_i y_j as columns."""
    columns = [np.ones((len(y), 1)), y, y**2]
    if not diagonal:
        i, j = np.triu_indices(y.shape[1], 1)
        columns.append(y[:, i] * y[:, j])
    return np.concatenate(columns, axis=1)


# --- peaks ---


class Surface(NamedTuple):
    """Prior in coordinates of the unit cube, and the simulated points where it is positive.

    Attributes
    ----------
    positions : callable
        Maps points (n, D) of the cube to parameters (n, P) on their own scale.
    log_prior : callable
        Maps points (n, D) to the natural log prior density (n,).
    z : array (n, D)
        Normal quantiles of the simulated points.
    x : array (n, P)
        Their parameters.
    log_prior_at : array (n,)
        Their natural log prior densities, finite.
    truncated : bool
        Whether the prior is zero at other simulated points.
    """

    positions: Callable[[np.ndarray], np.ndarray]
    log_prior: Callable[[np.ndarray], np.ndarray]
    z: np.ndarray
    x: np.ndarray
    log_prior_at: np.ndarray
    truncated: bool

    def at(self, z: np.ndarray) -> np.ndarray:
        """Return the parameters (P,) at normal quantiles (D,)."""
        return self.positions(ndtr(z)[None])[0]

    def height(self, fit: LocalQuadratic, z: np.ndarray, outside: float = 0.0) -> np.ndarray:
        """Return log of prior times fit (n,) at normal quantiles (n, D), less a penalty outside of the window."""
        u = ndtr(z)
        y = fit.to_units(self.positions(u))
        beyond = np.maximum(lengths(y) - fit.radius, 0.0)
        return self.log_prior(u) + fit.values(y) - outside * beyond**2


class Peak(NamedTuple):
    """A fit and the maximum of prior times fit."""

    z: np.ndarray
    height: float
    tolerance: float
    fit: LocalQuadratic


def climb(
    surface: Surface,
    z: np.ndarray,
    labels: np.ndarray,
    tolerance: float,
    root: np.ndarray,
    *,
    fits: int = _FITS,
) -> Peak | None:
    """Fit a peak in a window that moves to it and adopts its width; None if there are too few labels.

    The prior must be positive at normal quantiles z (D,), and is positive at the peak.
    """
    x, z = surface.x, np.clip(z, -_REACH, _REACH)
    radius = _RADIUS * math.sqrt(1.0 + (x.shape[1] - 1) / 3.0)
    centre, fit = surface.at(z), None
    for _ in range(fits):
        for _ in range(_WIDER):
            fit = _fit(x, labels, centre, root, radius)
            if fit is not None:
                break
            root = 2.0 * root
        if fit is None:
            return None
        z, height = _maximise(fit, surface, z)
        if not math.isfinite(height):
            return None
        centre = surface.at(z)
        widths, axes = np.linalg.eigh(fit.curvature())
        widths = np.clip(widths, 1.0 / _CHANGE**2, _CHANGE**2)
        root = root @ (axes / np.sqrt(widths)) @ axes.T
    assert fit is not None
    return Peak(z, height, tolerance, fit)


def _fit(
    x: np.ndarray, labels: np.ndarray, centre: np.ndarray, root: np.ndarray, radius: float
) -> LocalQuadratic | None:
    for diagonal in (False, True):
        found = fit_log_quadratic(x, labels, centre, root, radius, diagonal=diagonal)
        if found is not None and found.effective >= _PER_TERM * len(found.coefficients):
            return found
    return None


def _maximise(fit: LocalQuadratic, surface: Surface, z: np.ndarray) -> tuple[np.ndarray, float]:
    """Maximise prior times fit inside the window, over normal quantiles of cube coordinates.

    At the edge of a truncated prior a search can stop early or have no slope to follow. The highest simulated
    point in the window is therefore another starting point, and a candidate result.
    """

    def height(points: np.ndarray) -> np.ndarray:
        found = surface.height(fit, points, outside=10.0)
        return np.where(np.isfinite(found), found, -np.inf)

    def downhill(point: np.ndarray) -> tuple[float, np.ndarray]:
        h = 1e-5 * np.eye(len(point))
        found = height(np.concatenate([point[None], point + h, point - h]))
        above, below = np.split(found[1:], 2)
        known = np.isfinite(above) & np.isfinite(below)
        slope = np.where(known, above, 0.0) - np.where(known, below, 0.0)
        return (-found[0] if np.isfinite(found[0]) else 1e300), -slope / 2e-5

    def search(start: np.ndarray) -> tuple[np.ndarray, float]:
        bounds = [(-_REACH, _REACH)] * len(start)
        found = minimize(downhill, start, jac=True, method="L-BFGS-B", bounds=bounds).x
        found = np.stack([start, found])
        heights = height(found)
        best = int(heights.argmax())
        return found[best], float(heights[best])

    best = search(z)
    if not surface.truncated:
        return best
    y = fit.to_units(surface.x)
    inside = np.einsum("ij,ij->i", y, y) < fit.radius**2
    heights = np.where(inside, surface.log_prior_at + fit.values(y), -np.inf)
    top = int(heights.argmax())
    if heights[top] > best[1] + _HIGHER:
        again = search(np.clip(surface.z[top], -_REACH, _REACH))
        best = max(best, again, key=lambda found: found[1])
    return best


def mode_terms(fitted: Peak, surface: Surface) -> np.ndarray:
    """Return derivatives (P, p) of the mode with respect to the coefficients of the fit.

    They are nan if the peak is at an edge of the prior's support.
    """
    fit, z = fitted.fit, fitted.z
    d, h, unknown = len(z), 1e-3, np.full((len(fit.centre), len(fit.coefficients)), np.nan)
    ends = np.concatenate([np.where(np.eye(d, dtype=bool), end, z) for end in (-_REACH, _REACH)])
    gaps = np.linalg.solve(fit.root, (surface.positions(ndtr(ends)) - surface.at(z)).T)
    if np.linalg.norm(gaps, axis=0).min() < _CLOSE:
        return unknown
    # Central differences along pairs of coordinates.
    steps = h * np.eye(d)
    both, apart = (steps[:, None] + sign * steps[None, :] for sign in (1.0, -1.0))
    pairs = np.stack([both, apart, -apart, -both]).reshape(-1, d)
    heights = surface.height(fit, z + np.concatenate([pairs, steps, -steps]))
    if not np.isfinite(heights).all():
        return unknown
    pp, pm, mp, mm = heights[: 4 * d * d].reshape(4, d, d)
    hessian = (pp - pm - mp + mm) / (4.0 * h**2)
    if np.linalg.eigvalsh(hessian).max() >= 0.0:
        return unknown
    above, below = (surface.positions(ndtr(z + s * steps)) for s in (1.0, -1.0))
    jacobian = (above - below).T / (2.0 * h)
    slope = (heights[-2 * d : -d] - heights[-d:]) / (2.0 * h)
    if np.linalg.norm(fit.root.T @ np.linalg.lstsq(jacobian.T, slope)[0]) > _STEEP:
        return unknown
    terms = fit.gradient_terms(fit.to_units(surface.at(z)[None])[0])
    return -jacobian @ np.linalg.solve(hessian, jacobian.T @ np.linalg.solve(fit.root.T, terms))


def peak_errors(fitted: Peak, surface: Surface) -> tuple[np.ndarray, float]:
    """Return the covariance (P, P) of the mode and the standard error of its log density.

    The covariance is nan if the peak is at an edge of the prior's support.
    """
    fit, moved = fitted.fit, mode_terms(fitted, surface)
    terms = _terms(fit.to_units(surface.at(fitted.z)[None]), fit.diagonal)[0]
    se = math.sqrt(max(0.0, float(terms @ fit.covariance @ terms)))
    return moved @ fit.covariance @ moved.T, se
