"""Peak of prior times kernel values, fitted in a window that moves to it."""

from __future__ import annotations

import math

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scipy.optimize import minimize
from scipy.special import ndtr, ndtri

from amc_pymc.map_tree.log_quadratic import LocalQuadratic, fit_log_quadratic, n_terms

__all__ = ["Draws", "Peak", "Surface", "climb", "height_at", "mode_terms", "peak_errors"]

#: Radius of the window in one dimension, in standard deviations of the peak.
_RADIUS = 2.0
#: Number of fits that adapt the window, and maximum factor by which each may change its width.
_FITS, _CHANGE = 6, 3.0
#: Significance level of the test for a skewed peak.
_SKEWED = 0.001
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


class Surface(NamedTuple):
    """Prior in coordinates of the unit cube.

    Attributes
    ----------
    positions : callable
        Maps points (n, D) of the cube to parameters (n, P) on their own scale.
    log_prior : callable
        Maps points (n, D) to the natural log prior density (n,).
    """

    positions: Callable[[np.ndarray], np.ndarray]
    log_prior: Callable[[np.ndarray], np.ndarray]


class Draws(NamedTuple):
    """Simulated points where the prior is positive.

    Attributes
    ----------
    z : array (n, D)
        Normal quantiles of coordinates in the cube.
    x : array (n, P)
        Parameters on their own scale.
    log_prior : array (n,)
        Natural log prior density, finite.
    truncated : bool
        Whether the prior is zero at other simulated points.
    """

    z: np.ndarray
    x: np.ndarray
    log_prior: np.ndarray
    truncated: bool


class Peak(NamedTuple):
    """A fit and the maximum of prior times fit."""

    z: np.ndarray
    height: float
    tolerance: float
    fit: LocalQuadratic


def _radius(n_dim: int) -> float:
    return _RADIUS * math.sqrt(1.0 + (n_dim - 1) / 3.0)


def climb(
    u: np.ndarray,
    draws: Draws,
    labels: np.ndarray,
    surface: Surface,
    tolerance: float,
    root: np.ndarray,
    *,
    fits: int = _FITS,
    skewed: bool | None = False,
) -> Peak | None:
    """Fit a peak in a window that moves to it and adopts its width; None if there are too few labels.

    The prior must be positive at `u`, and is positive at the peak. Cubic terms are added at the end if `skewed` is
    True, or if it is None and they are significant.
    """
    x = draws.x
    z, radius = np.clip(ndtri(u), -_REACH, _REACH), _radius(x.shape[1])
    centre, fit = surface.positions(ndtr(z)[None])[0], None
    for _ in range(fits):
        for _ in range(_WIDER):
            fit = _fit(x, labels, centre, root, radius)
            if fit is not None:
                break
            root = 2.0 * root
        if fit is None:
            return None
        z, height = _maximise(fit, surface, z, draws)
        if not math.isfinite(height):
            return None
        centre = surface.positions(ndtr(z)[None])[0]
        widths, axes = np.linalg.eigh(fit.curvature())
        widths = np.clip(widths, 1.0 / _CHANGE**2, _CHANGE**2)
        root = root @ (axes / np.sqrt(widths)) @ axes.T
    assert fit is not None
    if skewed is not False:
        cubic = fit_log_quadratic(
            x, labels, fit.centre, fit.root, radius, diagonal=fit.diagonal, cubic=True
        )
        if cubic is not None and (skewed or cubic.skewness() < _SKEWED):
            fit = cubic
            z, height = _maximise(fit, surface, z, draws)
    return Peak(z, height, tolerance, fit)


def _fit(
    x: np.ndarray, labels: np.ndarray, centre: np.ndarray, root: np.ndarray, radius: float
) -> LocalQuadratic | None:
    for diagonal in (False, True):
        found = fit_log_quadratic(x, labels, centre, root, radius, diagonal=diagonal)
        if found is None:
            return None
        if found.effective >= _PER_TERM * n_terms(x.shape[1], diagonal=diagonal):
            return found
    return None


