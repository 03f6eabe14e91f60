"""Fail-safe simulation: errors and nan in a simulator do not end a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from amc_pymc.likelihood_free.problem import Failure, Simulated

#: Bounds that exclude the faces of the cube, where quantiles may be infinite.
_LOWEST, _HIGHEST = 2.0**-53, 1.0 - 2.0**-53


class Measure(NamedTuple):
    """How simulations are compared with the data.

    Attributes
    ----------
    distance : callable
        Maps simulations of m rows, arrays (m, *shape), to distances (m,). It may raise :class:`NegativeDistance`,
        which is not caught.
    shapes : sequence of tuple
        Shapes of the observed data, or of what simulations are reduced to.
    summaries : callable or None
        Maps simulations to summary statistics (m, S), if they are to be kept.
    size : int
        Number of statistics S.
    """

    distance: Callable[[list[np.ndarray]], np.ndarray]
    shapes: Sequence[tuple[int, ...]]
    summaries: Callable[[list[np.ndarray]], np.ndarray] | None = None
    size: int = 0


class NegativeDistance(ValueError):
    """Error for a negative distance, a fault of the distance function and not of a simulation."""


def clipped(u: np.ndarray, n_dim: int) -> np.ndarray:
    """Return points (n, D) clipped to the open unit cube; raise a ValueError if they are invalid."""
    u = np.asarray(u, dtype=float)
    if u.ndim != 2 or u.shape[1] != n_dim:
        raise ValueError(f"u must have shape (n, {n_dim}), got {u.shape}.")
    if not np.all((u >= 0.0) & (u <= 1.0)):
        raise ValueError(f"u must lie in the unit cube, got values from {u.min()} to {u.max()}.")
    return np.clip(u, _LOWEST, _HIGHEST)


def checked_data(what: str, data: np.ndarray) -> np.ndarray:
    """Return observed data; raise an error if they are not numbers, empty or not finite."""
    if data.dtype.kind not in "biuf":
        raise TypeError(f"{what} must be numbers, got dtype {data.dtype}.")
    if data.size == 0:
        raise ValueError(f"{what}: empty, of shape {data.shape}.")
    for kind, bad in (("nan", np.isnan(data)), ("infinite", np.isinf(data))):
        if bad.any():
            raise ValueError(
                f"{what}: {bad.sum()} of {data.size} values are {kind}; leave them out."
            )
    return data


def check_simulation(
    array: np.ndarray, shape: tuple[int, ...], *, any_length: bool = False
) -> None:
    """Raise an error if a simulation has not the shape of the data, or their number of axes, or is not numbers."""
    same_axes = array.ndim == len(shape) > 0
    if array.shape != shape and not (any_length and same_axes):
        hint = ""
        if array.shape == (1, *shape):
            hint = "; drop the first axis"
        elif same_axes:
            hint = (
                "; if its length varies, return summary statistics, or give pm.Simulator a Python function as "
                "sum_stat and use batched=False"
            )
        raise ValueError(f"simulation of shape {array.shape}, the data call for {shape}{hint}")
    if array.dtype.kind not in "biuf":
        raise TypeError(f"simulation of dtype {array.dtype}, it must be numbers")


def run_each(
    call: Callable[[int], Sequence[Any]], measure: Measure, rows: np.ndarray, n: int
) -> Simulated:
    """Simulate rows one by one.

    Parameters
    ----------
    call : callable
        Maps a row to its simulations, one array for each shape of the data.
    measure : Measure
    rows : array of int
        Rows with valid parameters; the others of the n rows count as failed.
    n : int

    Returns
    -------
    Simulated
    """
    done, kept, failures = [], [], []
    for i in rows.tolist():
        try:
            kept.append(_checked(call(i), measure.shapes))
        except Exception as error:
            failures.append(Failure(i, "error", _told(error)))
        else:
            done.append(i)
    simulations = [np.stack(column) for column in zip(*kept, strict=True)]
    return _measured(measure, simulations, np.array(done, int), rows, n, failures)


def run_batch(
    call: Callable[[np.ndarray, np.random.Generator], Sequence[Any]],
    measure: Measure,
    rows: np.ndarray,
    n: int,
    rng: np.random.Generator,
) -> Simulated:
    """Simulate all rows in one call; if it raises, simulate each row by itself.

    Parameters
    ----------
    call : callable
        Maps rows and a generator to simulations, one array for each shape of the data with a first axis of rows.
    measure, rows, n
        As for :func:`run_each`.
    rng : numpy.random.Generator

    Returns
    -------
    Simulated

    Notes
    -----
    Rows are assumed to be independent, and a call to raise if any of its rows would raise alone. A row that raises with
    probability p is then counted as failed with probability :math:`p (1 - q)`, where q is the probability that none of
    the m rows of the call raises. The difference is at most 1 / (e m).
    """

    def checked(part: np.ndarray) -> list[np.ndarray]:
        return _checked(call(part, rng), [(len(part), *s) for s in measure.shapes])

    raised = ""
    if len(rows) > 1:
        try:
            found = checked(rows)
        except Exception as error:
            raised = f"{_told(error)} (in a call of {len(rows)} rows)"
        else:
            return _measured(measure, found, rows, rows, n, [])
    alone = run_each(lambda i: [a[0] for a in checked(np.array([i]))], measure, rows, n)
    return alone._replace(raised=raised)


def _measured(
    measure: Measure,
    simulations: list[np.ndarray],
    done: np.ndarray,
    rows: np.ndarray,
    n: int,
    failures: list[Failure],
) -> Simulated:
    """Return distances and summary statistics of n rows, of which those not in `rows` are impossible.

    The arrays of `simulations` (m, *shape) have those of the rows `done` (m,); `failures` are those of the others.
    """
    distance = np.full(n, np.inf)
    summaries = None if measure.summaries is None else np.full((n, measure.size), np.nan)

    def lost(rows: np.ndarray, why: str) -> None:
        failures.extend(Failure(i, "nan", why) for i in rows.tolist())

    left_out = np.setdiff1d(np.arange(n), rows, assume_unique=True)
    lost(left_out, "the prior has no value here: parameters of a distribution are impossible")
    good = np.ones(len(done), bool)
    for array in simulations:
        good &= ~np.isnan(array).any(axis=tuple(range(1, array.ndim)))
    lost(done[~good], "the simulation has nan")
    done, simulations = done[good], [s[good] for s in simulations]
    if len(done):
        try:
            distance[done] = _distances(measure, simulations, len(done))
        except Exception:  # find the rows that raise
            for k, i in enumerate(done.tolist()):
                try:
                    distance[i] = _distances(measure, [s[k : k + 1] for s in simulations], 1)[0]
                except NegativeDistance:
                    raise
                except Exception as error:
                    failures.append(Failure(i, "error", _told(error)))
    lost(np.flatnonzero(np.isnan(distance)), "the distance is nan")
    distance[np.isnan(distance)] = np.inf
    good = np.isfinite(distance[done])
    if summaries is not None and measure.summaries is not None and good.any():
        summaries[done[good]] = measure.summaries([s[good] for s in simulations])
    return Simulated(distance, sorted(failures), summaries)


def _distances(measure: Measure, simulations: list[np.ndarray], n: int) -> np.ndarray:
    distance = np.asarray(measure.distance(simulations), dtype=float)
    if distance.shape != (n,):
        raise ValueError(f"distances of shape {distance.shape} for {n} simulations")
    return distance


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _checked(found: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Return copies of simulations as floats after checking their shapes and types."""
    out = []
    for array, shape in zip(found, shapes, strict=True):
        array = np.asarray(array)
        check_simulation(array, tuple(shape))
        out.append(np.array(array, dtype=float))
    return out
