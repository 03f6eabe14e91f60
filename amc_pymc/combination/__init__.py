"""Combination of unbiased estimators of one quantity: allocation of draws and combined estimate."""

from amc_pymc.combination.arms import (
    Arm,
    ArmError,
    Cost,
    FailedPull,
    Sample,
    as_arms,
    draw,
    join_samples,
)
from amc_pymc.combination.engine import (
    Combination,
    Estimate,
    Round,
    combine_arms,
    no_pulls,
    run_here,
)
from amc_pymc.combination.payoffs import Payoff
from amc_pymc.combination.rounds import Plan, plan_rounds

__all__ = [
    "Arm",
    "ArmError",
    "Combination",
    "Cost",
    "Estimate",
    "FailedPull",
    "Payoff",
    "Plan",
    "Round",
    "Sample",
    "as_arms",
    "combine_arms",
    "draw",
    "join_samples",
    "no_pulls",
    "plan_rounds",
    "run_here",
]
