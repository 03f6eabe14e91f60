"""Top-two Thompson sampling, Russo (2016)."""

from __future__ import annotations

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.bandits.rewards import RewardScale
from amc_pymc.bandits.thompson import FAILURES, SUCCESSES, ThompsonSampling, posterior_arm
from amc_pymc.bandits.variates import stream, uniform_variate
from amc_pymc.engine.jit import njit

__all__ = ["TopTwoThompsonSampling"]


@njit(cache=True)
def top_two_arm(
    table: np.ndarray, a: np.ndarray, b: np.ndarray, share: float, tries: int, state: np.uint64
) -> tuple[np.uint64, int]:
    """Return the next state and the leader of a posterior draw or, with probability 1 - share, a challenger."""
    state, leader = posterior_arm(table, a, b, state, -1)
    state, u = uniform_variate(state)
    if u < share or table.shape[1] == 1:
        return state, leader
    for _ in range(tries):
        state, arm = posterior_arm(table, a, b, state, -1)
        if arm != leader:
            return state, arm
    return posterior_arm(table, a, b, state, leader)


@njit(cache=True)
def choose(
    table: np.ndarray,
    alpha: float | np.ndarray,
    beta: float | np.ndarray,
    share: float,
    tries: int,
    u: float,
) -> int:
    """Choose the arm of the next pull."""
    a, b = table[SUCCESSES] + alpha, table[FAILURES] + beta
    return top_two_arm(table, a, b, share, tries, stream(u))[1]


@njit(cache=True)
def choose_many(
    table: np.ndarray,
    alpha: float | np.ndarray,
    beta: float | np.ndarray,
    share: float,
    tries: int,
    u: float,
    n: int,
) -> np.ndarray:
    """Choose the arms of the next n pulls."""
    a, b, state = table[SUCCESSES] + alpha, table[FAILURES] + beta, stream(u)
    arms = np.empty(n, np.int64)
    for i in range(n):
        state, arms[i] = top_two_arm(table, a, b, share, tries, state)
    return arms


class TopTwoThompsonSampling(ThompsonSampling):
    r"""Top-two Thompson sampling, which identifies the best arm by also pulling its challengers.

    The leader of a posterior draw is pulled with probability b. Otherwise draws are repeated until another
    arm leads, and that arm is pulled. The best arm gets a share b of the pulls in the long run, so regret
    grows linearly, but the best arm is identified sooner. Use it for selection, not for averaging.

    Parameters
    ----------
    n_arms : int
        Number of arms K.
    b : float, default 0.5
        Probability of pulling the leader, between 0 and 1; beta in Russo (2016).
    tries : int, default 10
        Maximum number of draws to find a challenger. If the leader leads in all of them, the challenger is
        the best other arm in one more draw.
    alpha, beta, coins
        As for :class:`ThompsonSampling`.
    rewards : tuple (low, high) or RewardScale, default (0.0, 1.0)
        Range of rewards.

    References
    ----------
    Russo (2016), Simple Bayesian algorithms for best arm identification, Conference on Learning Theory,
    Proceedings of Machine Learning Research 49, 1417-1418; Operations Research 68 (2020), 1625-1647.
    doi:10.1287/opre.2019.1911

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.bandits import TopTwoThompsonSampling
    >>> rng = np.random.default_rng(1)
    >>> policy = TopTwoThompsonSampling(3)
    >>> for _ in range(1000):
    ...     pull = policy.ask(rng)
    ...     policy.tell(pull, rng.random() < (0.2, 0.5, 0.6)[pull.arm])
    >>> int(policy.index().argmax())
    2
    """

    name = "top_two"

    def __init__(
        self,
        n_arms: int,
        *,
        b: float = 0.5,
        tries: int = 10,
        alpha: ArrayLike = 1.0,
        beta: ArrayLike = 1.0,
        coins: bool = True,
        rewards: RewardScale | tuple[ArrayLike, ArrayLike] = (0.0, 1.0),
    ):
        super().__init__(n_arms, alpha=alpha, beta=beta, coins=coins, rewards=rewards)
        if not 0.0 < b <= 1.0:
            raise ValueError(f"b must be greater than 0 and at most 1, got {b!r}.")
        if tries < 0:
            raise ValueError(f"tries must not be negative, got {tries!r}.")
        self._b, self._tries = float(b), int(tries)

    def _choose(self, rng: np.random.Generator) -> int:
        u = rng.random()
        return choose(self._table, self._alpha, self._beta, self._b, self._tries, u)

    def _choose_many(self, rng: np.random.Generator, n: int) -> np.ndarray:
        u = rng.random()
        return choose_many(self._table, self._alpha, self._beta, self._b, self._tries, u, n)
