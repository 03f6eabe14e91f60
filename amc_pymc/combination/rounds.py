"""Rounds of draws: their budgets, fixed before the first one, and their decisions and results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from amc_pymc.bandits import Pulls

__all__ = ["Fold", "Plan", "Round", "plan_rounds"]


@dataclass(frozen=True)
class Plan:
    """Budgets of rounds.

    Attributes
    ----------
    sizes : tuple of float (R,)
        Budget of each round, in `unit`.
    unit : {"draws", "cost"}
    """

    sizes: tuple[float, ...]
    unit: Literal["draws", "cost"]


def plan_rounds(
    total: float, first: float, unit: Literal["draws", "cost"], rounds: Literal["doubling"] | float
) -> Plan:
    """Plan a first round, then rounds that double or that all have the same size.

    The last round of a doubling plan takes the rest, at least a third of the budget.

    Parameters
    ----------
    total : float
        Whole budget.
    first : float
        Budget of the first round, at most `total`.
    unit : {"draws", "cost"}
    rounds : "doubling" or float
        A number is the budget of every round after the first.

    Examples
    --------
    >>> from amc_pymc.combination.rounds import plan_rounds
    >>> plan_rounds(100, 12, "draws", "doubling").sizes
    (12, 24, 64)
    """
    sizes, left = [first], total - first
    size = 2 * first if rounds == "doubling" else rounds
    while left > 0:
        if (rounds == "doubling" and left < 2 * size) or size > left:
            size = left
        sizes.append(size)
        left -= size
        if rounds == "doubling":
            size *= 2
    return Plan(tuple(sizes), unit)


@dataclass(frozen=True)
class Fold:
    """Part of a round's draws, with weights that do not depend on their values.

    Attributes
    ----------
    weight : float
        Weight lambda of the fold in the estimate.
    arm_weights : array (K,)
        Weights v of the arms, zero without draws; they sum to one.
    means : array (K,)
        Means of the arms over exp(offset), adjusted by their controls; zero without draws.
    drawn : array of int (K,)
    offset : float
    """

    weight: float
    arm_weights: np.ndarray
    means: np.ndarray
    drawn: np.ndarray
    offset: float


@dataclass
class Round:
    """One round: decisions made before it, and its results.

    Attributes
    ----------
    number : int
    pulls : Pulls
        Decisions of the policy; each makes one or more draws.
    counts : array of int (K,)
        Draws of each arm.
    last : bool
        Whether the round takes all the remaining weight.
    folds : list of Fold
    cost : float
    planned : float
        Cost that was expected.
    alone : bool
        Whether the round takes the weight of earlier ones once it is complete.
    """

    number: int
    pulls: Pulls
    counts: np.ndarray
    last: bool
    folds: list[Fold] = field(default_factory=list)
    cost: float = 0.0
    planned: float = 0.0
    alone: bool = False

    @property
    def weight(self) -> float:
        """Weight of the round in the estimate."""
        return sum(f.weight for f in self.folds)

    @property
    def arm_weights(self) -> np.ndarray:
        """Shares (K,) of the arms in the round's weight."""
        total = self.weight
        if total == 0.0:
            return np.zeros(self.counts.size)
        return sum(f.weight / total * f.arm_weights for f in self.folds)  # type: ignore[return-value]
