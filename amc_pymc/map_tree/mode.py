"""The mode of a posterior density that is seen through how close simulations come to the data."""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from scipy.spatial import cKDTree
from scipy.special import ndtr, ndtri

from amc_pymc.map_tree.peak import Draws, Peak, Surface, climb, height_at, mode_terms, peak_errors
from amc_pymc.simulators.kernels import gaussian_kernel

__all__ = ["Mode", "find_mode"]

#: Nearest neighbours that starting points are chosen by, candidates, starts.
_NEIGHBOURS, _CANDIDATES, _STARTS = 50, 500, 3
#: Part of all kernel values around a start that the first window is made of, and its inflation.
_PART, _INFLATION = 0.3, 4.0
#: Steps of the square of the tolerance, by factors of two, from four times the last one down.
_UP, _DOWN = 2, 4
#: Steps of the window's radius, by factors of the root of two.
_NARROWER = 6
#: Effective labels below which a fit is not listened to.
_ENOUGH = 100.0
#: The mode at the highest tolerance, and the line through two; that through three tells their bias only.
_LINES = 2
#: Steps of Newton's method.
_NEWTON = 20
#: Squared differences count as bias where they exceed the larger variance by this factor.
_DOUBT = 3.0


class Mode(NamedTuple):
    """Where the posterior density is largest.

    Attributes
    ----------
    u : array (D,)
        In the unit cube.
    se : array (P,)
        Standard errors of the parameters as the mode at the lowest tolerance of interest, root of variance and
        squared `bias`; nan where there are none, as at an edge.
    log_density : float
        Natural logarithm of prior density times mean kernel value there.
    log_density_se : float
    tolerance : float
        Scale of the kernel values that was fitted.
    effective : float
        Labels that the fit stands on, as :class:`amc_pymc.map_tree.log_quadratic.LocalQuadratic` counts them;
        0 if there was no fit.
    compared : float
        The logarithm of the density at the tolerance that was asked for, by which modes can be compared.
    bias : array (P,)
        What the tolerance is estimated to shift still; empty where that is not known.
    """

    u: np.ndarray
    se: np.ndarray
    log_density: float
    log_density_se: float
    tolerance: float
    effective: float
    compared: float
    bias: np.ndarray = np.empty(0)


def find_mode(
    u: np.ndarray,
    distance: np.ndarray,
    tolerance: float,
    surface: Surface,
    *,
    lowest: float = 0.0,
) -> Mode:
    """Maximise a local estimate of the posterior density.

    Points with high kernel values times prior among their neighbours are starts. Around each, the logarithm
    of the mean kernel value is fitted by a quadratic in a window that follows the peak and takes
    its width, then with cubic terms if these are significant. Nothing depends on how often
    a place was simulated. The fit is repeated at several tolerances h, and the mode taken at the
    highest one, or on a straight line in h^2 through those at the two highest, at the lowest tolerance of
    interest: whichever has less squared bias, by the change to a line through one more, and variance.

    Parameters
    ----------
    u : array (n, D)
        Where simulations were made, in the unit cube.
    distance : array (n,)
    tolerance : float
        At which kernel_values tells places apart.
    surface : Surface
    lowest : float
        No lower tolerance is of interest.

    Returns
    -------
    Mode

    Raises
    ------
    ValueError
        If no simulation came close where the prior is not zero.
    """
    draws, possible = _possible(u, surface)
    u, x, distance = u[possible], draws.x, distance[possible]
    labels = gaussian_kernel(distance, tolerance)
    if not (labels > 0.0).any():
        raise ValueError(
            "No simulation came close to the data where the prior is not zero: there is nothing to find a "
            "mode of."
        )
    best: tuple[float, Peak | None, int] = (-math.inf, None, -1)
    for i, near, value in _starts(x, labels, draws.log_prior):
        fitted = climb(u[i], draws, labels, surface, tolerance, _first_root(x, labels, near))
        if fitted is not None:
            fitted = _best_window(fitted, draws, labels, surface)
        height = value if fitted is None else fitted.height
        if height > best[0]:
            best = (height, fitted, i)
    height, fitted, i = best
    if fitted is None:
        nothing = np.full(x.shape[1], np.nan)
        return Mode(u[i], nothing, height, math.nan, tolerance, 0.0, height)
    ladder = _ladder(fitted, draws, distance, surface, lowest)
    found = _extrapolated(ladder, fitted.fit.root, surface, lowest)
    if found is None:
        return _as_mode(ladder[min(_UP, len(ladder) - 1)] if ladder else fitted, surface, height)
    return found._replace(compared=height)


