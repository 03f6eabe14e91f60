"""UCB1 of Auer, Cesa-Bianchi & Fischer (2002)."""

from __future__ import annotations

import math

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.bandits.policy import IndexPolicy, index_kernels
from amc_pymc.bandits.rewards import RewardScale
from amc_pymc.engine.jit import njit

__all__ = ["UCB1", "ucb1_index"]


@njit(cache=True)
def ucb1_index(n: float, mean: float, variance: float, t: float, constants: np.ndarray) -> float:
    """Return mean + sqrt(c log t / n), with constants = (c,)."""
    return mean + math.sqrt(constants[0] * math.log(t) / n)


class UCB1(IndexPolicy):
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
    _kernels = index_kernels(ucb1_index)

    def __init__(
        self,
        n_arms: int,
        *,
        c: float = 2.0,
        rewards: RewardScale | tuple[ArrayLike, ArrayLike] = (0.0, 1.0),
    ):
        super().__init__(n_arms, rewards=rewards)
        if not 0.0 < c < math.inf:
            raise ValueError(f"c must be positive and finite, got {c!r}.")
        self._constants = np.array([float(c)])
