"""Point estimates from the simulations of a search for a mode."""

from __future__ import annotations

import math

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from scipy.special import ndtri

from amc_pymc.map_tree.mode import Mode, find_mode
from amc_pymc.map_tree.peak import Surface
from amc_pymc.map_tree.search import MapHistory
from amc_pymc.simulators.kernels import gaussian_kernel

__all__ = ["ESTIMATES", "MapResult", "estimate_mode", "flat", "map_result"]

ESTIMATES = ("kde", "box")
#: Distance of lower confidence bounds from the estimate, in standard deviations.
_ERRORS = 1.0
#: Maximum number of combinations of discrete parameters to examine.
_COMBINATIONS = 5
#: Step in the cube for detecting the coordinates of continuous parameters.
_STEP = 1e-6

Parameters = Callable[[np.ndarray], Mapping[str, np.ndarray]]


class MapResult(NamedTuple):
    """Result of a search for a mode.

    Attributes
    ----------
    mode : Mode
    parameters : dict of str to array (*shape)
        Parameters at the mode, on their own scale.
    lower, upper : arrays (D,)
        Corners of the box, in the unit cube, with the largest lower confidence bound of the density.
    simulations : int
    tolerance, accepts, boxes, value, batch : arrays (B,)
        For each batch: tolerance, number of simulations so far that it accepts, number of boxes, natural log
        of the largest density of a box, number of simulations.
    incumbent : array (B, D)
        Centre of the box with that density, in the unit cube.
    """

    mode: Mode
    parameters: dict[str, np.ndarray]
    lower: np.ndarray
    upper: np.ndarray
    simulations: int
    tolerance: np.ndarray
    accepts: np.ndarray
    boxes: np.ndarray
    value: np.ndarray
    batch: np.ndarray
    incumbent: np.ndarray


def map_result(
    history: MapHistory,
    parameters: Parameters,
    log_prior: Callable[[np.ndarray], np.ndarray],
    *,
    estimate: str = "kde",
    lowest: float = 0.0,
) -> MapResult:
    """Estimate the mode by :func:`estimate_mode` and summarise the search."""
    mode = estimate_mode(history, parameters, log_prior, estimate=estimate, lowest=lowest)
    box, rounds = history.best_box(errors=_ERRORS), history.rounds
    return MapResult(
        mode,
        {name: np.asarray(v)[0] for name, v in parameters(mode.u[None]).items()},
        history.partition.lower[box],
        history.partition.upper[box],
        len(history.distance),
        np.array([r.tolerance for r in rounds]),
        np.array([r.accepts for r in rounds]),
        np.array([r.boxes for r in rounds]),
        np.array([r.value for r in rounds]),
        np.array([len(r.u) for r in rounds]),
        np.array([r.incumbent for r in rounds]),
    )