def _maximise(
    fit: LocalQuadratic, surface: Surface, z: np.ndarray, draws: Draws
) -> tuple[np.ndarray, float]:
    """Maximise prior times fit inside the window, over normal quantiles of cube coordinates.

    At the edge of a truncated prior a search can stop early or have no slope to follow. The highest simulated
    point in the window is therefore another starting point, and a candidate result.
    """

    def height(points: np.ndarray) -> np.ndarray:
        u = ndtr(points)
        y = fit.to_units(surface.positions(u))
        outside = np.maximum(np.sqrt(np.einsum("ij,ij->i", y, y)) - fit.radius, 0.0)
        found = surface.log_prior(u) + fit.values(y) - 10.0 * outside**2
        return np.where(np.isfinite(found), found, -np.inf)

    def downhill(point: np.ndarray) -> tuple[float, np.ndarray]:
        h = 1e-5 * np.eye(len(point))
        found = height(np.concatenate([point[None], point + h, point - h]))
        above, below = np.split(found[1:], 2)
        known = np.isfinite(above) & np.isfinite(below)
        slope = np.where(known, np.where(known, above, 0.0) - np.where(known, below, 0.0), 0.0)
        return (-found[0] if np.isfinite(found[0]) else 1e300), -slope / 2e-5

    def search(start: np.ndarray) -> tuple[np.ndarray, float]:
        bounds = [(-_REACH, _REACH)] * len(start)
        found = minimize(downhill, start, jac=True, method="L-BFGS-B", bounds=bounds).x
        found = np.stack([start, found])
        heights = height(found)
        best = int(heights.argmax())
        return found[best], float(heights[best])

    best = search(z)
    if not draws.truncated:
        return best
    y = fit.to_units(draws.x)
    heights = np.where(
        np.einsum("ij,ij->i", y, y) < fit.radius**2, draws.log_prior + fit.values(y), -np.inf
    )
    top = int(heights.argmax())
    if heights[top] > best[1] + _HIGHER:
        best = max(best, search(np.clip(draws.z[top], -_REACH, _REACH)), key=lambda found: found[1])
    return best


def height_at(fitted: Peak, surface: Surface, z: np.ndarray) -> float:
    """Return the logarithm of prior times fit at normal quantiles (D,) of cube coordinates."""
    u = ndtr(z)[None]
    y = fitted.fit.to_units(surface.positions(u))
    return float((surface.log_prior(u) + fitted.fit.values(y))[0])


def mode_terms(fitted: Peak, surface: Surface) -> np.ndarray:
    """Return derivatives (P, p) of the mode with respect to the coefficients of the fit.

    They are nan if the peak is at an edge of the prior's support.
    """
    fit, z = fitted.fit, fitted.z
    p, d, h = len(fit.centre), len(z), 1e-3

    def height(points: np.ndarray) -> np.ndarray:
        u = ndtr(points)
        return surface.log_prior(u) + fit.values(fit.to_units(surface.positions(u)))

    steps, unknown = h * np.eye(d), np.full((p, len(fit.coefficients)), np.nan)
    ends = [np.where(np.eye(d, dtype=bool), reach, z) for reach in (-_REACH, _REACH)]
    x, *at_ends = (surface.positions(ndtr(point)) for point in (z[None], *ends))
    gaps = np.linalg.solve(fit.root, (np.concatenate(at_ends) - x).T)
    if np.linalg.norm(gaps, axis=0).min() < _CLOSE:
        return unknown
    terms = fit.gradient_terms(fit.to_units(surface.positions(ndtr(z)[None]))[0])
    above, below = (surface.positions(ndtr(z + s * steps)) for s in (1.0, -1.0))
    pairs = [
        a * steps[:, None] + b * steps[None, :] for a, b in ((1, 1), (1, -1), (-1, 1), (-1, -1))
    ]
    around = np.array([height((z + q).reshape(-1, d)).reshape(d, d) for q in pairs])
    sides = np.array([height(z + steps), height(z - steps)])
    if not (np.isfinite(around).all() and np.isfinite(sides).all()):
        return unknown
    jacobian = (above - below).T / (2.0 * h)
    pp, pm, mp, mm = around
    hessian = (pp - pm - mp + mm) / (4.0 * h**2)
    if np.linalg.eigvalsh(hessian).max() >= 0.0:
        return unknown
    slope = (sides[0] - sides[1]) / (2.0 * h)
    if np.linalg.norm(fit.root.T @ np.linalg.lstsq(jacobian.T, slope)[0]) > _STEEP:
        return unknown
    return -jacobian @ np.linalg.solve(hessian, jacobian.T @ np.linalg.solve(fit.root.T, terms))


def peak_errors(fitted: Peak, surface: Surface) -> tuple[np.ndarray, float]:
    """Return the covariance (P, P) of the mode and the standard error of its log density.

    The covariance is nan if the peak is at an edge of the prior's support.
    """
    fit, moved = fitted.fit, mode_terms(fitted, surface)
    terms = fit.value_terms(fit.to_units(surface.positions(ndtr(fitted.z)[None]))[0])
    se = math.sqrt(max(0.0, float(terms @ fit.covariance @ terms)))
    return moved @ fit.covariance @ moved.T, se
