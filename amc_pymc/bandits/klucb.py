"""KL-UCB of Garivier & Cappé (2011) and Cappé et al. (2013)."""

from __future__ import annotations

import math

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.bandits.policy import IndexPolicy, index_kernels
from amc_pymc.bandits.rewards import RewardScale
from amc_pymc.engine.jit import njit

__all__ = ["KLUCB", "kl_upper", "klucb_index"]

#: Factor that covers rounding errors of a divergence.
_SLACK = 1.0 + 1e-6


@njit(cache=True)
def kl_upper(p: float, d: float) -> float:
    """Return the largest q with KL(Bernoulli(p), Bernoulli(q)) <= d, for p in [0, 1] and d >= 0.

    As a function of u = -log(1 - q), the divergence is h(u) - h(-log(1 - p)) with
    h(u) = (1 - p) u - p log(1 - exp(-u)), which is convex and nearly linear for large u. Newton's method
    therefore converges from any point to the right of p, and within a few steps from the first terms of
    the series of the root in sqrt(d).
    """
    if p >= 1.0:
        return 1.0
    if d <= 0.0:
        return max(p, 0.0)
    if p <= 0.0:
        return -math.expm1(-d)
    level = d - p * math.log(p) - (1.0 - p) * math.log(1.0 - p)
    top = level / (1.0 - p)  # upper bound of the root
    u = top
    series = math.sqrt(2.0 * p * (1.0 - p) * d) + 2.0 / 3.0 * (1.0 - 2.0 * p) * d
    if 0.0 < series < 1.0 - p:
        u = min(u, -math.log(1.0 - p - series))
    e = math.exp(-u)
    for _ in range(60):
        rest = 1.0 - e
        slope = (1.0 - p) - p * e / rest
        if not slope > 0.0:
            break
        step = ((1.0 - p) * u - p * math.log(rest) - level) / slope
        before, u = e, min(u - step, top)
        e = math.exp(-u)
        if abs(step) * max(before, e) < 1e-6 * (1.0 - e - p):
            break  # quadratic convergence: the next step is negligible
    return min(max(p, 1.0 - e), 1.0)


@njit(cache=True)
def klucb_index(n: float, mean: float, variance: float, t: float, constants: np.ndarray) -> float:
    """Return the largest q with n KL(mean, q) <= log t + c log log t, t at least 3; constants = (c,)."""
    if mean >= 1.0:
        return 1.0 - 1e-9 * math.log(n)  # ties go to the arm with fewer pulls
    log_t = math.log(max(t, 3.0))
    return kl_upper(mean, (log_t + constants[0] * math.log(log_t)) / n)


@njit(cache=True)
def divergence(p: float, q: float) -> float:
    """Return KL(Bernoulli(p), Bernoulli(q)), q strictly between 0 and 1."""
    out = 0.0
    if p > 0.0:
        out += p * math.log(p / q)
    if p < 1.0:
        out += (1.0 - p) * math.log((1.0 - p) / (1.0 - q))
    return out


@njit(cache=True)
def klucb_beaten(
    n: float, mean: float, variance: float, t: float, constants: np.ndarray, x: float
) -> bool:
    """Whether the index is certainly below x, which takes two logarithms in place of a search for a root."""
    if not mean < x <= 1.0:
        return x > 1.0
    if x == 1.0:
        return False
    log_t = math.log(max(t, 3.0))
    return n * divergence(mean, x) > (log_t + constants[0] * math.log(log_t)) * _SLACK


class KLUCB(IndexPolicy):
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
    _kernels = index_kernels(klucb_index, klucb_beaten)

    def __init__(
        self,
        n_arms: int,
        *,
        c: float = 3.0,
        rewards: RewardScale | tuple[ArrayLike, ArrayLike] = (0.0, 1.0),
    ):
        super().__init__(n_arms, rewards=rewards)
        if not 0.0 <= c < math.inf:
            raise ValueError(f"c must be finite and not negative, got {c!r}.")
        self._constants = np.array([float(c)])
