"""Statistics of rewards, and reward scales, which map rewards to [0, 1] for the policies.

Statistics are kept on the scale of the rewards. Only an index is computed on [0, 1] and mapped back
to the range of the arm, so ranges may differ between arms and may grow.
"""

from __future__ import annotations

import math

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.flags import Flag, flag, warn_of


class Statistics:
    """Statistics of K arms, changed in place; before the first pull, for rewards in [0, 1].

    Attributes
    ----------
    told, pending : array (K,)
        Numbers of observed rewards and of pending pulls.
    mean, squares : array (K,)
        Mean and sum of squared deviations of rewards.
    low, width : array (K,)
        Range of rewards.
    """

    def __init__(self, n_arms: int):
        self.told, self.pending, self.mean, self.squares, self.low = np.zeros((5, n_arms))
        self.width = np.ones(n_arms)

    def add(self, arms: np.ndarray, rewards: np.ndarray) -> None:
        """Record rewards (n,) of pending pulls of these arms; Chan, Golub & LeVeque (1983)."""
        n = np.bincount(arms, minlength=self.told.size)
        drawn = np.maximum(n, 1)
        mean = np.bincount(arms, rewards, n.size) / drawn
        squares = np.bincount(arms, (rewards - mean[arms]) ** 2, n.size)
        d, total = np.where(n > 0, mean - self.mean, 0.0), np.maximum(self.told + n, 1.0)
        self.squares[:] += squares + d**2 * self.told * n / total
        self.mean[:] += d * n / total
        self.told[:] += n
        self.pending[:] -= n

    def unit_moments(self, arms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means and variances (divisor n) of the rewards of arms on [0, 1]; 1 and 0.25 without any.

        So they are if the range of the arm is a point.
        """
        told, width = self.told[arms], self.width[arms]
        known = (told > 0.0) & (width > 0.0)
        n, w = np.where(known, told, 1.0), np.where(known, width, 1.0)
        mean = np.where(known, (self.mean[arms] - self.low[arms]) / w, 1.0)
        return mean, np.where(known, self.squares[arms] / n / w**2, 0.25)


class RewardScale:
    """Mapping of rewards to [0, 1]; rewards of this base class are in that range at first."""

    #: Whether rewards are logarithms, which may be minus infinity.
    log: bool = False

    def begin(self, seen: Statistics) -> None:
        """Enter the initial ranges into the statistics of a policy, where they are [0, 1]."""

    def usable(self, rewards: np.ndarray) -> np.ndarray:
        """Whether each reward is valid: finite, or on a log scale less than infinity."""
        return rewards < math.inf if self.log else np.isfinite(rewards)

    def convert(self, seen: Statistics, arms: np.ndarray, rewards: np.ndarray) -> np.ndarray:
        """Return the rewards as the policy records them, and update ranges if they change."""
        return rewards


class KnownRange(RewardScale):
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
        if not np.isfinite(ends).all():
            raise ValueError(f"low and high must be finite, got {low!r} and {high!r}.")
        if not (ends[0] <= ends[1]).all() or not (ends[0] < ends[1]).any():
            raise ValueError(f"low must be less than high, got {low!r} and {high!r}.")
        self._low, self._high = ends
        self.clipped = 0
        self.flags: list[Flag] = []

    def begin(self, seen: Statistics) -> None:
        """Enter the known ranges into the statistics."""
        if self._low.ndim == 1 and self._low.size != seen.told.size:
            raise ValueError(
                f"low and high are given for {self._low.size} arms, there are {seen.told.size}."
            )
        self._low, self._high, _ = np.broadcast_arrays(self._low, self._high, seen.told)
        seen.low[:], seen.width[:] = self._low, self._high - self._low

    def convert(self, seen: Statistics, arms: np.ndarray, rewards: np.ndarray) -> np.ndarray:
        """Clip the rewards to the range."""
        low, high = self._low[arms], self._high[arms]
        outside = (rewards < low) | (rewards > high)
        if not outside.any():
            return rewards
        if self.clipped == 0:
            i = int(outside.argmax())
            about = {"reward": rewards[i], "arm": int(arms[i]), "low": low[i], "high": high[i]}
            self.flags = [flag("rewards_clipped", **about)]
            warn_of(self.flags, "Rewards")
        self.clipped += int(outside.sum())
        return np.clip(rewards, low, high)


class RunningRange(RewardScale):
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

    def convert(self, seen: Statistics, arms: np.ndarray, rewards: np.ndarray) -> np.ndarray:
        """Widen the range if rewards are outside, and return the rewards."""
        low, high = min(self._ends[0], rewards.min()), max(self._ends[1], rewards.max())
        self._ends = (float(low), float(high))
        seen.low[:], seen.width[:] = low, high - low if high > low else 1.0
        return rewards


class LogLoss(RewardScale):
    """Scale of losses reported as logarithms; the reward is minus the loss.

    Losses are recorded relative to the largest one so far, so rewards are in [-1, 0] and losses of any
    size are possible. Past statistics are rescaled when the largest loss changes. For the squared-sample
    reduction on log-weights, report ``2 * log_weight``.

    Examples
    --------
    >>> from amc_pymc.bandits import LogLoss, ThompsonSampling
    >>> policy = ThompsonSampling(3, rewards=LogLoss())
    """

    log = True

    def __init__(self) -> None:
        self._largest = -math.inf

    def begin(self, seen: Statistics) -> None:
        """Enter the range [-1, 0]."""
        seen.low[:], seen.width[:] = -1.0, 1.0

    def convert(self, seen: Statistics, arms: np.ndarray, rewards: np.ndarray) -> np.ndarray:
        """Return minus the losses, relative to the largest."""
        top = float(rewards.max())
        if top > self._largest:
            shrink = math.exp(self._largest - top)
            seen.mean[:] *= shrink
            seen.squares[:] *= shrink**2
            self._largest = top
        return (
            -np.exp(rewards - self._largest) if self._largest > -math.inf else np.zeros(arms.size)
        )


#: A scale, or the ends of a known range.
Rewards = RewardScale | tuple[ArrayLike, ArrayLike]


def as_reward_scale(rewards: Rewards) -> RewardScale:
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
