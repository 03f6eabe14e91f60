"""Draws that a compiled loop makes at one go, and hands out one by one.

To enter a compiled loop takes longer than a transition. A chain that is not tuned and that nothing else
moves may therefore run ahead of the caller. Its draws are those that it would have made one at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Ahead"]

#: Draws that are made at one go, at most.
_DRAWS = 64


class Ahead:
    """Draws with their counts.

    Parameters
    ----------
    points : (B, D) array
        Points reached.
    counts : NamedTuple of (B, ...) arrays
        What each draw counts.
    units : float
        Units read by all draws.
    """

    def __init__(self, points: np.ndarray, counts: Any, units: float):
        self.points, self.units = points, units
        # A list is quicker to make than a view of a row, and does the same to those who read it.
        self.counts = [type(counts)(*each) for each in zip(*(part.tolist() for part in counts))]
        self.handed_out = 0

    def next(self) -> tuple[np.ndarray, Any]:
        """Point (D,) and counts of the next draw, which are lists of numbers."""
        k = self.handed_out
        self.handed_out += 1
        return self.points[k].copy(), self.counts[k]

    def continues(self, x: np.ndarray) -> bool:
        """Whether there are draws left, and the next one begins at x (D,)."""
        return self.handed_out < len(self.points) and self.ends_at(x)

    def ends_at(self, x: np.ndarray) -> bool:
        """Whether x (D,) is the point of the draw that has been handed out last."""
        return self.points[self.handed_out - 1].tobytes() == x.tobytes()

    def following(self, x: np.ndarray, units: int, most: int) -> int:
        """How many draws to make from x (D,) when these are over, ``most`` at most.

        Twice as many, as long as they will hardly read more than ``units``. One where the caller has
        moved the chain, as a caller does whose numbers have fewer digits, since what had been made
        is lost.
        """
        if not self.ends_at(x):
            return 1
        made = len(self.points)
        affordable = int(units * made / max(self.units, 1.0))
        return max(1, min(2 * made, affordable, _DRAWS, most))
