"""Efficient UCB-V of Mukherjee et al. (2018)."""

from __future__ import annotations

import math

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.bandits.contract import Policy
from amc_pymc.bandits.rewards import RewardScale
from amc_pymc.engine.jit import njit
from benchmarks.papers.bandit_kernels import (
    LOW,
    N_ROWS,
    PENDING,
    TOLD,
    WIDTH,
    record,
    table_of,
    unit_moments,
)

__all__ = ["EUCBV", "eucbv_index"]

#: Table rows after those of all policies: whether the arm is active and, equal for all arms, epsilon of the
#: round and the number of observed rewards at which it ends (inf for the last round).
ALIVE, EPSILON, ROUND_END = N_ROWS, N_ROWS + 1, N_ROWS + 2


@njit(cache=True)
def eucbv_index(
    n: float, mean: float, variance: float, t: float, constants: tuple[float, ...] | np.ndarray
) -> float:
    """Return mean + sqrt(rho (v + 2) log(psi T epsilon) / (4 n)), with constants = (rho, psi T epsilon)."""
    log_term = max(math.log(constants[1]), 0.0)
    return mean + math.sqrt(constants[0] * (variance + 2.0) * log_term / (4.0 * n))


@njit(cache=True)
def bounds_of(table: np.ndarray, k: int, n: float, rho: float, psi_t: float) -> tuple[float, float]:
    """Return the lower and upper bounds of an arm after n pulls, on the scale of rewards."""
    low, width = table[LOW, k], table[WIDTH, k]
    mean, variance = unit_moments(table, k)
    upper = eucbv_index(n, mean, variance, 0.0, (rho, psi_t * table[EPSILON, k]))
    return low + width * (2.0 * mean - upper), low + width * upper


@njit(cache=True)
def indices(table: np.ndarray, t: float, constants: np.ndarray) -> np.ndarray:
    """Return the indices of all arms on the scale of rewards: inf if never pulled, -inf if eliminated."""
    out = np.full(table.shape[1], -np.inf)
    for k in range(out.size):
        if table[ALIVE, k] > 0.0:
            n = table[TOLD, k] + table[PENDING, k]
            out[k] = bounds_of(table, k, n, constants[0], constants[1])[1] if n > 0.0 else np.inf
    return out


@njit(cache=True)
def choose(table: np.ndarray, t: float, constants: np.ndarray) -> int:
    """Choose the arm of the next pull."""
    best, largest = 0, -np.inf
    for k in range(table.shape[1]):
        if table[ALIVE, k] > 0.0:
            n = table[TOLD, k] + table[PENDING, k]
            if n == 0.0:
                return k
            value = bounds_of(table, k, n, constants[0], constants[1])[1]
            if value > largest:
                best, largest = k, value
    return best


@njit(cache=True)
def round_length(psi_t: float, epsilon: float) -> float:
    """Return the number of pulls per arm in a round."""
    return max(math.ceil(math.log(psi_t * epsilon**2) / (2.0 * epsilon)), 1.0)


@njit(cache=True)
def learn(
    table: np.ndarray, arm: int, reward: float, rho: float, psi_t: float, least_epsilon: float
) -> None:
    """Record a reward, eliminate arms that are significantly worse, and start the next round if this one ends."""
    record(table, arm, reward)
    t, alive, best_lower = 0.0, 0, -np.inf
    for k in range(table.shape[1]):
        t += table[TOLD, k]
        if table[ALIVE, k] > 0.0:
            alive += 1
            if table[TOLD, k] > 0.0:
                lower, _ = bounds_of(table, k, table[TOLD, k], rho, psi_t)
                best_lower = max(best_lower, lower)
    for k in range(table.shape[1]):
        if table[ALIVE, k] > 0.0 and table[TOLD, k] > 0.0:
            _, upper = bounds_of(table, k, table[TOLD, k], rho, psi_t)
            if upper < best_lower:
                table[ALIVE, k] = 0.0
                alive -= 1
    if t >= table[ROUND_END, 0]:
        epsilon = 0.5 * table[EPSILON, 0]
        table[EPSILON] = epsilon
        last = epsilon <= least_epsilon
        table[ROUND_END] = np.inf if last else t + alive * round_length(psi_t, epsilon)


