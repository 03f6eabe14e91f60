"""Bandit policies: ask which arm to pull, tell what it gave."""

from amc_pymc.bandits.policy import IndexPolicy, Policy, Pull, Pulls
from amc_pymc.bandits.rewards import KnownRange, LogLoss, RewardScale, RunningRange
from amc_pymc.bandits.ucb1 import UCB1

__all__ = [
    "UCB1",
    "IndexPolicy",
    "KnownRange",
    "LogLoss",
    "Policy",
    "Pull",
    "Pulls",
    "RewardScale",
    "RunningRange",
]
