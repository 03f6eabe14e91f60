"""Bandit policies: ask which arm to pull, tell its reward."""

from amc_pymc.bandits.baselines import FixedArm, RandomChoice, RoundRobin
from amc_pymc.bandits.contract import Bandit, Pull, Pulls
from amc_pymc.bandits.control_variates import (
    ControlledMean,
    batching,
    jackknife,
    known_variance,
    regression,
    splitting,
)
from amc_pymc.bandits.eucbv import EUCBV, eucbv_index
from amc_pymc.bandits.hoo import HOO, HOOCell, HOOPull
from amc_pymc.bandits.klucb import KLUCB, kl_upper, klucb_index
from amc_pymc.bandits.lcb import LCB, lcb_index
from amc_pymc.bandits.moss import MOSS, moss_index
from amc_pymc.bandits.policy import IndexPolicy, Policy
from amc_pymc.bandits.registry import POLICIES, make_policy, policy_class
from amc_pymc.bandits.rewards import KnownRange, LogLoss, RewardScale, RunningRange
from amc_pymc.bandits.robust import (
    RobustMean,
    RobustUCB,
    catoni_mean,
    median_of_means,
    truncated_mean,
)
from amc_pymc.bandits.student import student_quantile
from amc_pymc.bandits.thompson import ThompsonSampling
from amc_pymc.bandits.tightest import TightestBound, tightest_index
from amc_pymc.bandits.top_two import TopTwoThompsonSampling
from amc_pymc.bandits.ucb1 import UCB1, ucb1_index
from amc_pymc.bandits.ucbcv import UCBCV, ucbcv_index
from amc_pymc.bandits.ucbv import UCBV, ucbv_index
from amc_pymc.bandits.variance_bounds import (
    VarianceInterval,
    kl_variance_delta,
    kl_variance_error,
    kl_variance_interval,
)

__all__ = [
    "EUCBV",
    "HOO",
    "KLUCB",
    "LCB",
    "MOSS",
    "POLICIES",
    "UCB1",
    "UCBCV",
    "UCBV",
    "Bandit",
    "ControlledMean",
    "FixedArm",
    "HOOCell",
    "HOOPull",
    "IndexPolicy",
    "KnownRange",
    "LogLoss",
    "Policy",
    "Pull",
    "Pulls",
    "RandomChoice",
    "RewardScale",
    "RobustMean",
    "RobustUCB",
    "RoundRobin",
    "RunningRange",
    "ThompsonSampling",
    "TightestBound",
    "TopTwoThompsonSampling",
    "VarianceInterval",
    "batching",
    "catoni_mean",
    "eucbv_index",
    "jackknife",
    "kl_upper",
    "kl_variance_delta",
    "kl_variance_error",
    "kl_variance_interval",
    "klucb_index",
    "known_variance",
    "lcb_index",
    "make_policy",
    "median_of_means",
    "moss_index",
    "policy_class",
    "regression",
    "splitting",
    "student_quantile",
    "tightest_index",
    "truncated_mean",
    "ucb1_index",
    "ucbcv_index",
    "ucbv_index",
]
