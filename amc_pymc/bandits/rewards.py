"""Reward scales, which map rewards to [0, 1] for the policies.

Statistics are kept on the scale of the rewards. Only an index is computed on [0, 1] and mapped back
to the range of the arm, so ranges may differ between arms and may grow.
"""

from __future__ import annotations

import math

from typing import Any, Protocol

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.flags import Flag, flag, warn_of

__all__ = ["KnownRange", "LogLoss", "RewardScale", "RunningRange", "as_reward_scale"]

#: Rows of the table of statistics of a policy, shape (rows, K): number of observed rewards, number of pending
#: pulls, mean and sum of squared deviations of rewards, and the range of rewards (low end, width).
TOLD, PENDING, MEAN, SQUARES, LOW, WIDTH = range(6)
N_ROWS = 6


class RewardScale(Protocol):
    """Mapping of rewards to [0, 1]."""

    def begin(self, table: np.ndarray) -> None:
        """Enter the initial ranges into the table of a policy."""

    def usable(self, reward: float) -> bool:
        """Whether a reward is valid."""

    def convert(self, table: np.ndarray, arm: int, reward: float) -> float:
        """Return the reward as the policy records it, and update ranges in the table if they change."""

    def state(self) -> dict[str, Any]:
        """Return the state for :meth:`restore`."""

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""


class KnownRange:
    r"""Known interval of rewards, for all arms or for each arm.

    Use the narrowest known range, because bounds scale with it. For the squared-sample reduction of Neufeld
    et al. (2014, appendix B) with values in [a_k, b_k], rewards :math:`-(X - a_{\min})^2` are in
    :math:`[-(b_k - a_{\min})^2, 0]`.

    Parameters
    ----------
    low, high : float or array_like (K,)
        Ends of the range, ``low < high``. They may be equal for some of several arms, whose rewards are then
        known. Rewards outside are clipped and counted in ``clipped``; the first one raises a warning and is
        described in ``flags``.

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
        if not (ends[0] <= ends[1]).all() or not (ends[0] < ends[1]).any():
            raise ValueError(f"low must be less than high, got {low!r} and {high!r}.")
        self._low, self._high = ends
        self._ends: list[tuple[float, float]] = []
        self.clipped = 0
        self.flags: list[Flag] = []

    def begin(self, table: np.ndarray) -> None:
        """Enter the known ranges into the table."""
        n_arms = table.shape[1]
        if self._low.ndim == 1 and self._low.size != n_arms:
            raise ValueError(
                f"low and high are given for {self._low.size} arms, there are {n_arms}."
            )
        table[LOW], table[WIDTH] = self._low, self._high - self._low
        high = np.broadcast_to(self._high, n_arms).tolist()
        self._ends = list(zip(table[LOW].tolist(), high, strict=True))

    def usable(self, reward: float) -> bool:
        """Whether the reward is finite."""
        return math.isfinite(reward)

    def convert(self, table: np.ndarray, arm: int, reward: float) -> float:
        """Clip the reward to the range."""
        low, high = self._ends[arm]
        if low <= reward <= high:
            return reward
        if self.clipped == 0:
            self.flags = [flag("rewards_clipped", reward=reward, arm=arm, low=low, high=high)]
            warn_of(self.flags, "Rewards")
        self.clipped += 1
        return min(max(reward, low), high)

    def state(self) -> dict[str, Any]:
        """Return the number of clipped rewards."""
        return {"clipped": self.clipped}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.clipped = int(state["clipped"])


class RunningRange:
    """Range of all rewards observed so far, shared by all arms.

    Use it for rewards whose range is unknown. Bounds that need a range then hold only for the rewards
    observed so far: an arm whose tail has not been observed looks better than it is.

    Examples
    --------
    >>> from amc_pymc.bandits import UCB1, RunningRange
    >>> policy = UCB1(3, rewards=RunningRange())
    """

    def __init__(self) -> None:
        self._ends = (math.inf, -math.inf)

    def begin(self, table: np.ndarray) -> None:
        """Enter the range [0, 1] until a reward is observed."""
        table[LOW], table[WIDTH] = 0.0, 1.0

    def usable(self, reward: float) -> bool:
        """Whether the reward is finite."""
        return math.isfinite(reward)

    def convert(self, table: np.ndarray, arm: int, reward: float) -> float:
        """Widen the range if the reward is outside, and return the reward."""
        low, high = self._ends
        if not low <= reward <= high:
            low, high = self._ends = (min(low, reward), max(high, reward))
            table[LOW] = low
            table[WIDTH] = high - low if high > low else 1.0
        return reward

    def state(self) -> dict[str, Any]:
        """Return the range so far."""
        return {"low": self._ends[0], "high": self._ends[1]}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self._ends = (float(state["low"]), float(state["high"]))


class LogLoss:
    """Scale of losses reported as logarithms; the reward is minus the loss.

    Losses are recorded relative to the largest one so far, so rewards are in [-1, 0] and losses of any
    size are possible. Past statistics are rescaled when the largest loss changes. For the squared-sample
    reduction on log-weights, report ``2 * log_weight``.

    Examples
    --------
    >>> from amc_pymc.bandits import LogLoss, ThompsonSampling
    >>> policy = ThompsonSampling(3, rewards=LogLoss())
    """

    def __init__(self) -> None:
        self._largest = -math.inf

    def begin(self, table: np.ndarray) -> None:
        """Enter the range [-1, 0]."""
        table[LOW], table[WIDTH] = -1.0, 1.0

    def usable(self, reward: float) -> bool:
        """Whether the log-loss is less than infinity; it is minus infinity for a loss of zero."""
        return reward < math.inf

    def convert(self, table: np.ndarray, arm: int, reward: float) -> float:
        """Return minus the loss, relative to the largest."""
        if reward > self._largest:
            shrink = math.exp(self._largest - reward)
            table[MEAN] *= shrink
            table[SQUARES] *= shrink**2
            self._largest = reward
        return -math.exp(reward - self._largest) if self._largest > -math.inf else 0.0

    def state(self) -> dict[str, Any]:
        """Return the largest log-loss so far."""
        return {"largest": self._largest}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self._largest = float(state["largest"])


def as_reward_scale(rewards: RewardScale | tuple[ArrayLike, ArrayLike]) -> RewardScale:
    """Convert a pair (low, high) to a known range, and check other scales."""
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
