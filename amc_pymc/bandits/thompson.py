"""Thompson sampling for bounded rewards, Agrawal & Goyal (2012)."""

from __future__ import annotations

import math

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.bandits.policy import Policy, record
from amc_pymc.bandits.rewards import LOW, MEAN, N_ROWS, TOLD, WIDTH, KnownRange, RewardScale
from amc_pymc.bandits.variates import beta_variate, stream
from amc_pymc.jit import njit

__all__ = ["ThompsonSampling", "posterior_arm"]

#: Table rows after those of all policies.
SUCCESSES, FAILURES = N_ROWS, N_ROWS + 1


@njit(cache=True)
def learn(table: np.ndarray, arm: int, reward: float, coin: float) -> None:
    """Record a reward as a success or failure by its coin; without a coin, as a fractional success."""
    record(table, arm, reward)
    x = min(max((reward - table[LOW, arm]) / table[WIDTH, arm], 0.0), 1.0)
    success = x
    if not math.isnan(coin):
        success = 1.0 if coin < x else 0.0
    table[SUCCESSES, arm] += success
    table[FAILURES, arm] += 1.0 - success


@njit(cache=True)
def rescale(table: np.ndarray) -> None:
    """Recompute the counts of all arms from their means on the current scale."""
    for k in range(table.shape[1]):
        if table[TOLD, k] > 0.0:
            x = min(max((table[MEAN, k] - table[LOW, k]) / table[WIDTH, k], 0.0), 1.0)
            table[SUCCESSES, k] = table[TOLD, k] * x
            table[FAILURES, k] = table[TOLD, k] * (1.0 - x)


@njit(cache=True)
def posterior_arm(
    table: np.ndarray, alpha: float, beta: float, state: np.uint64, out: int
) -> tuple[np.uint64, int]:
    """Return the next state of the stream and the arm with the largest posterior draw, on the scale of rewards.

    Arm ``out`` is excluded; -1 excludes none.
    """
    best, largest = -1, -np.inf
    for k in range(table.shape[1]):
        state, theta = beta_variate(state, table[SUCCESSES, k] + alpha, table[FAILURES, k] + beta)
        value = table[LOW, k] + table[WIDTH, k] * theta
        if k != out and (best < 0 or value > largest):
            best, largest = k, value
    return state, best


@njit(cache=True)
def choose(table: np.ndarray, alpha: float, beta: float, u: float) -> int:
    """Choose the arm of the next pull."""
    return posterior_arm(table, alpha, beta, stream(u), -1)[1]


@njit(cache=True)
def choose_many(table: np.ndarray, alpha: float, beta: float, u: float, n: int) -> np.ndarray:
    """Choose the arms of the next n pulls."""
    state = stream(u)
    arms = np.empty(n, np.int64)
    for i in range(n):
        state, arms[i] = posterior_arm(table, alpha, beta, state, -1)
    return arms


class ThompsonSampling(Policy):
    r"""Policy that pulls each arm with the posterior probability that it is the best.

    Mean rewards, scaled to [0, 1], have Beta(alpha, beta) priors. A reward x counts as a success with
    probability x, else as a failure. Each pull goes to the arm with the largest posterior draw. This policy
    often has the smallest regret and is the least sensitive to delayed rewards.

    Rewards are converted to successes by ``pull.coin``, so a run depends only on the generator passed to
    :meth:`ask`. When the range of rewards changes (:class:`RunningRange`, :class:`LogLoss`), the successes
    of an arm become its number of pulls times its mean on the new scale.

    Parameters
    ----------
    n_arms : int
        Number of arms K.
    alpha, beta : float, default 1.0
        Parameters of the prior.
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

    def __init__(
        self,
        n_arms: int,
        *,
        alpha: float = 1.0,
        beta: float = 1.0,
        rewards: RewardScale | tuple[ArrayLike, ArrayLike] = (0.0, 1.0),
    ):
        super().__init__(n_arms, rewards=rewards, extra_rows=2)
        for label, value in (("alpha", alpha), ("beta", beta)):
            if not 0.0 < value < math.inf:
                raise ValueError(f"{label} must be positive and finite, got {value!r}.")
        self._alpha, self._beta = float(alpha), float(beta)
        self._fixed = isinstance(self.rewards, KnownRange)

    @property
    def successes(self) -> np.ndarray:
        """Successes so far, (K,), possibly fractional."""
        return self._table[SUCCESSES].copy()

    @property
    def failures(self) -> np.ndarray:
        """Failures so far, (K,), possibly fractional."""
        return self._table[FAILURES].copy()

    def index(self) -> np.ndarray:
        """Return posterior means on the scale of rewards, (K,); arms are chosen by posterior draws instead."""
        a, b = self._table[SUCCESSES] + self._alpha, self._table[FAILURES] + self._beta
        return self._table[LOW] + self._table[WIDTH] * a / (a + b)

    def _choose(self, rng: np.random.Generator) -> int:
        return choose(self._table, self._alpha, self._beta, rng.random())

    def _choose_many(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return choose_many(self._table, self._alpha, self._beta, rng.random(), n)

    def _receive(self, arm: int, reward: float, coin: float, controls: np.ndarray | None) -> None:
        if self._fixed:
            x = self.rewards.convert(self._table, arm, reward)
        else:
            before = self.rewards.state()
            x = self.rewards.convert(self._table, arm, reward)
            if self.rewards.state() != before:
                rescale(self._table)
        learn(self._table, arm, x, coin)
