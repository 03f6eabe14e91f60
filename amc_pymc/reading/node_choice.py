"""Number of quadrature nodes over local effects, and whether races use fewer, fixed nodes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from amc_pymc.reading.group_densities import GroupDensities
from amc_pymc.rng import as_generator

__all__ = ["HELD_TOLERANCE", "NODES", "TOLERANCE", "choose_nodes"]

#: Numbers of nodes along each axis that are tried, by the number of effects. One node would suffice for Gaussian
#: groups, but their second derivatives by log standard deviations are fourth moments, which need three.
NODES = {1: (3, 5, 7, 11, 15, 21), 2: (3, 5, 7, 11), 3: (3, 5, 7)}
#: Numbers of fixed nodes along each axis that races may use, by the number of effects.
_HELD = {1: (2, 3, 5, 7), 2: (2, 3, 5), 3: (2, 3)}
#: Largest standard deviation of the quadrature error over points of a posterior, in nats.
TOLERANCE = 0.03
#: Number of rows on which the quadrature error is measured.
_SAMPLE = 200_000
#: Conditions for fixed nodes in races: smallest number of groups (with few groups, a standard
#: deviation varies widely), largest relative cost of a decision, and bound on its error, in nats.
_MANY_GROUPS, _CHEAPER, HELD_TOLERANCE = 250, 0.85, 0.1
#: Simulation of the cost of decisions: groups in the first batch, half-width in standard errors,
#: largest distance of a log ratio from its threshold, pairs of points, decisions per pair, and
#: factor by which distances of points from the centre are shrunk.
_FIRST_BATCH, _HALF_WIDTH, _FARTHEST, _PAIRS, _TRIALS, _NEARER = 20, 2.6, 2.0, 8, 40, 2 / 3
_SEED = 20161


def choose_nodes(
    densities: GroupDensities, points: Sequence[np.ndarray], rng: np.random.Generator
) -> float:
    """Set the smallest number of nodes whose error hardly varies over points of the posterior.

    A constant error of the log-likelihood does not affect a sampler. If no number is accurate enough,
    the largest is set.

    Parameters
    ----------
    densities : GroupDensities
        Densities whose nodes are set; ``settle`` must be called again.
    points : sequence of (D,) arrays
        The first is the centre of control variates.
    rng : numpy.random.Generator
        Draws a sample of the groups.

    Returns
    -------
    float
        Standard deviation over the points of the error of moved (not fixed) nodes, in nats, for the
        smallest number that is accurate enough. If it is not below ``TOLERANCE``, no number is, and it
        is the error of the largest, compared with twice as many nodes.
    """
    if densities.discrete:
        return 0.0
    n_units = densities.n_units
    number = max(1, int(min(1.0, _SAMPLE / max(1, densities.n_rows)) * n_units))
    some = np.sort(rng.choice(n_units, size=number, replace=False))
    choices = NODES[densities.groups.program.n_local]
    best, error = _totals(densities, choices[-1], points, some), np.inf
    for k in choices[:-1]:
        error = float(np.std(_totals(densities, k, points, some) - best))
        if error < TOLERANCE:
            break
    else:
        densities.set_nodes(choices[-1])
        error = _error_of_most(densities, points, some)
    enough = [k for k in choices if k >= densities.n_nodes]
    _choose_held(densities, enough, points, some, best - best[0])
    densities.forget_centre()
    return error


def _totals(densities: GroupDensities, number: int, points, some: np.ndarray) -> np.ndarray:
    """Set the number of nodes, and estimate the total log-likelihood at points from some groups."""
    densities.set_nodes(number)
    densities.rows_evaluated += some.size * len(points) * len(densities.nodes.log_weights)
    scale = densities.n_units / some.size
    return scale * np.array([densities.values(x, some).sum() for x in points])


def _error_of_most(densities: GroupDensities, points, some: np.ndarray) -> float:
    """Estimate the error of the nodes in use, compared with twice as many.

    It is measured on some of the groups, few enough that the work is that of a smaller number of nodes.
    """
    factor = len(densities.finer.log_weights) / len(densities.nodes.log_weights)
    most = _SAMPLE / factor * densities.n_units / max(1, densities.n_rows)
    few = some[:: max(1, int(np.ceil(some.size / max(1.0, most))))]
    densities.rows_evaluated += int(few.size * len(points) * len(densities.finer.log_weights))
    changes = [
        (densities.values(x, few, densities.finer) - densities.values(x, few)).sum() for x in points
    ]
    return float(densities.n_units / few.size * np.std(changes))


def _choose_held(
    densities: GroupDensities, choices: Sequence[int], points, some: np.ndarray, changes: np.ndarray
) -> None:
    """Let races use fixed nodes if this makes them cheaper and is accurate enough.

    ``choices`` are candidate numbers of moved nodes, the first of which is accurate enough by
    itself; ``changes`` are those of the log-likelihood from the first point.
    """
    if densities.n_units < _MANY_GROUPS:
        return
    centre, scale = points[0], densities.n_units / some.size
    expanded = {}
    for number in choices[:3]:
        densities.set_nodes(number)
        densities.settle(centre, some)
        surrogate = centre, *densities.expansion(centre, some)
        expanded[number] = [densities.expanded_change(centre, x, surrogate) for x in points]
    densities.set_nodes(choices[0])
    most = _CHEAPER * _decision_cost(densities, points, some)
    for held in _HELD[densities.groups.program.n_local]:
        densities.hold_nodes(held)
        if _decision_cost(densities, points, some) > most:
            continue
        rest = [densities.raced(centre, x, centre, some).sum() for x in points]
        for number, known in expanded.items():
            if np.ptp(scale * (np.array(known) + rest) - changes) < HELD_TOLERANCE:
                densities.set_nodes(number)
                densities.hold_nodes(held)
                return
    densities.hold_nodes(None)


def _decision_cost(densities: GroupDensities, points, some: np.ndarray) -> float:
    """Estimate the cost of a decision, in log-likelihoods of one row, where chains will be.

    Chains are nearer to the centre than the points, which serve to measure errors.
    """
    rng, centre = as_generator(_SEED), points[0]
    near = [centre + _NEARER * (x - centre) for x in points[1 : _PAIRS + 2]]
    residuals = [densities.raced(x, y, centre, some) for x, y in pairwise(near)]
    n_units = densities.n_units
    needed = [_groups_needed(r, n_units, rng) for r in residuals for _ in range(_TRIALS)]
    return float(np.mean(needed) * densities.race_cost)


def _groups_needed(residuals: np.ndarray, n_units: int, rng: np.random.Generator) -> int:
    """Simulate how many of ``n_units`` groups a race reads, given residuals (m,) of a sample.

    The distance of the log ratio from its threshold is uniform. A batch decides if its half-width
    is smaller and no group contributes more than half of the sum of squares.
    """
    distance, size = _FARTHEST * rng.random(), _FIRST_BATCH
    order = rng.permutation(residuals.size)
    while size < residuals.size:
        batch = residuals[order[:size]]
        squares = (batch - batch.mean()) ** 2
        width = _HALF_WIDTH * n_units * np.sqrt(squares.mean() / size)
        if width < distance and squares.max() <= 0.5 * squares.sum():
            return size
        size *= 2
    return n_units