def _possible(u: np.ndarray, surface: Surface) -> tuple[Draws, np.ndarray]:
    """Points (n, D) that the prior allows, and which ones (n,) they are."""
    x = surface.positions(u)
    possible = np.isfinite(x).all(axis=1)
    log_prior = np.full(len(u), -np.inf)
    log_prior[possible] = surface.log_prior(u[possible])
    possible = np.isfinite(log_prior)
    kept = ndtri(u[possible]), x[possible], log_prior[possible]
    return Draws(*kept, truncated=not possible.all()), possible


def _starts(x, labels, log_prior):
    """Rows with the highest kernel_values times prior among neighbours, rows around, a lower bound of it."""
    scale = _spread(x, labels)
    tree = cKDTree(x / scale)
    k = min(_NEIGHBOURS, len(x))
    rows = np.argsort(-labels, kind="stable")[: min(_CANDIDATES, int((labels > 0.0).sum()))]
    _, neighbours = tree.query(x[rows] / scale, k=k)
    mean = labels[neighbours.reshape(len(rows), k)].mean(axis=1)
    value = np.log(mean) - np.sqrt((1.0 - mean) / (k * mean)) + log_prior[rows]
    value = np.where(np.isnan(value), -np.inf, value)
    open_to = np.ones(len(rows), bool)
    out: list[tuple[int, np.ndarray, float]] = []
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


def _ladder(first: Peak, draws: Draws, distance, surface: Surface, lowest: float) -> list[Peak]:
    """Fits at lower and lower tolerances.

    All are in the window of the first, for windows that follow what few labels say exaggerate; and all are
    with cubic terms or all without, as the one at the highest tolerance, which knows best.
    """
    ladder: list[Peak] = []
    skewed: bool | None = None
    for steps in range(_UP, -_DOWN - 1, -1):
        tolerance = max(first.tolerance * 2.0 ** (steps / 2.0), lowest)
        if ladder and tolerance >= ladder[-1].tolerance:
            break
        fitted = climb(
            ndtr(first.z), draws, gaussian_kernel(distance, tolerance), surface, tolerance,
            first.fit.root, fits=1, skewed=skewed,
        )  # fmt: skip
        if fitted is None or (ladder and fitted.fit.effective < _ENOUGH):
            break
        ladder.append(fitted)
        skewed = ladder[0].fit.cubic
    return ladder


def _extrapolated(ladder: list[Peak], unit, surface: Surface, lowest: float) -> Mode | None:
    """The mode at the lowest tolerance, by a line through the first two if that helps; None if no error is known.

    The mode is taken to move like h^2.
    """
    terms = [mode_terms(fitted, surface) for fitted in ladder]
    known = [bool(np.isfinite(t).all()) for t in terms]
    ladder = ladder[: known.index(False) if False in known else len(known)]
    if not ladder:
        return None
    squares = np.array([fitted.tolerance**2 - lowest**2 for fitted in ladder])
    weights = np.array([_at_zero(squares, k) for k in range(len(ladder))])
    covariance = _covariance(ladder, terms)
    modes = weights @ [surface.positions(ndtr(fitted.z)[None])[0] for fitted in ladder]

    def variance(w):
        return np.einsum("k,klpq,l->pq", w, covariance, w)

    for j in _order(modes, weights, variance, unit):
        z = _place(ladder[j].z, modes[j], surface) if j else ladder[0].z
        height = height_at(ladder[j], surface, z)
        if not math.isfinite(height):
            continue
        bias = np.abs(modes[j] - modes[j + 1]) if j + 1 < len(ladder) else np.zeros(modes.shape[1])
        found = _as_mode(ladder[j]._replace(z=z, height=height), surface, height)
        return found._replace(se=np.sqrt(np.diag(variance(weights[j])) + bias**2), bias=bias)
    return None


def _covariance(ladder: list[Peak], terms: list[np.ndarray]) -> np.ndarray:
    """Covariances (K, K, P, P) of the modes of fits that share draws, by how each draw moved each of them."""
    rows = np.unique(np.concatenate([fitted.fit.rows for fitted in ladder]))
    moved = np.zeros((len(ladder), len(rows), len(terms[0])))
    for own, fitted, t in zip(moved, ladder, terms, strict=False):
        own[np.searchsorted(rows, fitted.fit.rows)] = fitted.fit.influence @ t.T
    return np.einsum("knp,lnq->klpq", moved, moved, optimize=True)


