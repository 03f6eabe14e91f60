"""Baseline policies that do not learn: random choice, round robin, fixed arm."""

from __future__ import annotations

import operator

from typing import Self

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.bandits.policy import Policy
from amc_pymc.bandits.rewards import PENDING, TOLD, RewardScale
from amc_pymc.engine.jit import njit

__all__ = ["FixedArm", "RandomChoice", "RoundRobin"]


class RandomChoice(Policy):
    """Policy that pulls all arms with equal probability.

    Parameters
    ----------
    n_arms : int
        Number of arms K.
    rewards : tuple (low, high) or RewardScale, default (0.0, 1.0)
        Range of rewards.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.bandits import RandomChoice
    >>> pulls = RandomChoice(3).ask(np.random.default_rng(1), 300)
    >>> bool(pulls.counts(3).min() > 80)
    True
    """

    name = "random"

    def index(self) -> np.ndarray:
        """Return zeros, (K,), because no arm is preferred."""
        return np.zeros(self.n_arms)

    def _choose(self, rng: np.random.Generator) -> int:
        return int(rng.random() * self.n_arms)

    def _choose_many(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return (rng.random(n) * self.n_arms).astype(np.int64)


@njit(cache=True)
def in_turn(table: np.ndarray, n: int) -> np.ndarray:
    """Choose the arms of the next n pulls, each the first with the fewest pulls."""
    pulls = table[TOLD] + table[PENDING]
    arms = np.empty(n, np.int64)
    for i in range(n):
        arms[i] = np.argmin(pulls)
        pulls[arms[i]] += 1.0
    return arms


class RoundRobin(Policy):
    """Policy that pulls the first arm with the fewest pulls, including pending ones.

    Parameters
    ----------
    n_arms : int
        Number of arms K.
    rewards : tuple (low, high) or RewardScale, default (0.0, 1.0)
        Range of rewards.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.bandits import RoundRobin
    >>> RoundRobin(3).ask(np.random.default_rng(1), 5).arms
    array([0, 1, 2, 0, 1])
    """

    name = "round_robin"

    def index(self) -> np.ndarray:
        """Return minus the number of pulls, told and pending, (K,)."""
        return -(self._table[TOLD] + self._table[PENDING])

    def _choose(self, rng: np.random.Generator) -> int:
        return int(in_turn(self._table, 1)[0])

    def _choose_many(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return in_turn(self._table, n)


class FixedArm(Policy):
    """Policy that always pulls the same arm, or the first one it may if this one is excluded.

    Parameters
    ----------
    n_arms : int
        Number of arms K.
    arm : int, default 0
        Arm to pull, from 0 to K - 1.
    rewards : tuple (low, high) or RewardScale, default (0.0, 1.0)
        Range of rewards.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.bandits import FixedArm
    >>> FixedArm(3, arm=2).ask(np.random.default_rng(1)).arm
    2
    """

    name = "fixed"

    def __init__(
        self,
        n_arms: int,
        *,
        arm: int = 0,
        rewards: RewardScale | tuple[ArrayLike, ArrayLike] = (0.0, 1.0),
    ):
        super().__init__(n_arms, rewards=rewards)
        self._arm = operator.index(arm)
        if not 0 <= self._arm < self.n_arms:
            raise ValueError(f"arm must be from 0 to {self.n_arms - 1}, got {arm!r}.")

    def _only(self, arms: list[int]) -> Self:
        part = super()._only(arms)
        part._arm = arms.index(self._arm) if self._arm in arms else 0
        return part

    def index(self) -> np.ndarray:
        """Return one for the fixed arm and zero for all others, (K,)."""
        return (np.arange(self.n_arms) == self._arm).astype(float)

    def _choose(self, rng: np.random.Generator) -> int:
        return self._arm

    def _choose_many(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return np.full(n, self._arm)
