"""Which rows a second-order Taylor control variate leaves to be evaluated exactly.

The rows' log-likelihoods are expanded around a centre; the race samples what is left over, the
residuals. Where a few rows carry most of the residual sum, no batch that misses them knows their
spread: those rows are taken out of the race and evaluated at every decision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

__all__ = ["ResidualSummary", "choose_exact_rows", "summarise_residuals"]

EXACT_ROW_CHOICES = (0, 50, 200, 1000)


class ResidualSummary(NamedTuple):
    """Residuals r (natural log) of N rows over Q probe moves.

    ``scale`` (N,) float32 is each row's root mean square over the probes, ``totals`` (Q,) the
    sums over all rows, ``squares`` (Q,) the sums of squares.
    """

    scale: np.ndarray
    totals: np.ndarray
    squares: np.ndarray


def summarise_residuals(
    residuals: Callable, probes: list[np.ndarray], n_rows: int, chunk: int = 16_384
) -> ResidualSummary:
    """Pass once over all rows for each probe move.

    ``residuals(points, rows)`` returns (m,) residual changes for a probe's points (2, D).
    """
    square_sum = np.zeros(n_rows, dtype=np.float32)
    totals, squares = np.zeros(len(probes)), np.zeros(len(probes))
    for start in range(0, n_rows, chunk):
        rows = np.arange(start, min(start + chunk, n_rows))
        for q, points in enumerate(probes):
            r = residuals(points, rows)
            totals[q] += r.sum()
            squares[q] += np.square(r).sum()
            square_sum[start : start + rows.size] += np.square(r)
    return ResidualSummary(np.sqrt(square_sum / len(probes)), totals, squares)


def choose_exact_rows(
    summary: ResidualSummary, expected_rows: Callable, choices=EXACT_ROW_CHOICES
) -> np.ndarray:
    """Rows to take out of the race, so that a decision is expected to read the fewest rows.

    ``expected_rows(sd, n_raced)`` predicts the rows read by a race whose residuals have standard
    deviation ``sd`` per row.
    """
    n_rows = summary.scale.size
    choices = [n for n in choices if n <= n_rows // 10]
    order = np.argsort(summary.scale)[::-1][: max(choices)] if choices[1:] else np.empty(0, int)
    power = np.square(summary.scale, dtype=np.float64)
    total = power.sum()
    costs = []
    for n in choices:
        left = max(total - power[order[:n]].sum(), 0.0)
        costs.append(n + expected_rows(np.sqrt(left / (n_rows - n)), n_rows - n))
    best = choices[int(np.argmin(costs))]
    return np.sort(order[:best]).astype(np.int64)
