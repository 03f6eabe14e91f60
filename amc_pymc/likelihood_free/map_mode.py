"""Mode of a posterior density that is estimated from how close simulations come to the data."""

from __future__ import annotations

import itertools
import math

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from scipy.spatial import cKDTree
from scipy.special import ndtr, ndtri

from amc_pymc.likelihood_free.map_peak import Peak, Surface, climb, mode_terms, peak_errors
from amc_pymc.likelihood_free.map_search import MapHistory
from amc_pymc.likelihood_free.problem import flat, gaussian_kernel

_NOTHING = "No simulation came close to the data where the prior is not zero: there is nothing to find a mode of."

#: Nearest neighbours for choosing starting points, maximum candidates, and maximum starting points.
_NEIGHBOURS, _CANDIDATES, _STARTS = 50, 500, 3
#: Minimum difference of the heights of two peaks, in standard errors, for the higher one to be preferred.
_SIGNIFICANT = 3.0
#: Fraction of all kernel values that the first window contains, and inflation of its covariance.
_PART, _INFLATION = 0.3, 4.0
#: Steps of the squared tolerance above and below the last one, by factors of two.
_UP, _DOWN = 2, 4
#: Maximum steps of the window's radius, by factors of the root of two.
_NARROWER = 6
#: Minimum effective number of labels for a fit to be used.
_ENOUGH = 100.0
#: Candidates: mode at the highest tolerance, and line through two. A line through three only measures bias.
_LINES = 2
#: Multiple of the larger variance that squared differences must exceed to count as bias.
_DOUBT = 3.0


class Mode(NamedTuple):
    """Maximum of the posterior density.

    Attributes
    ----------
    u : array (D,)
        Mode in the unit cube.
    se : array (P,)
        Standard errors of the parameters as estimates of the mode at the lowest tolerance of interest: root of
        variance plus squared `bias`; nan if unknown, as at an edge.
    log_density : float
        Natural logarithm of prior density times mean kernel value at the mode.
    log_density_se : float
    tolerance : float
        Tolerance of the kernel values that were fitted.
    effective : float
        Effective number of labels, as in :class:`amc_pymc.likelihood_free.map_peak.LocalQuadratic`; 0 if there was
        no fit.
    bias : array (P,)
        Estimated remaining bias due to the tolerance; empty if unknown.
    """

    u: np.ndarray
    se: np.ndarray
    log_density: float
    log_density_se: float
    tolerance: float
    effective: float
    bias: np.ndarray = np.empty(0)


def estimate_mode(
    history: MapHistory,
    parameters: Callable[[np.ndarray], Mapping[str, np.ndarray]],
    log_prior: Callable[[np.ndarray], np.ndarray],
    *,
    lowest: float = 0.0,
) -> Mode:
    """Maximise a local estimate of the posterior density.

    Searches start where kernel values times prior are high among neighbouring points. Around each start, the log
    mean kernel value is fitted by a quadratic in a window that moves to the peak and adopts its width. The fit does not depend on how densely a region was simulated. It is
    repeated at several tolerances h. The estimate is the mode at the highest tolerance, or a line in h^2 through
    the modes at the two highest, extrapolated to the lowest tolerance of interest, whichever has less variance plus
    squared bias. Bias is estimated by the change to a line through one more mode.

    Parameters
    ----------
    history : MapHistory
    parameters : callable
        Maps points (n, D) of the cube to parameters (n, *shape) by name.
    log_prior : callable
        Maps points (n, D) to the natural log prior density (n,).
    lowest : float
        Smallest tolerance of interest.

    Returns
    -------
    Mode

    Raises
    ------
    ValueError
        If no simulation came close to the data where the prior is positive.
    """

    def columns(u: np.ndarray) -> np.ndarray:
        return flat(parameters(u).values())

    u, tolerance, distance = history.u, history.tolerance, history.distance
    x, positions = columns(u), columns
    unknown = np.full(x.shape[1], np.nan)
    same = x.shape == u.shape
    if not same:  # then normal quantiles are fitted
        x, positions = ndtri(u), ndtri
    possible, log = np.isfinite(x).all(axis=1), np.full(len(u), -np.inf)
    log[possible] = log_prior(u[possible])
    possible = np.isfinite(log)
    z, x, log, distance = ndtri(u[possible]), x[possible], log[possible], distance[possible]
    surface = Surface(positions, log_prior, z, x, log, truncated=not possible.all())
    labels = gaussian_kernel(distance, tolerance)
    if not (labels > 0.0).any():
        raise ValueError(_NOTHING)
    starts, peaks = _starts(x, labels, log), []
    for i, near, _ in starts:
        fitted = climb(surface, z[i], labels, tolerance, _first_root(x, labels, near))
        if fitted is not None:
            peaks.append(_best_window(fitted, labels, surface))
    if not peaks:
        i, _, height = max(starts, key=lambda start: start[2])
        return Mode(ndtr(z[i]), unknown, height, math.nan, tolerance, 0.0)
    fitted = _highest(peaks, surface)
    ladder = _ladder(fitted, distance, surface, lowest)
    found = _extrapolated(ladder, fitted.fit.root, surface, lowest)
    found = found or _as_mode(ladder[min(_UP, len(ladder) - 1)] if ladder else fitted, surface)
    return found if same else found._replace(se=unknown)


