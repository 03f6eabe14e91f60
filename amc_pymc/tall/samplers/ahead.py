"""Draws made in batches by a compiled loop and returned one at a time.

Entering a compiled loop takes longer than a transition. A chain that is neither tuned nor moved by another
step may therefore run ahead of the caller. The draws are the same as if made one at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Ahead"]

#: Maximum number of draws in a batch.
_DRAWS = 64


class Ahead:
    """A batch of draws with their counts.

    Parameters
    ----------
    points : (B, D) array
        Points reached.
    counts : NamedTuple of (B, ...) arrays
        Counts of each draw.
    units : float
        Units read by all draws.
    """

    def __init__(self, points: np.ndarray, counts: Any, units: float):
        self.points, self.units = points, units
        # A list is faster to create than a view of a row, and is read in the same way.
        self.counts = [type(counts)(*each) for each in zip(*(part.tolist() for part in counts))]
        self.handed_out = 0

    def next(self) -> tuple[np.ndarray, Any]:
        """Return point (D,) and counts (lists of numbers) of the next draw."""
        k = self.handed_out
        self.handed_out += 1
        return self.points[k].copy(), self.counts[k]

    def continues(self, x: np.ndarray) -> bool:
        """Whether draws are left and the next one starts at x (D,)."""
        return self.handed_out < len(self.points) and self.ends_at(x)

    def ends_at(self, x: np.ndarray) -> bool:
        """Whether x (D,) is the point of the last draw returned."""
        return self.points[self.handed_out - 1].tobytes() == x.tobytes()

    def following(self, x: np.ndarray, units: int, most: int) -> int:
        """Return the number of draws in the next batch from x (D,), at most ``most``.

        The size doubles while a batch is expected to read at most ``units`` units. It is one if the
        caller has moved the chain, for example by rounding x, because draws made ahead are then lost.
        """
        if not self.ends_at(x):
            return 1
        made = len(self.points)
        affordable = int(units * made / max(self.units, 1.0))
        return max(1, min(2 * made, affordable, _DRAWS, most))
