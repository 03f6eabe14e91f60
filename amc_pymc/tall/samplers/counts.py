"""Counters of the compiled loops, and the statistics computed from them.

Counters are arrays that the loops add to: one entry per kind of proposal (K,), or one (1,).
:mod:`amc_pymc.results.tables` declares the statistics returned by ``report`` and ``stats``.
"""

from __future__ import annotations

import math

from typing import NamedTuple

import numpy as np

__all__ = ["GibbsCounts", "MetropolisCounts", "add_counts"]


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
