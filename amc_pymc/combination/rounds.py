"""Budgets of rounds, fixed before the first round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Plan", "plan_rounds"]


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
    total: float, first: float, unit: Literal["draws", "cost"], rounds: Literal["doubling"] | int
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
    rounds : "doubling" or int
        An int is the budget of every round after the first.

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
