"""The mode of a posterior density that is seen through how close simulations come to the data."""

from __future__ import annotations

import math

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scipy.optimize import minimize
from scipy.spatial import cKDTree
from scipy.special import ndtr, ndtri

from amc_pymc.abc_tree.log_quadratic import LocalQuadratic, fit_log_quadratic, n_terms

__all__ = ["Mode", "Surface", "find_mode", "soft_labels"]

#: Radius of the window in one dimension, in standard deviations of the peak.
_RADIUS = 2.0
#: Fits until the window has found its place and width, and by how much its width may change at once.
_FITS, _CHANGE = 6, 3.0
#: Wald statistic of the skewness, per dimension, from which on the peak is taken to be skewed.
_SKEWED = 4.0
#: Normal quantiles that are searched, whatever is in the tails.
_REACH = 8.0
#: Nearest neighbours that starting points are chosen by, candidates, starts.
_NEIGHBOURS, _CANDIDATES, _STARTS = 50, 500, 3
#: Part of all closeness around a start that the first window is made of, and its inflation.
_PART, _INFLATION = 0.3, 4.0
#: Sum of labels that a fit needs for each coefficient.
_PER_TERM = 4.0
#: Steps of the square of the tolerance, by factors of two, from four times the last one down.
_UP, _DOWN = 2, 4
#: Sum of labels below which a fit is not listened to.
_ENOUGH = 60.0
#: Squared differences count as bias where they exceed the larger variance by this factor.
_DOUBT = 3.0


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


class Mode(NamedTuple):
    """Where the posterior density is largest.

    Attributes
    ----------
    u : array (D,)
        In the unit cube.
    se : array (P,)
        Standard errors of the parameters; nan where there are none.
    log_density : float
        Natural logarithm of prior density times mean closeness there.
    log_density_se : float
    tolerance : float
        Scale of the closeness that was fitted.
    effective : float
        Sum of the labels that the fit stands on; 0 if there was no fit.
    """

    u: np.ndarray
    se: np.ndarray
    log_density: float
    log_density_se: float
    tolerance: float
    effective: float


def soft_labels(distance: np.ndarray, tolerance: float) -> np.ndarray:
    r"""How close (n,) simulations came: :math:`\exp(-d^2 / 2 h^2)`, the kernel of ``pm.Simulator``.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.abc_tree.mode import soft_labels
    >>> soft_labels(np.array([0.0, 1.0, np.inf]), 1.0).round(3)
    array([1.   , 0.607, 0.   ])
    """
    if tolerance == math.inf:
        return np.isfinite(distance).astype(float)
    if tolerance == 0.0:
        return (distance == 0.0).astype(float)
    z = np.minimum(distance / tolerance, 1e100)
    return np.exp(-0.5 * z**2)


def find_mode(
    u: np.ndarray,
    distance: np.ndarray,
    tolerance: float,
    surface: Surface,
    *,
    lowest: float = 0.0,
) -> Mode:
    """Maximise a local estimate of the posterior density.

    Points with high closeness times prior among their neighbours are starts. Around each, the logarithm
    of the mean closeness is fitted by a quadratic in a window that follows the peak and takes
    its width, then with cubic terms if these are significant. Nothing depends on how often
    a place was simulated. Fits at several tolerances are compared, and the one is
    taken whose squared bias, by the change to the next lower tolerance, and variance are least.

    Parameters
    ----------
    u : array (n, D)
        Where simulations were made, in the unit cube.
    distance : array (n,)
    tolerance : float
        At which closeness tells places apart.
    surface : Surface
    lowest : float
        No lower tolerance is of interest.

    Returns
    -------
    Mode

    Raises
    ------
    ValueError
        If no simulation came close.
    """
    labels, x = soft_labels(distance, tolerance), surface.positions(u)
    log_prior = surface.log_prior(u)
    if not (labels > 0.0).any():
        raise ValueError("No simulation came close to the data: there is nothing to find a mode of.")
    best: tuple[float, _Fitted | None, int] = (-math.inf, None, -1)
    for i, near, value in _starts(x, labels, log_prior):
        fitted = _climb(u[i], x, labels, surface, tolerance, _first_root(x, labels, near))
        height = value if fitted is None else fitted.height
        if height > best[0]:
            best = (height, fitted, i)
    height, fitted, i = best
    if fitted is None:
        nothing = np.full(x.shape[1], np.nan)
        return Mode(u[i], nothing, height, math.nan, tolerance, 0.0)
    return _as_mode(_best_tolerance(fitted, x, distance, surface, lowest), surface)


class _Fitted(NamedTuple):
    """A fit and the maximum of prior times fit."""

    z: np.ndarray
    height: float
    tolerance: float
    fit: LocalQuadratic


def _starts(x, labels, log_prior):
    """Rows with the highest closeness times prior among neighbours, rows around, that value."""
    scale = _spread(x, labels)
    tree = cKDTree(x / scale)
    k = min(_NEIGHBOURS, len(x))
    rows = np.argsort(-labels, kind="stable")[: min(_CANDIDATES, int((labels > 0.0).sum()))]
    far, neighbours = tree.query(x[rows] / scale, k=k)
    mean = labels[neighbours.reshape(len(rows), k)].mean(axis=1)
    with np.errstate(divide="ignore"):
        value = np.log(mean) + log_prior[rows]
    value = np.where(np.isnan(value), -np.inf, value)
    open_to, out = np.ones(len(rows), bool), []
    while open_to.any() and len(out) < _STARTS:
        j = int(np.where(open_to, value, -np.inf).argmax())
        gaps = np.sqrt((((x - x[rows[j]]) / scale) ** 2).sum(axis=1))
        order = np.argsort(gaps, kind="stable")
        mass = np.cumsum(labels[order])
        near = order[: int(np.searchsorted(mass, _PART * mass[-1])) + 1]
        out.append((int(rows[j]), near, float(value[j])))
        open_to &= gaps[rows] > gaps[near].max()
        open_to[j] = False
    return out


