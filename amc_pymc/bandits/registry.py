"""Policies by name."""

from __future__ import annotations

from typing import Any

from amc_pymc.bandits.contract import Policy
from amc_pymc.bandits.indices import KLUCB, UCB1, UCBV, RoundRobin
from amc_pymc.bandits.lcb import LCB
from amc_pymc.bandits.thompson import ThompsonSampling
from amc_pymc.bandits.ucbcv import UCBCV

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