def _order(modes, weights, variance, unit) -> np.ndarray:
    """Lines that may be taken, those of least variance and squared bias first, in units (D, D) of the peak."""

    def size(v):
        return np.trace(np.linalg.solve(unit, np.linalg.solve(unit, v).T))

    # More of them cannot tell more: a variance that falls is luck.
    loss = np.maximum.accumulate([size(variance(w)) for w in weights])
    for j in range(len(modes) - 1):
        change = np.linalg.solve(unit, modes[j] - modes[j + 1])
        noise = size(variance(weights[j] - weights[j + 1]))
        loss[j] += max(0.0, float(change @ change) - _DOUBT * noise)
    return np.argsort(loss[:_LINES], kind="stable")


def _place(z: np.ndarray, x: np.ndarray, surface: Surface) -> np.ndarray:
    """Normal quantiles (D,) of the point x (P,), by Newton's method from z; nan where it does not get there."""
    h, scale = 1e-4 * np.eye(len(z)), np.abs(x - surface.positions(ndtr(z)[None])[0]).max()
    for _ in range(_NEWTON):
        gap = x - surface.positions(ndtr(z)[None])[0]
        slopes = surface.positions(ndtr(z + h)) - surface.positions(ndtr(z - h))
        if not (np.isfinite(gap).all() and np.isfinite(slopes).all()):
            break
        if np.abs(gap).max() <= 1e-3 * scale:
            return z
        z = z + np.clip(np.linalg.lstsq(slopes.T / 2e-4, gap)[0], -1.0, 1.0)
    return np.full(len(z), np.nan)


def _at_zero(x: np.ndarray, k: int) -> np.ndarray:
    """Weights of all values by which a line through the first k + 1, least squares, is the value at x = 0."""
    out = np.zeros(len(x))
    if k == 0:
        out[0] = 1.0
        return out
    out[: k + 1] = np.linalg.pinv(np.stack([np.ones(k + 1), x[: k + 1] / x[0]], axis=1))[0]
    return out


def _best_window(first: Peak, draws: Draws, labels, surface: Surface) -> Peak:
    """Of fits in narrower and narrower windows the one with the least variance and squared bias.

    In a window as wide as the peak a peak that is bent, or two of them, are not quadratic.
    """
    ladder = [first]
    for k in range(1, _NARROWER + 1):
        fitted = climb(
            ndtr(ladder[-1].z), draws, labels, surface, first.tolerance, 2.0 ** (-k / 2.0) * first.fit.root,
            fits=1, skewed=None,
        )  # fmt: skip
        if fitted is None or fitted.fit.effective < _ENOUGH:
            break
        if not np.isfinite(peak_errors(fitted, surface)[0]).all():
            break
        ladder.append(fitted)
    scales = [2.0 ** (-k / 2.0) for k in range(len(ladder))]
    return ladder[_least_error(ladder, scales, first.fit.root, surface) or 0]


def _least_error(ladder: list[Peak], scales: list[float], unit, surface: Surface) -> int | None:
    """Index of the fit with the least variance and squared bias, in units (D, D) of the peak.

    Bias is taken to fall like the square of the scale of the window; None if no variance is known.
    """
    at = [np.linalg.solve(unit, surface.positions(ndtr(f.z)[None])[0]) for f in ladder]
    covariances = [peak_errors(f, surface)[0] for f in ladder]
    variance = np.array(
        [np.trace(np.linalg.solve(unit, np.linalg.solve(unit, c).T)) for c in covariances]
    )
    known = np.flatnonzero(np.isfinite(variance))
    if not len(known):
        return None
    # A lower scale cannot tell more: a variance that falls with it is luck.
    variance[known] = np.maximum.accumulate(variance[known])
    bias = np.zeros(len(ladder))
    for j in known:
        for k in known[known > j]:
            excess = ((at[j] - at[k]) ** 2).sum() - _DOUBT * variance[k]
            grows = 1.0 / (1.0 - (scales[k] / scales[j]) ** 2) ** 2
            bias[j] = max(bias[j], grows * excess)
    last = known[-1]
    if len(known) > 1:
        before = known[-2]
        bias[last] = bias[before] * (scales[last] / scales[before]) ** 4
    return int(np.nanargmin(variance + bias))


def _as_mode(fitted: Peak, surface: Surface, compared: float) -> Mode:
    covariance, se = peak_errors(fitted, surface)
    return Mode(
        ndtr(fitted.z),
        np.sqrt(np.diag(covariance)),
        fitted.height,
        se,
        fitted.tolerance,
        fitted.fit.effective,
        compared,
    )