def flat(values: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return parameters (n, *shape) as columns (n, P), and which columns (P,) are discrete."""
    columns = [np.asarray(v).reshape(len(v), -1) for v in values.values()]
    discrete = [np.full(c.shape[1], c.dtype.kind in "iub") for c in columns]
    return np.concatenate(columns, axis=1).astype(float), np.concatenate(discrete)


def estimate_mode(
    history: MapHistory,
    parameters: Parameters,
    log_prior: Callable[[np.ndarray], np.ndarray],
    *,
    estimate: str = "kde",
    lowest: float = 0.0,
) -> Mode:
    """Estimate the mode of the posterior density, or mass of discrete parameters.

    Parameters
    ----------
    history : MapHistory
    parameters : callable
        Maps points (n, D) of the cube to parameters (n, *shape) by name; integers are discrete.
    log_prior : callable
        Maps points (n, D) to the natural log prior density or mass (n,).
    estimate : {"kde", "box"}
        "kde": maximum of the local fit by :func:`amc_pymc.map_tree.mode.find_mode`; discrete parameters
        are chosen by the largest mass. "box": centre of the box with the largest lower confidence bound.
    lowest : float
        Smallest tolerance of interest.

    Returns
    -------
    Mode
        Standard errors of discrete parameters are zero.

    Raises
    ------
    ValueError
        If no simulation came close to the data where the prior is positive.
    """
    if estimate == "box":
        return _box(history, parameters)
    u = history.u
    x, discrete = flat(parameters(u))
    if not discrete.any():
        surface = Surface(_positions(parameters, x.shape[1], u.shape[1]), log_prior)
        return _spelt_out(
            find_mode(u, history.distance, history.tolerance, surface, lowest=lowest), x, discrete
        )
    possible = np.flatnonzero(np.isfinite(log_prior(u)))
    found = [
        _of_combination(history, x, discrete, possible[rows], rate, parameters, log_prior, lowest)
        for rows, rate in _combinations(history, x[:, discrete], possible, log_prior)
    ]
    return max(found, key=lambda mode: mode.compared)


def _positions(
    parameters: Parameters, n_columns: int, n_dim: int
) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function for the coordinates to fit in: parameters, or normal quantiles if their numbers differ."""
    if n_columns == n_dim:
        return lambda u: flat(parameters(u))[0]
    return ndtri


def _spelt_out(mode: Mode, x: np.ndarray, discrete: np.ndarray) -> Mode:
    """Expand the standard errors to all columns."""
    se = np.where(discrete, 0.0, np.nan)
    if len(mode.se) == (~discrete).sum():
        se[~discrete] = mode.se
    return mode._replace(se=se)


def _box(history: MapHistory, parameters: Parameters) -> Mode:
    best = history.best_box(errors=_ERRORS)
    believed, u = history.believed, history.centres[best]
    assert believed is not None
    if not np.isfinite(history.log_prior[best]):
        raise ValueError(
            f"The prior is zero at the centres of all {len(history.log_prior):,} boxes, so that none can be the "
            "mode; more simulations would make smaller ones, or take estimate='kde'."
        )
    if not believed.rate[best] > 0.0:
        raise ValueError("No simulation came close to the data: no box is better than others.")
    value = float(believed.value[best])
    _, discrete = flat(parameters(u[None]))
    return Mode(
        u,
        np.full(len(discrete), np.nan),
        history.log_value(best),
        float(believed.error[best]) / value if value > 0.0 else math.nan,
        history.tolerance,
        float(believed.rate[best] * believed.counts[best]),
        history.log_value(best),
    )


def _combinations(
    history: MapHistory,
    values: np.ndarray,
    possible: np.ndarray,
    log_prior: Callable[[np.ndarray], np.ndarray],
) -> list[tuple[np.ndarray, tuple[float, float]]]:
    """Return the best combinations of values (n, d) in order: places in `possible`, rate and error."""
    labels = gaussian_kernel(history.distance[possible], history.tolerance)
    if not (labels > 0.0).any():
        raise ValueError(
            "No simulation came close to the data where the prior is not zero: there is nothing to find a "
            "mode of."
        )
    _, which, counts = np.unique(values[possible], axis=0, return_inverse=True, return_counts=True)
    which = which.reshape(-1)
    strength = 2.0
    rate = np.bincount(which, labels, minlength=len(counts)) + strength * labels.mean()
    rate = rate / (counts + strength)
    error = np.sqrt(rate * (1.0 - rate) / (counts + strength + 1.0))
    first = np.zeros(len(counts), int)
    first[which[::-1]] = np.arange(len(which))[::-1]
    with np.errstate(divide="ignore"):
        bound = np.log(np.maximum(rate - _ERRORS * error, 0.0)) + log_prior(
            history.u[possible[first]]
        )
    order = np.argsort(-bound, kind="stable")[:_COMBINATIONS]
    return [(np.flatnonzero(which == k), (float(rate[k]), float(error[k]))) for k in order]


def _of_combination(
    history: MapHistory,
    x: np.ndarray,
    discrete: np.ndarray,
    rows: np.ndarray,
    rate: tuple[float, float],
    parameters: Parameters,
    log_prior: Callable[[np.ndarray], np.ndarray],
    lowest: float,
) -> Mode:
    """Find the mode among simulations that share the values of discrete parameters."""
    u = history.u[rows]
    labels = gaussian_kernel(history.distance[rows], history.tolerance)
    at = u[int(labels.argmax())]
    mean, error = rate
    height = float(math.log(mean) + log_prior(at[None])[0]) if mean > 0.0 else -math.inf
    alone = Mode(
        at,
        np.where(discrete, 0.0, np.nan),
        height,
        error / mean if mean > 0.0 else math.nan,
        history.tolerance,
        float(labels.sum()),
        height,
    )
    moving = _continuous_coordinates(at, discrete, parameters)
    if discrete.all() or not moving.any() or not (labels > 0.0).any():
        return alone
    same = x[rows[0], discrete]

    def whole(part: np.ndarray) -> np.ndarray:
        out = np.tile(at, (len(part), 1))
        out[:, moving] = part
        return out

    def positions(part: np.ndarray) -> np.ndarray:
        if int(moving.sum()) != int((~discrete).sum()):
            return ndtri(part)
        return flat(parameters(whole(part)))[0][:, ~discrete]

    def prior(part: np.ndarray) -> np.ndarray:
        full = whole(part)
        kept = (flat(parameters(full))[0][:, discrete] == same).all(axis=1)
        return np.where(kept, log_prior(full), -np.inf)

    mode = find_mode(
        u[:, moving], history.distance[rows], history.tolerance, Surface(positions, prior),
        lowest=lowest,
    )  # fmt: skip
    return _spelt_out(mode._replace(u=whole(mode.u[None])[0]), x, discrete)


def _continuous_coordinates(
    u: np.ndarray, discrete: np.ndarray, parameters: Parameters
) -> np.ndarray:
    """Return which coordinates (D,) of the cube change continuous parameters."""
    towards = np.where(u < 0.5, _STEP, -_STEP)
    moved = flat(parameters(np.concatenate([u[None], u + np.diag(towards)])))[0][:, ~discrete]
    return (moved[1:] != moved[0]).any(axis=1)
