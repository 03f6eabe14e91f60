"""The mode of a posterior density that is seen through how close simulations come to the data."""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

from scipy.spatial import cKDTree
from scipy.special import ndtr

from amc_pymc.abc_tree.peak import Peak, Surface, climb, peak_errors

__all__ = ["Mode", "find_mode", "soft_labels"]

#: Nearest neighbours that starting points are chosen by, candidates, starts.
_NEIGHBOURS, _CANDIDATES, _STARTS = 50, 500, 3
#: Part of all closeness around a start that the first window is made of, and its inflation.
_PART, _INFLATION = 0.3, 4.0
#: Steps of the square of the tolerance, by factors of two, from four times the last one down.
_UP, _DOWN = 2, 4
#: Steps of the window's radius, by factors of the root of two.
_NARROWER = 6
#: Effective labels below which a fit is not listened to.
_ENOUGH = 100.0
#: Squared differences count as bias where they exceed the larger variance by this factor.
_DOUBT = 3.0


class Mode(NamedTuple):
    """Where the posterior density is largest.

    Attributes
    ----------
    u : array (D,)
        In the unit cube.
    se : array (P,)
        Standard errors of the parameters at that tolerance; nan where there are none, as at an edge.
    log_density : float
        Natural logarithm of prior density times mean closeness there.
    log_density_se : float
    tolerance : float
        Scale of the closeness that was fitted.
    effective : float
        Labels that the fit stands on, as :class:`amc_pymc.abc_tree.log_quadratic.LocalQuadratic` counts them;
        0 if there was no fit.
    compared : float
        The logarithm of the density at the tolerance that was asked for, by which modes can be compared.
    """

    u: np.ndarray
    se: np.ndarray
    log_density: float
    log_density_se: float
    tolerance: float
    effective: float
    compared: float


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
    x = surface.positions(u)
    possible = np.isfinite(x).all(axis=1)
    u, x, distance = u[possible], x[possible], distance[possible]
    labels, log_prior = soft_labels(distance, tolerance), surface.log_prior(u)
    if not (labels > 0.0).any():
        raise ValueError(
            "No simulation came close to the data: there is nothing to find a mode of."
        )
    best: tuple[float, Peak | None, int] = (-math.inf, None, -1)
    for i, near, value in _starts(x, labels, log_prior):
        fitted = climb(u[i], x, labels, surface, tolerance, _first_root(x, labels, near))
        if fitted is not None:
            fitted = _best_window(fitted, x, labels, surface)
        height = value if fitted is None else fitted.height
        if height > best[0]:
            best = (height, fitted, i)
    height, fitted, i = best
    if fitted is None:
        nothing = np.full(x.shape[1], np.nan)
        return Mode(u[i], nothing, height, math.nan, tolerance, 0.0, height)
    return _as_mode(_best_tolerance(fitted, x, distance, surface, lowest), surface, height)


def _starts(x, labels, log_prior):
    """Rows with the highest closeness times prior among neighbours, rows around, a lower bound of it."""
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


def _best_tolerance(first: Peak, x, distance, surface: Surface, lowest: float) -> Peak:
    """Of fits at several tolerances the one with the least variance and squared bias.

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
            ndtr(first.z), x, soft_labels(distance, tolerance), surface, tolerance,
            first.fit.root, fits=1, skewed=skewed,
        )  # fmt: skip
        if fitted is None or (ladder and fitted.fit.effective < _ENOUGH):
            break
        ladder.append(fitted)
        skewed = ladder[0].fit.cubic
    if not ladder:
        return first
    scales = [fitted.tolerance for fitted in ladder]
    best = _least_error(ladder, scales, first.fit.root, surface, lowest)
    return ladder[min(_UP, len(ladder) - 1) if best is None else best]


def _best_window(first: Peak, x, labels, surface: Surface) -> Peak:
    """Of fits in narrower and narrower windows the one with the least variance and squared bias.

    In a window as wide as the peak a peak that is bent, or two of them, are not quadratic.
    """
    ladder = [first]
    for k in range(1, _NARROWER + 1):
        fitted = climb(
            ndtr(ladder[-1].z), x, labels, surface, first.tolerance, 2.0 ** (-k / 2.0) * first.fit.root,
            fits=1, skewed=None,
        )  # fmt: skip
        if fitted is None or fitted.fit.effective < _ENOUGH:
            break
        if not np.isfinite(peak_errors(fitted, surface)[0]).all():
            break
        ladder.append(fitted)
    scales = [2.0 ** (-k / 2.0) for k in range(len(ladder))]
    return ladder[_least_error(ladder, scales, first.fit.root, surface) or 0]


def _least_error(
    ladder: list[Peak], scales: list[float], unit, surface: Surface, lowest: float = 0.0
) -> int | None:
    """Index of the fit with the least variance and squared bias, in units (D, D) of the peak.

    Bias is taken to fall like the square of the scale, which is that of the tolerance or of the window; None if
    no variance is known.
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
    if len(known) > 1 and scales[last] > lowest:
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