class EUCBV(Policy):
    r"""UCB-V with rounds and elimination of arms, for a known number of pulls.

    In round m, with :math:`\epsilon_m = 2^{-m}`, the policy pulls the active arm with the largest

    .. math:: \hat\mu_k + \sqrt{\frac{\rho (\hat V_k + 2) \log(\psi T \epsilon_m)}{4 n_k}}

    for rewards scaled to [0, 1], with variances of divisor n, after one pull of each arm. After every
    reward, arms whose upper bound is below the largest lower bound are eliminated for good. A round
    of B arms lasts :math:`B \lceil \log(\psi T \epsilon_m^2) / (2 \epsilon_m) \rceil` pulls; the
    round after round :math:`M = \lfloor \tfrac12 \log_2(T / e) \rfloor` is the last. The regret is small
    on average, but occasionally the best arm is eliminated.

    Pending pulls count in indices; eliminations and rounds depend on observed rewards only.

    Parameters
    ----------
    n_arms : int
        Number of arms K.
    horizon : int
        Planned total number of pulls T. Further pulls are possible and belong to the last round.
    rho : float, default 0.5
    psi : float, optional
        By default T / K².
    rewards : tuple (low, high) or RewardScale, default (0.0, 1.0)
        Range of rewards.

    References
    ----------
    Mukherjee, Naveen, Sudarsanam & Ravindran (2018), Efficient-UCBV: an almost optimal algorithm using
    variance estimates, AAAI 32. doi:10.1609/aaai.v32i1.12110

    Examples
    --------
    >>> import numpy as np
    >>> from benchmarks.papers.eucbv import EUCBV
    >>> rng = np.random.default_rng(1)
    >>> policy = EUCBV(2, horizon=1000)
    >>> for _ in range(1000):
    ...     pull = policy.ask(rng)
    ...     policy.tell(pull, rng.random() < (0.2, 0.7)[pull.arm])
    >>> bool(policy.counts[1] > 900)
    True
    """

    name = "eucbv"

    def __init__(
        self,
        n_arms: int,
        *,
        horizon: int,
        rho: float = 0.5,
        psi: float | None = None,
        rewards: RewardScale | tuple[ArrayLike, ArrayLike] = (0.0, 1.0),
    ):
        super().__init__(n_arms, rewards=rewards)
        if not 1 <= horizon < math.inf:
            raise ValueError(f"horizon must be at least 1 and finite, got {horizon!r}.")
        if not 0.0 < rho < math.inf:
            raise ValueError(f"rho must be positive and finite, got {rho!r}.")
        if psi is not None and not 0.0 < psi < math.inf:
            raise ValueError(f"psi must be positive and finite, or None, got {psi!r}.")
        psi_t = float(horizon / self.n_arms**2 if psi is None else psi) * horizon
        self._rho, self._psi_t = float(rho), psi_t
        self._constants = np.array([self._rho, psi_t])
        n_rounds = max(math.floor(0.5 * math.log2(horizon / math.e)), 0)
        self._least_epsilon = 0.5 ** (n_rounds + 1)
        self._table = table_of(self, 3)
        self._table[ALIVE] = self._table[EPSILON] = 1.0
        self._table[ROUND_END] = self.n_arms * round_length(psi_t, 1.0)

    @property
    def active(self) -> np.ndarray:
        """Whether each arm is active, that is, not eliminated, (K,)."""
        return self._table[ALIVE] > 0.0

    def index(self) -> np.ndarray:
        """Return the indices on the scale of rewards, (K,); inf if never pulled, -inf if eliminated."""
        self._enter_pending()
        return indices(self._table, self.asked + 1.0, self._constants)

    def _enter_pending(self) -> None:
        self._table[PENDING] = self._seen.pending

    def _choose(self, rng, arms, n):
        if n > 1 or arms.size < self.n_arms:
            return super()._choose(rng, arms, n)
        self._enter_pending()
        return np.array([choose(self._table, self.asked + 1.0, self._constants)])

    def _receive(self, arms, values, costs, coins, controls):
        x = self.rewards.convert(self._seen, arms, values)
        self._seen.add(arms, x)
        for arm, reward in zip(arms.tolist(), x.tolist(), strict=True):
            learn(self._table, arm, reward, self._rho, self._psi_t, self._least_epsilon)