def _starts(
    x: np.ndarray, labels: np.ndarray, log_prior: np.ndarray
) -> list[tuple[int, np.ndarray, float]]:
    """Return rows with high kernel values times prior, rows around them, and a lower bound of its log."""
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


def _spread(x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    centre = np.average(x, axis=0, weights=labels)
    found = np.sqrt(np.average((x - centre) ** 2, axis=0, weights=labels))
    return np.select([found > 0.0, np.ptp(x, axis=0) > 0.0], [found, x.std(axis=0)], 1.0)


def _first_root(x: np.ndarray, labels: np.ndarray, near: np.ndarray) -> np.ndarray:
    d = x.shape[1]
    found, floor = np.zeros((d, d)), (1e-3 * _spread(x, labels)) ** 2
    if len(near) > 1:
        found = _INFLATION * np.cov(x[near].T, aweights=labels[near] + 1e-12).reshape(d, d)
    return np.linalg.cholesky(found + np.diag(np.maximum(floor, 1e-9 * np.diag(found))))


def _highest(peaks: list[Peak], surface: Surface) -> Peak:
    """Return the peak with the most labels among those that are not significantly lower than the highest.

    The highest of several noisy fits is mostly a narrow one to a few large labels. A peak at an edge is returned
    only if it is the highest.
    """
    top = max(peaks, key=lambda peak: peak.height)
    _, error = peak_errors(top, surface)
    rivals = [top]
    for peak in peaks:
        covariance, se = peak_errors(peak, surface)
        close = top.height - peak.height <= _SIGNIFICANT * math.hypot(error, se)
        if close and np.isfinite(covariance).all():
            rivals.append(peak)
    return max(rivals, key=lambda peak: peak.fit.effective)


def _ladder(first: Peak, distance: np.ndarray, surface: Surface, lowest: float) -> list[Peak]:
    """Return fits at successively lower tolerances.

    All fits use the window of `first`, because windows that adapt to few labels overfit.
    """
    ladder: list[Peak] = []
    for steps in range(_UP, -_DOWN - 1, -1):
        h = max(first.tolerance * 2.0 ** (steps / 2.0), lowest)
        if ladder and h >= ladder[-1].tolerance:
            break
        labels = gaussian_kernel(distance, h)
        fitted = climb(surface, first.z, labels, h, first.fit.root, fits=1)
        if fitted is None or (ladder and fitted.fit.effective < _ENOUGH):
            break
        ladder.append(fitted)
    return ladder


def _extrapolated(
    ladder: list[Peak], unit: np.ndarray, surface: Surface, lowest: float
) -> Mode | None:
    """Return the mode, extrapolated by a line through the first two if that helps; None if no error is known.

    The mode is assumed to be linear in h^2.
    """
    each = (mode_terms(fitted, surface) for fitted in ladder)
    terms = list(itertools.takewhile(lambda t: np.isfinite(t).all(), each))
    if not terms:
        return None
    ladder = ladder[: len(terms)]
    squares = np.array([fitted.tolerance**2 - lowest**2 for fitted in ladder])
    weights = np.array([_at_zero(squares, k) for k in range(len(ladder))])
    modes = weights @ [surface.at(fitted.z) for fitted in ladder]
    # Fits share draws, so that covariances of modes are sums over the influence of each draw.
    rows = np.unique(np.concatenate([fitted.fit.rows for fitted in ladder]))
    moved = np.zeros((len(ladder), len(rows), modes.shape[1]))
    for own, fitted, t in zip(moved, ladder, terms, strict=True):
        own[np.searchsorted(rows, fitted.fit.rows)] = fitted.fit.influence @ t.T

    def covariance(w: np.ndarray) -> np.ndarray:
        total = np.einsum("k,knp->np", w, moved)
        return total.T @ total

    # Lines through more modes are not more precise: a decrease of the variance is noise.
    loss = np.maximum.accumulate([_size(covariance(w), unit) for w in weights])
    for j in range(len(modes) - 1):
        change = np.linalg.solve(unit, modes[j] - modes[j + 1])
        noise = _size(covariance(weights[j] - weights[j + 1]), unit)
        loss[j] += max(0.0, float(change @ change) - _DOUBT * noise)
    for j in np.argsort(loss[:_LINES], kind="stable"):
        z = weights[j] @ [fitted.z for fitted in ladder]
        height = float(surface.height(ladder[j].fit, z[None])[0])
        if not math.isfinite(height):
            continue
        bias = np.abs(modes[j] - modes[j + 1]) if j + 1 < len(ladder) else np.zeros(modes.shape[1])
        se = np.sqrt(np.diag(covariance(weights[j])) + bias**2)
        return _as_mode(ladder[j]._replace(z=z, height=height), surface)._replace(se=se, bias=bias)
    return None


def _size(covariance: np.ndarray, unit: np.ndarray) -> float:
    """Return the sum of variances in units (P, P) of the peak."""
    return float(np.trace(np.linalg.solve(unit, np.linalg.solve(unit, covariance).T)))


def _at_zero(x: np.ndarray, k: int) -> np.ndarray:
    """Return weights of all values that give the least-squares line through the first k + 1 at x = 0."""
    out = np.eye(1, len(x))[0]
    if k > 0:
        out[: k + 1] = np.linalg.pinv(np.stack([np.ones(k + 1), x[: k + 1] / x[0]], axis=1))[0]
    return out


def _best_window(first: Peak, labels: np.ndarray, surface: Surface) -> Peak:
    """Return the fit with the least variance plus squared bias among successively narrower windows.

    In a window as wide as the peak, a curved peak or two peaks are not log-quadratic. Bias is assumed proportional to
    the squared width of the window.
    """
    ladder, unit, scales = [first], first.fit.root, 2.0 ** (-0.5 * np.arange(_NARROWER + 1))
    errors = [peak_errors(first, surface)[0]]
    for scale in scales[1:]:
        fitted = climb(surface, ladder[-1].z, labels, first.tolerance, scale * unit, fits=1)
        if fitted is None or fitted.fit.effective < _ENOUGH:
            break
        error = peak_errors(fitted, surface)[0]
        if not np.isfinite(error).all():
            break
        ladder.append(fitted)
        errors.append(error)
    at = [np.linalg.solve(unit, surface.at(fitted.z)) for fitted in ladder]
    variance = np.array([_size(error, unit) for error in errors])
    known = np.flatnonzero(np.isfinite(variance))
    if not len(known):
        return first
    # Narrower windows are not more precise: a decrease of the variance is noise.
    variance[known] = np.maximum.accumulate(variance[known])
    bias = np.zeros(len(ladder))
    for j, k in itertools.combinations(known, 2):
        excess = ((at[j] - at[k]) ** 2).sum() - _DOUBT * variance[k]
        bias[j] = max(bias[j], excess / (1.0 - (scales[k] / scales[j]) ** 2) ** 2)
    if len(known) > 1:
        before, last = known[-2:]
        bias[last] = bias[before] * (scales[last] / scales[before]) ** 4
    return ladder[int(np.nanargmin(variance + bias))]


def _as_mode(fitted: Peak, surface: Surface) -> Mode:
    covariance, height_se = peak_errors(fitted, surface)
    at, se, worth = ndtr(fitted.z), np.sqrt(np.diag(covariance)), fitted.fit.effective
    return Mode(at, se, fitted.height, height_se, fitted.tolerance, worth)
