"""Bandit policies: ask which arm to pull, tell what it gave.

The contract of all policies for K arms (:class:`HOO`, which searches a box, does not keep it):

State
    Statistics of each arm, the pulls that are pending, and the range of rewards. ``copy()`` and pickles carry all
    of it. A policy holds no generator.
Ask
    ``ask(rng)`` returns a :class:`Pull`, ``ask(rng, n)`` a batch of :class:`Pulls`. Pulls are pending until they are
    told or dropped. ``ask(rng, n, among=arms)`` chooses among some arms, as if there were no others.
Tell
    ``tell(pull, value, cost, controls=...)`` reports a pull or a batch, in any order. For each arm, a batch
    leaves the same state as its pulls one by one, except for rounding. A pull that is not pending, a value or cost that is
    not a number, and missing controls raise a ValueError that names the pull; nothing is recorded then.
    ``drop(pull)`` takes back a pull that gave no value.
Scale
    Values are rewards, the larger the better, in the range or on the scale given by `rewards`:
    :class:`KnownRange`, :class:`RunningRange` or :class:`LogLoss`. :class:`LCB` is told estimates instead, on
    the scale of its argument `values`. Statistics and ``index()`` are on the same scale.
Costs
    A cost is of the pull that it is told with, in any unit, and not negative. Only policies with ``uses_costs`` read
    it. Others ignore it; for them, a payoff such as minus cost times squared difference has the cost in the
    reward (:mod:`amc_pymc.bandits.payoffs`). Likewise, control variates are read if
    ``uses_controls``.
Coins
    A policy that randomises rewards does so by ``pull.coin``, drawn when the pull was asked for, so a run depends
    only on the generator passed to ``ask``.

A new policy is a subclass of :class:`Policy` with a ``name`` and ``index()``; it pulls the arm with the largest index.
One that chooses otherwise also defines ``_choose(rng, arms, n)``, and one that keeps more than means and variances
``_receive()``. A formula of count, mean and variance is the method ``_bound()`` of a :class:`BoundPolicy`. To give it
a name, add it to :data:`POLICIES`. The tests of the
contract run for all policies with a name.

Examples
--------
>>> import numpy as np
>>> from amc_pymc.bandits import Policy
>>> class Greedy(Policy):
...     name = "greedy"
...
...     def index(self):
...         return np.where(self.counts + self.pending > 0, np.nan_to_num(self.means), np.inf)
>>> rng, policy = np.random.default_rng(1), Greedy(3)
>>> for _ in range(20):
...     pull = policy.ask(rng)
...     policy.tell(pull, (0.2, 0.5, 0.4)[pull.arm], cost=2.0)
>>> policy.counts
array([ 1, 18,  1])
"""

from typing import Any

from amc_pymc.bandits.contract import Policy, Pull, Pulls
from amc_pymc.bandits.hoo import HOO
from amc_pymc.bandits.indices import (
    KLUCB,
    UCB1,
    UCBV,
    BoundPolicy,
    IndexPolicy,
    RoundRobin,
    kl_upper,
)
from amc_pymc.bandits.lcb import LCB
from amc_pymc.bandits.rewards import KnownRange, LogLoss, RewardScale, RunningRange
from amc_pymc.bandits.thompson import ThompsonSampling
from amc_pymc.bandits.ucbcv import UCBCV

__all__ = [
    "HOO",
    "KLUCB",
    "LCB",
    "POLICIES",
    "UCB1",
    "UCBCV",
    "UCBV",
    "BoundPolicy",
    "IndexPolicy",
    "KnownRange",
    "LogLoss",
    "Policy",
    "Pull",
    "Pulls",
    "RewardScale",
    "RoundRobin",
    "RunningRange",
    "ThompsonSampling",
    "kl_upper",
    "make_policy",
]

#: Policies for a finite number of arms, by name.
POLICIES: dict[str, type[Policy]] = {
    cls.name: cls for cls in (LCB, UCB1, UCBV, KLUCB, ThompsonSampling, UCBCV, RoundRobin)
}


def make_policy(policy: str, n_arms: int, **settings: Any) -> Policy:
    """Make a policy from its name.

    Parameters
    ----------
    policy : str
    n_arms : int
        Number of arms K.
    **settings
        Arguments of the policy.

    Returns
    -------
    Policy

    Raises
    ------
    ValueError
        If the name is unknown.

    Examples
    --------
    >>> from amc_pymc.bandits import make_policy
    >>> make_policy("ucb1", 3, c=4.0).n_arms
    3
    """
    if policy not in POLICIES:
        names = ", ".join(map(repr, sorted(POLICIES)))
        raise ValueError(f"policy must be a Policy or one of {names}, got {policy!r}.")
    return POLICIES[policy](n_arms, **settings)
