"""Scales of rewards: policies work on [0, 1], rewards come as they are.

Statistics are kept on the scale of the rewards; only an index is computed on [0, 1] and mapped back
to the arm's own range, so that a range may differ between arms and may grow.
"""

from __future__ import annotations

import math
import warnings

from typing import Protocol

import numpy as np

from numpy.typing import ArrayLike

__all__ = ["KnownRange", "LogLoss", "RewardScale", "RunningRange", "as_reward_scale"]

#: Rows of a policy's table of statistics, shape (rows, K): pulls told, pulls asked for and not yet
#: told, mean and sum of squared deviations of rewards, and the range of rewards (low end, width).
TOLD, PENDING, MEAN, SQUARES, LOW, WIDTH = range(6)
N_ROWS = 6


class RewardScale(Protocol):
    """How rewards relate to [0, 1]."""

    def begin(self, table: np.ndarray) -> None:
        """Enter the ranges known in advance into the policy's table."""

    def usable(self, reward: float) -> bool:
        """Whether a reward may be told."""

    def convert(self, table: np.ndarray, arm: int, reward: float) -> float:
        """The reward as the policy keeps it; ranges in the table are adapted where they move."""

    def state(self) -> dict:
        """Everything that :meth:`restore` needs."""

    def restore(self, state: dict) -> None:
        """Go back to a saved state."""


class KnownRange:
    r"""Rewards lie in a known interval, the same for all arms or one for each.

    The closer the range the better: bounds scale with it. For the squared-sample reduction of Neufeld
    et al. (2014, appendix B) with values in [a_k, b_k], rewards :math:`-(X - a_{\min})^2` lie in
    :math:`[-(b_k - a_{\min})^2, 0]`.

    Parameters
    ----------
    low, high : float or array_like (K,)
        Ends of the range, ``low < high``. A reward outside is moved to the nearer end; that is
        counted in ``clipped`` and warned about the first time.

    Examples
    --------
    >>> from amc_pymc.bandits import UCB1, KnownRange
    >>> policy = UCB1(2, rewards=KnownRange([-1.0, -25.0], 0.0))
    """

    def __init__(self, low: ArrayLike, high: ArrayLike):
        ends = np.broadcast_arrays(np.asarray(low, float), np.asarray(high, float))
        if ends[0].ndim > 1:
            raise ValueError(
                f"low and high must be numbers or one per arm, got shape {ends[0].shape}."
            )
        if not (np.isfinite(ends[0]).all() and np.isfinite(ends[1]).all()):
            raise ValueError(f"low and high must be finite, got {low!r} and {high!r}.")
        if not (ends[0] < ends[1]).all():
            raise ValueError(f"low must be less than high, got {low!r} and {high!r}.")
        self._low, self._high = ends
        self._ends: list[tuple[float, float]] = []
        self.clipped = 0

    def begin(self, table: np.ndarray) -> None:
        """Enter the ranges."""
        n_arms = table.shape[1]
        if self._low.ndim == 1 and self._low.size != n_arms:
            raise ValueError(
                f"low and high are given for {self._low.size} arms, there are {n_arms}."
            )
        table[LOW], table[WIDTH] = self._low, self._high - self._low
        high = np.broadcast_to(self._high, n_arms).tolist()
        self._ends = list(zip(table[LOW].tolist(), high, strict=True))

    def usable(self, reward: float) -> bool:
        """Whether it is finite."""
        return math.isfinite(reward)

    def convert(self, table: np.ndarray, arm: int, reward: float) -> float:
        """Move the reward into the range."""
        low, high = self._ends[arm]
        if low <= reward <= high:
            return reward
        if self.clipped == 0:
            warnings.warn(
                f"A reward of {reward:.6g} from arm {arm} is outside its declared range [{low:.6g}, "
                f"{high:.6g}] and was moved to its end, as will all others be; `clipped` counts them. "
                "Declare a wider range or use RunningRange().",
                stacklevel=4,
            )
        self.clipped += 1
        return min(max(reward, low), high)

    def state(self) -> dict:
        """The number of rewards clipped."""
        return {"clipped": self.clipped}

    def restore(self, state: dict) -> None:
        """Go back to a saved state."""
        self.clipped = int(state["clipped"])


class RunningRange:
    """The range of all rewards seen so far, shared by all arms.

    For rewards whose range is not known. Bounds that need a range then hold for the rewards seen, not
    for those to come: an arm that has not yet shown its tail looks better than it is.

    Examples
    --------
    >>> from amc_pymc.bandits import UCB1, RunningRange
    >>> policy = UCB1(3, rewards=RunningRange())
    """

    def __init__(self):
        self._ends = (math.inf, -math.inf)

    def begin(self, table: np.ndarray) -> None:
        """Nothing is known yet."""
        table[LOW], table[WIDTH] = 0.0, 1.0

    def usable(self, reward: float) -> bool:
        """Whether it is finite."""
        return math.isfinite(reward)

    def convert(self, table: np.ndarray, arm: int, reward: float) -> float:
        """Widen the range if the reward is outside."""
        low, high = self._ends
        if not low <= reward <= high:
            low, high = self._ends = (min(low, reward), max(high, reward))
            table[LOW] = low
            table[WIDTH] = high - low if high > low else 1.0
        return reward

    def state(self) -> dict:
        """The range so far."""
        return {"low": self._ends[0], "high": self._ends[1]}

    def restore(self, state: dict) -> None:
        """Go back to a saved state."""
        self._ends = (float(state["low"]), float(state["high"]))


class LogLoss:
    """What is told is the logarithm of a loss, of any size; the reward is minus the loss.

    Losses are kept relative to the largest seen so far, so a reward lies in [-1, 0] and losses of
    1e-300 do no harm; past statistics are rescaled when the largest moves. For the squared-sample
    reduction on log-weights tell ``2 * log_weight``.

    Examples
    --------
    >>> from amc_pymc.bandits import LogLoss, ThompsonSampling
    >>> policy = ThompsonSampling(3, rewards=LogLoss())
    """

    def __init__(self):
        self._largest = -math.inf

    def begin(self, table: np.ndarray) -> None:
        """Rewards lie in [-1, 0]."""
        table[LOW], table[WIDTH] = -1.0, 1.0

    def usable(self, reward: float) -> bool:
        """Whether it is less than infinity; the logarithm of no loss is minus infinity."""
        return reward < math.inf

    def convert(self, table: np.ndarray, arm: int, reward: float) -> float:
        """Minus the loss relative to the largest."""
        if reward > self._largest:
            shrink = math.exp(self._largest - reward)
            table[MEAN] *= shrink
            table[SQUARES] *= shrink**2
            self._largest = reward
        return -math.exp(reward - self._largest) if self._largest > -math.inf else 0.0

    def state(self) -> dict:
        """The largest log-loss so far."""
        return {"largest": self._largest}

    def restore(self, state: dict) -> None:
        """Go back to a saved state."""
        self._largest = float(state["largest"])


def as_reward_scale(rewards: RewardScale | tuple[ArrayLike, ArrayLike]) -> RewardScale:
    """A pair (low, high) is a known range."""
    if isinstance(rewards, tuple):
        if len(rewards) != 2:
            raise ValueError(f"rewards must be a pair (low, high) or a scale, got {rewards!r}.")
        return KnownRange(*rewards)
    if not hasattr(rewards, "convert"):
        raise TypeError(
            "rewards must be a pair (low, high), KnownRange, RunningRange() or LogLoss(), "
            f"got {rewards!r}."
        )
    return rewards
