"""Thompson sampling for bounded rewards, Agrawal & Goyal (2012)."""

from __future__ import annotations

import math

from typing import Self

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.bandits.policy import Policy, record
from amc_pymc.bandits.rewards import LOW, MEAN, N_ROWS, TOLD, WIDTH, KnownRange, RewardScale
from amc_pymc.bandits.variates import beta_variate, stream
from amc_pymc.engine.jit import njit

__all__ = ["ThompsonSampling", "posterior_arm"]

#: Table rows after those of all policies.
SUCCESSES, FAILURES = N_ROWS, N_ROWS + 1


@njit(cache=True)
def unit_reward(table: np.ndarray, k: int, reward: float) -> float:
    """Return a reward of an arm on [0, 1]; 1 if the range of the arm is a point."""
    width = table[WIDTH, k]
    return min(max((reward - table[LOW, k]) / width, 0.0), 1.0) if width > 0.0 else 1.0


@njit(cache=True)
def learn(table: np.ndarray, arm: int, reward: float, coin: float) -> None:
    """Record a reward as a success or failure by its coin; without a coin, as a fractional success."""
    record(table, arm, reward)
    x = unit_reward(table, arm, reward)
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
            x = unit_reward(table, k, table[MEAN, k])
            table[SUCCESSES, k] = table[TOLD, k] * x
            table[FAILURES, k] = table[TOLD, k] * (1.0 - x)


@njit(cache=True)
def posterior_arm(
    table: np.ndarray, a: np.ndarray, b: np.ndarray, state: np.uint64, out: int
) -> tuple[np.uint64, int]:
    """Return the next state of the stream and the arm with the largest draw of Beta(a, b), on the scale of rewards.

    Arm ``out`` is excluded; -1 excludes none.
    """
    best, largest = -1, -np.inf
    for k in range(table.shape[1]):
        state, theta = beta_variate(state, a[k], b[k])
        value = table[LOW, k] + table[WIDTH, k] * theta
        if k != out and (best < 0 or value > largest):
            best, largest = k, value
    return state, best


@njit(cache=True)
def choose(table: np.ndarray, alpha: float | np.ndarray, beta: float | np.ndarray, u: float) -> int:
    """Choose the arm of the next pull; alpha and beta are numbers or (K,)."""
    a, b = table[SUCCESSES] + alpha, table[FAILURES] + beta
    return posterior_arm(table, a, b, stream(u), -1)[1]


@njit(cache=True)
def choose_many(
    table: np.ndarray, alpha: float | np.ndarray, beta: float | np.ndarray, u: float, n: int
) -> np.ndarray:
    """Choose the arms of the next n pulls."""
    a, b, state = table[SUCCESSES] + alpha, table[FAILURES] + beta, stream(u)
    arms = np.empty(n, np.int64)
    for i in range(n):
        state, arms[i] = posterior_arm(table, a, b, state, -1)
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
    alpha, beta : float or array_like (K,), default 1.0
        Parameters of the prior.
    coins : bool, default True
        Whether a reward counts as one success or failure by ``pull.coin``. If not, a reward x counts as x
        successes and 1 - x failures.
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

    def __init__(
        self,
        n_arms: int,
        *,
        alpha: ArrayLike = 1.0,
        beta: ArrayLike = 1.0,
        coins: bool = True,
        rewards: RewardScale | tuple[ArrayLike, ArrayLike] = (0.0, 1.0),
    ):
        super().__init__(n_arms, rewards=rewards, extra_rows=2)
        self._alpha, self._beta = self._prior("alpha", alpha), self._prior("beta", beta)
        self.needs_coin = coins
        self._fixed = isinstance(self.rewards, KnownRange)

    def _prior(self, name: str, value: ArrayLike) -> float | np.ndarray:
        """Return a parameter of the prior, a number or one per arm."""
        x = np.array(value, float)
        if x.shape not in ((), (self.n_arms,)):
            raise ValueError(f"{name} must be a number or ({self.n_arms},), got shape {x.shape}.")
        if not ((x > 0.0) & (x < math.inf)).all():
            raise ValueError(f"{name} must be positive and finite, got {value!r}.")
        return x if x.ndim else x.item()

    def _only(self, arms: list[int]) -> Self:
        part = super()._only(arms)
        part._alpha, part._beta = (
            x[arms] if isinstance(x, np.ndarray) else x for x in (self._alpha, self._beta)
        )
        return part

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

    def _receive(
        self, arm: int, value: float, cost: float, coin: float, controls: np.ndarray | None
    ) -> None:
        if self._fixed:
            x = self.rewards.convert(self._table, arm, value)
        else:
            before = self.rewards.state()
            x = self.rewards.convert(self._table, arm, value)
            if self.rewards.state() != before:
                rescale(self._table)
        learn(self._table, arm, x, coin)
