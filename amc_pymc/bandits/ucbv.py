"""UCB-V of Audibert, Munos & Szepesvári (2009)."""

from __future__ import annotations

import math

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.bandits.policy import IndexPolicy, index_kernels
from amc_pymc.bandits.rewards import RewardScale
from amc_pymc.engine.jit import njit

__all__ = ["UCBV", "ucbv_index"]


@njit(cache=True)
def ucbv_index(n: float, mean: float, variance: float, t: float, constants: np.ndarray) -> float:
    """Return mean + sqrt(2 V E / n) + 3 c E / n, with E = zeta log t and constants = (zeta, c)."""
    e = constants[0] * math.log(t)
    return mean + math.sqrt(2.0 * variance * e / n) + 3.0 * constants[1] * e / n


class UCBV(IndexPolicy):
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
    _kernels = index_kernels(ucbv_index)

    def __init__(
        self,
        n_arms: int,
        *,
        zeta: float = 1.2,
        c: float = 1.0,
        rewards: RewardScale | tuple[ArrayLike, ArrayLike] = (0.0, 1.0),
    ):
        super().__init__(n_arms, rewards=rewards)
        if not 0.0 < zeta < math.inf:
            raise ValueError(f"zeta must be positive and finite, got {zeta!r}.")
        if not 0.0 <= c < math.inf:
            raise ValueError(f"c must be finite and not negative, got {c!r}.")
        self._constants = np.array([float(zeta), float(c)])