def _spread(x, labels):
    centre = np.average(x, axis=0, weights=labels)
    found = np.sqrt(np.average((x - centre) ** 2, axis=0, weights=labels))
    return np.where(found > 0.0, found, np.maximum(x.std(axis=0), 1e-300))


def _first_root(x, labels, near):
    d = x.shape[1]
    found = np.cov(x[near].T, aweights=labels[near] + 1e-12).reshape(d, d) if len(near) > 1 else 0.0
    floor = (1e-3 * _spread(x, labels)) ** 2
    return np.linalg.cholesky(_INFLATION * found + np.diag(floor))


def _radius(n_dim: int) -> float:
    return _RADIUS * math.sqrt(1.0 + (n_dim - 1) / 3.0)


def _climb(
    u, x, labels, surface: Surface, tolerance: float, root, *, fits: int = _FITS
) -> _Fitted | None:
    """Move the window to the peak and give it its width; None if there is too little to fit."""
    z, radius = np.clip(ndtri(u), -_REACH, _REACH), _radius(x.shape[1])
    centre, fit = surface.positions(ndtr(z)[None])[0], None
    for _ in range(fits):
        fit = _fit(x, labels, centre, root, radius)
        if fit is None:
            return None
        z, height = _maximise(fit, surface, z)
        centre = surface.positions(ndtr(z)[None])[0]
        widths, axes = np.linalg.eigh(fit.curvature())
        widths = np.clip(widths, 1.0 / _CHANGE**2, _CHANGE**2)
        root = root @ (axes / np.sqrt(widths)) @ axes.T
    assert fit is not None
    skewed = fit_log_quadratic(
        x, labels, fit.centre, fit.root, radius, diagonal=fit.diagonal, cubic=True
    )
    if skewed is not None and skewed.skewness() > _SKEWED:
        fit = skewed
        z, height = _maximise(fit, surface, z)
    return _Fitted(z, height, tolerance, fit)


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

    found = minimize(
        downhill, z, jac=True, method="L-BFGS-B", bounds=[(-_REACH, _REACH)] * len(z)
    )
    return found.x, -float(found.fun)


def _best_tolerance(first: _Fitted, x, distance, surface: Surface, lowest: float) -> _Fitted:
    """Of fits at several tolerances the one with the least variance and squared bias."""
    ladder = []
    for steps in range(_UP, -_DOWN - 1, -1):
        tolerance = max(first.tolerance * 2.0 ** (steps / 2.0), lowest)
        if ladder and tolerance >= ladder[-1].tolerance:
            break
        start = ladder[-1] if ladder else first
        fitted = _climb(
            ndtr(start.z), x, soft_labels(distance, tolerance), surface, tolerance,
            start.fit.root, fits=3,
        )  # fmt: skip
        if fitted is None or (ladder and fitted.fit.effective < _ENOUGH):
            break
        ladder.append(fitted)
    if not ladder:
        return first
    return ladder[_least_error(ladder, first.fit.root, surface, lowest)]


def _least_error(ladder: list[_Fitted], unit, surface: Surface, lowest: float) -> int:
    """Index of the fit with the least variance and squared bias, in units (D, D) of the peak.

    Bias is taken to fall like the square of the tolerance.
    """
    at = [np.linalg.solve(unit, surface.positions(ndtr(f.z)[None])[0]) for f in ladder]
    covariances = [_errors(f, surface)[0] for f in ladder]
    variance = np.array([
        np.trace(np.linalg.solve(unit, np.linalg.solve(unit, c).T)) for c in covariances
    ])
    known = np.flatnonzero(np.isfinite(variance))
    if not len(known):
        return 0
    bias = np.zeros(len(ladder))
    for j in known:
        for k in known[known > j]:
            excess = ((at[j] - at[k]) ** 2).sum() - _DOUBT * variance[k]
            grows = 1.0 / (1.0 - (ladder[k].tolerance / ladder[j].tolerance) ** 2) ** 2
            bias[j] = max(bias[j], grows * excess)
    last = known[-1]
    if len(known) > 1 and ladder[last].tolerance > lowest:
        before = known[-2]
        bias[last] = bias[before] * (ladder[last].tolerance / ladder[before].tolerance) ** 4
    return int(np.nanargmin(variance + bias))


def _errors(fitted: _Fitted, surface: Surface) -> tuple[np.ndarray, float]:
    """Covariance (P, P) of the mode and standard error of the logarithm of the height."""
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
    inner = np.linalg.solve(fit.root.T, terms)
    moved = jacobian @ np.linalg.solve(hessian, jacobian.T @ inner)
    return moved @ fit.covariance @ moved.T, se


def _as_mode(fitted: _Fitted, surface: Surface) -> Mode:
    covariance, se = _errors(fitted, surface)
    return Mode(
        ndtr(fitted.z),
        np.sqrt(np.diag(covariance)),
        fitted.height,
        se,
        fitted.tolerance,
        fitted.fit.effective,
    )
