"""A peak of prior times closeness, fitted in a window that follows it."""

from __future__ import annotations

import math

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scipy.optimize import minimize
from scipy.special import ndtr, ndtri

from amc_pymc.abc_tree.log_quadratic import LocalQuadratic, fit_log_quadratic, n_terms

__all__ = ["Peak", "Surface", "climb", "peak_errors"]

#: Radius of the window in one dimension, in standard deviations of the peak.
_RADIUS = 2.0
#: Fits until the window has found its place and width, and by how much its width may change at once.
_FITS, _CHANGE = 6, 3.0
#: Error probability of the test by which a peak is taken to be skewed.
_SKEWED = 0.001
#: Normal quantiles that are searched, whatever is in the tails.
_REACH = 8.0
#: Searches begin no further out, for at an edge of the cube all is flat.
_INSIDE = 3.0
#: Effective labels that a fit needs for each coefficient.
_PER_TERM = 4.0
#: Times that a window may be doubled to hold enough.
_WIDER = 4
#: Slope per width of the peak above which a maximum is one at an edge.
_STEEP = 0.1


class Surface(NamedTuple):
    """A prior in coordinates of the unit cube.

    Attributes
    ----------
    positions : callable
        Points (n, D) of the cube to parameters (n, P) on their own scale.
    log_prior : callable
        Points (n, D) to natural logarithms (n,) of the prior's density there.
    """

    positions: Callable[[np.ndarray], np.ndarray]
    log_prior: Callable[[np.ndarray], np.ndarray]


class Peak(NamedTuple):
    """A fit and the maximum of prior times fit."""

    z: np.ndarray
    height: float
    tolerance: float
    fit: LocalQuadratic


def _radius(n_dim: int) -> float:
    return _RADIUS * math.sqrt(1.0 + (n_dim - 1) / 3.0)


def climb(
    u,
    x,
    labels,
    surface: Surface,
    tolerance: float,
    root,
    *,
    fits: int = _FITS,
    skewed: bool | None = False,
) -> Peak | None:
    """Move the window to the peak and give it its width; None if there is too little to fit.

    Cubic terms are added in the end if `skewed`; None: if they are significant.
    """
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
        z, height = _maximise(fit, surface, z)
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
            z, height = _maximise(fit, surface, z)
    return Peak(z, height, tolerance, fit)


def _fit(x, labels, centre, root, radius) -> LocalQuadratic | None:
    for diagonal in (False, True):
        found = fit_log_quadratic(x, labels, centre, root, radius, diagonal=diagonal)
        if found is None:
            return None
        if found.effective >= _PER_TERM * n_terms(x.shape[1], diagonal=diagonal):
            return found
    return None


def _maximise(fit: LocalQuadratic, surface: Surface, z: np.ndarray) -> tuple[np.ndarray, float]:
    """Maximum of prior times fit inside the window, by normal quantiles of cube coordinates."""

    def height(points):
        u = ndtr(points)
        y = fit.to_units(surface.positions(u))
        outside = np.maximum(np.sqrt(np.einsum("ij,ij->i", y, y)) - fit.radius, 0.0)
        return surface.log_prior(u) + fit.values(y) - 10.0 * outside**2

    def downhill(point):
        h = 1e-5 * np.eye(len(point))
        found = height(np.concatenate([point[None], point + h, point - h]))
        above, below = np.split(found[1:], 2)
        slope = np.where(np.isfinite(above - below), (above - below) / 2e-5, 0.0)
        return (-found[0] if np.isfinite(found[0]) else 1e300), -slope

    found = minimize(downhill, z, jac=True, method="L-BFGS-B", bounds=[(-_REACH, _REACH)] * len(z))
    return found.x, -float(found.fun)


def peak_errors(fitted: Peak, surface: Surface) -> tuple[np.ndarray, float]:
    """Covariance (P, P) of the mode and standard error of the logarithm of the height.

    The covariance is nan where the peak is at an edge of what is possible.
    """
    fit, z = fitted.fit, fitted.z
    p, d, h = len(fit.centre), len(z), 1e-3

    def height(points):
        u = ndtr(points)
        return surface.log_prior(u) + fit.values(fit.to_units(surface.positions(u)))

    steps = h * np.eye(d)
    y = fit.to_units(surface.positions(ndtr(z)[None]))[0]
    terms = fit.gradient_terms(y)
    above, below = (surface.positions(ndtr(z + s * steps)) for s in (1.0, -1.0))
    jacobian = (above - below).T / (2.0 * h)
    pairs = [
        a * steps[:, None] + b * steps[None, :] for a, b in ((1, 1), (1, -1), (-1, 1), (-1, -1))
    ]
    pp, pm, mp, mm = (height((z + q).reshape(-1, d)).reshape(d, d) for q in pairs)
    hessian = (pp - pm - mp + mm) / (4.0 * h**2)
    value_terms = fit.value_terms(y)
    se = math.sqrt(max(0.0, float(value_terms @ fit.covariance @ value_terms)))
    if not np.isfinite(hessian).all() or np.linalg.eigvalsh(hessian).max() >= 0.0:
        return np.full((p, p), np.nan), se
    slope = (height(z + steps) - height(z - steps)) / (2.0 * h)
    if np.linalg.norm(fit.root.T @ np.linalg.lstsq(jacobian.T, slope)[0]) > _STEEP:
        return np.full((p, p), np.nan), se
    inner = np.linalg.solve(fit.root.T, terms)
    moved = jacobian @ np.linalg.solve(hessian, jacobian.T @ inner)
    return moved @ fit.covariance @ moved.T, se
