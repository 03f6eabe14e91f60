"""What rounding the data does to decisions, which audits on the same data do not see."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

__all__ = ["TOO_MUCH", "rounding_effect"]

#: Nats by which a decision's log ratio may be off. Between two independent draws of the posterior it
#: changes by as much if means move by a tenth of a standard deviation or less.
TOO_MUCH = 0.1


def rounding_effect(
    errors: Callable[[np.ndarray], np.ndarray | None],
    probes: Sequence[np.ndarray],
    n_units: int,
) -> float | None:
    """Nats by which rounding changes the log ratio of a decision, at most.

    Parameters
    ----------
    errors : callable
        ``points (2, E) -> (S,)``: what rounding adds to the change of the log-likelihood of each of
        S rows, a uniform sample, from points[0] to points[1]; None if nothing is rounded.
    probes : sequence of (2, E) arrays
        Moves of the size that decisions are about.
    n_units : int
        Rows N.

    Returns
    -------
    float or None
        The largest of the probes' N times mean error and twice its standard error; infinite if
        rounded rows are impossible where rows are not.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.samplers.rounding import rounding_effect
    >>> moves = [np.zeros((2, 1))]
    >>> print(rounding_effect(lambda points: np.full(100, 1e-6), moves, 20_000))
    0.02
    >>> print(rounding_effect(lambda points: None, moves, 20_000))
    None
    """
    largest = 0.0
    for points in probes:
        with np.errstate(all="ignore"):
            each = errors(points)
            if each is None:
                return None
            mean, spread = each.mean(), each.std() * np.sqrt(1.0 / each.size - 1.0 / n_units)
        bound = n_units * float(abs(mean) + 2.0 * spread)
        largest = max(largest, bound if np.isfinite(bound) else np.inf)
    return largest
