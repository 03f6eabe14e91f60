"""Policies by name."""

from __future__ import annotations

from typing import Any

from amc_pymc.bandits.contract import Policy
from amc_pymc.bandits.indices import KLUCB, UCB1, UCBV, RoundRobin
from amc_pymc.bandits.lcb import LCB
from amc_pymc.bandits.thompson import ThompsonSampling
from amc_pymc.bandits.ucbcv import UCBCV

__all__ = ["POLICIES", "make_policy", "policy_class"]

#: Policies for a finite number of arms, by name.
POLICIES: dict[str, type[Policy]] = {
    cls.name: cls for cls in (LCB, UCB1, UCBV, KLUCB, ThompsonSampling, UCBCV, RoundRobin)
}


def make_policy(policy: str | type[Policy] | Policy, n_arms: int, **settings: Any) -> Policy:
    """Make a policy from its name or class, or check a given policy.

    Parameters
    ----------
    policy : str, Policy class or Policy
    n_arms : int
        Number of arms K.
    **settings
        Arguments of the policy; not allowed if a policy is given.

    Returns
    -------
    Policy

    Raises
    ------
    ValueError
        If the name is unknown, or the given policy has another number of arms.

    Examples
    --------
    >>> from amc_pymc.bandits import make_policy
    >>> make_policy("ucb1", 3, c=4.0).n_arms
    3
    """
    if isinstance(policy, Policy):
        if policy.n_arms != n_arms:
            raise ValueError(f"policy is of {policy.n_arms} arms, there are {n_arms}.")
        if settings:
            raise TypeError(
                f"policy is made already, so {', '.join(settings)} must be given where it is made."
            )
        return policy
    return policy_class(policy)(n_arms, **settings)


def policy_class(policy: str | type[Policy]) -> type[Policy]:
    """Return the class of a policy from its name, or the class itself.

    Raises
    ------
    ValueError, TypeError
        If the name is unknown, or `policy` is neither a name nor a Policy class.

    Examples
    --------
    >>> from amc_pymc.bandits import policy_class
    >>> policy_class("ucb1").__name__
    'UCB1'
    """
    if isinstance(policy, str):
        if policy not in POLICIES:
            names = ", ".join(map(repr, sorted(POLICIES)))
            raise ValueError(f"policy must be one of {names}, got {policy!r}.")
        return POLICIES[policy]
    if not (isinstance(policy, type) and issubclass(policy, Policy)):
        raise TypeError(f"policy must be a name, a Policy class or a Policy, got {policy!r}.")
    return policy
