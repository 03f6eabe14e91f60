"""What the compiled loops write: counts of a draw, logs of decisions for audits, and batches of draws."""

from __future__ import annotations

import math

from typing import Any, NamedTuple

import numpy as np

from amc_pymc.engine.jit import fill, njit
from amc_pymc.engine.records import record

__all__ = [
    "Ahead",
    "GibbsCounts",
    "IndexLog",
    "MetropolisCounts",
    "MoveLog",
    "StateLog",
    "add_counts",
    "log_move",
    "reservoir_slot",
    "without_room",
]

#: Maximum number of draws in a batch.
_DRAWS = 64


# --- counts ---------------------------------------------------------------------------------------
# Arrays that the loops add to: one entry per kind of proposal (K,), or one (1,). `amc_pymc.results.tables` declares the
# statistics that `stats` returns.


class MetropolisCounts(NamedTuple):
    """Counts of Metropolis-Hastings transitions.

    By kind: proposals (``tries``), those ``accepted``, sums of estimated acceptance probabilities
    (``acceptance``) and of squared jumps in standard deviations (``jumps``). Over all kinds: ``raced``
    units read, ``rounds`` of races, ``other`` units read, ``unsure`` decisions, which may be wrong.
    """

    tries: np.ndarray
    accepted: np.ndarray
    acceptance: np.ndarray
    jumps: np.ndarray
    raced: np.ndarray
    rounds: np.ndarray
    other: np.ndarray
    unsure: np.ndarray

    @classmethod
    def zeros(cls, n_kinds: int, *draws: int) -> MetropolisCounts:
        """Return zero counts of one draw, or of B draws: arrays (B, K) and (B, 1)."""
        return cls(*np.zeros((4, *draws, n_kinds)), *np.zeros((4, *draws, 1)))

    def stats(self) -> dict[str, float]:
        """Return the statistics of one draw."""
        tries = float(sum(self.tries)) or math.nan
        return {
            "accept": float(sum(self.acceptance)) / tries,
            "accepted": float(sum(self.accepted)) / tries,
            "race_rows": float(self.raced[0] + self.other[0]),
            "race_rounds": float(self.rounds[0]),
            "race_exact": float(self.unsure[0] == 0.0),
        }


class GibbsCounts(NamedTuple):
    """Counts of draws of discrete elements.

    Elements ``drawn`` and ``changed``, ``races`` and their ``rounds``, ``raced`` and ``other`` units
    read, ``arms_left`` after the first round, and ``rewards``, evaluations of one unit in one state.
    All are (1,).
    """

    drawn: np.ndarray
    changed: np.ndarray
    races: np.ndarray
    rounds: np.ndarray
    raced: np.ndarray
    other: np.ndarray
    arms_left: np.ndarray
    rewards: np.ndarray

    @classmethod
    def zeros(cls) -> GibbsCounts:
        """Return zero counts."""
        return cls(*np.zeros((8, 1)))

    def stats(self) -> dict[str, float]:
        """Return the statistics of one draw."""
        races = self.races[0]
        return {
            "race_rows": float(self.raced[0] + self.other[0]),
            "race_rounds": float(self.rounds[0]),
            "race_moved": float(self.changed[0] / max(1.0, self.drawn[0])),
            "race_arms_left": float(self.arms_left[0] / races) if races else 1.0,
        }


def add_counts(total: tuple[np.ndarray, ...], counts: tuple[np.ndarray, ...]) -> None:
    """Add counts to others of the same kind, in place."""
    for mine, new in zip(total, counts):
        mine += new


# --- logs -----------------------------------------------------------------------------------------
# Each log is a uniform sample of C of the decisions made since the last audit (reservoir sampling); `seen` (1,) counts
# all of them. A log without room (C = 0) is not written to.


@record
class MoveLog(NamedTuple):
    """Moves from ``x`` (C, D) to ``x_new`` (C, D).

    ``known`` (C,) is the log ratio without the units minus its threshold, ``accepted`` (C,) the
    verdict, ``read`` (C,) the number of raced units read.
    """

    x: np.ndarray
    x_new: np.ndarray
    known: np.ndarray
    accepted: np.ndarray
    read: np.ndarray
    seen: np.ndarray

    @classmethod
    def empty(cls, capacity: int, size: int) -> MoveLog:
        """Return a log for ``capacity`` moves of D = ``size`` coordinates."""
        x, x_new = np.zeros((capacity, size)), np.zeros((capacity, size))
        known, accepted, read = np.zeros((3, capacity))
        return cls(x, x_new, known, accepted, read, np.zeros(1, np.int64))


@record
class StateLog(NamedTuple):
    """States drawn for discrete elements.

    ``x`` (C, D) holds the points, ``noise`` (C, K) the Gumbel noise, ``element`` (C,) the element
    drawn, ``winner`` (C,) the position of its state, ``read`` (C,) the mean number of raced units
    read per state.
    """

    x: np.ndarray
    noise: np.ndarray
    element: np.ndarray
    winner: np.ndarray
    read: np.ndarray
    seen: np.ndarray

    @classmethod
    def empty(cls, capacity: int, size: int, most_states: int) -> StateLog:
        """Return a log for ``capacity`` draws at points of D = ``size`` coordinates."""
        points, noise = np.zeros((capacity, size)), np.zeros((capacity, most_states))
        element, winner = np.zeros((2, capacity), np.int64)
        return cls(points, noise, element, winner, np.zeros(capacity), np.zeros(1, np.int64))


@record
class IndexLog(NamedTuple):
    """Models drawn for the index of a product space.

    ``x`` (C, M, 1 + D) holds the points, ``scores`` (C, M) the models' scores without the units,
    ``model`` (C,) the model drawn, ``read`` (C,) the number of raced units read.
    """

    x: np.ndarray
    scores: np.ndarray
    model: np.ndarray
    read: np.ndarray
    seen: np.ndarray

    @classmethod
    def empty(cls, capacity: int, n_models: int, size: int) -> IndexLog:
        """Return a log for ``capacity`` draws of models with at most D = ``size`` parameters."""
        points, scores = np.zeros((capacity, n_models, 1 + size)), np.zeros((capacity, n_models))
        model, read = np.zeros((2, capacity), np.int64)
        return cls(points, scores, model, read, np.zeros(1, np.int64))


def without_room[L: (MoveLog, StateLog, IndexLog)](log: L) -> L:
    """Return the log without room for entries."""
    return log._replace(x=log.x[:0])


@njit(cache=True)
def reservoir_slot(seen: np.ndarray, size: int, rng: np.random.Generator) -> int | np.int64:
    """Return the slot of the next decision in a uniform sample; skip it if not below ``size``."""
    k = seen[0]
    seen[0] += 1
    return k if k < size else np.int64(rng.random() * (k + 1))


@njit(cache=True)
def log_move(
    log: MoveLog,
    points: np.ndarray,
    known: float,
    accepted: bool,
    read: float,
    rng: np.random.Generator,
) -> None:
    """Log a move from points[0] to points[1], unless the log has no room."""
    size = log.x.shape[0]
    if size == 0:
        return
    slot = reservoir_slot(log.seen, size, rng)
    if slot < size:
        fill(log.x[slot], points[0])
        fill(log.x_new[slot], points[1])
        log.known[slot] = known
        log.accepted[slot] = accepted
        log.read[slot] = read


# --- batches --------------------------------------------------------------------------------------
# Entering a compiled loop takes longer than a transition. A chain that is neither tuned nor moved by another step may
# therefore run ahead of the caller. The draws are the same as if made one at a time.


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
