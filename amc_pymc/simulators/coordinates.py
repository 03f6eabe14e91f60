"""Relations between the coordinates of the unit cube and the parameters of a simulator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from amc_pymc.rng import as_generator
from amc_pymc.simulators.problem import Problem, labels

__all__ = ["are_quantiles", "are_whole", "in_cube_order", "part_of_atom"]

#: Number of points that test whether coordinates are quantiles of single parameters.
_TRIED = 32
#: Number of bisections that find the ends of an atom of the prior.
_HALVINGS = 60


def part_of_atom(problem: Problem, u: np.ndarray) -> np.ndarray:
    """Return the share (n, D) below points (n, D) of the interval with the same value, an atom of the prior."""
    theta = in_cube_order(problem, u)
    twice = np.concatenate([theta, theta])
    strict = np.arange(len(twice)) >= len(u)

    def reached(points: np.ndarray) -> np.ndarray:
        found = in_cube_order(problem, points)
        return np.where(strict[:, None], found > twice, found >= twice)

    lower, upper = np.concatenate([np.zeros_like(u), u]), np.concatenate([u, np.ones_like(u)])
    begin, end = np.split(_first(reached, lower, upper), 2)
    width = end - begin
    part: np.ndarray = np.divide(u - begin, width, out=np.zeros_like(u), where=width > 0.0)
    return part


def _first(
    true_from: Callable[[np.ndarray], np.ndarray], lower: np.ndarray, upper: np.ndarray
) -> np.ndarray:
    """Return where a condition becomes true between points (n, D), element by element; `upper` if it does not."""
    for _ in range(_HALVINGS):
        middle = 0.5 * (lower + upper)
        found = true_from(middle)
        lower, upper = np.where(found, lower, middle), np.where(found, middle, upper)
    return upper


def are_whole(problem: Problem) -> np.ndarray:
    """Return which coordinates (D,) belong to whole numbers."""
    values = problem.parameters(np.full((1, problem.n_dim), 0.5))
    whole = {
        label: value.dtype.kind in "biu"
        for name, value in values.items()
        for label in labels(name, value.shape[1:])
    }
    return np.array([whole[c] for c in problem.coordinates])


def in_cube_order(problem: Problem, u: np.ndarray) -> np.ndarray:
    """Return parameters (n, D) at points (n, D), that of coordinate d in column d."""
    columns = {
        label: column
        for name, value in problem.parameters(u).items()
        for label, column in zip(
            labels(name, value.shape[1:]), value.reshape(len(u), -1).T, strict=True
        )
    }
    return np.stack([columns[c].astype(float) for c in problem.coordinates], axis=1)


def are_quantiles(problem: Problem) -> bool:
    """Whether each coordinate alone determines one parameter, which does not decrease with it."""
    rng = as_generator(0)
    elements = [c for name, shape in problem.shapes.items() for c in labels(name, shape)]
    if sorted(elements) != sorted(problem.coordinates):
        return False
    u = np.sort(rng.random((_TRIED, problem.n_dim)), axis=0)
    if problem.log_density(u) is not None:
        return False
    theta = in_cube_order(problem, u)
    if not (np.diff(theta, axis=0) >= 0.0).all():
        return False
    for d in range(problem.n_dim):
        other = rng.random(u.shape)
        other[:, d] = u[:, d]
        if not np.array_equal(in_cube_order(problem, other)[:, d], theta[:, d]):
            return False
    return True
