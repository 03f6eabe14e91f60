"""Choice of the rows that are evaluated exactly beside a second-order Taylor control variate.

The rows' log-likelihoods are expanded around a centre, and the race samples the residuals. If a few
rows dominate the residual sum, a batch without them underestimates the spread. Such rows are removed
from the race and evaluated at every decision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

__all__ = [
    "EXACT_ROW_CHOICES",
    "ResidualSummary",
    "choose_exact_rows",
    "most_near_kinks",
    "rows_near_kinks",
    "summarise_residuals",
]

EXACT_ROW_CHOICES = (0, 50, 200, 1000)
#: Standard deviation, in nats, of the estimated sum of the other residuals from as few rows as one, for rows with kinks.
_LEFT = 0.05


class ResidualSummary(NamedTuple):
    """Residuals r (natural log) of N rows over Q probe moves.

    ``largest`` (T,) are the rows with the largest root mean squares over the probes, in decreasing
    order; ``scale`` (T,) are these root mean squares. ``power`` is the sum of all rows' mean squares,
    ``totals`` (Q,) and ``squares`` (Q,) are sums over all rows of r and of r^2.
    """

    n_rows: int
    largest: np.ndarray
    scale: np.ndarray
    power: float
    totals: np.ndarray
    squares: np.ndarray


class _Largest:
    """The T largest values seen so far, with their rows."""

    def __init__(self, number: int):
        self._number = number
        self.values, self.rows = np.empty(0), np.empty(0, np.int64)

    def see(self, first: int, values: np.ndarray) -> None:
        """Process the values of rows ``first``, ``first + 1``, ..."""
        least = self.values[-1] if 0 < self._number == self.values.size else -np.inf
        kept = np.flatnonzero(values > least)
        if not kept.size:
            return
        values = np.concatenate([self.values, values[kept]])
        rows = np.concatenate([self.rows, first + kept])
        order = np.argsort(-values, kind="stable")[: self._number]
        self.values, self.rows = values[order], rows[order]


def summarise_residuals(
    residuals: Callable[[np.ndarray, np.ndarray], np.ndarray],
    probes: list[np.ndarray],
    n_rows: int,
    chunk: int = 16_384,
    *,
    n_largest: int = EXACT_ROW_CHOICES[-1],
) -> ResidualSummary:
    """Summarise residuals by one pass over all rows per probe move.

    ``residuals(points, rows)`` returns (m,) residual changes for a probe's points (2, D). Memory
    use does not depend on the number of rows.
    """
    totals, squares = np.zeros(len(probes)), np.zeros(len(probes))
    largest = _Largest(min(n_largest, n_rows))
    for start in range(0, n_rows, chunk):
        rows = np.arange(start, min(start + chunk, n_rows))
        power = np.zeros(rows.size)
        for q, points in enumerate(probes):
            r = residuals(points, rows)
            totals[q] += r.sum()
            squares[q] += np.square(r).sum()
            power += np.square(r) / len(probes)
        largest.see(start, power)
    whole = float(squares.sum() / len(probes))
    scale = np.sqrt(largest.values)
    return ResidualSummary(n_rows, largest.rows, scale, whole, totals, squares)


def choose_exact_rows(
    summary: ResidualSummary,
    expected_rows: Callable[[float, int], float],
    choices: Sequence[int] = EXACT_ROW_CHOICES,
) -> np.ndarray:
    """Choose the exactly evaluated rows that minimise the expected rows read per decision.

    ``expected_rows(sd, n_raced)`` predicts the rows read by a race whose residuals have standard
    deviation ``sd`` per row.
    """
    n_rows = summary.n_rows
    choices = [n for n in choices if n <= min(n_rows // 10, summary.largest.size)] or [0]
    taken = np.append(0.0, np.cumsum(np.square(summary.scale)))
    costs = []
    for n in choices:
        left = max(summary.power - taken[n], 0.0)
        costs.append(n + expected_rows(np.sqrt(left / (n_rows - n)), n_rows - n))
    best = choices[int(np.argmin(costs))]
    return np.sort(summary.largest[:best])


def most_near_kinks(n_rows: int) -> int:
    """Return the largest number of rows that :func:`rows_near_kinks` may choose."""
    return min(n_rows // 4, 2**17)


def rows_near_kinks(summary: ResidualSummary) -> np.ndarray:
    """Return the rows to evaluate exactly if log-likelihoods have kinks.

    Only rows whose kinks lie between the two points of a move have residuals that are not about zero. Batches miss
    these rows, whose number grows with the square root of the number of rows. They are the same for all moves.
    """
    n_rows, number = summary.n_rows, summary.largest.size
    left = summary.power - np.append(0.0, np.cumsum(np.square(summary.scale)))
    sd = np.sqrt(np.maximum(left, 0.0) / np.maximum(1, n_rows - np.arange(number + 1)))
    enough = np.flatnonzero(n_rows * sd <= _LEFT)
    return np.sort(summary.largest[: enough[0] if enough.size else number])
