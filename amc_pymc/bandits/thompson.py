"""Thompson sampling for bounded rewards, Agrawal & Goyal (2012)."""

from __future__ import annotations

import numpy as np

from amc_pymc.bandits.contract import Policy, Told
from amc_pymc.bandits.rewards import Rewards


class ThompsonSampling(Policy):
    r"""Policy that pulls each arm with the posterior probability that it is the best.

    Mean rewards, scaled to [0, 1], have Beta(1, 1) priors. A reward x counts as a success with
    probability x, else as a failure. Each pull goes to the arm with the largest posterior draw. This policy
    often has the smallest regret and is the least sensitive to delayed rewards.

    Rewards are converted to successes by ``pull.coin``, so a run depends only on the generator passed to
    :meth:`ask`. When the range of rewards changes (:class:`RunningRange`, :class:`LogLoss`), the successes
    of an arm become its number of pulls times its mean on the new scale.

    Parameters
    ----------
    n_arms : int
        Number of arms K.
    rewards : tuple (low, high) or RewardScale, default (0.0, 1.0)
        Range of rewards.

    References
    ----------
    Agrawal & Goyal (2012), Conference on Learning Theory, Proceedings of Machine Learning Research 23,
    39.1-39.26.

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.bandits import ThompsonSampling
    >>> rng = np.random.default_rng(1)
    >>> policy = ThompsonSampling(2)
    >>> for _ in range(1000):
    ...     pull = policy.ask(rng)
    ...     policy.tell(pull, rng.random() < (0.3, 0.6)[pull.arm])
    >>> bool(policy.counts[1] > 950)
    True
    """

    name = "thompson"
    needs_coin = True

    def __init__(self, n_arms: int, *, rewards: Rewards = (0.0, 1.0)):
        super().__init__(n_arms, rewards=rewards)
        self._successes = np.zeros(self.n_arms)

    @property
    def successes(self) -> np.ndarray:
        """Successes so far, (K,), possibly fractional."""
        return self._successes.copy()

    @property
    def failures(self) -> np.ndarray:
        """Failures so far, (K,), possibly fractional."""
        return self._seen.told - self._successes

    def _posterior(self) -> tuple[np.ndarray, np.ndarray]:
        return self._successes + 1.0, self.failures + 1.0

    def index(self) -> np.ndarray:
        """Return posterior means on the scale of rewards, (K,); arms are chosen by posterior draws instead."""
        a, b = self._posterior()
        return self._seen.low + self._seen.width * a / (a + b)

    def _choose(self, rng: np.random.Generator, arms: np.ndarray, n: int) -> np.ndarray:
        a, b = (x[arms] for x in self._posterior())
        theta = rng.beta(a, b, (n, arms.size))
        return arms[(self._seen.low[arms] + self._seen.width[arms] * theta).argmax(axis=1)]

    def _receive(self, told: Told) -> None:
        seen = self._seen
        before = np.array([seen.low, seen.width, seen.mean])
        x = self.rewards.convert(seen, told.arms, told.values)
        if (before != [seen.low, seen.width, seen.mean]).any():
            self._successes = seen.told * self._unit(np.arange(self.n_arms), seen.mean)
        seen.add(told.arms, x)
        won = told.coins < self._unit(told.arms, x)
        self._successes += np.bincount(told.arms, won, self.n_arms)

    def _unit(self, arms: np.ndarray, rewards: np.ndarray) -> np.ndarray:
        """Return rewards of arms on [0, 1]; 1 if the range of the arm is a point."""
        low, width = self._seen.low[arms], self._seen.width[arms]
        share = np.clip((rewards - low) / np.where(width > 0.0, width, 1.0), 0.0, 1.0)
        return np.where(width > 0.0, share, 1.0)
