"""The tightest of several upper confidence bounds."""

from __future__ import annotations

import math

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from numpy.typing import ArrayLike

from amc_pymc.bandits.indices import BoundPolicy, klucb_bound, ucb1_bound, ucbv_bound
from amc_pymc.bandits.rewards import RewardScale
from amc_pymc.engine.jit import njit
from benchmarks.papers.bandit_kernels import klucb_index, ucb1_index, ucbv_index

__all__ = ["TightestBound", "tightest_index"]

Bound = Literal["ucb1", "ucbv", "klucb"]


@njit(cache=True)
def tightest_index(
    n: float, mean: float, variance: float, t: float, constants: np.ndarray
) -> float:
    """Return the smallest of the m bounds in use, each at m t.

    constants = (use of UCB1, UCB-V, KL-UCB as 0 or 1, then their own constants c; zeta, c; c).
    """
    t = t * (constants[0] + constants[1] + constants[2])
    least = np.inf
    if constants[0] > 0.0:
        least = min(least, ucb1_index(n, mean, variance, t, constants[3:4]))
    if constants[1] > 0.0:
        least = min(least, ucbv_index(n, mean, variance, t, constants[4:6]))
    if constants[2] > 0.0:
        least = min(least, klucb_index(n, mean, variance, t, constants[6:7]))
    return least


class TightestBound(BoundPolicy):
    r"""Policy whose index is the tightest of several upper confidence bounds.

    The index of an arm is the smallest of the selected indices of :class:`UCB1`, :class:`UCBV` and
    :class:`KLUCB`. By the union bound, all m of them hold if each has an m-th of the error probability:
    :math:`\log t` becomes :math:`\log t + \log m`, which suffices for :math:`c \ge 1/2` in UCB1 and
    :math:`\zeta \ge 1` in UCB-V. KL-UCB is tighter for few pulls, and UCB-V later if variances are small
    (Neufeld et al. 2014, section 2).

    Parameters
    ----------
    n_arms : int
        Number of arms K.
    bounds : sequence of {"ucb1", "ucbv", "klucb"}, default all three
    ucb1_c, ucbv_zeta, ucbv_c, klucb_c : float
        Constants of the bounds, with the defaults of their policies.
    rewards : tuple (low, high) or RewardScale, default (0.0, 1.0)
        Range of rewards.

    References
    ----------
    Neufeld, György, Schuurmans & Szepesvári (2014), Adaptive Monte Carlo via bandit allocation,
    Proceedings of Machine Learning Research 32(2), 1944-1952.

    Examples
    --------
    >>> import numpy as np
    >>> from benchmarks.papers.tightest import TightestBound
    >>> rng = np.random.default_rng(1)
    >>> policy = TightestBound(2, bounds=("ucbv", "klucb"))
    >>> for _ in range(1000):
    ...     pull = policy.ask(rng)
    ...     policy.tell(pull, rng.random() < (0.3, 0.6)[pull.arm])
    >>> bool(policy.counts[1] > 900)
    True
    """

    name = "tightest"

    def __init__(
        self,
        n_arms: int,
        bounds: Sequence[Bound] = get_args(Bound),
        *,
        ucb1_c: float = 2.0,
        ucbv_zeta: float = 1.2,
        ucbv_c: float = 1.0,
        klucb_c: float = 3.0,
        rewards: RewardScale | tuple[ArrayLike, ArrayLike] = (0.0, 1.0),
    ):
        super().__init__(n_arms, rewards=rewards)
        known = get_args(Bound)
        if isinstance(bounds, str) or not bounds or not set(bounds) <= set(known):
            raise ValueError(f"bounds must be one or more of {known}, got {bounds!r}.")
        for label, value, least in (
            ("ucb1_c", ucb1_c, 0.5),
            ("ucbv_zeta", ucbv_zeta, 1.0),
            ("ucbv_c", ucbv_c, 0.0),
            ("klucb_c", klucb_c, 0.0),
        ):
            if not least <= value < math.inf:
                raise ValueError(f"{label} must be finite and at least {least}, got {value!r}.")
        uses = [float(bound in bounds) for bound in known]
        self.settings = (*uses, ucb1_c, ucbv_zeta, ucbv_c, klucb_c)

    def _bound(self, n, mean, variance, t):
        *uses, ucb1_c, zeta, ucbv_c, klucb_c = self.settings
        t = t * sum(uses)
        bounds = (
            ucb1_bound(n, mean, t, ucb1_c),
            ucbv_bound(n, mean, variance, t, zeta, ucbv_c),
            klucb_bound(n, mean, t, klucb_c),
        )
        return np.min([b for b, use in zip(bounds, uses, strict=True) if use], axis=0)
