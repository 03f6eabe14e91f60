"""Effect of rounded data on decisions, which audits on the same data cannot detect."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

__all__ = ["TOO_MUCH", "rounding_effect"]

#: Maximum error of a decision's log ratio, in nats. The log ratio of two independent posterior
#: draws changes by this much if means shift by at most a tenth of a standard deviation.
TOO_MUCH = 0.1


def rounding_effect(
    errors: Callable[[np.ndarray], np.ndarray | None],
    probes: Sequence[np.ndarray],
    n_units: int,
) -> float | None:
    """Bound the effect of rounding on the log ratio of a decision, in nats.

    Parameters
    ----------
    errors : callable
        ``points (2, E) -> (S,)``: rounding errors in the change of the log-likelihood from points[0]
        to points[1], for a uniform sample of S rows; None if nothing is rounded.
    probes : sequence of (2, E) arrays
        Moves of typical size.
    n_units : int
        Number N of rows.

    Returns
    -------
    float or None
        N times the absolute mean error plus two standard errors, the largest value over the probes;
        infinite if rounded rows are impossible where the original rows are not.

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
