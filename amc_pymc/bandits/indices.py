"""Policies by the largest upper confidence bound: UCB1, UCB-V and KL-UCB."""

from __future__ import annotations

import math

from abc import abstractmethod

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.bandits.contract import Policy
from amc_pymc.bandits.rewards import Rewards

#: Pulls of a batch that are chosen at the same time t: a share of those before, and at most so many.
_SLOWLY, _TOGETHER = 16, 256


class IndexPolicy(Policy):
    """Policy that pulls the arm with the largest index, which falls with the pulls of the arm.

    Of several pulls each is pending for the next ones. Ties go to the first arm, but those of infinite
    indices to the arm with the fewest pulls.
    """

    @abstractmethod
    def _indices(self, arms: np.ndarray, pulls: np.ndarray) -> np.ndarray:
        """Return indices (L, m) of arms (L,) after so many pulls of each, (L, m), told or pending."""

    def _ranks(self, arms: np.ndarray, pulls: np.ndarray) -> np.ndarray:
        """Return ranks (L, m) that come before indices, smaller ones first."""
        return np.zeros(pulls.shape)

    def index(self) -> np.ndarray:
        """Return the indices of all arms on the scale of rewards, (K,); inf for arms never pulled."""
        pulls = self._seen.told + self._seen.pending
        return self._indices(np.arange(self.n_arms), pulls[:, None])[:, 0]

    def _choose(self, rng: np.random.Generator, arms: np.ndarray, n: int) -> np.ndarray:
        pending, asked = self._seen.pending.copy(), self._asked
        chosen = np.empty(n, np.int64)
        begin = 0
        while begin < n:
            size = min(max(1, self._asked // _SLOWLY), _TOGETHER, n - begin)
            pulls = (self._seen.told + self._seen.pending)[arms, None] + np.arange(size)
            index, rank = self._indices(arms, pulls), self._ranks(arms, pulls)
            # The best sequence merges those of the arms, all of which fall.
            waiting = np.where(np.isinf(index), pulls, 0.0)
            keys = [np.repeat(arms, size), *(x.ravel() for x in (waiting, -index, rank))]
            now = keys[0][np.lexsort(keys)[:size]]
            chosen[begin : begin + size] = now
            self._seen.pending[:] += np.bincount(now, minlength=self.n_arms)
            self._asked += size
            begin += size
        self._seen.pending[:], self._asked = pending, asked
        return chosen


class RoundRobin(IndexPolicy):
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

    def _indices(self, arms: np.ndarray, pulls: np.ndarray) -> np.ndarray:
        return -pulls


class BoundPolicy(IndexPolicy):
    """Policy by an upper confidence bound of the mean, a function of count, mean and variance.

    Subclasses define ``_bound``.
    """

    @abstractmethod
    def _bound(self, n: np.ndarray, mean: np.ndarray, variance: np.ndarray, t: float) -> np.ndarray:
        """Return the bounds of arms on [0, 1].

        Parameters
        ----------
        n : array (L, m)
            Pulls, told and pending.
        mean, variance : array (L, 1)
            Of the rewards on [0, 1]; 1 and 0.25 without any.
        t : float
            Number of this pull among all, from 1.
        """

    def _indices(self, arms: np.ndarray, pulls: np.ndarray) -> np.ndarray:
        seen = self._seen
        mean, variance = (x[:, None] for x in seen.unit_moments(arms))
        bound = self._bound(np.maximum(pulls, 1.0), mean, variance, self._asked + 1.0)
        return np.where(pulls > 0.0, seen.low[arms, None] + seen.width[arms, None] * bound, np.inf)


def kl_upper(p: ArrayLike, d: ArrayLike) -> np.ndarray:
    """Return the largest q with KL(Bernoulli(p), Bernoulli(q)) <= d, for p in [0, 1] and d >= 0.

    As a function of u = -log(1 - q), the divergence is h(u) - h(-log(1 - p)) with
    h(u) = (1 - p) u - p log(1 - exp(-u)), which is convex and nearly linear for large u. Newton's method
    therefore converges from any point to the right of the root, such as Pinsker's bound p + sqrt(d / 2).
    """
    p, d = np.broadcast_arrays(np.asarray(p, float), np.asarray(d, float))
    usual = (p > 0.0) & (p < 1.0) & (d > 0.0)
    out = np.where(p <= 0.0, -np.expm1(-np.maximum(d, 0.0)), np.minimum(p, 1.0))
    if not usual.any():
        return out
    a, b = p[usual], d[usual]
    level = b - a * np.log(a) - (1.0 - a) * np.log1p(-a)
    top = level / (1.0 - a)  # upper bound of the root
    u = np.minimum(top, -np.log1p(-np.minimum(a + np.sqrt(0.5 * b), 1.0 - 1e-16)))
    for _ in range(60):
        e = np.exp(-u)
        slope = (1.0 - a) - a * e / (1.0 - e)
        gap = (1.0 - a) * u - a * np.log1p(-e) - level
        step = np.divide(gap, slope, out=np.zeros_like(u), where=slope > 0.0)
        u = np.minimum(u - step, top)
        if (np.abs(step) * e <= 1e-9 * (1.0 - e - a)).all():
            break
    out[usual] = np.clip(1.0 - np.exp(-u), a, 1.0)
    return out


class UCB1(BoundPolicy):
    r"""Policy whose index is the upper confidence bound from Hoeffding's inequality.

    .. math:: \hat\mu_k + \sqrt{\frac{c \log t}{n_k}}

    for rewards scaled to [0, 1], after one pull of each arm. This is the simplest policy with logarithmic
    regret; it ignores variances.

    Parameters
    ----------
    n_arms : int
        Number of arms K.
    c : float, default 2.0
        Factor of log t under the root. Larger values make the numbers of pulls less variable, which
        matters if the costs of pulls differ (Neufeld et al. 2014, section 5).
    rewards : tuple (low, high) or RewardScale, default (0.0, 1.0)
        Range of rewards.

    References
    ----------
    Auer, Cesa-Bianchi & Fischer (2002), Machine Learning 47, 235-256. doi:10.1023/A:1013689704352

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.bandits import UCB1
    >>> rng = np.random.default_rng(1)
    >>> policy = UCB1(2)
    >>> for _ in range(1000):
    ...     pull = policy.ask(rng)
    ...     policy.tell(pull, rng.random() < (0.3, 0.6)[pull.arm])
    >>> bool(policy.counts[1] > 800)
    True
    """

    name = "ucb1"

    def __init__(self, n_arms: int, *, c: float = 2.0, rewards: Rewards = (0.0, 1.0)):
        super().__init__(n_arms, rewards=rewards)
        if not 0.0 < c < math.inf:
            raise ValueError(f"c must be positive and finite, got {c!r}.")
        self.c = float(c)

    def _bound(self, n: np.ndarray, mean: np.ndarray, variance: np.ndarray, t: float) -> np.ndarray:
        return mean + np.sqrt(self.c * np.log(t) / n)


class UCBV(BoundPolicy):
    r"""Policy whose index is the upper confidence bound from Bernstein's inequality.

    .. math::
        \hat\mu_k + \sqrt{\frac{2 \hat V_k \zeta \log t}{n_k}} + \frac{3 c \zeta \log t}{n_k}

    for rewards scaled to [0, 1], with empirical variances of divisor n, after one pull of each arm.
    It is better than UCB1 if variances are small and each arm has about a hundred pulls or more, because
    of the last term.

    Parameters
    ----------
    n_arms : int
        Number of arms K.
    zeta : float, default 1.2
        Factor of log t. With the default of `c`, the regret bound has the constant 10 at 1.2 (theorem 4 of
        the paper, as cited by Neufeld et al. 2014). Larger values make the numbers of pulls less variable.
    c : float, default 1.0
        Factor of the range term.
    rewards : tuple (low, high) or RewardScale, default (0.0, 1.0)
        Range of rewards.

    References
    ----------
    Audibert, Munos & Szepesvári (2009), Theoretical Computer Science 410, 1876-1902.
    doi:10.1016/j.tcs.2009.01.016

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.bandits import UCBV
    >>> rng = np.random.default_rng(1)
    >>> policy = UCBV(2)
    >>> for _ in range(2000):
    ...     pull = policy.ask(rng)
    ...     policy.tell(pull, (0.2, 0.7)[pull.arm] + 0.1 * rng.random())
    >>> bool(policy.counts[1] > 1800)
    True
    """

    name = "ucbv"

    def __init__(
        self, n_arms: int, *, zeta: float = 1.2, c: float = 1.0, rewards: Rewards = (0.0, 1.0)
    ):
        super().__init__(n_arms, rewards=rewards)
        if not 0.0 < zeta < math.inf:
            raise ValueError(f"zeta must be positive and finite, got {zeta!r}.")
        if not 0.0 <= c < math.inf:
            raise ValueError(f"c must be finite and not negative, got {c!r}.")
        self.zeta, self.c = float(zeta), float(c)

    def _bound(self, n: np.ndarray, mean: np.ndarray, variance: np.ndarray, t: float) -> np.ndarray:
        e = self.zeta * np.log(t)
        return mean + np.sqrt(2.0 * variance * e / n) + 3.0 * self.c * e / n


class KLUCB(BoundPolicy):
    r"""Policy whose index is the upper confidence bound from Chernoff's inequality.

    .. math::
        \max\{q : n_k \mathrm{KL}(\hat\mu_k, q) \le f(t)\}, \qquad f(t) = \log t + c \log\log t

    with the divergence of Bernoulli distributions, for rewards scaled to [0, 1], after one pull of each
    arm; f(1) = f(2) = f(3). The policy is optimal for Bernoulli rewards, and the bound never exceeds the
    range of rewards.

    Parameters
    ----------
    n_arms : int
        Number of arms K.
    c : float, default 3.0
        Factor of log log t; the analysis requires 3, but 0 performs better in practice.
    rewards : tuple (low, high) or RewardScale, default (0.0, 1.0)
        Range of rewards.

    References
    ----------
    Cappé, Garivier, Maillard, Munos & Stoltz (2013), Annals of Statistics 41, 1516-1541.
    doi:10.1214/13-AOS1119

    Examples
    --------
    >>> import numpy as np
    >>> from amc_pymc.bandits import KLUCB
    >>> rng = np.random.default_rng(1)
    >>> policy = KLUCB(2)
    >>> for _ in range(1000):
    ...     pull = policy.ask(rng)
    ...     policy.tell(pull, rng.random() < (0.3, 0.6)[pull.arm])
    >>> bool(policy.counts[1] > 900)
    True
    """

    name = "klucb"

    def __init__(self, n_arms: int, *, c: float = 3.0, rewards: Rewards = (0.0, 1.0)):
        super().__init__(n_arms, rewards=rewards)
        if not 0.0 <= c < math.inf:
            raise ValueError(f"c must be finite and not negative, got {c!r}.")
        self.c = float(c)

    def _bound(self, n: np.ndarray, mean: np.ndarray, variance: np.ndarray, t: float) -> np.ndarray:
        log_t = math.log(max(t, 3.0))
        upper = kl_upper(mean, (log_t + self.c * math.log(log_t)) / n)
        # Of arms at the end of the range, that with fewer pulls is the first.
        return np.where(mean >= 1.0, 1.0 - 1e-9 * np.log(n), upper)
