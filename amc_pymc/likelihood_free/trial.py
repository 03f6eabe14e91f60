"""Trial of a simulator before a run: whether it works and keeps what its user promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from scipy.stats import chi2, rankdata

from amc_pymc.likelihood_free.problem import Problem, Simulated
from amc_pymc.rng import as_generator

#: Maximum trials of a simulator before a run is refused, and number of points in a trial.
_TRIALS, _POINTS = 10, 3
#: Calls of a batched simulator that are compared; numbers of points that they share, and levels of significance.
_CALLS, _COMPARISONS = 5, ((8, 1e-2), (64, 1e-7))
#: Approximate number of summary statistics that are compared.
_COMPARED = 16


class Trial(NamedTuple):
    """What a trial of a simulator has shown.

    Attributes
    ----------
    numbers : array (k,)
        Distances and summary statistics, rounded to six digits to be the same on all machines.
    reproducible : bool
        Whether the same points and random numbers gave the same numbers again.
    simulations : int
        Number of simulations made.
    """

    numbers: np.ndarray
    reproducible: bool
    simulations: int


def try_simulator(problem: Problem, *, batched: bool = False) -> Trial:
    """Simulate at prior draws, always the same, until a distance is finite and, with batches, two rows succeed.

    All this is done twice with the same random numbers. With `batched`, five calls share some points and have other
    points and random numbers beside them. If rows are independent, the ranks of the calls at a point are in random
    order, however many random numbers a row takes (Friedman 1937). A few points raise a suspicion, many confirm it.

    Raises
    ------
    ValueError
        If ten trials fail, with the first failure; if a distance is negative; if rows of a batch depend on each other.
    """
    made = 0

    def simulate(u: np.ndarray, rng: np.random.Generator) -> Simulated:
        nonlocal made
        made += len(u)
        return problem.simulate(u, rng, batched=batched, summaries=True)

    first, again = (_first_numbers(simulate, problem.n_dim, batched) for _ in range(2))
    if batched:
        _check_rows(simulate, problem.n_dim)
    same = len(first) == len(again) and (np.isnan(first) | np.isnan(again) | (first == again)).all()
    return Trial(first, bool(same), made)


type _Simulate = Callable[[np.ndarray, np.random.Generator], Simulated]


def _first_numbers(simulate: _Simulate, n_dim: int, batched: bool) -> np.ndarray:
    """Return distances and summaries of trials up to the first that succeeds."""
    rng, told, numbers = as_generator(1), "", []
    for _ in range(_TRIALS):
        found = simulate(rng.random((_POINTS, n_dim)), rng)
        numbers += [found.distance, np.ravel(np.asarray(found.summaries))]
        # Rows that were simulated one by one do not show that batches can be simulated, nor does a single successful row.
        worked = _POINTS - len(found.failures) >= (2 if batched else 1) and not found.raised
        if worked and np.isfinite(found.distance).any():
            return np.array([float(f"{x:.6g}") for x in np.concatenate(numbers)])
        told = told or found.raised or next((f"{f.kind}: {f.message}" for f in found.failures), "")
    why = told or "all distances are infinite"
    hint = " It is called with batched=True." if batched else ""
    if "0-dimensional" in why:
        hint += (
            " As in PyMC, scalar parameters of pm.Simulator have an axis of length 1 for each axis of the data: "
            "replace int(x) by int(x.item())."
        )
    raise ValueError(
        f"the simulator gave no distance at {_TRIALS * _POINTS} draws from the prior; at the first: {why}.{hint}"
    )


def _check_rows(simulate: _Simulate, n_dim: int) -> None:
    """Raise a ValueError if rows of a batch depend on the other rows or on the call."""
    rng = as_generator(2)
    for n, level in _COMPARISONS:
        shared, calls = rng.random((n, n_dim)), list[np.ndarray]()
        for _ in range(_CALLS):
            others = np.full((2 * n, n_dim), (len(calls) + 0.5) / _CALLS)
            found = simulate(np.concatenate([shared, others]), rng)
            some = np.reshape(np.asarray(found.summaries), (3 * n, -1))
            some = some[:, :: max(1, some.shape[1] // _COMPARED)]
            calls.append(np.column_stack([found.distance, some])[:n])
        if _chance(np.array(calls)) > level:
            return
    raise ValueError(
        "batched=True needs rows that are independent of each other, but results of the same parameters change with "
        "the other rows of a call. Keep the first axis in all that is computed, for example mu[:, None] or "
        "x.mean(axis=-1), and draw random numbers for each row, or use batched=False."
    )


def _chance(values: np.ndarray) -> float:
    """Return the probability of calls (C, n, K) that differ as much in any of K columns if they are alike."""
    rank = rankdata(np.where(np.isnan(values), np.inf, values), axis=0)
    together = rankdata(rank.mean(axis=2, keepdims=True), axis=0)
    rank = np.concatenate([rank, together], axis=2) - 0.5 * (len(values) + 1)
    squares = np.maximum(np.square(rank).sum(axis=(0, 1)), 1e-300)
    statistic = (len(values) - 1) * np.square(rank.sum(axis=1)).sum(axis=0) / squares
    return float(rank.shape[2] * chi2.sf(statistic.max(), len(values) - 1))
