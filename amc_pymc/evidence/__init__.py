"""Estimators of model evidence: a pilot run, and arms for a bandit made from what it found."""

from amc_pymc.evidence.arms import (
    GRADIENT_COST,
    AnnealingArm,
    ImportanceArm,
    QuasiArm,
    SequentialArm,
)
from amc_pymc.evidence.bridge import Bridge, bridge
from amc_pymc.evidence.coverage import effective_beside
from amc_pymc.evidence.draws_bridge import Stage, bridge_draws
from amc_pymc.evidence.pilot import Pilot, explore, overlooked
from amc_pymc.evidence.portfolio import ARMS, Portfolio, make_portfolio
from amc_pymc.evidence.posterior import PosteriorDraws, posterior_draws
from amc_pymc.evidence.watch import Highest, Watch, collected

__all__ = [
    "ARMS",
    "GRADIENT_COST",
    "AnnealingArm",
    "Bridge",
    "Highest",
    "ImportanceArm",
    "Pilot",
    "Portfolio",
    "PosteriorDraws",
    "QuasiArm",
    "SequentialArm",
    "Stage",
    "Watch",
    "bridge",
    "bridge_draws",
    "collected",
    "effective_beside",
    "explore",
    "make_portfolio",
    "overlooked",
    "posterior_draws",
]
