"""Logs of decisions, written by compiled loops and read by audits.

Each log is a uniform sample of C of the decisions made since the last audit (reservoir sampling);
``seen`` (1,) counts all of them. A log without room (C = 0) is not written to.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from amc_pymc.engine.jit import fill, njit
from amc_pymc.engine.records import record

__all__ = ["IndexLog", "MoveLog", "StateLog", "log_move", "reservoir_slot", "without_room"]


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
