"""How much of a budget each round may spend, fixed before the first."""

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
        Budget of each round, in units.
    unit : {"draws", "cost"}
    """

    sizes: tuple[float, ...]
    unit: Literal["draws", "cost"]


def plan_rounds(
    total: float, first: float, unit: Literal["draws", "cost"], rounds: Literal["doubling"] | int
) -> Plan:
    """A first round, then rounds that double, or that all have the same number of draws.

    The last round of a doubling plan takes what is left, a third of the budget or more.

    Parameters
    ----------
    total : float
        Whole budget.
    first : float
        Of the first round, at most `total`.
    unit : {"draws", "cost"}
    rounds : "doubling" or int
        Number of draws of every round after the first.

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
