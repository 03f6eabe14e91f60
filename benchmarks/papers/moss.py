"""MOSS of Audibert & Bubeck (2010)."""

from __future__ import annotations

import math

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.bandits.indices import BoundPolicy
from amc_pymc.bandits.rewards import RewardScale
from amc_pymc.engine.jit import njit

__all__ = ["MOSS", "moss_index"]


def moss_bound(n, mean, t, c, n_arms, horizon):
    """Return mean + sqrt(c log+(T / (K n)) / n), of arrays, or compiled for numbers; T = 0 stands for t."""
    log_term = np.log((horizon if horizon > 0.0 else t) / (n_arms * n))
    return mean + np.sqrt(c * np.maximum(log_term, 0.0) / n)


_moss = njit(cache=True)(moss_bound)


@njit(cache=True)
def moss_index(n, mean, variance, t, constants):
    """The bound of MOSS, constants = (c, K, T)."""
    return _moss(n, mean, t, constants[0], constants[1], constants[2])


class MOSS(BoundPolicy):
    r"""Policy whose bound stops exploring arms that are pulled more often than their share.

    .. math:: \hat\mu_k + \sqrt{\frac{c \max(\log(T / (K n_k)), 0)}{n_k}}

    for rewards scaled to [0, 1], after one pull of each arm. The worst-case regret has the smallest
    possible order, :math:`\sqrt{KT}`, without the logarithm of UCB1.

    Parameters
    ----------
    n_arms : int
        Number of arms K.
    horizon : int, optional
        Planned total number of pulls T. By default T is the number of the current pull, t.
    c : float, default 1.0
        Factor of the logarithm.
    rewards : tuple (low, high) or RewardScale, default (0.0, 1.0)
        Range of rewards.

    References
    ----------
    Audibert & Bubeck (2010), Journal of Machine Learning Research 11, 2785-2836.
    https://jmlr.org/papers/v11/audibert10a.html
    With t for T: Degenne & Perchet (2016), Proceedings of Machine Learning Research 48, 1587-1595.

    Examples
    --------
    >>> import numpy as np
    >>> from benchmarks.papers.moss import MOSS
    >>> rng = np.random.default_rng(1)
    >>> policy = MOSS(2, horizon=1000)
    >>> for _ in range(1000):
    ...     pull = policy.ask(rng)
    ...     policy.tell(pull, rng.random() < (0.3, 0.6)[pull.arm])
    >>> bool(policy.counts[1] > 900)
    True
    """

    name = "moss"

    def __init__(
        self,
        n_arms: int,
        *,
        horizon: int | None = None,
        c: float = 1.0,
        rewards: RewardScale | tuple[ArrayLike, ArrayLike] = (0.0, 1.0),
    ):
        super().__init__(n_arms, rewards=rewards)
        if horizon is not None and not 1 <= horizon < math.inf:
            raise ValueError(f"horizon must be at least 1 and finite, or None, got {horizon!r}.")
        if not 0.0 < c < math.inf:
            raise ValueError(f"c must be positive and finite, got {c!r}.")
        self.settings = (float(c), float(self.n_arms), float(horizon or 0))

    def _bound(self, n, mean, variance, t):
        return moss_bound(n, mean, t, *self.settings)
